"""docs/papers.md is written from its table, and the files and commands that it names exist."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest
import yaml
from samples import ROOT

sys.path.insert(0, str(ROOT / "docs"))
import write_papers

LINES: list[dict[str, Any]] = [
    {"case": "a", "seeds": 1, "accuracy": {"mean": 0.5}},
    {"case": "a", "seeds": 3, "accuracy": {"mean": 0.75}, "peak_bytes": 1.5e9, "sides": [1, 2]},
]


@pytest.fixture(scope="module")
def papers() -> list[dict[str, Any]]:
    return yaml.safe_load(write_papers.ROWS.read_text(encoding="utf-8"))


def test_page_is_up_to_date(papers: list[dict[str, Any]]) -> None:
    """Run `python docs/write_papers.py` after a change of the table or of a figure."""
    page = write_papers.page(papers, write_papers.results())
    assert write_papers.PAGE.read_text(encoding="utf-8") == page


def test_a_row_that_works_names_a_test_a_recipe_or_a_benchmark(
    papers: list[dict[str, Any]],
) -> None:
    named = re.compile(r"test_\w+\.py|recipes/[\w-]+\.yaml|benchmarks/\w+\.py")
    rows = [row for paper in papers for row in paper["rows"] if row["state"] == "works"]
    assert [row["what"] for row in rows if not named.search(row["how"])] == []


def test_scripts_and_recipes_exist() -> None:
    text = write_papers.PAGE.read_text(encoding="utf-8")
    names = set(re.findall(r"(?:benchmarks|examples|recipes)/[\w./-]+\.(?:py|yaml)", text))
    assert names
    assert [name for name in names if not (ROOT / name).exists()] == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{case=a|accuracy.mean|.2f}", "0.75"),
        ("{case=a; seeds=1|accuracy.mean|.0%}", "50%"),
        ("{case=a|sides.1|}", "2"),
        ("{case=a|peak_bytes|GB} of memory", "1.50 GB of memory"),
    ],
)
def test_figures_come_from_the_last_line_that_fits(text: str, expected: str) -> None:
    assert write_papers.filled(text, LINES) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{case=b|accuracy|}", "no line has case=b"),
        ("{case=a|accuracy.median|}", "the line with case=a has no accuracy.median"),
    ],
)
def test_figures_that_were_not_measured_are_errors(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        write_papers.filled(text, LINES)


def test_unknown_states_are_errors() -> None:
    paper = {"title": "A", "about": "", "rows": [{"what": "x", "state": "done", "how": ""}]}
    with pytest.raises(ValueError, match=r"'x' has state 'done'; expected works, differs"):
        write_papers.page([paper], LINES)
