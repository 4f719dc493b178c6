"""Declaration of a flag: a field of a settings class, with what the flag is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Kind:
    """Kind of a flag: whether it is saved, and whether it may change on resume.

    Attributes:
        saved: Whether `config.yaml` of a run holds it.
        changeable: Whether it may change when a run is resumed.
        decides: Whether it decides the result: all workers must agree on it, and a folder of results holds results of
            one value.
    """

    saved: bool
    changeable: bool
    decides: bool


RESULT = Kind(saved=True, changeable=False, decides=True)
"""Decides what a run learns or writes."""
TUNABLE = Kind(saved=True, changeable=True, decides=True)
"""Decides what a run learns, and may change from one start of the run to the next."""
PLACE = Kind(saved=True, changeable=True, decides=False)
"""Says where a run is made and with what resources."""
SESSION = Kind(saved=False, changeable=True, decides=False)
"""Holds for one start of the program."""

REQUIRED: Any = MISSING
"""Default of a flag that must be given."""


@dataclass(frozen=True)
class Flag:
    """A flag of the command line.

    Attributes:
        help: Help text; `%(default)s` is replaced.
        kind: What the flag is.
        path: Whether the value is a path, which is saved as an absolute one.
        exists: What the value must be on disk: "file", "folder", "file or folder", or "" if it is no path that is read.
        positional: Whether it has no name on the command line.
        interchangeable: Values with the same results; a resumed run may change from one to another.
        words: Values that are no paths, of a flag whose value is else a path.
        options: Arguments of `argparse`: `type`, `choices`, `nargs`, `metavar`.
    """

    help: str
    kind: Kind
    path: bool
    exists: str
    positional: bool
    interchangeable: tuple[str, ...]
    words: tuple[str, ...]
    options: Mapping[str, Any]


def flag(
    default: Any = None,
    *,
    help: str,
    kind: Kind = RESULT,
    path: bool = False,
    exists: str = "",
    positional: bool = False,
    interchangeable: tuple[str, ...] = (),
    words: tuple[str, ...] = (),
    **options: Any,
) -> Any:
    """Return the field of a flag; without options and with default False, it is a switch.

    Args:
        default: Value if the flag is not given; `REQUIRED` if it must be.
        help: See `Flag`.
        kind: See `Flag`.
        path: See `Flag`.
        exists: See `Flag`.
        positional: See `Flag`.
        interchangeable: See `Flag`.
        words: See `Flag`.
        **options: See `Flag`.
    """
    declared = Flag(help, kind, path, exists, positional, interchangeable, words, options)
    return field(default=default, metadata={"flag": declared})


def redeclared(
    settings: type, name: str, default: Any, help: str | None = None, **options: Any
) -> Any:
    """Return the field of a flag of another settings class with another default.

    Args:
        settings: Class that declares the flag.
        name: Name of its field.
        default: Default.
        help: Help text, if it differs.
        **options: Arguments of `argparse` that differ, see `Flag`.
    """
    declared: Flag = flags_of(settings)[name]
    options = {**declared.options, **options}
    other = replace(declared, help=help or declared.help, options=options)
    return field(default=default, metadata={"flag": other})


def sections_of(settings: type) -> dict[str, str]:
    """Return the section of the help of each flag: the first `SECTION` from the class that declares it upwards.

    Flags are in the order of the help: those of the base classes first. A flag that a class declares again keeps its
    place.
    """
    sections: dict[str, str] = {}
    for base in settings.__bases__:
        for name, section in sections_of(base).items():
            sections.setdefault(name, section)
    for name in vars(settings).get("__annotations__", {}):
        sections.setdefault(name, "")
    title = vars(settings).get("SECTION", "")
    return {name: section or title for name, section in sections.items()}


def fields_of(settings: type) -> dict[str, Field[Any]]:
    """Return the fields of a settings class by name, in the order of the help."""
    by_name = {each.name: each for each in fields(settings)}
    return {name: by_name[name] for name in sections_of(settings)}


def flags_of(settings: type) -> dict[str, Flag]:
    """Return the flags of a settings class by the name of their fields."""
    return {name: each.metadata["flag"] for name, each in fields_of(settings).items()}


def to_save(settings: Any) -> dict[str, Any]:
    """Return what `config.yaml` of the run holds, with absolute paths."""
    return {
        name: saved_value(declared, getattr(settings, name))
        for name, declared in flags_of(type(settings)).items()
        if declared.kind.saved
    }


def saved_value(declared: Flag, value: Any) -> Any:
    """Return a value as YAML holds it."""
    if declared.path and value and value not in declared.words:
        return str(Path(value).resolve())
    return list(value) if isinstance(value, tuple) else value


def deciding(settings: Any) -> dict[str, Any]:
    """Return the settings that decide the result, as YAML holds them."""
    return {
        name: saved_value(declared, getattr(settings, name))
        for name, declared in flags_of(type(settings)).items()
        if declared.kind.decides
    }
