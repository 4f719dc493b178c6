"""Bags to try training with."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from tfbig import SourceError
from tfbig.recipes import write_drawn_bags


def test_bags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second bag has rings; no tile is in two splits; a folder with data is left as it is."""
    monkeypatch.setattr(write_drawn_bags, "TILES", 100)
    write_drawn_bags.main([str(tmp_path / "data"), "--bags", "4", "2", "2", "--instances", "8"])
    rows = list(csv.DictReader((tmp_path / "data/bags.csv").read_text().splitlines()))
    tiles: dict[str, set[bytes]] = {}
    for row in rows:
        bag = np.load(tmp_path / "data" / row["bag"])
        assert (bag.shape, bag.dtype) == ((8, 24, 24, 3), np.uint8)
        tiles.setdefault(row["split"], set()).update(tile.tobytes() for tile in bag)
        rings = np.load(tmp_path / "data" / row["bag"].replace(".npy", ".labels.npy"))
        assert rings.sum() == {"positive": 2, "negative": 0}[row["label"]]
    assert [row["label"] for row in rows] == ["positive", "negative"] * 4
    assert not tiles["train"] & tiles["val"] and not tiles["val"] & tiles["test"]
    with pytest.raises(SourceError, match="is not empty; expected a new folder"):
        write_drawn_bags.main([str(tmp_path / "data")])
