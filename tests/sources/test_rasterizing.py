"""Shapes drawn into arrays."""

from __future__ import annotations

import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import shapely
from affine import Affine

from tfbig.sources import rasterizing


def test_pixels_whose_centre_is_inside() -> None:
    """Later shapes are drawn over earlier ones, and other pixels keep their values."""
    out = np.full((4, 5), 7, np.uint8)
    shapes = [(shapely.box(10, 10, 13.4, 12.6), 1), (shapely.box(12.6, 10, 14, 11), 2)]
    rasterizing.draw(shapes, out, Affine.translation(10, 10))
    expected = [[1, 1, 1, 2, 7], [1, 1, 1, 7, 7], [1, 1, 1, 7, 7], [7, 7, 7, 7, 7]]
    np.testing.assert_array_equal(out, expected)


def test_threads_draw_without_a_warning() -> None:
    def draw(number: int) -> int:
        out = np.zeros((64, 64), np.uint8)
        rasterizing.draw([(shapely.box(0, 0, 8, 8), 1)], out, Affine.identity())
        return int(out.sum())

    with warnings.catch_warnings(), ThreadPoolExecutor(8) as threads:
        warnings.simplefilter("error")
        assert set(threads.map(draw, range(400))) == {64}
