"""Reader of the command line: words become the values of flags, as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tfbig.cli.paths import FlagError
from tfbig.cli.settings import flag_errors
from tfbig.cli.settings.flag import Flag, with_dashes

HELP = ("-h", "--help")


def asks_for_help(argv: Sequence[str]) -> bool:
    """Tell whether a command line asks for help."""
    return any(word in HELP for word in argv)


def read(argv: Sequence[str], flags: Mapping[str, Flag]) -> dict[str, Any]:
    """Read the values of a command line by the name of their flag: `True` of a switch, text, or lists of text.

    How many values a flag has decides how many words are its own; whether they are too few is checked later, with the
    values of files. Of a flag that is given twice, the last one counts.

    Raises:
        FlagError: There are words that belong to no flag, or flags that there are not.
    """
    values: dict[str, Any] = {}
    loose: list[str] = []
    unknown: list[str] = []
    words = list(argv)
    while words:
        word = words.pop(0)
        if not _is_flag(word):
            loose.append(word)
            continue
        name, equals, text = word.partition("=")
        found = flags.get(_field(name))
        if found is None or found.positional:
            unknown += [word, *_taken(words, len(words))]
        elif equals:
            values[found.name] = [text]
        elif found.is_switch:
            values[found.name] = True
        else:
            values[found.name] = _taken(words, _most(found))
    loose = _place(loose, [each for each in flags.values() if each.positional], values)
    if unknown or loose:
        raise FlagError(_unknown([*unknown, *loose], flags))
    return values


def given(argv: Sequence[str], name: str) -> str | None:
    """The value of a flag in a command line, before it is known which other flags there are."""
    last = None
    for place, word in enumerate(argv):
        flag, equals, text = word.partition("=")
        if _is_flag(word) and _field(flag) == name:
            following = argv[place + 1 : place + 2]
            last = text if equals else next(iter(following), None)
    return last


def _is_flag(word: str) -> bool:
    return word.startswith("--") and len(word) > 2


def _field(word: str) -> str:
    """Write `--batch-size` as `batch_size`."""
    return word.removeprefix("--").replace("-", "_")


def _most(flag: Flag) -> int | None:
    """The largest number of values of a flag; None for any number."""
    if isinstance(flag.nargs, int):
        return flag.nargs
    return None if flag.nargs in ("+", "*") else 1


def _taken(words: list[str], most: int | None) -> list[str]:
    """Remove the words up to the next flag from a command line, and return them."""
    taken: list[str] = []
    while words and not _is_flag(words[0]) and (most is None or len(taken) < most):
        taken.append(words.pop(0))
    return taken


def _place(loose: list[str], positional: Sequence[Flag], values: dict[str, Any]) -> list[str]:
    """Give words to the positional flags in order, and return those that are left."""
    for each in positional:
        most = _most(each)
        taken, loose = loose[:most], loose[len(loose[:most]) :]
        if taken:
            values[each.name] = taken
    return loose


def _unknown(words: Sequence[str], flags: Mapping[str, Flag]) -> str:
    """Say which words are unknown, and which flags are most like them."""
    names = [word.partition("=")[0] for word in words if _is_flag(word)]
    renamed = {with_dashes(old): each for each in flags.values() for old in each.was}
    for name in names:
        if name.replace("_", "-") in renamed:
            return f"{name} is now {renamed[name.replace('_', '-')].shown}."
    known = [each.shown for each in flags.values() if not each.positional]
    hint = flag_errors.did_you_mean(names, known)
    return f"unrecognized arguments: {' '.join(words)}.{hint}"
