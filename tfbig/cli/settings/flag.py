"""Declaration of a flag: a field of a settings class, with what the flag is."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Kind:
    """Kind of a flag: whether it is saved, whether it may change on resume, and whether it decides the result.

    | kind             | saved | may change | decides |
    |------------------|-------|------------|---------|
    | `DECIDES_RESULT` | yes   | no         | yes     |
    | `TUNABLE`        | yes   | yes        | yes     |
    | `ENVIRONMENT`    | yes   | yes        | no      |
    | `THIS_START`     | no    | yes        | no      |

    Attributes:
        saved: Whether `config.yaml` of a run holds it.
        changeable: Whether it may change when a run is resumed.
        decides: Whether it decides the result: all workers must agree on it, and a folder of results holds results of
            one value.
    """

    saved: bool
    changeable: bool
    decides: bool


DECIDES_RESULT = Kind(saved=True, changeable=False, decides=True)
"""Of flags that decide what a run learns or writes."""
TUNABLE = Kind(saved=True, changeable=True, decides=True)
"""Of flags that decide what a run learns, and may change from one start of the run to the next."""
ENVIRONMENT = Kind(saved=True, changeable=True, decides=False)
"""Of flags that say where a run is made, and with what resources."""
THIS_START = Kind(saved=False, changeable=True, decides=False)
"""Of flags that hold for one start of the program."""

TRAINING = ("network", "optimisation", "patches")
"""Sections of flags that are for training: an evaluation has the network of its run."""
REQUIRED: Any = MISSING
"""Default of a flag that must be given."""


class Unless(tuple[Any, ...]):
    """Values of another flag with which a flag does not apply."""


GIVEN = Unless((None, False))
"""A flag applies if the other one is given."""
Conditions = Mapping[str, tuple[Any, ...]]
"""Values of other flags: those with which a flag applies, or `Unless` those with which it does not."""


@dataclass(frozen=True)
class Flag:
    """A flag of the command line.

    Attributes:
        name: Name of the field.
        default: Value if the flag is not given; `REQUIRED` if it must be.
        annotation: Type of the field, as it is written.
        section: Title of its group in the help.
        help: What it is. The help adds the default, unless the text says it.
        kind: Whether it is saved and may change.
        path: Whether the value is a path, which is saved as an absolute one.
        exists: What the value must be on disk: "file", "folder", "file or folder", or "" if it is no path that is read.
        positional: Whether it has no name on the command line.
        same_results: Values with the same results; a resumed run may change from one to another.
        not_paths: Values that are no paths, of a flag whose value is else a path.
        type: Function that parses the text of a value; None for text.
        choices: The values that can be chosen; the meaning of each if it is a mapping.
        nargs: How many values: None for one, a number, "+", "*", or "?" for a positional one that may be missing.
        metavar: What the help calls the value, or each of several.
        only_if: The flag applies only with these values of others.
        was: Former names, which files may hold.
        trains: Whether it plays a part in training only, so that an evaluation has no such flag.
    """

    name: str
    default: Any
    annotation: str
    section: str = ""
    help: str = ""
    kind: Kind = DECIDES_RESULT
    path: bool = False
    exists: str = ""
    positional: bool = False
    same_results: tuple[str, ...] = ()
    not_paths: tuple[str, ...] = ()
    type: Callable[[str], Any] | None = None
    choices: Sequence[Any] | Mapping[str, str] | None = None
    nargs: int | str | None = None
    metavar: str | tuple[str, ...] | None = None
    only_if: Conditions = field(default_factory=dict)
    was: tuple[str, ...] = ()
    trains: bool = False

    @property
    def is_switch(self) -> bool:
        """True if the flag has no value on the command line."""
        options = (self.type, self.choices, self.nargs)
        return self.default is False and not any(each is not None for each in options)

    @property
    def shown(self) -> str:
        """The flag as it is typed, or what the help calls a positional value."""
        if not self.positional:
            return with_dashes(self.name)
        return self.metavar if isinstance(self.metavar, str) else self.name


def flag(default: Any = None, **declared: Any) -> Any:
    """Declare a flag, as the default of a field; `declared` are attributes of `Flag` from `section` on.

    `default` is `REQUIRED` if the flag must be given.

    A class that declares a flag of a class above it again gives what differs only, and if that is the default, needs
    no call: `lr: float = 0.01`.
    """
    return field(default=default, metadata=declared)


def with_dashes(name: str) -> str:
    """Write `batch_size` as `--batch-size`."""
    return f"--{name.replace('_', '-')}"


def flags_of(settings: type) -> Mapping[str, Flag]:
    """Return the flags of a settings class by name, in the order of the help: those of the base classes first.

    The section of a flag, if it says none, and the condition `ONLY_IF` of all flags of a class are those of the class
    that first declares the flag. Flags of some sections are for training, unless they say otherwise.
    """
    flags = {}
    for name in _names(settings):
        classes = [each for each in reversed(settings.__mro__) if name in _own(each)]
        declared: dict[str, Any] = {}
        for each in classes:
            declared |= _fields(each)[name].metadata
        whole, first = _fields(settings)[name], classes[0]
        declared["only_if"] = {**vars(first).get("ONLY_IF", {}), **declared.get("only_if", {})}
        declared.setdefault(
            "section", getattr(first, "SECTION", "") or getattr(settings, "SECTION", "")
        )
        declared.setdefault("trains", declared["section"] in TRAINING)
        flags[name] = Flag(name, whole.default, str(whole.type), **declared)
    return flags


def _names(settings: type) -> dict[str, None]:
    """The names of the flags in order, as the keys of a dictionary."""
    names: dict[str, None] = {}
    for base in settings.__bases__:
        names |= _names(base)
    return names | dict.fromkeys(_own(settings))


def _own(settings: type) -> Mapping[str, Any]:
    """The fields that a class declares itself, without class variables such as `SECTION` and `ONLY_IF`."""
    own: Mapping[str, Any] = vars(settings).get("__annotations__", {})
    return {name: each for name, each in own.items() if not str(each).startswith("ClassVar")}


def _fields(settings: Any) -> dict[str, Field[Any]]:
    """The fields of a settings class by name."""
    return {each.name: each for each in fields(settings)}


def with_current_names(values: Mapping[Any, Any], settings: type) -> dict[Any, Any]:
    """Rename the values of a file as their settings are called now."""
    now = {old: name for name, each in flags_of(settings).items() for old in each.was}
    return {now.get(name, name): value for name, value in values.items()}


def to_save(settings: Any) -> dict[str, Any]:
    """The settings that `config.yaml` of the run holds, with absolute paths."""
    return {
        name: saved_value(declared, getattr(settings, name))
        for name, declared in flags_of(type(settings)).items()
        if declared.kind.saved
    }


def saved_value(declared: Flag, value: Any) -> Any:
    """A value as YAML holds it."""
    if declared.path and value and value not in declared.not_paths:
        return str(Path(value).resolve())
    return list(value) if isinstance(value, tuple) else value


def deciding(settings: Any) -> dict[str, Any]:
    """The settings that decide the result, as YAML holds them."""
    return {
        name: saved_value(declared, getattr(settings, name))
        for name, declared in flags_of(type(settings)).items()
        if declared.kind.decides
    }
