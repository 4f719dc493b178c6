"""Settings from the values of files and of the command line, merged as one mapping and checked once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from typing import Any, TypeVar

from tfbig.cli.paths import FlagError
from tfbig.cli.settings import applies, flag_errors
from tfbig.cli.settings.flag import Flag, flags_of, saved_value

S = TypeVar("S")


@dataclass(frozen=True)
class Layer:
    """Values by the name of their setting, and where they are from.

    Attributes:
        values: The values: text of the command line, or what a file holds.
        file: The file; nothing for the command line.
        is_run: Whether it is the file of a run, which holds every setting, those that play no part in it too.
    """

    values: Mapping[str, Any]
    file: str = ""
    is_run: bool = False

    def shown(self, flag: Flag) -> str:
        """The setting, as an error names it."""
        return f"{self.file}: {flag.name}" if self.file else flag.shown


def last_value(layers: Sequence[Layer], name: str) -> Any:
    """The last value of a setting in the layers; None if no layer has it."""
    found = [layer.values[name] for layer in layers if layer.values.get(name) is not None]
    last = found[-1] if found else None
    return next(iter(last), None) if isinstance(last, list) else last


def merged(
    settings: type[S],
    layers: Sequence[Layer],
    command: str,
    derive: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict,
) -> S:
    """Merge layers over the defaults, where later layers win, and check the result.

    `derive` adds to the given values what follows from them; `command` lists the flags, for errors.

    Raises:
        FlagError: A setting does not exist, a value is not one of its flag, or a flag is missing or does not apply.
    """
    flags = flags_of(settings)
    values = {name: flag.default for name, flag in flags.items()}
    source: dict[str, int] = {}
    with flag_errors.listed_by(command):
        for place, layer in enumerate(layers):
            for name, raw in layer.values.items():
                if (flag := _flag(name, flags, layer)) and raw is not None:
                    source[flag.name] = place
                    is_default = layer.file and raw == saved_value(flag, flag.default)
                    shown = layer.shown(flag)
                    values[flag.name] = flag.default if is_default else value_of(flag, raw, shown)
        missing = [flags[name] for name, each in values.items() if each is MISSING]
        if missing:
            raise FlagError(" ".join(map(flag_errors.missing, missing)))
    given = dict(source)
    derived = derive({name: values[name] for name in given})
    values |= derived
    source = dict.fromkeys(derived, len(layers)) | source
    for name, place in given.items():
        if not layers[place].is_run and values[name] != flags[name].default:
            _check_applies(flags[name], flags, values, source, layers[place])
    return settings(**values)


def value_of(flag: Flag, raw: Any, shown: str) -> Any:
    """Parse the value of a flag, from text or from YAML, whose numbers are read as text is.

    Raises:
        FlagError: It is none.
    """
    given = list(raw) if isinstance(raw, list | tuple) else [raw]
    if flag.is_switch:
        if given not in ([True], [False]):
            raise FlagError(f"{shown}: expected no value; found {' '.join(map(repr, given))}.")
        return given[0]
    if any(isinstance(each, bool) for each in given) or not _fits(len(given), flag):
        raise FlagError(flag_errors.wrong_number(flag, shown))
    values = tuple(_single(flag, str(each), shown) for each in given)
    return values[0] if flag.nargs in (None, "?") else values


def _fits(number: int, flag: Flag) -> bool:
    """Tell whether a flag can have so many values."""
    if isinstance(flag.nargs, int):
        return number == flag.nargs
    return number == 1 or (number > 1 and flag.nargs in ("+", "*"))


def _single(flag: Flag, text: str, shown: str) -> Any:
    """Parse one of the values of a flag, and check that it can be chosen."""
    try:
        value = flag.type(text) if flag.type else text
    except ValueError as error:
        raise FlagError(flag_errors.wrong_value(flag, shown, text, error)) from None
    if flag.choices is not None and value not in flag.choices:
        raise FlagError(flag_errors.no_choice(shown, value, flag.choices))
    return value


def _flag(name: Any, flags: Mapping[str, Flag], layer: Layer) -> Flag | None:
    """Find the flag of a setting of a layer, which a file may call by a former name."""
    field = str(name).replace("-", "_")
    flag = flags.get(field) or next((each for each in flags.values() if field in each.was), None)
    if flag is None:
        hint = flag_errors.did_you_mean([field], list(flags))
        raise FlagError(f"{layer.file}: has no setting '{name}' to read.{hint}")
    if layer.file and not flag.kind.saved:
        raise FlagError(f"{layer.file}: '{name}' can be given on the command line only.")
    return flag


def _check_applies(
    flag: Flag,
    flags: Mapping[str, Flag],
    values: Mapping[str, Any],
    source: Mapping[str, int],
    layer: Layer,
) -> None:
    """Refuse a flag that does not apply, but one of a file whose choice the command line or the data changed.

    Raises:
        FlagError: It does not apply.
    """
    condition = applies.unmet(flag.name, flags, values)
    changed_later = layer.file and condition and source.get(condition.name, -1) > source[flag.name]
    if condition is None or changed_later:
        return
    shown = layer.shown(flag)
    if not flag.is_switch:
        value = values[flag.name]
        text = " ".join(map(str, value)) if isinstance(value, tuple) else str(value)
        shown += f": {text}" if layer.file else f" {text}"
    raise FlagError(f"{shown}: {applies.in_words(condition, values)}")
