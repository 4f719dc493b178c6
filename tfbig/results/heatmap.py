"""Numbers of tiles, such as attention, as an image of the slide."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from tfbig.sources import Coords, Slide
from tfbig.sources.arrays import ArraySource

PARTS: Final = 4
"""Pixels along the side of a tile, so that tiles that overlap are seen where they lie, to a quarter."""

Map = npt.NDArray[np.float32]


def paint(coords: Coords, values: npt.ArrayLike, slide: Slide) -> tuple[Map, float]:
    """Numbers of tiles where the tiles lie.

    Args:
        coords: of the tiles.
        values: one for each, `[n]`.
        slide: whose they are.

    Returns:
        `[h, w]` float32 over the whole slide, `PARTS` pixels along a tile: the mean of the tiles that cover most of a
        pixel, NaN where there is none. And its columns in shares of the slide's: above 1 where the last pixel reaches
        beyond it.

    Raises:
        ValueError: there is not one number for each tile.
    """
    known = np.asarray(values, np.float64)
    if known.shape != (len(coords.coords),):
        raise ValueError(
            f"{coords.name}: numbers of shape {known.shape} for {len(coords.coords)} tiles."
        )
    step = pixel_of(coords)
    rows, columns = (max(math.ceil(n / step), 1) for n in slide.shape[:2])
    total, count = np.zeros((rows, columns)), np.zeros((rows, columns), np.int64)
    corners = np.rint(coords.coords / step).astype(np.int64)
    for down in range(PARTS):
        for across in range(PARTS):
            column, row = corners[:, 0] + across, corners[:, 1] + down
            inside = (row >= 0) & (row < rows) & (column >= 0) & (column < columns)
            np.add.at(total, (row[inside], column[inside]), known[inside])
            np.add.at(count, (row[inside], column[inside]), 1)
    found = np.where(count > 0, total / np.maximum(count, 1), np.nan).astype(np.float32)
    return found, columns * step / slide.shape[1]


def pixel_of(coords: Coords) -> float:
    """Pixels of level 0 in one of a map."""
    return coords.size * coords.step / PARTS


def as_source(painted: Map, coords: Coords, slide: Slide) -> ArraySource:
    """A map as an image `[h, w, 1]` of float32 with the size of its pixels, 0 where there is no tile."""
    source = ArraySource(np.nan_to_num(painted)[..., None], f"map of {coords.name}")
    if slide.mpp is not None:
        rows, columns = (n * pixel_of(coords) for n in slide.mpp)
        source.mpp = rows, columns
    return source
