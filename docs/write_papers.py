"""Writes docs/papers.md from docs/papers.yaml and the figures in benchmarks/results.jsonl.

Run `python docs/write_papers.py`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
ROWS = ROOT / "docs/papers.yaml"
PAGE = ROOT / "docs/papers.md"
RESULTS = ROOT / "benchmarks/results.jsonl"
STATES = {
    "works": "implemented as published, and tested",
    "differs": "implemented in another way, which the row describes",
    "needs data": "implemented; the result needs data that are not public, or too large for a machine with two cores",
    "needs time": "implemented; the result needs days or weeks on a machine with two cores",
    "needs a GPU": "implemented; the result needs an accelerator, on which this part has not been run",
}
FIGURE = re.compile(r"\{([^{}|]+)\|([^{}|]+)\|([^{}|]*)\}")

Line = dict[str, Any]


def results() -> list[Line]:
    """Return the lines of all benchmarks, oldest first."""
    return [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]


def figure(lines: list[Line], conditions: str, path: str, form: str) -> str:
    """Return a figure of the last line that meets all conditions.

    Args:
        lines: Lines of benchmarks.
        conditions: `key=value; key=value`.
        path: Keys of nested values, and positions in lists, separated by dots.
        form: Format specification of Python, or "GB" for bytes.

    Raises:
        ValueError: No line meets the conditions, or it has no value at the path.
    """
    wanted = [word.strip().split("=", 1) for word in conditions.split(";")]
    meeting = [line for line in lines if all(str(line.get(key)) == text for key, text in wanted)]
    if not meeting:
        raise ValueError(f"{RESULTS.name}: no line has {conditions}")
    value: Any = meeting[-1]
    try:
        for key in path.split("."):
            value = value[int(key) if isinstance(value, list) else key]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ValueError(f"{RESULTS.name}: the line with {conditions} has no {path}") from error
    return f"{value / 1e9:.2f} GB" if form == "GB" else format(value, form)


def filled(text: str, lines: list[Line]) -> str:
    """Replace `{conditions|path|format}` by figures."""
    return FIGURE.sub(lambda match: figure(lines, *match.groups()), text)


def page(papers: list[dict[str, Any]], lines: list[Line]) -> str:
    """Return the text of docs/papers.md.

    Args:
        papers: Content of docs/papers.yaml.
        lines: Lines of benchmarks.

    Raises:
        ValueError: A row has another state than those of `STATES`, or a figure is not in the lines.
    """
    counts = Counter(row["state"] for paper in papers for row in paper["rows"])
    parts = [
        "# The papers, row by row",
        "`docs/papers.yaml` and `benchmarks/results.jsonl` are the sources of this page; "
        "`python docs/write_papers.py` writes it. A row is one thing that a paper describes or reports.",
        _table(
            ("state", "rows", "meaning"),
            [(state, str(counts[state]), meaning) for state, meaning in STATES.items()],
        ),
    ]
    for paper in papers:
        rows = [(_checked(row), row["state"], filled(row["how"], lines)) for row in paper["rows"]]
        parts += [f"## {paper['title']}", paper["about"].strip()]
        parts += [_table(("in the paper", "state", "here"), rows)]
    return "\n\n".join(parts) + "\n"


def _checked(row: dict[str, str]) -> str:
    if row["state"] not in STATES:
        expected = ", ".join(STATES)
        raise ValueError(
            f"{ROWS.name}: '{row['what']}' has state '{row['state']}'; expected {expected}"
        )
    return row["what"]


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    cells = [head, ("---",) * len(head), *rows]
    return "\n".join(
        "| " + " | ".join(" ".join(cell.split()) for cell in row) + " |" for row in cells
    )


def main() -> None:
    """Write the page."""
    papers = yaml.safe_load(ROWS.read_text(encoding="utf-8"))
    PAGE.write_text(page(papers, results()), encoding="utf-8")


if __name__ == "__main__":
    main()
