"""Tiles that training and prediction find themselves."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from dataset_folders import write_slide

from tfbig import SourceError, open_slide
from tfbig.cli.data.tile_selection import Selection
from tfbig.tissue import tiling


@pytest.mark.parametrize(("tissue", "count"), [("grey-tiles", 36), ("none", 64), ("colour", 36)])
def test_ways_to_find_tiles(tissue: str, count: int, tmp_path: Path) -> None:
    write_slide(tmp_path / "a.tif", 1)
    slide = open_slide(tmp_path / "a.tif")
    coords = Selection(40, tissue, 0.6).find(slide, 1.0)
    assert len(coords.coords) == count
    if tissue == "grey-tiles":
        assert tiling.grey_share(coords.tiles(slide).read(0, count)).min() >= 0.6


def test_grey_tiles_need_no_other_tissue(tmp_path: Path) -> None:
    """Grey pixels are kept although they have no colour, as the paper says of PANDA."""
    np.save(tmp_path / "a.npy", np.full((300, 300, 3), 128, np.uint8))
    slide = open_slide(tmp_path / "a.npy", mpp=1.0)
    assert len(Selection(100, "grey-tiles", 0.6).find(slide, 1.0).coords) == 9
    with pytest.raises(SourceError, match=r"a\.npy: none of its 9 tiles has 60% tissue"):
        Selection(100, "colour", 0.6).find(slide, 1.0)


def test_edge(tmp_path: Path) -> None:
    """Another tile ends with the slide if more pixels than `edge` are left."""
    np.save(tmp_path / "a.npy", np.full((250, 226, 3), 128, np.uint8))
    slide = open_slide(tmp_path / "a.npy")

    def corners(edge: int) -> list[int]:
        return sorted({*Selection(100, "none", 0.6, edge).find(slide, 1.0).coords.ravel().tolist()})

    overlapping = Selection(100, "none", 0.6, overlap=50).find(slide, 1.0)
    assert overlapping.overlap == 50
    assert sorted({*overlapping.coords[:, 1].tolist()}) == [0, 50, 100, 150]
    assert corners(0) == [0, 100, 126, 150]
    assert corners(26) == [0, 100, 150]
    assert corners(49) == [0, 100, 150]
    assert corners(50) == [0, 100]


def test_pixels_of_tiles(tmp_path: Path) -> None:
    """Tiles are read only if their pixels decide, and have to pass each check."""
    pixels = np.full((100, 400, 3), 128, np.uint8)
    pixels[::2, 100:] = 200  # sharp
    pixels[:, 200:300] = (0, 40, 0)  # pen
    pixels[:, 300:] = 255  # glass
    pixels[::2, 300:] = 240
    np.save(tmp_path / "a.npy", pixels)
    slide = open_slide(tmp_path / "a.npy")
    seen: list[tuple[int, int]] = []

    def left(rule: Selection) -> list[int]:
        coords = rule.tiles(slide, 1.0, None, lambda *counts: seen.append(counts))
        return coords.coords[:, 0].tolist()

    assert (left(Selection(100, "none", 0.6)), seen) == ([0, 100, 200, 300], [])
    assert left(Selection(100, "grey-tiles", 0.6)) == [0, 100, 200]
    assert left(Selection(100, "none", 0.6, min_sharpness=20)) == [100, 300]
    assert left(Selection(100, "none", 0.6, max_pen=0.1)) == [0, 100, 300]
    assert left(Selection(100, "grey-tiles", 0.6, min_sharpness=20, max_pen=0.1)) == [100]
    assert seen == [(4, 4)] * 4


def test_tiles_that_overlap_wholly() -> None:
    with pytest.raises(SourceError, match=r"^--overlap 100: expected less than --tile 100\.$"):
        Selection(100, "none", 0.6, overlap=100)
