"""Whole rows of an image, put together from its tiles and its background."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

Writer = Callable[[int, np.ndarray], object]
"""Function of the first row and the rows `[r, W, C]`."""

BAND_ROWS = 64
"""Rows of background that are passed to a sink at once."""


class Bands:
    """Whole rows for a writer, put together from tiles, which come in the order of their first rows.

    Args:
        writer: Function of the first row and the rows `[r, W, C]`.
    """

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        # Rows from `_next` on that are not passed on yet: tiles may still come for them.
        self._rows: np.ndarray | None = None
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
        self._pass_on(firsts[0])
        if self._rows is None:
            self._next = firsts[0]
        rows = self._until(firsts[0] + len(tile), tile)
        starts = [firsts[0] - self._next, *firsts[1:]]
        stops = [a + n for a, n in zip(starts, tile.shape, strict=False)]
        rows[tuple(map(slice, starts, stops))] = tile
        if self._pattern is None and stops[1:] == self._size[1 : len(firsts)]:
            self._pass_on(self._next + len(rows))

    def finish(self) -> None:
        """Pass on what is left: rows whose last tiles are background."""
        if self._size:
            self._pass_on(self._size[0])

    def _pass_on(self, until: int) -> None:
        """Pass on all rows above a row: no tile comes that begins there."""
        if self._rows is not None and until > self._next:
            rows = self._rows[: until - self._next]
            self._rows = self._rows[len(rows) :] if len(rows) < len(self._rows) else None
            self._writer(self._next, rows)
            self._next += len(rows)
        if self._pattern is not None:
            self._fill(until)

    def _until(self, stop: int, tile: np.ndarray) -> np.ndarray:
        """Return the rows from the next one to a row, or further: those that are there, and new ones."""
        if self._rows is None:
            self._rows = self._new(self._next, stop - self._next, tile)
        end = self._next + len(self._rows)
        if end < stop:
            self._rows = np.concatenate([self._rows, self._new(end, stop - end, tile)])
        return self._rows

    def _new(self, first: int, rows: int, tile: np.ndarray) -> np.ndarray:
        if self._pattern is not None:
            return self._background(first, rows)
        return np.empty((rows, *self._size[1:], tile.shape[-1]), tile.dtype)

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
