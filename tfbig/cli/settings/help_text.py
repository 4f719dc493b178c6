"""The help of a command, from the declarations of its flags."""

from __future__ import annotations

import shutil
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING
from typing import Any, Final

from tfbig.cli.settings import applies, parser
from tfbig.cli.settings.flag import Flag, with_dashes

COLUMN: Final = 24
"""Where descriptions begin."""


def page(
    usage: str,
    about: str,
    flags: Mapping[str, Flag],
    ending: str,
    values: Mapping[str, Any] | None = None,
) -> str:
    """Write the help of a command; flags that do not apply with the known `values` are not shown.

    `usage` is the command line in short, `ending` the text below the flags.
    """
    conditions = {name: applies.unmet(name, flags, values or {}) for name in flags}
    shown = [flag for name, flag in flags.items() if conditions[name] is None]
    sections: dict[str, list[Flag]] = {}
    for flag in shown:
        sections.setdefault("" if flag.positional else flag.section or "flags", []).append(flag)
    parts = [f"usage: {usage}", wrapped(about)]
    for title, members in sections.items():
        lines = [line for flag in members for line in entry(spelling(flag), meaning(flag))]
        parts.append("\n".join([f"{title}:", *lines] if title else lines))
    others = dict.fromkeys(with_dashes(each.name) for each in conditions.values() if each)
    if others:
        parts.append(wrapped(f"--help has more flags after other values of {', '.join(others)}."))
    return "\n\n".join([*parts, wrapped(ending)])


def wrapped(text: str, indent: str = "") -> str:
    """Break a paragraph into lines of the terminal."""
    width = max(shutil.get_terminal_size().columns - 2, 50)
    return textwrap.fill(
        text, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False
    )


def entry(name: str, text: str) -> Iterable[str]:
    """The lines of a flag or a command: its name, and its meaning beside or below it."""
    head, body = f"  {name}", wrapped(text, " " * COLUMN)
    if not text:
        return [head]
    return [head.ljust(COLUMN) + body[COLUMN:]] if len(head) < COLUMN - 1 else [head, body]


def spelling(flag: Flag) -> str:
    """A flag as it is typed, such as `--crop HxW` or `FOLDER`."""
    if flag.is_switch:
        return flag.shown
    names = flag.metavar if isinstance(flag.metavar, tuple) else (flag.metavar or _value(flag),)
    if isinstance(flag.nargs, int) and len(names) == 1:
        names = names * flag.nargs
    more = ("...",) if flag.nargs in ("+", "*") else ()
    return " ".join([*(() if flag.positional else (flag.shown,)), *names, *more])


def meaning(flag: Flag) -> str:
    """The help of a flag, with the values that can be chosen and the default."""
    text = flag.help
    if isinstance(flag.choices, Mapping):
        each = "; ".join(
            f"{value}: {what}" if what else value for value, what in flag.choices.items()
        )
        text = f"{text}. {each}" if text else each
    notes = []
    if not (flag.positional or _is_short(flag) or all(str(c) in text for c in flag.choices or ())):
        notes = [", ".join(map(str, flag.choices or ()))]
    default = flag.default
    is_nothing = default is None or default is False or default is MISSING or default in ("", ())
    if "(default" not in text and not is_nothing:
        shown = " ".join(map(str, default)) if isinstance(default, tuple) else default
        notes.append(f"default: {shown}")
    return f"{text} ({'; '.join(notes)})" if notes else text


def _value(flag: Flag) -> str:
    """The placeholder of the value of a flag, such as N."""
    if flag.choices:
        return "|".join(map(str, flag.choices)) if _is_short(flag) else "NAME"
    kinds = {"int": "N", "float": "X"}
    return kinds.get(flag.annotation.partition(" ")[0].removeprefix("tuple[").strip("],."), "VALUE")


def _is_short(flag: Flag) -> bool:
    """Tell whether the values that can be chosen fit beside the flag."""
    text = f"  {flag.shown} {'|'.join(map(str, flag.choices or ()))}"
    return not isinstance(flag.choices, Mapping) and len(text) < COLUMN - 1


def known(argv: Sequence[str], flags: Mapping[str, Flag]) -> dict[str, Any]:
    """The values of flags by name, for a help: those of a command line, else the defaults."""
    given = {name: parser.given(argv, name) for name in flags}
    return {
        name: flag.default if given[name] is None else given[name] for name, flag in flags.items()
    }
