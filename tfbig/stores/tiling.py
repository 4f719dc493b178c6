"""Stores that hold some tiles of an image, and one pattern for all of its background.

The tiles are in one array, one after the other; `of` finds the tiling of an array by its address.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np

from tfbig.stores.page_pool import TILES
from tfbig.units import ceil_div

Part = tuple[slice, ...]


ALIGNED = 64
"""Elements; each tile begins at a multiple of them, so that TensorFlow uses it without a copy."""
LENT = 2
"""Most tiles of a store that strips read at a time without a copy."""


class Tiling:
    """Tiles of an image `[N, H, W, ..., C]`, intervals of rows or rectangles, in the order of their first rows.

    A store of values gives the colour of the background outside its tiles. A store of sums adds up there what is
    added, since only the sum counts, and gives zero.

    Args:
        shape: Shape of the whole image.
        tiles: `[n, 2 * axes]` int: first row and row after the last of each tile, then the same of the columns.
        is_pattern: `[n]` bool: whether a tile is the pattern of background; at most one is.
        sums: Whether it is a store of sums.

    Attributes:
        shape: Shape of the whole image.
        elements: Number of elements of all tiles, those of the pattern included.
        background_sums: float64 sums of what was added outside the tiles, in the shape of the pattern; None if there is
            no pattern.
    """

    def __init__(
        self, shape: Sequence[int], tiles: np.ndarray, is_pattern: np.ndarray, sums: bool
    ) -> None:
        self.shape = tuple(map(int, shape))
        self.axes = tiles.shape[1] // 2
        self.sums = sums
        bounds = tiles.reshape(-1, self.axes, 2)
        heights = (bounds[..., 1] - bounds[..., 0]).astype(np.int64)
        outer, self._inner = self.shape[0], self.shape[1 + self.axes :]
        sizes = heights.prod(1) * outer * prod(self._inner)
        self._numbers = sizes.tolist()
        aligned = ceil_div(sizes, ALIGNED) * ALIGNED
        self._offsets = np.concatenate([[0], np.cumsum(aligned)]).tolist()
        self._sizes = [(outer, *map(int, each), *self._inner) for each in heights]
        (patterns,) = np.nonzero(is_pattern)
        self._pattern = int(patterns[0]) if len(patterns) else None
        self._firsts = [tuple(first) for first in bounds[..., 0].tolist()]
        regular = [n for n in range(len(bounds)) if n != self._pattern]
        self._slots = {self._firsts[n]: n for n in regular}
        self._bands, self._columns = _bands(bounds, regular)
        self.elements = int(self._offsets[-1])
        self._touched: set[int] = set()
        self._copied: set[int] = set()
        self._lent: deque[int] = deque()
        self.background_sums = (
            None if self._pattern is None else np.zeros(self._sizes[self._pattern])
        )

    @property
    def steps(self) -> tuple[int, ...]:
        """Rows, and columns, of the pattern; 1 without a pattern."""
        return (
            (1,) * self.axes
            if self._pattern is None
            else self._sizes[self._pattern][1 : 1 + self.axes]
        )

    def tile(self, store: np.ndarray, slot: int) -> np.ndarray:
        """Return a tile of a store, a view `[N, h, w, ..., C]`."""
        start = self._offsets[slot]
        return store[start : start + self._numbers[slot]].reshape(self._sizes[slot])

    def read(
        self,
        store: np.ndarray,
        starts: Sequence[int],
        stops: Sequence[int],
        is_pattern: bool = False,
    ) -> np.ndarray:
        """Return a rectangle of the image; for one tile, the tile itself without a copy.

        Args:
            store: The store.
            starts: First row, and column.
            stops: Row, and column, after the last.
            is_pattern: Whether to return the sums of the background instead, from a store of sums.

        Returns:
            `[N, rows, columns, ..., C]`.
        """
        if is_pattern and self.sums:
            return self.sums_of_background(store.dtype)
        size = tuple(stop - start for start, stop in zip(starts, stops, strict=True))
        slot = self._slots.get(tuple(starts))
        if slot is not None and self._sizes[slot][1 : 1 + self.axes] == size:
            self._lent.append(slot)
            return self._complete(store, slot)
        rows = TILES.array((self.shape[0], *size, *self._inner), store.dtype)
        for part, slot, inside in self._pieces(starts, stops):
            if slot is None:
                rows[part] = self._colour(store, starts, part)
            else:
                rows[part] = self._complete(store, slot)[inside]
                self._copied.add(slot)
        return rows

    def sums_of_background(self, dtype: Any) -> np.ndarray:
        """Return what was added outside the tiles, in the shape of the pattern."""
        assert self.background_sums is not None, "a gradient of background without a pattern"
        return self.background_sums.astype(dtype)

    def write(
        self, store: np.ndarray, tile: np.ndarray, firsts: Sequence[int], is_pattern: bool
    ) -> np.ndarray:
        """Write a tile, or the pattern, and return where it is in the store.

        Args:
            store: The store.
            tile: `[N, h, w, ..., C]`.
            firsts: First row, and column.
            is_pattern: Whether the tile is the pattern.
        """
        slot = self._pattern if is_pattern else self._slots[tuple(firsts)]
        assert slot is not None
        target = self.tile(store, slot)
        if is_pattern and self.sums:
            self.background_sums = tile.astype(np.float64)
        else:
            target[...] = tile
            self._touched.add(slot)
        return target

    def add(self, store: np.ndarray, tile: np.ndarray, firsts: Sequence[int]) -> list[np.ndarray]:
        """Add a rectangle to the tiles that it touches, and to the sums of the background; return the changed tiles.

        Args:
            store: A store of sums.
            tile: `[N, h, w, ..., C]`.
            firsts: First row, and column.
        """
        stops = [first + size for first, size in zip(firsts, tile.shape[1:], strict=False)]
        changed = []
        for part, slot, inside in self._pieces(firsts, stops):
            if slot is None:
                self.add_to_background(
                    tile[part], [f + p.start for f, p in zip(firsts, part[1:], strict=False)]
                )
                continue
            target = self.tile(store, slot)
            if slot in self._touched:
                target[inside] += tile[part]
            else:
                if target[inside].shape != target.shape:
                    target[...] = 0
                target[inside] = tile[part]
                self._touched.add(slot)
            changed.append(target)
        return changed

    def left(self, store: np.ndarray) -> list[np.ndarray]:
        """Return the tiles that were read since the last call and that no strip reads now.

        Those are tiles of which rectangles were copied, and tiles that were lent without a copy, but for the last ones.

        Args:
            store: The store.
        """
        while len(self._lent) > LENT:
            self._copied.add(self._lent.popleft())
        slots, self._copied = self._copied - set(self._lent), set()
        return [self.tile(store, slot) for slot in slots]

    def dense(self, store: np.ndarray) -> np.ndarray:
        """Return the whole image."""
        return self.read(store, [0] * self.axes, self.shape[1 : 1 + self.axes])

    def _complete(self, store: np.ndarray, slot: int) -> np.ndarray:
        """Return a tile; of a store of sums to which nothing was added, zeros."""
        tile = self.tile(store, slot)
        if self.sums and slot not in self._touched:
            tile[...] = 0
            self._touched.add(slot)
        return tile

    def _pieces(
        self, starts: Sequence[int], stops: Sequence[int]
    ) -> Iterator[tuple[Part, int | None, Part]]:
        """Yield the pieces of a rectangle: its place in it, the tile that holds it or None, and its place there."""
        for top, bottom, band in _cut(self._bands, starts[0], stops[0]):
            for across, slot in self._across(band, starts[1:], stops[1:]):
                piece = ((top, bottom), *across)
                firsts = starts if slot is None else self._firsts[slot]
                yield _part_of(piece, starts), slot, _part_of(piece, firsts)

    def _across(
        self, band: int | None, starts: Sequence[int], stops: Sequence[int]
    ) -> list[tuple[tuple[tuple[int, int], ...], int | None]]:
        """Return the pieces of a part of a band, and the tile of each: columns, none if tiles are intervals of rows."""
        if not starts:
            return [((), band)]
        edges = [] if band is None else self._columns[band]
        pieces = _cut(edges, starts[0], stops[0])
        return [(((left, right),), slot) for left, right, slot in pieces]

    def _colour(self, store: np.ndarray, starts: Sequence[int], part: Part) -> np.ndarray | float:
        """Return background for a piece of a rectangle."""
        if self.sums:
            return 0.0
        assert self._pattern is not None, "background without a pattern was read"
        pattern = self.tile(store, self._pattern)
        if self.steps == (1,) * self.axes:
            return pattern
        places = [
            (first + np.arange(p.start, p.stop)) % step
            for first, p, step in zip(starts, part[1:], self.steps, strict=True)
        ]
        repeated: tuple[Any, ...] = (slice(None), *np.ix_(*places))
        return pattern[repeated]

    def add_to_background(self, piece: np.ndarray, firsts: Sequence[int]) -> None:
        """Add pixels of the background to their sums.

        Args:
            piece: `[N, h, w, ..., C]`.
            firsts: First row, and column.
        """
        assert self.background_sums is not None, "a gradient of background without a pattern"
        axes = tuple(range(1, 1 + self.axes))
        for phases in product(*map(range, self.steps)):
            rows: list[Any] = [
                slice((phase - first) % step, None, step)
                for phase, first, step in zip(phases, firsts, self.steps, strict=True)
            ]
            place = (slice(None), *(slice(p, p + 1) for p in phases))
            self.background_sums[place] += piece[(slice(None), *rows)].sum(
                axes, np.float64, keepdims=True
            )


def _part_of(piece: Sequence[tuple[int, int]], firsts: Sequence[int]) -> Part:
    """Return the index of a piece in an array that begins at some row and column."""
    slices = (slice(a - first, b - first) for (a, b), first in zip(piece, firsts, strict=True))
    return (slice(None), *slices)


Edges = list[tuple[int, int, int]]
"""First place, place after the last and number of intervals, in order; there may be gaps between them."""


def _bands(bounds: np.ndarray, regular: Sequence[int]) -> tuple[Edges, list[Edges]]:
    """Cut the rows of tiles into bands, each of which only has tiles of all its rows.

    Args:
        bounds: `[n, axes, 2]`.
        regular: Tiles to regard.

    Returns:
        The bands, numbered; for intervals of rows, by the number of the tile. Then the columns of the tiles of each
        band, by the number of the tile; none for intervals of rows.
    """
    rows = bounds[regular, 0]
    if bounds.shape[1] == 1:
        return [(*each, n) for each, n in zip(rows.tolist(), regular, strict=True)], []
    edges = np.unique(rows)
    columns: list[Edges] = [[] for _ in edges]
    for n, (first, stop) in zip(regular, np.searchsorted(edges, rows).tolist(), strict=True):
        for band in range(first, stop):
            columns[band].append((*bounds[n, 1].tolist(), n))
    pairs = zip(edges.tolist(), edges[1:].tolist(), strict=False)
    bands = [(*pair, n) for n, pair in enumerate(pairs) if columns[n]]
    return bands, [sorted(each) for each in columns]


def _cut(edges: Edges, start: int, stop: int) -> list[tuple[int, int, int | None]]:
    """Cut an interval along the edges of others.

    Args:
        edges: The others.
        start: First place.
        stop: Place after the last.

    Returns:
        First place and place after the last of each piece, and the number of the interval around it, None in a gap.
    """
    pieces: list[tuple[int, int, int | None]] = []
    position = max(bisect_right(edges, start, key=lambda edge: edge[0]) - 1, 0)
    at = start
    while at < stop:
        first, last, number = edges[position] if position < len(edges) else (stop, stop, None)
        if at < first:
            pieces.append((at, min(first, stop), None))
        elif at < last:
            pieces.append((at, min(last, stop), number))
        at = max(at, pieces[-1][1]) if pieces else at
        position += at >= last
    return pieces


_TILINGS: dict[int, Tiling] = {}
"""Tilings by the address of the store."""


def of(store: np.ndarray) -> Tiling:
    """Return the tiling of a store."""
    return _TILINGS[_address(store)]


def remember(store: np.ndarray, tiling: Tiling) -> None:
    """Remember the tiling of a new store, instead of that of an earlier one at its address."""
    _TILINGS[_address(store)] = tiling


def _address(store: np.ndarray) -> int:
    return int(store.__array_interface__["data"][0])
