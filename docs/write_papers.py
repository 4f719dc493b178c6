"""Writes docs/papers.md from docs/papers.yaml and the figures in benchmarks/results.jsonl.

Run `python docs/write_papers.py`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

import yaml
from paper_evidence import NOT_BUILT, RESULTS, ROOT, faults, marks, meeting

ROWS = ROOT / "docs/papers.yaml"
PAGE = ROOT / "docs/papers.md"
STATES = {
    "works": "built as published, and shown by the evidence",
    "differs": "built or measured in another way, which the row describes",
    "needs data": "built; the published result needs data that are not here: not public, licensed, or too large",
    "needs time": "built; the published result needs a night to weeks on a machine with two cores",
    "needs a GPU": "built; the published result needs an accelerator, on which it has not been measured",
    NOT_BUILT: "not built, or not tried",
}
OPENING = """\
`docs/papers.yaml` and `benchmarks/results.jsonl` are the sources of this page; `python docs/write_papers.py` writes it.
A row is one thing that a paper describes or reports.

"Shown by" is the evidence of a row: tests, and lines of [results.jsonl](../benchmarks/results.jsonl) by case and
commit. A test compares with plain Keras, with another library, or with numbers that it computes itself. It shows what
the row says on small data, not the figures of a paper. `pytest tests/FILE::TEST` runs it. Tests marked *slow* take
more than about two seconds and run with `-m slow`; tests marked *torch* need PyTorch (`-m torch`), tests marked *gpu* a
GPU (`-m gpu`), and tests marked *memory* run with `-m memory`. A line was measured once, at its commit."""
FIGURE = re.compile(r"\{([^{}|]+)\|([^{}|]+)\|([^{}|]*)\}")

Line = dict[str, Any]
Row = dict[str, Any]


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
    there = meeting(lines, conditions)
    if not there:
        raise ValueError(f"{RESULTS.name}: no line has {conditions}")
    value: Any = there[-1]
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
        ValueError: A row has another state than those of `STATES`, its evidence is none, or a figure is not in the
            lines.
    """
    rows = [row for paper in papers for row in paper["rows"]]
    _check(rows, lines)
    counts = Counter(row["state"] for row in rows)
    parts = [
        "# The papers, row by row",
        OPENING,
        f"There are {len(rows)} rows.",
        _table(
            ("state", "rows", "meaning"),
            [(state, str(counts[state]), meaning) for state, meaning in STATES.items()],
        ),
    ]
    for paper in papers:
        parts += [f"## {paper['title']}", paper["about"].strip()]
        cells = [
            (row["what"], row["state"], filled(row["how"], lines), evidence(row, lines))
            for row in paper["rows"]
        ]
        parts += [_table(("in the paper", "state", "here", "shown by"), cells)]
    return "\n\n".join(parts) + "\n"


def evidence(row: Row, lines: list[Line]) -> str:
    """Return the cell that names the evidence of a row.

    Args:
        row: The row.
        lines: Lines of benchmarks.
    """
    return ", ".join(
        _of_results(item["results"], lines) if isinstance(item, dict) else _of_test(item)
        for item in row.get("shown_by", [])
    )


def _of_test(name: str) -> str:
    file, _, function = name.partition("::")
    marked = marks(name)
    return f"[`{file}::{function}`](../tests/{file})" + (
        f" (*{', '.join(marked)}*)" if marked else ""
    )


def _of_results(conditions: str, lines: list[Line]) -> str:
    line = meeting(lines, conditions)[-1]
    return f"`{line['case']}` at {line['commit']}"


def _check(rows: list[Row], lines: list[Line]) -> None:
    for row in rows:
        if row["state"] not in STATES:
            expected = ", ".join(STATES)
            raise ValueError(
                f"{ROWS.name}: '{row['what']}' has state '{row['state']}'; expected {expected}"
            )
        if found := faults(row, lines):
            raise ValueError(f"{ROWS.name}: '{row['what']}' {'; '.join(found)}")


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
