"""The background of an image: the area where all pixels have one colour. Arithmetic only."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from math import ceil, lcm
from typing import Any

import numpy as np
import numpy.typing as npt

from tfbig.geometry.windows import Interval
from tfbig.units import ceil_div

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Background:
    """The background of an image `[H, W, C]`, or of a signal `[H, C]`.

    The image is divided into square cells. Every pixel outside the cells of the foreground has one colour, which only
    the image itself needs to know.

    Args:
        foreground: `[rows, columns]` of cells (`[rows]` for a signal), bool: whether a cell may hold other colours. It
            covers the image; cells of the last row and column may reach beyond it.
        cell: Side of a cell in pixels.

    Raises:
        ValueError: `cell` is below 1.
    """

    foreground: BoolArray
    cell: int = 1

    def __post_init__(self) -> None:
        if self.cell < 1:
            raise ValueError(f"a cell of {self.cell} pixels; expected at least 1.")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Background) and self._digest == other._digest

    def __hash__(self) -> int:
        return hash(self._digest)

    @cached_property
    def _digest(self) -> bytes:
        shape = repr((self.foreground.shape, self.cell)).encode()
        return hashlib.sha256(shape + np.packbits(self.foreground).tobytes()).digest()

    @property
    def share(self) -> float:
        """Share of the cells that are foreground."""
        return float(self.foreground.mean())

    @cached_property
    def _sums(self) -> npt.NDArray[np.int64]:
        """Number of foreground cells above and to the left of each corner of cells."""
        cells = self.foreground.reshape(len(self.foreground), -1)
        sums = np.zeros((cells.shape[0] + 1, cells.shape[1] + 1), np.int64)
        np.cumsum(np.cumsum(cells, 0, dtype=np.int64), 1, out=sums[1:, 1:])
        return sums

    def touches(self, rows: Interval, columns: Interval | None = None) -> BoolArray:
        """Return whether rectangles touch the foreground.

        Args:
            rows: r intervals of pixels, none of them empty.
            columns: c intervals of pixels, none of them empty. Default: one interval of all columns.

        Returns:
            `[r, c]`, for each interval of rows with each interval of columns.
        """
        sums = self._sums
        top, bottom = self._cells(rows, len(sums) - 1)
        left, right = (
            (np.array([0]), np.array([sums.shape[1] - 1]))
            if columns is None
            else self._cells(columns, sums.shape[1] - 1)
        )
        inside = sums[np.ix_(bottom, right)] - sums[np.ix_(top, right)]
        inside -= sums[np.ix_(bottom, left)] - sums[np.ix_(top, left)]
        touched: BoolArray = inside > 0
        return touched

    def _cells(self, pixels: Interval, count: int) -> tuple[Any, Any]:
        """Return the first cell of each interval, and the one after its last."""
        start, stop = np.asarray(pixels.start), np.asarray(pixels.stop)
        return np.clip(start // self.cell, 0, count), np.clip(ceil_div(stop, self.cell), 0, count)

    def joined(self, other: Background) -> Background:
        """Return the background that two images of one size have in common.

        Args:
            other: Background of the other image.

        Returns:
            Background with cells that are a multiple of those of both.
        """
        cell = lcm(self.cell, other.cell)
        first, second = (each.coarser(cell // each.cell) for each in (self, other))
        return Background(first.foreground | second.foreground, cell)

    def coarser(self, factor: int) -> Background:
        """Return the background with cells `factor` times as large, so with no more of it.

        Args:
            factor: Cells that are joined along each axis.
        """
        cells = self.foreground
        ends = [ceil(n / factor) * factor - n for n in cells.shape]
        padded = np.pad(cells, [(0, end) for end in ends])
        split = [n for size in padded.shape for n in (size // factor, factor)]
        joint = np.asarray(padded.reshape(split).any(tuple(range(1, 2 * cells.ndim, 2))))
        return Background(joint, self.cell * factor)
