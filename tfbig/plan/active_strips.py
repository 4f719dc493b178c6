"""Division of a sweep into tiles of which only those that are not background are computed. Arithmetic only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from math import inf, prod

import numpy as np

from tfbig.plan.activity import Activity, Visits
from tfbig.plan.cost import sweep_limit
from tfbig.plan.plan import SweepCost
from tfbig.plan.strip_search import Strips, lengths
from tfbig.plan.tile_search import MOST_BLOCKS, START_OPERATIONS

LEAST_TILE = 16
"""Fewest rows and columns of a tile of the largest image of a sweep; to start smaller ones takes too long."""


STARTS = 2
"""Time to start a layer on a tile, relative to a strip: it has two axes, and is put together from tiles.

A step of ResNet-18 at 4096 x 4096, of which a fifth is tissue: 10,300 visits took 13 s of processor time more than their
operations, 1.25 ms each (two CPU cores).
"""


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
        visits = self.visits(whole.strips)
        value = self.sweep.observed[0]
        owned = visits.owned_pixels(value) / prod(self.extents[value])
        starts = -(-STARTS * (visits.active.sum() + 1) // self.devices) * len(self.sweep.nodes)
        exact = round(whole.exact_operations * owned)
        return replace(whole, starts=int(starts), exact_operations=exact, active=owned)

    @property
    def _activity(self) -> Activity:
        assert self.activity is not None
        return self.activity

    def visits(self, count: int) -> Visits:
        """Return the tiles that are computed.

        Args:
            count: Number of bands.
        """
        return self._activity.tiles(self.sweep, (count, *self.blocks))

    def _visited(self, heights: Mapping[int, np.ndarray]) -> dict[int, int]:
        """Return the pixels of each image in all tiles that are computed."""
        active, widths = self.visits(len(next(iter(heights.values())))).active, self._widths
        inner = {v: prod(self.extents[v][1 + len(self.blocks) :]) for v in heights}
        return {v: int(rows @ active @ widths[v]) * inner[v] for v, rows in heights.items()}

    @cached_property
    def _widths(self) -> dict[int, np.ndarray]:
        """Columns of each image in every part across; for signals 1."""
        if not self.blocks:
            return {v: np.ones(1, np.int64) for v in self.sweep.images}
        (count,) = self.blocks
        return lengths(self, 1, count, range(count))


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
    steps = activity.steps(strips.sweep)
    given = {f.name: getattr(strips, f.name) for f in fields(Strips)} | {"steps": steps}
    given["tallest"] = {}
    tiled = ActiveStrips(**given, activity=activity)
    sweep, extents = strips.sweep, strips.extents
    largest = max(sweep.observed, key=lambda v: prod(extents[v]))
    rows, *others = extents[largest]
    best, least, finest = None, inf, None
    for blocks in _block_counts(tiled, largest):
        tiles = replace(tiled, blocks=blocks)
        finest = tiles
        if not tiles.fewest:
            continue
        square = rows * blocks[0] // others[0] if blocks else _most(tiles)
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
    most = min(_most(strips, 1), MOST_BLOCKS)
    useful = max(strips.extents[largest][1] // LEAST_TILE, 1)
    return [(2**n,) for n in range(most.bit_length()) if 2**n <= max(useful, 1) or n == 0]


def _band_counts(tiles: ActiveStrips, square: int, rows: int) -> list[int]:
    """Return the numbers of bands to try: of square tiles, and for signals of all sizes."""
    fewest = tiles.fewest or _most(tiles)
    if tiles.blocks:
        return [min(max(square, fewest), _most(tiles))]
    useful = max(rows // LEAST_TILE, 1)
    return sorted({min(max(2**n, fewest), _most(tiles)) for n in range(useful.bit_length())})


def _effort(tiles: ActiveStrips, count: int) -> float:
    """Return the operations of a forward pass, and those in the time that it takes to start the layers."""
    starts = STARTS * int(tiles.visits(count).active.sum() + 1) * len(tiles.sweep.nodes)
    return tiles.operations(count)[0] + starts * START_OPERATIONS


def _most(tiles: ActiveStrips, axis: int = 0) -> int:
    return sweep_limit(tiles.sweep, tiles.extents, tiles.steps, axis)
