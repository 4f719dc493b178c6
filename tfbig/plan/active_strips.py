"""Division of a sweep into tiles of which only those that are not background are computed. Arithmetic only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf, prod
from operator import mul

import numpy as np

from tfbig.geometry.windows import Interval
from tfbig.plan.activity import ActiveTiles, Activity
from tfbig.plan.cost import sweep_limit
from tfbig.plan.plan import SweepCost
from tfbig.plan.strip_search import Strips
from tfbig.plan.tile_search import MOST_BLOCKS, START_OPERATIONS
from tfbig.units import ceil_div

LEAST_TILE = 16
"""Fewest rows and columns of a tile of the largest image of a sweep; to start smaller ones takes too long."""


STARTS = 2
"""Time to start a layer on a tile, relative to a strip: it has two axes, and is put together from tiles.

With 1, 2 and 4, a step of ResNet-18 at 4096 x 4096 takes 7.3, 6.9 and 7.1 s where a twentieth of the image is tissue,
and 13.7, 13.5 and 14.0 s where 0.3 of it is (two CPU cores, `benchmarks/background.py way --tissue 0.05`).
"""


MOST_JOINED = 64
"""Most neighbours that are computed as one tile, if they fit, a power of two: large tiles are started less often."""


@dataclass(frozen=True)
class ActiveStrips(Strips):
    """Tiles of a sweep that skips background.

    Args:
        activity: What is background.
        joined: Most neighbours that are computed as one tile, a rectangle.
        largest: Pixels of the largest rectangle of each image by the rows of the highest band, if tiles are joined.
    """

    activity: Activity | None = None
    joined: int = 1
    largest: Mapping[int, int] = field(default_factory=dict)

    def cost(self) -> SweepCost:
        """Return the cost of the tiles that are computed."""
        whole = super().cost()
        active_tiles = self.active_tiles(whole.strips)
        value = self.sweep.observed[0]
        owned = active_tiles.owned_pixels(value) / prod(self.extents[value])
        starts = ceil_div(STARTS * (active_tiles.number + 1), self.limits.count) * len(
            self.sweep.nodes
        )
        exact = round(whole.exact_operations * owned)
        return replace(
            whole, starts=starts, exact_operations=exact, active=owned, joined=self.joined
        )

    def active_tiles(self, count: int) -> ActiveTiles:
        """Return the tiles that are computed, without a pattern.

        Args:
            count: Number of bands.
        """
        assert self.activity is not None
        return self.activity.tiles(self.sweep, (count, *self.blocks), self.joined)

    def _visited(self, heights: Mapping[int, np.ndarray]) -> dict[int, int]:
        """Return the pixels of each image in all tiles that are computed."""
        count = len(next(iter(heights.values())))
        top, bottom, first, last = self.active_tiles(count).rectangles.T
        pixels = {}
        for v, rows in self._rows(count).items():
            columns, inner = self._columns[v], prod(self.extents[v][1 + len(self.blocks) :])
            high, wide = (
                rows.stop[bottom] - rows.start[top],
                columns.stop[last] - columns.start[first],
            )
            pixels[v] = int(high @ wide) * inner
        return pixels

    @cached_property
    def _row_pixels(self) -> dict[int, tuple[int, int]]:
        """Pixels that a row of each image has in the largest tile, and in all parts of the row together.

        The largest tile counts as one of as many rows as a band, and of fractions of columns.
        """
        row = {}
        for v, columns in self._columns.items():
            widest = self.largest.get(v, int(columns.size.max()))
            inner = prod(self.extents[v][1 + len(self.blocks) :])
            row[v] = widest * inner, int(columns.size.sum()) * inner
        return row

    def _rows(self, count: int) -> dict[int, Interval]:
        """Rows of each image that every band reads or computes."""
        return self.intervals(0, count, range(count))

    def neighbours(self, count: int) -> Iterator[ActiveStrips]:
        """Yield the same tiles with their neighbours, from many to few.

        Args:
            count: Number of bands.
        """
        rows = self._rows(count)
        lengths = {v: (_longest(rows[v]), _longest(self._columns[v])) for v in rows}
        for power in range(MOST_JOINED.bit_length() - 1, 0, -1):
            largest = {
                v: ceil_div(max(map(mul, high, wide[power::-1])), max(high[0], 1))
                for v, (high, wide) in lengths.items()
            }
            yield replace(self, joined=2**power, largest=largest)

    @cached_property
    def _columns(self) -> dict[int, Interval]:
        """Columns of each image that every part across reads or computes; for signals one."""
        if not self.blocks:
            one = Interval(np.zeros(1, np.int64), np.ones(1, np.int64))
            return dict.fromkeys(self.sweep.images, one)
        (count,) = self.blocks
        return self.intervals(1, count, range(count))


def _longest(parts: Interval) -> list[int]:
    """Return the length of the longest part of an axis, of the longest two neighbours, of four, ..."""
    last = len(parts.stop) - 1
    numbers = 2 ** np.arange(MOST_JOINED.bit_length())
    far = np.minimum(np.arange(last + 1) + numbers[:, None] - 1, last)
    return (parts.stop[far] - parts.start).max(axis=1).tolist()


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
    sweep, extents = strips.sweep, strips.extents
    tiled = ActiveStrips(
        images=strips.images,
        limits=strips.limits,
        sweep=sweep,
        training=strips.training,
        learned=strips.learned,
        fixed=strips.fixed,
        name=strips.name,
        steps=steps,
        activity=activity,
    )
    largest = max(sweep.observed, key=lambda v: prod(extents[v]))
    rows, *others = extents[largest]
    best, least, finest = None, inf, None
    for blocks in _block_counts(tiled, largest):
        tiles = replace(tiled, blocks=blocks)
        finest = tiles
        if not tiles.fewest:
            continue
        square = rows * blocks[0] // others[0] if blocks else tiles.most
        for count in _band_counts(tiles, square, rows):
            fixed = _with_neighbours(replace(tiles, fixed=count), count)
            effort = _effort(fixed, count)
            if effort < least:
                best, least = fixed, effort
    assert finest is not None
    return best or finest


def _with_neighbours(tiles: ActiveStrips, count: int) -> ActiveStrips:
    """Return the tiles with as many neighbours joined as fit the device."""
    if not tiles.blocks:
        return tiles
    fitting = (wide for wide in tiles.neighbours(count) if wide._fits(count, range(count)))
    return next(fitting, tiles)


def _block_counts(strips: ActiveStrips, largest: int) -> list[tuple[int, ...]]:
    """Return the numbers of parts that columns may be cut into; none for signals."""
    if len(strips.extents[largest]) == 1:
        return [()]
    most = min(sweep_limit(strips.sweep, strips.extents, strips.steps, 1), MOST_BLOCKS)
    useful = max(strips.extents[largest][1] // LEAST_TILE, 1)
    return [(2**n,) for n in range(most.bit_length()) if 2**n <= max(useful, 1) or n == 0]


def _band_counts(tiles: ActiveStrips, square: int, rows: int) -> list[int]:
    """Return the numbers of bands to try: of square tiles, and for signals of all sizes."""
    fewest = tiles.fewest or tiles.most
    if tiles.blocks:
        return [min(max(square, fewest), tiles.most)]
    useful = max(rows // LEAST_TILE, 1)
    return sorted({min(max(2**n, fewest), tiles.most) for n in range(useful.bit_length())})


def _effort(tiles: ActiveStrips, count: int) -> float:
    """Return the operations of a forward pass, and those in the time that it takes to start the layers."""
    starts = STARTS * (tiles.active_tiles(count).number + 1) * len(tiles.sweep.nodes)
    return tiles.operations(count)[0] + starts * START_OPERATIONS
