"""Tables and folders beside the slides of a command, such as --splits and --mpp-of: one rule for what matches nothing.

A row that matches no slide is counted and named in a line on standard error, with the slide whose name is most like it.
A row that may mean several slides, and two rows that say different things about one, are errors.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from tfbig.errors import SourceError, one_line
from tfbig.sources import names
from tfbig.sources.names import Names
from tfbig.units import counted

K = TypeVar("K")
V = TypeVar("V")
_MOST_TRIED = 20
"""Most names for which a similar one is looked for."""


def assigned(
    table: str | Path, rows: Mapping[str, V], things: Names[K], of: str = "slide"
) -> dict[K, V]:
    """Match the rows of a table with the things that they name, and say which rows match none.

    Raises:
        SourceError: A row may mean several things, or two rows say different things about one.
    """
    claims: dict[K, list[tuple[int, str]]] = {}
    unmatched, as_numbers = [], []
    for name in rows:
        match = things.match(name)
        if match is None:
            unmatched.append(name)
            continue
        if len(match.things) > 1:
            first, second = match.things[:2]
            raise SourceError(
                f"{table}: {name} may be {first} or {second}. Write the whole name of the {of}, with its folder and "
                "suffix."
            )
        claims.setdefault(match.things[0], []).append((match.how, name))
        as_numbers += [name] if match.how == names.NUMBER else []
    found: dict[K, V] = {}
    for thing, by in claims.items():
        (how, name), *others = sorted(by)
        found[thing] = rows[name]
        for other_how, other in others:
            if rows[other] == rows[name]:
                continue
            if how < other_how == names.OTHER_SUFFIX:  # of another file of that name
                unmatched.append(other)
                continue
            raise SourceError(
                f"{table}: {name} and {other} are both the {of} {thing}, once with {rows[name]} and once with "
                f"{rows[other]}. Remove one."
            )
    free = [name for name, thing in things.items if thing not in claims]
    say_unmatched(table, unmatched, len(rows), free, f"no {of}")
    say_numbers(table, as_numbers)
    return found


def say_unmatched(
    where: str | Path, missing: Sequence[str], total: int, others: Sequence[str], what: str
) -> None:
    """Print in a line to standard error how many names match nothing, one of them, and what is like it."""
    if not missing:
        return
    example, alike = next(
        ((name, found) for name in missing[:_MOST_TRIED] if (found := names.near(name, others))),
        (missing[0], None),
    )
    verb = "matches" if len(missing) == 1 else "match"
    line = f"{where}: {len(missing)} of {counted(total, 'name')} {verb} {what}, such as {example}"
    print(one_line(f"{line}{hint(alike)}"), file=sys.stderr)


def say_numbers(where: str | Path, as_numbers: Sequence[str]) -> None:
    """Print in a line to standard error which names are matched as numbers, such as 10005.0 with 10005."""
    if as_numbers:
        count = f", and {counted(len(as_numbers) - 1, 'other')}" if len(as_numbers) > 1 else ""
        print(
            one_line(
                f"{where}: {as_numbers[0]}{count}: matched as whole numbers, which spreadsheets write with .0"
            ),
            file=sys.stderr,
        )


def hint(alike: str | None) -> str:
    """Ask about the name that is most like one that was not found; empty without one."""
    return f" (is it {alike}?)" if alike else ""
