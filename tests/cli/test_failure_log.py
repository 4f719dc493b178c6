"""Files that cannot be read are reported once and left out; what can be read is evaluated."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfbig import SourceError, sources
from tfbig.cli import failure_log
from tfbig.cli.data.run_data import Data
from tfbig.mil import BagSet


class Damaged(sources.Bag):
    """A bag of which only the first two instances can be read."""

    def __init__(self, name: str) -> None:
        super().__init__((4, 3), "float32", name)

    def _read(self, start: int, stop: int) -> Any:
        if stop > 2:
            raise SourceError(f"{self.name}: ends at byte 100, expected 200. Copy it again.")
        return np.zeros((stop - start, 3), "float32")


def bags(*names: str) -> BagSet:
    """Return bags with their places as labels; those named d... are damaged."""
    made = [
        Damaged(n) if n[0] == "d" else sources.ArrayBag(np.ones((4, 3), "f4"), n) for n in names
    ]
    return BagSet(tuple(made), np.arange(len(names)))


def failed(folder: Path) -> list[dict[str, str]]:
    """Return the rows of failed.csv."""
    return list(csv.DictReader((folder / "failed.csv").read_text().splitlines()))


def read_all(bag: sources.Bag) -> float:
    return float(bag.read(0, bag.shape[0]).sum())


def test_results_of_what_can_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    part = bags("a", "d1", "b")
    results = [(b.name, r) for b, r in failure_log.results_of(part.bags, read_all, tmp_path, False)]
    assert results == [("a", 12.0), ("b", 12.0)]
    reason = "ends at byte 100, expected 200. Copy it again."
    assert failed(tmp_path) == [{"item": "d1", "reason": reason}]
    assert capsys.readouterr().err == f"skipped d1: {reason}\n"


@pytest.mark.parametrize(("names", "strict"), [(("a", "d1"), True), (("d1", "d2"), False)])
def test_strict_and_nothing_to_read(names: tuple[str, ...], strict: bool, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"d\d: ends at byte 100"):
        list(failure_log.results_of(bags(*names).bags, read_all, tmp_path, strict))


def test_results_are_written_without_what_cannot_be_read(tmp_path: Path) -> None:
    """Labels stay with their items, in all splits."""
    written = []

    def write(data: Data) -> None:
        sums = [read_all(bag) for bag in data.test.bags]
        written.append((sums, data.test.labels.tolist(), data.val.labels.tolist(), data.failed))

    data = Data.of([bags("a"), bags("d1", "b"), bags("c", "d2", "e")], ("x", "y"))
    failure_log.write_readable(write, data, tmp_path, False)
    ((sums, test, val, left_out),) = written
    assert (sums, test, val) == ([12.0, 12.0], [0, 2], [1])
    assert [name for name, _ in left_out] == ["d1", "d2"]
    assert [row["item"] for row in failed(tmp_path)] == ["d1", "d2"]


@pytest.mark.parametrize(
    ("test", "strict"), [(("a", "d1"), True), (("d1",), False), (("a", "b"), False)]
)
def test_errors_that_remain(test: tuple[str, ...], strict: bool, tmp_path: Path) -> None:
    """A strict run, a split of which nothing is left, and errors of other files."""

    def write(data: Data) -> None:
        raise SourceError("metrics.json: the disk is full")

    data = Data.of([bags("a"), bags("b"), bags(*test)], ("x", "y"))
    with pytest.raises(SourceError, match="the disk is full"):
        failure_log.write_readable(write, data, tmp_path, strict)
