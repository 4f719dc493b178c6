"""Tiles of an image, also where they reach outside it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tfbig import SourceError, sources
from tfbig.sources import ArraySource, Tiles


def test_tiles_at_edges() -> None:
    image = ArraySource(np.random.default_rng(0).integers(0, 256, (40, 30, 3), np.uint8))
    corners = [[-5, -3], [-5, 7], [0, 0], [30, 20], [38, 29], [3, 10], [3, 15]]
    tiles = Tiles(image, corners, 16)
    padded = np.pad(image.read(0, 40), ((16, 16), (16, 16), (0, 0)), constant_values=255)
    expected = np.stack([padded[r + 16 : r + 32, c + 16 : c + 32] for r, c in corners])
    np.testing.assert_array_equal(tiles.read(0, 7), expected)
    np.testing.assert_array_equal(tiles.take([6, 0, 3]), expected[[6, 0, 3]])
    for corner in ([40, 0], [0, -16]):
        with pytest.raises(
            SourceError, match=r"tile 1 of 16 x 16 .*is outside the image, \(40, 30\)"
        ):
            Tiles(image, [[0, 0], corner], 16)


def test_tiles_of_slide_on_disk(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.random.default_rng(1).integers(0, 256, (90, 130, 3), np.uint8))
    slide = sources.open_slide(tmp_path / "a.npy")
    coords = sources.Coords("a", np.array([[0, 0], [40, 20], [70, 50]]), 20, 2.0)
    lazy = coords.tiles_of(sources.OnDisk(tmp_path / "a.npy", step=2.0), slide.shape)
    np.testing.assert_array_equal(lazy.read(0, 3), coords.tiles(slide).read(0, 3))
