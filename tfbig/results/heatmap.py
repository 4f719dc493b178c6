"""Maps of numbers per tile, such as attention, over a slide."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from tfbig.sources import Coords, Slide
from tfbig.sources.arrays import ArraySource

PARTS: Final = 4
"""Pixels along the side of a tile: overlapping tiles are placed to a quarter of a tile."""

Map = npt.NDArray[np.float32]


def paint(coords: Coords, values: npt.ArrayLike, slide: Slide) -> tuple[Map, float]:
    """Paint the numbers `[n]` of tiles into a map `[h, w]`, float32, over the whole slide.

    The map has `PARTS` pixels along a tile: the mean of the tiles that cover most of a pixel, NaN where there is
    none. Its width as a share of the slide's follows: above 1 if the last pixel extends beyond the slide.
    `height_of` returns its height.

    Raises:
        ValueError: `values` does not have one number for each tile.
    """
    numbers = np.asarray(values, np.float64)
    if numbers.shape != (len(coords.coords),):
        raise ValueError(
            f"{coords.name}: values have shape {numbers.shape}; expected ({len(coords.coords)},)."
        )
    sides = pixel_sides(coords)
    rows, columns = (
        max(math.ceil(n / side), 1) for n, side in zip(slide.shape, sides, strict=False)
    )
    total, count = np.zeros((rows, columns)), np.zeros((rows, columns), np.int64)
    corners = np.rint(coords.coords / sides[::-1]).astype(np.int64)
    for row_offset in range(PARTS):
        for column_offset in range(PARTS):
            column, row = corners[:, 0] + column_offset, corners[:, 1] + row_offset
            inside = (row >= 0) & (row < rows) & (column >= 0) & (column < columns)
            np.add.at(total, (row[inside], column[inside]), numbers[inside])
            np.add.at(count, (row[inside], column[inside]), 1)
    painted = np.where(count > 0, total / np.maximum(count, 1), np.nan).astype(np.float32)
    return painted, columns * sides[1] / slide.shape[1]


def height_of(painted: Map, coords: Coords, slide: Slide) -> float:
    """The height of a map from `paint` as a share of the height of the slide."""
    return painted.shape[0] * pixel_sides(coords)[0] / slide.shape[0]


def pixel_sides(coords: Coords) -> tuple[float, float]:
    """The height and width of a pixel of a map in pixels of level 0."""
    rows, columns = coords.steps
    return coords.size * rows / PARTS, coords.size * columns / PARTS


def as_source(painted: Map, coords: Coords, slide: Slide) -> ArraySource:
    """Convert a map from `paint` to a source `[h, w, 1]`, float32, with its pixel size; 0 where there is no tile."""
    source = ArraySource(np.nan_to_num(painted)[..., None], f"map of {coords.name}")
    if slide.mpp is not None:
        rows, columns = (n * m for n, m in zip(slide.mpp, pixel_sides(coords), strict=True))
        source.mpp = rows, columns
    return source
