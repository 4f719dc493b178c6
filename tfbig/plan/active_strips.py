"""Division of a sweep into tiles of which only those that are not background are computed. Arithmetic only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import inf, prod

import numpy as np

from tfbig.plan.activity import Activity, Visits
from tfbig.plan.cost import heights_of
from tfbig.plan.plan import SweepCost
from tfbig.plan.strip_search import Strips
from tfbig.plan.tile_search import MOST_BLOCKS, START_OPERATIONS

LEAST_TILE = 64
"""Fewest rows and columns of a tile of the largest image of a sweep; to start smaller ones takes too long."""


@dataclass(frozen=True)
class ActiveStrips(Strips):
    """Tiles of a sweep that skips background.

    Args:
        activity: What is background.
    """

    activity: Activity | None = None

    def cost(self) -> SweepCost:
        """Return the cost of the tiles that are computed."""
        whole = super().cost()
        visits = self._visits(whole.strips)
        value = self.sweep.observed[0]
        owned = visits.owned_pixels(value) / prod(self.extents[value])
        starts = -(-(visits.active.sum() + 1) // self.devices) * len(self.sweep.nodes)
        exact = round(whole.exact_operations * owned)
        return replace(whole, starts=int(starts), exact_operations=exact, active=owned)

    @cached_property
    def _most(self) -> int:
        """Largest possible number of bands: each begins with a cell of background."""
        return self._cells(0)

    def _cells(self, axis: int) -> int:
        steps = self._activity.steps(self.sweep)
        return min(-(-self.extents[v][axis] // steps[v][axis]) for v in self.sweep.observed)

    @property
    def _activity(self) -> Activity:
        assert self.activity is not None
        return self.activity

    def _visits(self, count: int) -> Visits:
        return self._activity.tiles(self.sweep, (count, *self.blocks))

    def _visited(self, heights: Mapping[int, np.ndarray]) -> dict[int, int]:
        """Return the pixels of each image in all tiles that are computed."""
        count = len(next(iter(heights.values())))
        active = self._visits(count).active
        pixels = {}
        for v, rows in heights.items():
            columns = self._widths[v] if self.blocks else np.ones(1, np.int64)
            inner = prod(self.extents[v][1 + len(self.blocks) :])
            pixels[v] = int(rows @ active @ columns) * inner
        return pixels

    @cached_property
    def _widths(self) -> dict[int, np.ndarray]:
        """Columns of each image in every part across."""
        table = self._table(1, self.blocks[0], None)
        return {v: heights_of(self.sweep, table, v) for v in self.sweep.images}

    @cached_property
    def _row_pixels(self) -> dict[int, tuple[int, int]]:
        pixels = {}
        for v in self.sweep.images:
            inner = prod(self.extents[v][1 + len(self.blocks) :])
            widths = self._widths[v] if self.blocks else np.ones(1, np.int64)
            pixels[v] = int(widths.max()) * inner, int(widths.sum()) * inner
        return pixels

    def _heights(self, count: int, chosen: Sequence[int] | None = None) -> dict[int, np.ndarray]:
        """Return the rows of each image in every band, or in the chosen ones."""
        table = self._table(0, count, chosen)
        return {v: heights_of(self.sweep, table, v) for v in self.sweep.images}

    def _table(self, axis: int, count: int, chosen: Sequence[int] | None) -> np.ndarray:
        sizes = {v: self.extents[v][axis] for v in self.sweep.images}
        steps = {v: each[axis] for v, each in self._activity.steps(self.sweep).items()}
        return self.sweep.table(sizes, count, chosen, axis, steps)


def fastest(strips: Strips, activity: Activity) -> ActiveStrips:
    """Return the tiles of a sweep that take least time.

    Small tiles follow the outline of the foreground, large tiles compute fewer pixels twice, and start the layers less
    often. Tiles are about square; the number of parts across is a power of two.

    Args:
        strips: The division into strips.
        activity: What is background.

    Returns:
        The division, the finest one if no tiles fit.
    """
    given = {f.name: getattr(strips, f.name) for f in fields(Strips)}
    sweep, extents = strips.sweep, strips.extents
    largest = max(sweep.observed, key=lambda v: prod(extents[v]))
    rows, *others = extents[largest]
    best, least, finest = None, inf, None
    for blocks in _block_counts(ActiveStrips(**given, activity=activity), largest):
        tiles = replace(ActiveStrips(**given, activity=activity), blocks=blocks)
        finest = tiles
        if not tiles.fewest:
            continue
        square = rows * blocks[0] // others[0] if blocks else tiles._most
        for count in _band_counts(tiles, square, rows):
            fixed = replace(tiles, fixed=count)
            effort = _effort(fixed, count)
            if effort < least:
                best, least = fixed, effort
    assert finest is not None
    return best or finest


def _block_counts(strips: ActiveStrips, largest: int) -> list[tuple[int, ...]]:
    """Return the numbers of parts that columns may be cut into; none for signals."""
    if len(strips.extents[largest]) == 1:
        return [()]
    most = min(strips._cells(1), MOST_BLOCKS)
    useful = max(strips.extents[largest][1] // LEAST_TILE, 1)
    return [(2**n,) for n in range(most.bit_length()) if 2**n <= max(useful, 1) or n == 0]


def _band_counts(tiles: ActiveStrips, square: int, rows: int) -> list[int]:
    """Return the numbers of bands to try: of square tiles, and for signals of all sizes."""
    fewest = tiles.fewest or tiles._most
    if tiles.blocks:
        return [min(max(square, fewest), tiles._most)]
    useful = max(rows // LEAST_TILE, 1)
    return sorted({min(max(2**n, fewest), tiles._most) for n in range(useful.bit_length())})


def _effort(tiles: ActiveStrips, count: int) -> float:
    """Return the operations of a forward pass, and those in the time that it takes to start the layers."""
    starts = int(tiles._visits(count).active.sum() + 1) * len(tiles.sweep.nodes)
    return tiles.operations(count)[0] + starts * START_OPERATIONS
