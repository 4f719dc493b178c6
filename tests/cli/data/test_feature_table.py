"""The table of features of slides."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from cli_runs import write_table

from tfbig import open_slide
from tfbig.cli.data.feature_table import FeatureTable, totals
from tfbig.sources import Coords
from tfbig.sources.bags.feature_files import write_features


def write(folder: Path, name: str, seconds: float = 2.0) -> None:
    """Write features of two tiles."""
    np.save(folder / f"{name}.npy", np.zeros((8, 8, 3), np.uint8))
    coords = Coords(name, np.zeros((2, 2), np.int64), 4, 1.0)
    slide = open_slide(folder / f"{name}.npy")
    with write_features(folder / f"{name}.h5", coords, slide, 3, "uni") as writer:
        writer.write(0, np.zeros((2, 3), "float32"))
        writer.note({"seconds": seconds})


def test_rows(tmp_path: Path) -> None:
    """Labels come from tables of slides; a finished slide has a file and a row."""
    rows = [{"slide_id": "a.npy", "label": "x", "split": "train", "path": "a.npy"}]
    slides = write_table(tmp_path / "slides.csv", rows)
    write(tmp_path, "a")
    write(tmp_path, "b", 0.5)
    table = FeatureTable(tmp_path, [str(slides), str(tmp_path / "b.npy")])
    assert not table.has(tmp_path / "a.npy")
    for name in "ab":
        table.add(Path(f"{name}.npy"))
    of_slides = {"tiles": "2", "width": "3"}
    assert table.rows() == [
        {"slide_id": "a.npy", "case_id": "", "label": "x", "split": "train", "path": "a.h5"}
        | of_slides
        | {"seconds": "2.0"},
        {"slide_id": "b", "case_id": "", "label": "", "split": "", "path": "b.h5"}
        | of_slides
        | {"seconds": "0.5"},
    ]
    assert totals(table.rows()) == "2 slides, 4 tiles, 2.5 s, 1.6 tiles/s"
    again = FeatureTable(tmp_path, [str(slides)])
    assert again.has(tmp_path / "a.npy")
    (tmp_path / "a.h5").unlink()
    assert not again.has(tmp_path / "a.npy")


def test_columns_of_the_first_row_stay(tmp_path: Path) -> None:
    """A later command that knows the splits writes the columns that are there."""
    write(tmp_path, "a")
    write(tmp_path, "b")
    FeatureTable(tmp_path, []).add(Path("a.npy"))
    rows = [{"slide_id": "b", "label": "x", "split": "val", "path": "b.npy"}]
    slides = write_table(tmp_path / "slides.csv", rows)
    FeatureTable(tmp_path, [str(slides)]).add(Path("b.npy"))
    table = FeatureTable(tmp_path, []).rows()
    assert list(table[0]) == ["slide_id", "case_id", "label", "path", "tiles", "width", "seconds"]
    assert [row["label"] for row in table] == ["", "x"]
