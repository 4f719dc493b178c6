"""The tables of docs/layers.md, from the registry of `tests/shared/layer_cases.py` that the tests run."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests/shared"))

from architectures import ARCHITECTURES
from layer_cases import ELEMENTWISE, LAYERS, NOT_ON_IMAGES, OPERATIONS, Case
from layer_paths import PATHS, WAYS, combinations

LETTERS = {
    "strips": "S",
    "tiles": "T",
    "background": "B",
    "static channels": "C",
    "integers": "I",
    "compiled": "X",
}
"""Letter of each way in the table."""


def equal(_: object) -> str:
    """Return the table of what equals plain Keras: layers and operations by paths, a letter for each way."""
    return _table([*LAYERS, *OPERATIONS])


def elementwise(_: object) -> str:
    """Return the names of the operations that one rule computes."""
    names = sorted({case.of.partition(".")[2] for case in ELEMENTWISE})
    return ", ".join(f"`{name}`" for name in names)


def networks(_: object) -> str:
    """Return the same table of whole networks."""
    return _table(ARCHITECTURES)


def _table(cases: Iterable[Case]) -> str:
    """Return a row for each name, with the number of its options and the ways of each path."""
    rows = [
        f"| | options | {' | '.join(PATHS)} |",
        f"|---|---|{'---|' * len(PATHS)}",
    ]
    ordered = sorted(cases, key=lambda case: case.of)
    for name, group in groupby(ordered, key=lambda case: case.of):
        options = list(group)
        done = {each for case in options for each in combinations(case)}
        cells = ("".join(LETTERS[w] for w in WAYS if (w, path) in done) or "-" for path in PATHS)
        rows.append(f"| `{name.partition('.')[2]}` | {len(options)} | {' | '.join(cells)} |")
    return "\n".join(rows)


def left_out(_: object) -> str:
    """Return the table of layers and operations that are not tried, by reason."""
    reasons: dict[str, list[str]] = {}
    for name, reason in NOT_ON_IMAGES.items():
        reasons.setdefault(reason, []).append(f"`{name}`")
    rows = [f"| {reason} | {', '.join(sorted(names))} |" for reason, names in reasons.items()]
    return "\n".join(["| reason | |", "|---|---|", *rows])


TABLES = {
    "layers": equal,
    "elementwise": elementwise,
    "published networks": networks,
    "left out": left_out,
}
