"""Selection of tiles by tissue and by quality."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from slide_files import PANCREAS
from tissue_slides import write_slide

from tfbig import SourceError
from tfbig.sources import open_slide
from tfbig.tissue import tiling
from tfbig.tissue.masks import Tissue, find_tissue


def test_tiles_with_tissue(tmp_path: Path) -> None:
    slide = write_slide(
        tmp_path / "a.tif", resolution=(5000, 5000), resolutionunit="CENTIMETER"
    )  # 2 um
    coords = tiling.tile(slide, 50, step=2.0, tissue=find_tissue(slide), smallest_share=0.6)
    whole = [(x, y) for y in range(0, 1200, 100) for x in range(0, 900, 100)]
    kept = [(x, y) for x, y in whole if 300 <= x < 800 and 200 <= y < 700]
    assert list(map(tuple, coords.coords)) == kept
    assert (coords.size, coords.step, coords.size_at_level_0, coords.name) == (50, 2.0, 100, "a")
    tiles = coords.tiles(slide)
    assert tiles.shape == (len(kept), 50, 50, 3)
    image = slide.level(1)
    for number in (0, 7, len(kept) - 1):
        x, y = (n // 2 for n in kept[number])
        np.testing.assert_array_equal(
            tiles.read(number, number + 1)[0], image.read_window((y, y + 50), (x, x + 50))
        )
    np.testing.assert_array_equal(tiles.coords, kept)


def test_tiles_cover_slide(tmp_path: Path) -> None:
    slide = write_slide(tmp_path / "a.tif", (130, 170))
    for step, overlap in ((1.0, 0), (1.0, 16), (1.3, 8)):
        coords = tiling.tile(slide, 48, step=step, overlap=overlap)
        counts = np.zeros((130, 170), int)
        side = coords.size_at_level_0
        for x, y in coords.coords:
            counts[y : y + side, x : x + side] += 1
        assert counts.min() >= 1
        assert coords.tiles(slide).shape[1:] == (48, 48, 3)


def test_keep(tmp_path: Path) -> None:
    slide = write_slide(tmp_path / "a.tif")
    kept = tiling.tile(slide, 100, keep=lambda t: tiling.grey_share(t) >= 0.6, at_once=7)
    assert list(map(tuple, kept.coords)) == [
        (x, y) for y in range(200, 700, 100) for x in range(300, 800, 100)
    ]
    with pytest.raises(
        SourceError, match=r"a\.tif: none of its 108 tiles has the required quality"
    ):
        tiling.tile(slide, 100, keep=lambda t: tiling.sharpness(t) > 1e6)
    with pytest.raises(SourceError, match=r"a\.tif: none of its 108 tiles has 60% tissue"):
        tiling.tile(slide, 100, tissue=Tissue(np.zeros((4, 4), bool), (1200, 900)))
    for size, overlap, message in (
        (10, 10, "overlap=10 for tiles of 10"),
        (5000, 0, "smaller than a patch"),
    ):
        with pytest.raises(ValueError, match=message):
            tiling.tile(slide, size, overlap=overlap)


def test_quality() -> None:
    rng = np.random.default_rng(0)
    sharp = rng.integers(0, 256, (2, 40, 40, 3), np.uint8)
    blurred = sharp // 8 + 100
    assert (tiling.sharpness(sharp) > 20 * tiling.sharpness(blurred)).all()
    inks = {"green": (30, 120, 60), "blue": (30, 60, 160), "black": (20, 22, 25)}
    stains = {"haematoxylin": (80, 50, 130), "eosin": (230, 140, 180), "glass": (243, 243, 240)}
    for colours, expected in ((inks, 1.0), (stains, 0.0)):
        for name, colour in colours.items():
            flat = np.full((1, 8, 8, 3), colour, np.uint8)
            assert tiling.pen_share(flat) == expected, name
    slide = open_slide(PANCREAS)
    assert tiling.pen_share(slide.thumbnail(800)[None])[0] < 0.01
