"""Whole rows of an image, put together from its tiles and its background."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

Writer = Callable[[int, np.ndarray], object]
"""Function of the first row and the rows `[r, W, C]`."""

BAND_ROWS = 64
"""Rows of background that are passed to a sink at once."""


class Bands:
    """Whole rows for a writer, put together from tiles, which come row by row.

    Args:
        writer: Function of the first row and the rows `[r, W, C]`.
    """

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._band: np.ndarray | None = None
        self._first = 0
        self._next = 0
        self._pattern: np.ndarray | None = None
        self._size: list[int] = []

    def write(
        self, firsts: Sequence[int], tile: np.ndarray, size: Sequence[int], is_pattern: bool
    ) -> None:
        """Pass rows on, or keep a tile until its rows are complete.

        Args:
            firsts: First row of the tile, and its first column, ... if it has not all of them.
            tile: `[r, w, ..., C]`.
            size: Rows, columns, ... of the image.
            is_pattern: Whether the tile is the pattern of all tiles that do not come; it comes first.
        """
        self._size = list(size)
        if is_pattern:
            self._pattern = tile
            return
        if self._band is None or firsts[0] != self._first:
            self._begin(firsts[0], len(tile), tile)
        assert self._band is not None
        stops = [a + n for a, n in zip(firsts[1:], tile.shape[1:], strict=False)]
        self._band[(slice(None), *map(slice, firsts[1:], stops))] = tile
        if stops == self._size[1 : len(firsts)]:
            self._flush()

    def finish(self) -> None:
        """Pass on what is left: rows whose last tiles are background."""
        self._flush()
        if self._pattern is not None:
            self._fill(self._size[0])

    def _begin(self, first: int, rows: int, tile: np.ndarray) -> None:
        """Begin a band, after background down to it."""
        self._flush()
        if self._pattern is not None:
            self._fill(first)
            self._band = self._background(first, rows)
        else:
            self._band = np.empty((rows, *self._size[1:], tile.shape[-1]), tile.dtype)
        self._first = first

    def _flush(self) -> None:
        if self._band is not None:
            self._writer(self._first, self._band)
            self._next = self._first + len(self._band)
            self._band = None

    def _fill(self, until: int) -> None:
        """Pass on rows of background."""
        assert self._pattern is not None
        at_once = len(self._pattern) * max(BAND_ROWS // len(self._pattern), 1)
        while self._next < until:
            rows = min(at_once, until - self._next)
            self._writer(self._next, self._background(self._next, rows))
            self._next += rows

    def _background(self, first: int, rows: int) -> np.ndarray:
        assert self._pattern is not None
        sizes = [(first, rows), *((0, n) for n in self._size[1:])]
        places = [
            (start + np.arange(n)) % step
            for (start, n), step in zip(sizes, self._pattern.shape, strict=False)
        ]
        return self._pattern[np.ix_(*places)]
