"""docs/papers.md is written from its table, whose rows have evidence, and the files that it names exist."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from samples import ROOT

sys.path.insert(0, str(ROOT / "docs"))
import paper_evidence
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


def test_every_row_has_evidence(papers: list[dict[str, Any]]) -> None:
    """Tests that exist under their names and assert something, and lines that were measured."""
    lines = write_papers.results()
    rows = [row for paper in papers for row in paper["rows"]]
    found = {row["what"]: paper_evidence.faults(row, lines) for row in rows}
    assert {what: faults for what, faults in found.items() if faults} == {}


def test_counts_of_the_page(papers: list[dict[str, Any]]) -> None:
    text = write_papers.PAGE.read_text(encoding="utf-8")
    states = [row["state"] for paper in papers for row in paper["rows"]]
    assert f"There are {len(states)} rows." in text
    printed = re.findall(r"^\| ([\w ]+) \| (\d+) \|", text, re.MULTILINE)
    assert {state: int(count) for state, count in printed} == {
        state: states.count(state) for state in write_papers.STATES
    }


def row(state: str = "works", how: str = "", *shown_by: Any) -> dict[str, Any]:
    return {"what": "x", "state": state, "how": how, "shown_by": list(shown_by)}


TEST = "optimizers/test_adam.py::test_demon_momentum"
LINE = {"results": "case=a; seeds=3"}


@pytest.mark.parametrize(
    "good",
    [
        row("works", "", TEST),
        row("works", "", LINE),
        row("differs", "", TEST, LINE),
        row("needs data", "not measured", TEST),
        row("missing", "not built: nobody asked"),
        row("works", "{case=a|accuracy.mean|.2f} of it", LINE),
        # by a function of its file, of tests/shared, and by pytest.raises
        row("works", "", "cli/commands/test_dataset.py::test_train_resume_evaluate_predict"),
        row("works", "", "models/test_dtfd.py::test_matches_equations"),
        row("works", "", "plan/test_strip_search.py::test_small_device_is_refused"),
    ],
)
def test_evidence(good: dict[str, Any]) -> None:
    assert paper_evidence.faults(good, LINES) == []


@pytest.mark.parametrize(
    ("bad", "fault"),
    [
        (row(), "state 'works' without evidence"),
        ({"what": "x", "state": "works", "how": ""}, "state 'works' without evidence"),
        (row("differs"), "state 'differs' without evidence"),
        (row("needs time"), "state 'needs time' without evidence"),
        (row("missing", "soon"), "does not say 'not built'"),
        (row("works", "", "optimizers/test_adam.py"), "is neither FILE::TEST nor results"),
        (row("works", "", {"result": "case=a"}), "is neither FILE::TEST nor results"),
        (row("works", "", "optimizers/test_no.py::test_a"), "does not exist"),
        (row("works", "", "optimizers/test_adam.py::test_demon"), "has no test_demon"),
        (row("works", "", "cli/test_recipes.py::test_recipe"), "only reads settings"),
        (row("works", "", "test_configs.py::test_all_classes_are_here"), "only reads settings"),
        (row("works", "", {"results": "case=b"}), "has no line with case=b"),
        (row("works", "", {"results": "seeds=3"}), "names no case"),
        (row("works", "see `a/test_b.py`", TEST), "names a test in 'how'"),
        (row("works", "{case=a|seeds|}", TEST), "quotes 'a' and does not name its line"),
    ],
)
def test_no_evidence(bad: dict[str, Any], fault: str) -> None:
    (found,) = paper_evidence.faults(bad, LINES)
    assert fault in found


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("assert f(1) == 2", None),
        ("np.testing.assert_allclose(f(1), 2)", None),
        ("with pytest.raises(ValueError):\n        f(1)", None),
        ("compare(f(1))", None),
        ("f(1)", "asserts nothing"),
        ("other(f(1))", "asserts nothing"),
        ("assert train.settings_of(['--config', 'a.yaml']).sample == 256", "only reads settings"),
        ("assert yaml.safe_load(path.read_text())['sample'] == 256", "only reads settings"),
        ("assert draw(train.settings_of(['--config', 'a.yaml'])) == 256", None),
    ],
)
def test_tests_that_show_nothing(
    body: str, fault: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paper_evidence, "TESTS", tmp_path)
    helpers = "def compare(x):\n    assert x\n\n\ndef other(x):\n    return x\n"
    (tmp_path / "test_a.py").write_text(f"{helpers}\n\ndef test_b():\n    {body}\n")
    found = paper_evidence.faults(row("works", "", "test_a.py::test_b"), [])
    assert found == [] if fault is None else fault in found[0]


def test_marks() -> None:
    """Marks of a test, of a variable that holds a mark, and of a whole file are read."""
    assert paper_evidence.marks(TEST) == []
    assert paper_evidence.marks("models/test_resnet.py::test_parameters") == ["slow"]
    assert paper_evidence.marks("cli/tasks/test_mil.py::test_lora") == ["slow"]
    assert paper_evidence.marks("gpu/test_gpu.py::test_unified_memory") == ["gpu"]


def test_evidence_is_printed() -> None:
    shown = row("works", "", "models/test_resnet.py::test_parameters", {"results": "case=a"})
    lines = [{"case": "a", "commit": "1"}, {"case": "a", "commit": "2"}]
    assert write_papers.evidence(shown, lines) == (
        "[`models/test_resnet.py::test_parameters`](../tests/models/test_resnet.py) (*slow*), `a` at 2"
    )


def test_scripts_and_recipes_exist() -> None:
    """Except for scripts of an earlier commit, which tests/test_documents.py checks."""
    text = re.sub(r"`python [^`]+`, at \w{7}", "", write_papers.PAGE.read_text(encoding="utf-8"))
    names = set(re.findall(r"(?:benchmarks|examples|recipes)/(?!test_)[\w./-]+\.(?:py|yaml)", text))
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


def test_rows_without_evidence_are_not_written() -> None:
    paper = {"title": "A", "about": "", "rows": [{"what": "x", "state": "works", "how": ""}]}
    with pytest.raises(ValueError, match=r"papers\.yaml: 'x' state 'works' without evidence"):
        write_papers.page([paper], LINES)
