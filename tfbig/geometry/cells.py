"""Cells of backgrounds: their size, their places, and the background of parts of images. Arithmetic only."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, gcd, log2
from typing import Final

import numpy as np

from tfbig.geometry.background import Background, BoolArray
from tfbig.geometry.windows import Interval
from tfbig.units import ceil_div

MAX_CELLS: Final = 2**22
"""Most cells of a background, some 100 MB while it is used."""
FEWER_CELLS: Final = 2**20
"""Most cells where only their borders need small ones."""


def num_cells(shape: Sequence[int], cell: int) -> tuple[int, ...]:
    """Return the number of cells along each axis.

    Args:
        shape: Rows and columns of an image.
        cell: Side of a cell in pixels.
    """
    return tuple(ceil(n / cell) for n in shape)


def power_of_two(number: float) -> int:
    """Return the largest power of two that is at most a number, and at least 1.

    Cells of such sides fit each other, so that backgrounds can be joined.

    Args:
        number: Any positive number.
    """
    return int(2 ** max(floor(log2(number)), 0))


def side_of_cells(shape: Sequence[int], least: int = 1, most_cells: int = MAX_CELLS) -> int:
    """Return `least`, doubled until an image has at most `most_cells` cells of this side.

    Args:
        shape: Rows and columns of an image.
        least: Smallest side in pixels.
        most_cells: Largest number of cells.
    """
    side = least
    while np.prod(num_cells(shape, side), dtype=object) > most_cells:
        side *= 2
    return side


def side_between(shape: Sequence[int], cell: int, offsets: Sequence[int]) -> int:
    """Return the side of cells for an image that is cut from another one, or mirrored.

    Args:
        shape: Rows and columns of the image.
        cell: Side of the cells of the other image.
        offsets: Distances in pixels by which the borders of its cells are moved.

    Returns:
        The largest side whose borders coincide with theirs, or a multiple of it if there would be too many cells; at
        most `cell`.
    """
    common = gcd(cell, *offsets)
    if common == cell:
        return cell
    return min(side_of_cells(shape, common, FEWER_CELLS), cell)


def intervals(extent: int, cell: int) -> Interval:
    """Return the pixels of all cells along one axis.

    Args:
        extent: Pixels of the image along the axis.
        cell: Side of a cell in pixels.
    """
    start = np.arange(0, extent, cell)
    return Interval(start, np.minimum(start + cell, extent))


def rectangle(
    shape: Sequence[int], cell: int, rows: tuple[int, int], columns: tuple[int, int]
) -> Background:
    """Return the background around a rectangle.

    Args:
        shape: Rows and columns of the image.
        cell: Side of a cell in pixels.
        rows: `(start, stop)` of the rectangle.
        columns: `(start, stop)` of the rectangle.
    """
    down, across = (
        (places.start < stop) & (places.stop > start)
        for places, (start, stop) in (
            (intervals(shape[0], cell), rows),
            (intervals(shape[1], cell), columns),
        )
    )
    return Background(np.outer(down, across), cell)


def of_tiles(stored: BoolArray, tile: tuple[int, int], shape: Sequence[int]) -> Background:
    """Return the background of an image that is stored in tiles, some of which are missing.

    Args:
        stored: `[rows, columns]` of tiles, whether each is stored.
        tile: Rows and columns of a tile.
        shape: Rows and columns of the image.

    Returns:
        Background whose cells have a power of two of pixels, the largest that divides both sides of the tiles; they are
        larger if there are too many.
    """
    common = gcd(*(side for side, count in zip(tile, stored.shape, strict=True) if count > 1))
    common = common or max(tile)  # one tile
    cell = side_of_cells(shape, common & -common, FEWER_CELLS)
    rows, columns = (
        Interval(places.start // side, ceil_div(places.stop, side))
        for places, side in (
            (intervals(shape[0], cell), tile[0]),
            (intervals(shape[1], cell), tile[1]),
        )
    )
    return Background(Background(stored).touches(rows, columns), cell)


def pixels(background: Background, rows: tuple[int, int], columns: tuple[int, int]) -> BoolArray:
    """Return whether each pixel of a rectangle is in a cell of the foreground.

    Args:
        background: The background of an image.
        rows: `(start, stop)`.
        columns: `(start, stop)`.
    """
    down, across = (np.arange(*pair) // background.cell for pair in (rows, columns))
    return background.foreground[down][:, across]
