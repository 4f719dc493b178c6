"""The colour of the background of a source, and windows that read none of the background."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

import numpy as np

from tfbig.geometry import cells
from tfbig.geometry.background import Background, BoolArray
from tfbig.sources.source import RowArray, Source
from tfbig.units import ceil_div

SMALLEST: Final = 2**20
"""Fewest pixels of an image in whose file or padding background is looked for."""
_GAP: Final = 256
"""Fewest columns of background between two areas that are read one after the other, not at once."""

_Window = tuple[int, int, int, int]


def colour_of(source: Source, background: Background) -> RowArray:
    """Find the colour `[C]` of the background of a source, in which not all cells are foreground."""
    row, column = np.unravel_index(np.argmin(background.foreground), background.foreground.shape)
    top, left = int(row) * background.cell, int(column) * background.cell
    place = (top, top + 1), (left, left + 1)
    colour = source.colour(*place)
    return source.read_window(*place)[0, 0] if colour is None else colour


def read_foreground(
    read: Callable[[int, int, int, int], RowArray],
    background: Background,
    colour: RowArray,
    window: _Window,
) -> RowArray:
    """Read a window `start, stop, left, right` whose background is filled, not read.

    `read(start, stop, left, right)` returns a window `[rows, columns, C]`; `colour` is that of the background,
    `[C]`.
    """
    start, stop, left, right = window
    mask = cells_of_window(background, window)
    if mask.all():
        return read(*window)
    row = np.tile(colour, right - left)
    out = np.tile(row, (stop - start, 1)).reshape(stop - start, right - left, -1)
    pixel = np.dtype((np.void, colour.nbytes))  # ten times as fast as channels
    for top, bottom, side, end in _areas(mask, background.cell, window):
        area = out[top - start : bottom - start, side - left : end - left]
        inside = cells.pixels(background, (top, bottom), (side, end))
        part = np.ascontiguousarray(read(top, bottom, side, end), colour.dtype)
        np.copyto(area.view(pixel)[..., 0], part.view(pixel)[..., 0], where=inside)
    return out


def cells_of_window(background: Background, window: _Window) -> BoolArray:
    """Tell whether the cells that a window `start, stop, left, right` touches are foreground."""
    cell, (start, stop, left, right) = background.cell, window
    down, across = (slice(a // cell, ceil_div(b, cell)) for a, b in ((start, stop), (left, right)))
    return background.foreground[down, across]


def _areas(mask: BoolArray, cell: int, window: _Window) -> Iterator[_Window]:
    """Yield the smallest rectangles of a window that hold its foreground, one for each run of columns."""
    start, stop, left, right = window
    top, side = start // cell, left // cell
    used = np.flatnonzero(mask.any(0))
    breaks = np.flatnonzero(np.diff(used) > max(_GAP // cell, 1)) + 1
    for run in np.split(used, breaks) if len(used) else []:
        first, after = int(run[0]), int(run[-1]) + 1
        rows = np.flatnonzero(mask[:, first:after].any(1))
        yield (
            max((top + int(rows[0])) * cell, start),
            min((top + int(rows[-1]) + 1) * cell, stop),
            max((side + first) * cell, left),
            min((side + after) * cell, right),
        )
