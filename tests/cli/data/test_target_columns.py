"""Columns of what is to be predicted: what is read, and errors that name the file, the line and what is expected."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from cli_runs import cohort_settings, write_table

from tfbig import SourceError
from tfbig.cli.data import cohort, splits, target_columns
from tfbig.cli.data.target_columns import UNKNOWN
from tfbig.sources.table import Table


def read(tmp_path: Path, target: str, text: str, **settings: Any) -> target_columns.Labelled:
    """Read the columns of a target of a table of bags."""
    table = tmp_path / "bags.csv"
    table.write_text("\n".join(text.split()) + "\n")
    options = {"test_only": None, "class_names": None, "num_classes": None} | settings
    columns = target_columns.COLUMNS[target](SimpleNamespace(**options))
    return columns.labelled(Table.read(table, ("bag", *columns.names)), "bag")


def labels(found: target_columns.Labelled) -> list[Any]:
    return [row["label"] for row in found.table.rows]


def test_survival(tmp_path):
    """Bags of a case have one number; a bag without a case is its own, also if it has the name of another."""
    text = "bag,case_id,time,event a,P1,2.5,1 b,P1,2.50,1 c,,3,0 P1,,0,1.0"
    found = read(tmp_path, "survival", text)
    assert labels(found) == [(2.5, 1, 0), (2.5, 1, 0), (3.0, 0, 1), (0.0, 1, 2)]
    assert found.cases == ("P1", "c", "P1")
    assert [row["stratum"] for row in found.table.rows] == [1, 1, 0, 1]


def test_values(tmp_path):
    found = read(tmp_path, "regression", "bag,value a,-1 b,2e3 c,0 d,5")
    assert labels(found) == [(-1.0,), (2000.0,), (0.0,), (5.0,)]
    assert sorted(row["stratum"] for row in found.table.rows) == [0, 1, 2, 3]


def test_decimal_commas(tmp_path):
    found = read(tmp_path, "survival", "bag;time;event a;12,5;1,0 b;0,500;0 c;1.234,25;1")
    assert [label[:2] for label in labels(found)] == [(12.5, 1), (0.5, 0), (1234.25, 1)]
    found = read(tmp_path, "regression", "bag;value a;-1,5 b;1,5000 c;3")
    assert labels(found) == [(-1.5,), (1.5,), (3.0,)]
    found = read(tmp_path, "multilabel", "bag;label_x a;1,0 b;0,0 c;")
    assert labels(found) == [(1,), (0,), (UNKNOWN,)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "bag;value a;1,500 b;2",
            r"line 2: value '1,500' \('1,500' has a comma, which may be a dec",
        ),
        ("bag;value a;1,5 b;2.500", r"line 3: value '2\.500' \(the column has '1,5' with a decima"),
        ("bag;value a;1 b;2,5,1", r"line 3: value '2,5,1' \('2,5,1' has a comma; write"),
        ("bag,time,value a,1,2 b,1,2,5", r"bags\.csv: cannot be read .*line 3 has 4 cells for 3"),
    ],
)
def test_unclear_commas(text, message, tmp_path):
    with pytest.raises(SourceError, match=message):
        read(tmp_path, "regression", text)


def test_labels(tmp_path):
    text = "bag,label_x,label_y,other a,1,0,7 b,0,,7 c,,1,7"
    found = read(tmp_path, "multilabel", text)
    assert found.classes == ("x", "y")
    assert labels(found) == [(1, 0), (0, UNKNOWN), (UNKNOWN, 1)]
    assert labels(read(tmp_path, "multilabel", text, class_names=("y",))) == [(0,), (-1,), (1,)]


@pytest.mark.parametrize(
    ("target", "text", "message"),
    [
        (
            "survival",
            "bag,time a,1",
            "line 1: has no column 'event'; expected a table with columns",
        ),
        ("survival", "bag,time,event a,1,", "line 2: has no event. Add one"),
        ("survival", "bag,time,event a,1,1 b,x,1", "line 3: time 'x'; expected a number from 0"),
        ("survival", "bag,time,event a,1,1 b,-2,1", "line 3: time '-2'; expected a number from 0"),
        ("survival", "bag,time,event a,inf,1", "line 2: time 'inf'; expected a number from 0"),
        ("survival", "bag,time,event a,1,2", "line 2: event '2'; expected 1 for an event, or 0"),
        ("survival", "bag,time,event a,1,yes", "line 2: event 'yes'; expected 1 for an event"),
        (
            "survival",
            "bag,time,event a,1,0 b,2,0",
            "column 'event' is 0 in all 2 lines, expected 1",
        ),
        (
            "survival",
            "bag,time,event a,4,0 b,4,1",
            "column 'time' is 4 in all 2 lines, expected diff",
        ),
        (
            "survival",
            "bag,case_id,time,event a,P,1,1 b,Q,2,1 c,P,1,0",
            "line 4: case 'P' has time 1 and event 0, but 1 and 1 in line 2; expected the same",
        ),
        ("regression", "bag,label a,1", "line 1: has no column 'value'"),
        ("regression", "bag,value a,1 b,high", "line 3: value 'high'; expected a finite number"),
        ("regression", "bag,value a,1 b,nan", "line 3: value 'nan'; expected a finite number"),
        (
            "regression",
            "bag,value a,2 b,2",
            "column 'value' is 2 in all 2 lines, expected different",
        ),
        ("multilabel", "bag,label a,1", "line 1: has no column 'label_NAME'; expected columns"),
        ("multilabel", "bag,label_x a,1 b,2", "line 3: label_x '2'; expected 0, 1, or an empty"),
        (
            "multilabel",
            "bag,label_x,label_y a,1,1 b,0,1 c,0,",
            "column 'label_y' has only 1 in 2 known cells, expected 0 and 1",
        ),
        (
            "multilabel",
            "bag,label_x a, b,",
            "column 'label_x' has none in 2 cells, expected 0 and 1",
        ),
    ],
)
def test_errors(target, text, message, tmp_path):
    with pytest.raises(SourceError) as error:
        read(tmp_path, target, text)
    assert str(error.value).startswith(f"{tmp_path / 'bags.csv'}: ")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_unknown_name(tmp_path):
    with pytest.raises(SourceError, match="line 1: has no column 'label_z'"):
        read(tmp_path, "multilabel", "bag,label_x a,1 b,0", class_names=("x", "z"))


def test_an_evaluation_needs_no_events(tmp_path):
    """All cases of another table may be censored, or have one label."""
    assert read(tmp_path, "survival", "bag,time,event a,1,0 b,1,0", test_only="run").table.rows
    assert read(tmp_path, "multilabel", "bag,label_x a,1", test_only="run").table.rows
    with pytest.raises(SourceError, match="time 'x'"):
        read(tmp_path, "survival", "bag,time,event a,x,0", test_only="run")


def test_slides_are_split_by_event_and_case(tmp_path):
    """All slides of a case are in one split, which has its share of events; the table of a run has both columns."""
    rows = [
        {"slide_id": f"s{n}", "case_id": f"P{n // 2}", "time": n // 2 + 1, "event": n // 2 % 2}
        for n in range(80)
    ]
    table = write_table(tmp_path / "slides.csv", rows)
    (tmp_path / "s0.tif").touch()
    settings = cohort_settings(table, target="survival")
    found = cohort.read(settings)
    splits_of = {}
    for row in found.table.rows:
        splits_of.setdefault(row["case_id"], set()).add(row["split"])
    assert all(len(names) == 1 for names in splits_of.values())
    tested = [row["label"][1] for row in found.table.rows if row["split"] == "test"]
    assert len(tested) == 16
    assert np.mean(tested) == 0.5
    shown = cohort._saved(found, splits.SPLITS)[0]
    assert list(shown) == ["slide_id", "time", "event", "split", "case_id", "path"]
