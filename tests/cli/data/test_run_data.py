"""Rows that cannot be opened are left out with their reason and line, in one way for all tasks."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tfbig import SourceError
from tfbig.cli.data import run_data
from tfbig.cli.data.images import ImageSet
from tfbig.cli.data.run_data import Data, Opened
from tfbig.mil import BagSet
from tfbig.sources.table import Row, Table


def row(name: str, split: str = "train", place: str = "t.csv: line 2") -> Row:
    return Row({"name": name, "split": split, "label": len(name)}, place)


def opening(wrong: dict[str, Exception]) -> Any:
    def open_row(row: Row) -> str:
        if row["name"] in wrong:
            raise wrong[row["name"]]
        return str(row["name"]).upper()

    return open_row


@pytest.mark.parametrize("kind", [SourceError, OSError, ValueError, MemoryError])
def test_what_cannot_be_opened_is_left_out_with_its_line(kind: type[Exception]) -> None:
    rows = [row("a"), row("bb"), row("ccc")]
    found = Opened.of(rows, opening({"bb": kind("is\ndamaged")}), "name")
    assert (found.items, found.labels) == (("A", "CCC"), [1, 3])
    assert found.failed == (("bb", "t.csv: line 2: is damaged"),)
    again = found.then(lambda item: opening({"A": kind("t.csv: line 2: is small")})({"name": item}))
    assert (again.items, again.rows) == (("CCC",), (rows[2],))
    assert again.failed == (*found.failed, ("a", "t.csv: line 2: is small"))


def test_a_row_of_a_folder_has_no_line() -> None:
    found = Opened.of([row("a", place="folder")], opening({"a": SourceError("a: is gone")}), "name")
    assert found.failed == (("a", "a: is gone"),)


def test_a_mistake_of_the_program_is_not_hidden() -> None:
    with pytest.raises(KeyError):
        Opened.of([row("a")], opening({"a": KeyError("b")}), "name")


TABLE = Table.of(
    "t.csv", [row(name, split) for name, split in zip("abcd", ("train", "val") * 2, strict=True)]
)


def load(table: Table, wrong: str = "", test_only: str | None = None) -> Data:
    open_row = opening(dict.fromkeys(wrong, SourceError("is damaged.")))
    settings = SimpleNamespace(test_only=test_only)
    return Data.of(run_data.open_all(table, open_row, settings, "name", "slides"))


def test_splits() -> None:
    """A training needs nothing to test on; results are then of the validation set, and an evaluation too."""
    data = load(TABLE, "c")
    assert (data.train.items, data.val.items, data.test.items) == (("A",), ("B", "D"), ())
    assert (data.every, data.judged.items) == (["A", "B", "D"], ("B", "D"))
    assert data.failed == [("c", "t.csv: line 2: is damaged.")]
    evaluated = load(TABLE, "b", "run")
    assert evaluated.train is evaluated.val is evaluated.test
    assert (evaluated.every, evaluated.judged.items) == (["D"], ("D",))
    assert evaluated.failed == [("b", "t.csv: line 2: is damaged.")]
    assert [row["name"] for row in run_data.rows_of_run(TABLE, True)] == ["b", "d"]
    tested = TABLE.with_rows([*TABLE.rows, row("e", "test")])
    assert load(tested, "", "run").every == ["E"]
    assert load(tested, "e").judged.items == ("B", "D")


@pytest.mark.parametrize("wrong", ["", "e"])
@pytest.mark.parametrize("kind", [ImageSet, BagSet])
def test_sets_with_labels(kind: Any, wrong: str) -> None:
    """What is not there, or cannot be opened, is not tested on; the labels of nothing have the same kind."""
    table = TABLE.with_rows([*TABLE.rows, row("e", "test")]) if wrong else TABLE
    open_row = opening(dict.fromkeys(wrong, SourceError("is damaged.")))
    opened = run_data.open_all(table, open_row, SimpleNamespace(test_only=None), "name", "slides")
    sets = run_data.with_labels(
        opened, lambda part: kind(part.items, np.array(part.labels), part.failed)
    )
    data = Data.of(sets).checked()
    assert [list(run_data.items_of(part)) for part in sets] == [["A", "C"], ["B", "D"], []]
    assert data.judged is data.val and data.test.labels.dtype == data.train.labels.dtype
    assert [name for name, _ in data.failed] == [*wrong]
    emptied = {kind.ITEMS: (), "failed": (("b", "b: is small."),)}
    with pytest.raises(SourceError, match=r"^b: is small\.$"):
        replace(data, val=replace(data.val, **emptied)).checked()
    with pytest.raises(SourceError, match=r"^b: is small\.$"):
        Data.of([replace(data.val, **emptied)]).checked()


@pytest.mark.parametrize("test_only", [None, "run"])
def test_nothing_of_a_split(test_only: str | None) -> None:
    split = "test" if test_only else "val"
    wanted = (
        rf"none of the slides in split '{split}' can be used \(2 of 2 failed\)\. The first: t.csv"
    )
    with pytest.raises(SourceError, match=wanted):
        load(TABLE, "bd", test_only)
    without = TABLE.with_rows([each for each in TABLE.rows if each["split"] == "train"])
    with pytest.raises(SourceError, match="none of 2 slides of 2 cases is in split"):
        load(without, "", test_only)


def test_sets_are_changed_alike() -> None:
    data = load(TABLE).mapped(lambda part: part.then(str.lower))
    assert data.every == ["a", "c", "b", "d"]
    evaluated = load(TABLE, "", "run").mapped(lambda part: part.then(str.lower))
    assert evaluated.train is evaluated.test and evaluated.every == ["b", "d"]
