"""Errors of flags in one line: which flag is wrong, what was expected, and which command lists the flags."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tfbig.cli.paths import FlagError
from tfbig.cli.settings import value_types
from tfbig.cli.settings.flag import Flag


def closest(name: str, names: Iterable[str], number: int = 1) -> list[str]:
    """The names that are most like a wrong one, the best first; a name that differs only in case stands alone."""
    lower = {each.lower(): each for each in names}
    if same := lower.get(name.lower()):
        return [same]
    return [lower[match] for match in difflib.get_close_matches(name.lower(), lower, number)]


def did_you_mean(names: Sequence[str], known: Sequence[str]) -> str:
    """Ask about the names that are most like the wrong ones; empty if none is."""
    meant = [match for name in names for match in closest(name, known, 2)]
    return f" Did you mean {' or '.join(dict.fromkeys(meant))}?" if meant else ""


@contextmanager
def listed_by(command: str) -> Iterator[None]:
    """Add to errors of flags which command lists the flags."""
    try:
        yield
    except FlagError as error:
        raise FlagError(f"{error} `{command} --help` lists all flags.") from None


def missing(flag: Flag) -> str:
    """Say that a flag is missing, with the first part of its help."""
    what = re.split(r"; | \(|\. (?=[A-Z])", flag.help)[0]
    return f"{flag.shown} is missing: {what}." if what else f"{flag.shown} is missing."


def wrong_number(flag: Flag, shown: str) -> str:
    """Say how many values a flag expects, and what they are."""
    names = [flag.metavar] if isinstance(flag.metavar, str) else list(flag.metavar or [])
    if isinstance(flag.nargs, int):
        number = str(flag.nargs)
        names = names * flag.nargs if len(names) == 1 else names  # one name for all
    else:
        number = "at least one" if flag.nargs in ("+", "*") else "one"
    values = "values" if number.isdecimal() else "value"
    return f"{shown}: expected {number} {values}{': ' if names else ''}{' '.join(names)}."


def no_choice(shown: str, given: Any, choices: Iterable[Any]) -> str:
    """Say that a value cannot be chosen, which choice is most like it, and all choices."""
    names = [str(choice) for choice in choices]
    meant = closest(str(given), names)
    hint = f"; did you mean '{meant[0]}'? " if meant else ". "
    return f"invalid choice {given!r} of {shown}{hint}Choose from {', '.join(names)}."


def wrong_value(flag: Flag, shown: str, text: str, error: ValueError) -> str:
    """Say which value was expected, and what was found."""
    if isinstance(error, value_types.WrongValue):
        return f"{shown}: {str(error).rstrip('.')}."
    assert flag.type is not None
    expected = value_types.EXPECTED.get(flag.type, f"a value of type {flag.type.__name__}")
    return f"{shown}: expected {expected}; found {text!r}."
