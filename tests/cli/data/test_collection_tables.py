"""Tables of data sets, and files with their labels."""

from __future__ import annotations

from pathlib import Path

import pytest
from dataset_folders import write_lines

from tfbig import SourceError
from tfbig.cli.data import collection_tables
from tfbig.cli.data.collection_tables import CollectionTable


def test_table(tmp_path: Path) -> None:
    table = CollectionTable(("a", "b"))
    for number, split in enumerate(("train", "train", "val")):
        table.add("case", f"s{number}", 0, tmp_path / f"s{number}.tif", split)
    table.add("case", "s0", 1, tmp_path / "again" / "s0.tif", "train")
    assert table.twice == [tmp_path / "again" / "s0.tif"]
    assert table.counts("train") == "2 a, 0 b"
    assert list(table.gaps()) == [
        "slides.csv: items in split test; training needs train and val",
        "slides.csv: items to train on of class b",
    ]
    table.add("other", "s4", 1, tmp_path / "s4.tif", "test")
    assert table.empty_splits == []


def test_rows_of_files(tmp_path: Path) -> None:
    columns = {"slide": ("slide_id", "name"), "label": ("label",)}
    write_lines(tmp_path / "a.tsv", "label\tname", "1\t x ")
    assert collection_tables.read_rows(tmp_path / "a.tsv", columns) == [
        {"slide": "x", "label": "1"}
    ]
    wanted = "expected a table with columns slide_id or name, label"
    with pytest.raises(SourceError, match=rf"b\.csv: no such file; {wanted}"):
        collection_tables.read_rows(tmp_path / "b.csv", columns)
    write_lines(tmp_path / "b.csv", "slide_id,label")
    with pytest.raises(SourceError, match=rf"b\.csv: has no rows; {wanted}"):
        collection_tables.read_rows(tmp_path / "b.csv", columns)
    write_lines(tmp_path / "b.csv", "slide,label", "x,1")
    with pytest.raises(SourceError, match=rf"line 1: has no column 'slide_id' or 'name'; {wanted}"):
        collection_tables.read_rows(tmp_path / "b.csv", columns)


def test_many_lines_are_shortened() -> None:
    assert collection_tables.shortened(["a", "b"], "files") == ["a", "b"]
    lines = collection_tables.shortened([str(n) for n in range(30)], "files")
    assert lines[-2:] == ["8", "... 30 files in all"]


def test_features_of_slides(tmp_path: Path) -> None:
    table = CollectionTable(("a", "b"))
    for number in range(2):
        table.add("case", f"s{number}", number, tmp_path / f"s{number}.tif", "train")
    write_lines(tmp_path / "features" / "s1.h5")
    bags, without = collection_tables.with_features(table, tmp_path)
    assert without == ["s0.h5"]
    (row,) = bags.rows
    assert (bags.name, row["label"], row["split"]) == ("bags", "b", "train")
    assert row["path"] == str(tmp_path / "features" / "s1.h5")


def test_coordinates_are_no_features(tmp_path: Path) -> None:
    """CLAM has both under the name of the slide; a name with a point has no features of another slide."""
    for name in ("h5_files/s0.h5", "pt_files/s0.pt", "patches/s0.h5", "h5_files/s1.h5"):
        write_lines(tmp_path / name)
    table = collection_tables.CollectionTable(("a", "b"))
    for name in ("s0", "s1.2"):
        table.add(name, name, 0, tmp_path / f"{name}.tif")
    bags, without = collection_tables.with_features(table, tmp_path)
    assert [row["path"] for row in bags.rows] == [str(tmp_path / "h5_files/s0.h5")]
    assert without == ["s1.2.h5"]
