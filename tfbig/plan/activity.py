"""Tiles that a step has to compute: all but those on which every image of a sweep is background. Arithmetic only.

Where an input has one colour, so has every image that is computed from it, apart from a rim as wide as the windows of
the layers, and from the border of the image, where layers read padding. A tile that depends on neither foreground nor
padding is background. All background of an image is a pattern that repeats: one pixel, or a few rows and columns behind
transposed convolutions. It is computed once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import lcm, prod

import numpy as np

from tfbig.geometry.background import Background, BoolArray
from tfbig.geometry.reach import Reach
from tfbig.geometry.windows import Interval, Size, partition
from tfbig.network.graph import Graph, Node, axes_of
from tfbig.plan.sweeps import Layout, Sweep
from tfbig.units import ceil_div

Reaches = tuple[Reach, ...]
"""Reach along each axis that images are cut along."""

Depends = Mapping[int, Reaches]
"""Reaches by input of the graph."""

Pattern = tuple[Interval, ...]
"""Rows, and columns if images are cut along them, of one piece of background."""

GAP = 64
"""Most elements between two tiles of a store (`tfbig.stores.tiled_store.ALIGNED`)."""

MOST_KNOWN = 64
"""Most divisions of sweeps whose tiles are kept while a plan is searched for."""

_ENDS = frozenset({"stop", "after", "own stop", "until"})
"""Columns of `Sweep.table` that tiles with their neighbours have from the last one of these."""

MOST_PATTERN = 64
"""Most rows or columns of a pattern; images with a larger one are computed everywhere."""


@dataclass(frozen=True, eq=False)
class ActiveTiles:
    """Tiles of a sweep that are computed.

    Args:
        sweep: The sweep.
        counts: Number of parts that images are cut into along each axis.
        active: `[rows of tiles, columns of tiles]`: which tiles are computed.
        steps: For each observed image, rows and columns of a pattern; tiles begin at multiples of these.
        pattern: For each observed image, where the pattern is that is computed for all background; None without one.
        sizes: Size of every image.
        joined: Most neighbours that are computed as one tile, a rectangle; a power of two of them has one height.
    """

    sweep: Sweep
    counts: tuple[int, ...]
    active: BoolArray
    steps: Mapping[int, Sequence[int]]
    pattern: Mapping[int, Pattern] | None
    sizes: Mapping[int, Size]
    joined: int = 1

    @cached_property
    def rectangles(self) -> np.ndarray:
        """Tiles with their neighbours, `[n, 4]`: first row, last row, first column and last column, in this order."""
        row, first, last = self._runs()
        # Runs of the same columns in rows that follow each other are joined too, as long as there are not too many.
        order = np.lexsort([row, last, first])
        row, first, last = row[order], first[order], last[order]
        follows = (np.diff(first) == 0) & (np.diff(last) == 0) & (np.diff(row) == 1)
        start = np.maximum.accumulate(np.where(np.append(False, follows), 0, np.arange(len(row))))
        high = 2 ** np.log2(self.joined // (last - first + 1)).astype(np.int64)
        begins = (np.arange(len(row)) - start) % high == 0
        tops = np.nonzero(begins)[0]
        bottoms = np.append(tops[1:], len(row)) - 1
        found = np.stack([row[tops], row[bottoms], first[tops], last[tops]], 1).astype(np.int32)
        return found[np.lexsort([found[:, 2], found[:, 0]])]

    def _runs(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return neighbours in a row: the row, the first column and the last."""
        changes = np.diff(np.pad(self.active, ((0, 0), (1, 1))).astype(np.int8), axis=1)
        rows, firsts = np.nonzero(changes == 1)
        _, stops = np.nonzero(changes == -1)
        pieces = ceil_div(stops - firsts, self.joined)
        run = np.repeat(np.arange(len(rows)), pieces)
        piece = np.arange(len(run)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        first = firsts[run] + piece * self.joined
        last = np.minimum(first + self.joined, stops[run]) - 1
        return rows[run], first, last

    def background_reads(self) -> dict[int, Pattern]:
        """Return where the pattern reads each image that is stored or comes from outside."""
        if self.pattern is None:
            return {}
        line, columns = self.sweep.line(self.sizes, self.pattern)[0], self.sweep.columns
        width = len(columns)
        return {
            v: tuple(
                Interval(*(int(line[axis * width + columns[end, v]]) for end in ("start", "stop")))
                for axis in range(len(self.counts))
            )
            for v in self.sweep.reads
        }

    @property
    def number(self) -> int:
        """Number of tiles that are computed, the pattern included."""
        return len(self.rectangles) + (self.pattern is not None)

    def table(self) -> np.ndarray:
        """Return the geometry of the tiles: first the pattern, then all others in the order of their first rows.

        Returns:
            Array `[number, axes * len(sweep.columns) + 1]` int32: a line of `Sweep.tiles`, then 1 for the pattern.
        """
        tables = [
            self.sweep.table(
                {v: self.sizes[v][axis] for v in self.sweep.images},
                count,
                axis=axis,
                steps={v: steps[axis] for v, steps in self.steps.items()},
            )
            for axis, count in enumerate(self.counts)
        ]
        ends = [key[0] in _ENDS for key in self.sweep.columns]
        lines = np.hstack(
            [
                np.where(ends, table[last], table[first])
                for table, (first, last) in zip(tables, self._intervals(), strict=True)
            ]
        )
        marks = np.zeros((len(lines), 1), np.int32)
        if self.pattern is not None:
            lines = np.vstack([self.sweep.line(self.sizes, self.pattern), lines])
            marks = np.vstack([np.ones((1, 1), np.int32), marks])
        return np.hstack([lines, marks]).astype(np.int32)

    def _intervals(self) -> list[np.ndarray]:
        """Return the first and the last part of each tile, `[2, n]` for each axis that images are cut along."""
        return np.split(self.rectangles.T, 2)[: len(self.counts)]

    def owned_pixels(self, value: int) -> int:
        """Return the pixels of an observed image that the tiles own together, without those of the pattern."""
        return self._owned_pixels[value]

    @cached_property
    def _owned_pixels(self) -> dict[int, int]:
        return {v: self._pixels_of(v) for v in self.sweep.observed}

    def _pixels_of(self, value: int) -> int:
        sizes = [
            partition(size, count, np.arange(count), step).size
            for size, count, step in zip(
                self.sizes[value], self.counts, self.steps[value], strict=False
            )
        ]
        inner = prod(self.sizes[value][len(self.counts) :])
        columns = sizes[1] if len(sizes) > 1 else np.ones(1, np.int64)
        return int((sizes[0].astype(np.int64) @ self.active) @ columns) * inner

    def pattern_pixels(self, value: int) -> int:
        """Return the pixels of the pattern of an observed image; 0 without a pattern."""
        if self.pattern is None:
            return 0
        return prod(i.size for i in self.pattern[value]) * prod(
            self.sizes[value][len(self.counts) :]
        )

    def copies(self) -> np.ndarray:
        """Return how often the pattern occurs in each observed image, `[observed]` float64."""
        if self.pattern is None:
            return np.zeros(len(self.sweep.observed))
        return np.array(
            [
                (prod(self.sizes[v]) - self.owned_pixels(v)) / self.pattern_pixels(v)
                for v in self.sweep.observed
            ]
        )


class Activity:
    """Analysis of the background of the images of a step, and of the tiles of its sweeps that are computed.

    Args:
        graph: The graph.
        sizes: Size of every image.
        backgrounds: Background of the input images that have one.
        layout: The sweeps in order; images that a sweep has to compute everywhere are so for the next.
    """

    def __init__(
        self,
        graph: Graph,
        sizes: Mapping[int, Size],
        backgrounds: Mapping[int, Background],
        layout: Layout,
    ) -> None:
        self.graph = graph
        self.sizes = sizes
        self.backgrounds = backgrounds
        self.axes = min(graph.spatial, 2)
        self._stops: list[str] = []
        self._depends: dict[int, Depends | None] = {
            v: self._of_input(v) if v in backgrounds else None for v in graph.inputs
        }
        for sweep in layout.sweeps:
            self._know(sweep)
        self._active: dict[tuple[object, ...], BoolArray] = {}
        self._tiles: OrderedDict[tuple[object, ...], ActiveTiles] = OrderedDict()

    @property
    def everywhere(self) -> tuple[str, ...]:
        """Names of layers whose results differ from pixel to pixel of the background, in order."""
        return tuple(dict.fromkeys(self._stops))

    def _of_input(self, value: int) -> Depends:
        return {value: tuple(map(Reach.of_input, self.sizes[value][: self.axes]))}

    def _know(self, sweep: Sweep) -> None:
        """Find what the images of a sweep depend on; None if one of them is computed everywhere."""
        if self._depends.keys() >= set(sweep.observed):
            return
        local = {v: self._depends[v] for v in sweep.reads}
        for node in sweep.locals:
            local[node.output] = self._through(node, local)
        alike = {v: local[v] for v in sweep.observed}
        everywhere = any(d is None for d in alike.values()) or not _inside(alike.values())
        self._depends.update({v: None if everywhere else d for v, d in alike.items()})

    def _through(self, node: Node, local: Mapping[int, Depends | None]) -> Depends | None:
        """Return what the output of a node depends on; None if the output differs from pixel to pixel."""
        joint: dict[int, Reaches] = {}
        if not node.op.uniform:
            self._stops.append(node.layer)
            return None
        for p in node.image_positions:
            source, axes = node.inputs[p], axes_of(node, p)
            depends = local[source]
            if depends is None:
                return None
            for image, reaches in depends.items():
                passed = [
                    reach.through(axis, size)
                    for reach, axis, size in zip(reaches, axes, self.sizes[source], strict=False)
                ]
                if None in passed:
                    self._stops.append(node.layer)
                    return None
                reach = tuple(r for r in passed if r is not None)
                joint[image] = _joined(joint[image], reach) if image in joint else reach
        return joint or None

    @property
    def is_of_use(self) -> bool:
        """Return whether any image that is computed may have background."""
        computed = self._depends.keys() - set(self.graph.inputs)
        return any(self._depends[v] is not None for v in computed)

    def steps(self, sweep: Sweep) -> dict[int, tuple[int, ...]]:
        """Return the rows and columns of a pattern of each observed image; images of one size have one."""
        self._know(sweep)
        by_size: dict[Size, list[int]] = {}
        for v in sweep.observed:
            joint = by_size.setdefault(self.sizes[v], [1] * self.axes)
            for reaches in (self._depends[v] or {}).values():
                joint[:] = [lcm(a, r.period) for a, r in zip(joint, reaches, strict=True)]
        return {v: tuple(by_size[self.sizes[v]]) for v in sweep.observed}

    def tiles(self, sweep: Sweep, counts: Sequence[int], joined: int = 1) -> ActiveTiles:
        """Return the tiles of a sweep that are computed, without a pattern.

        Args:
            sweep: The sweep.
            counts: Number of parts that images are cut into along each axis.
            joined: As in `ActiveTiles`.
        """
        self._know(sweep)
        key = (sweep, *counts, joined)
        if key not in self._tiles:
            active, steps = self._active_tiles(sweep, counts), self.steps(sweep)
            self._tiles[key] = ActiveTiles(
                sweep, tuple(counts), active, steps, None, self.sizes, joined
            )
            if len(self._tiles) > MOST_KNOWN:
                self._tiles.popitem(last=False)
        self._tiles.move_to_end(key)
        return self._tiles[key]

    def _active_tiles(self, sweep: Sweep, counts: Sequence[int]) -> BoolArray:
        key = (sweep.observed, *counts)
        if key not in self._active:
            steps, active = self.steps(sweep), np.zeros((counts[0], prod(counts[1:])), bool)
            for v in sweep.observed:
                owned = [
                    partition(size, count, np.arange(count), step)
                    for size, count, step in zip(self.sizes[v], counts, steps[v], strict=False)
                ]
                active |= self.active(v, owned, steps[v])
            self._active[key] = active
        return self._active[key]

    def stored_shares(self, sweep: Sweep, counts: Sequence[int]) -> dict[int, float]:
        """Return the share of each image that a sweep writes that is stored: its tiles, and a pattern.

        Args:
            sweep: The sweep.
            counts: Number of parts that images are cut into along each axis.
        """
        tiles, steps = self.tiles(sweep, counts), self.steps(sweep)
        shares = {}
        for v in sweep.writes:
            inner = prod(self.sizes[v][len(counts) :])
            pixels = tiles.owned_pixels(v) + prod(steps[v]) * inner
            gaps = (tiles.number + 1) * GAP / self.graph.values[v].channels
            shares[v] = (pixels + gaps) / prod(self.sizes[v])
        return shares

    def read_share(self, value: int) -> float:
        """Return the share of an input image that is not background."""
        return self.backgrounds[value].share

    def active_tiles(
        self, layout: Layout, counts: Sequence[Sequence[int]], joined: Sequence[int] | None = None
    ) -> tuple[ActiveTiles, ...] | None:
        """Return the tiles that a layout computes, with a pattern for the background of each sweep.

        Args:
            layout: The sweeps and replays.
            counts: For each sweep, then each replay, the number of parts that images are cut into along each axis.
            joined: For each sweep, then each replay, `ActiveTiles.joined`. Default: 1.

        Returns:
            Tiles of each sweep, then of each replay; None if no pattern is found in an image of which one is read.
        """
        all_sweeps = [*layout.sweeps, *layout.replays]
        most = [1] * len(all_sweeps) if joined is None else joined
        tiles = [self.tiles(s, c, n) for s, c, n in zip(all_sweeps, counts, most, strict=True)]
        last = len(layout.sweeps)
        spots: dict[int, Pattern] = {}
        # Without a tile of background, the pattern is where another sweep reads it: the last sweep comes first.
        for position in (*reversed(range(last)), *range(last, len(tiles)), *reversed(range(last))):
            tiles[position] = replace(
                tiles[position], pattern=self._pattern(tiles[position], spots)
            )
            spots |= tiles[position].background_reads()
        for each in tiles:
            if each.pattern is None and spots.keys() & set(each.sweep.writes):
                return None
        return tuple(tiles)

    def active(self, value: int, tile: Sequence[Interval], steps: Sequence[int]) -> BoolArray:
        """Return which rectangles of an image may differ from background.

        Args:
            value: The image.
            tile: Intervals of rows `[r]`, and of columns `[c]` if images are cut along them.
            steps: Rows and columns of a pattern; a part of a pattern is no background.

        Returns:
            `[r, c]`.
        """
        depends = self._depends[value]
        shape = [len(i.start) for i in tile]
        active = np.zeros((shape[0], prod(shape[1:])), bool)
        if depends is None:
            return ~active
        for image, reaches in depends.items():
            outside = [
                (i.start < r.inside.start) | (i.stop > _whole(r.inside.stop, step))
                for i, r, step in zip(tile, reaches, steps, strict=True)
            ]
            active |= outside[0][:, None]
            if len(outside) > 1:
                active |= outside[1][None]
            read = [r.rows(i) for r, i in zip(reaches, tile, strict=True)]
            active |= self.backgrounds[image].touches(*read)
        return active

    def _pattern(
        self, tiles: ActiveTiles, spots: Mapping[int, Pattern]
    ) -> dict[int, Pattern] | None:
        """Return a pattern of each observed image: in a tile of background, else at one of the spots, else None."""
        sweep, counts, steps = tiles.sweep, tiles.counts, tiles.steps
        if not tiles.active.all():
            inactive = np.argwhere(~tiles.active)
            place = inactive[len(inactive) // 2][: len(counts)]
            parts = {
                v: zip(self.sizes[v], counts, place, steps[v], strict=False) for v in sweep.observed
            }
            return {
                v: tuple(_middle(partition(n, c, int(at), step), step) for n, c, at, step in each)
                for v, each in parts.items()
            }
        spot = next((v for v in sweep.writes if v in spots), None)
        if spot is None:
            return None
        pattern = {
            v: tuple(
                _at(interval, size, other, step)
                for interval, size, other, step in zip(
                    spots[spot], self.sizes[spot], self.sizes[v], steps[v], strict=False
                )
            )
            for v in sweep.observed
        }
        found = {
            v: [Interval(*np.array([[i.start], [i.stop]])) for i in c] for v, c in pattern.items()
        }
        is_active = any(self.active(v, i, steps[v]).any() for v, i in found.items())
        return None if is_active else pattern


def _middle(interval: Interval, step: int) -> Interval:
    """Return the pattern in the middle of an interval that begins with a pattern."""
    start = int(interval.start) + (int(interval.size) // step - 1) // 2 * step
    return Interval(start, start + step)


def _at(interval: Interval, size: int, other: int, step: int) -> Interval:
    """Return the pattern of an image of `other` rows that is where an interval is in one of `size` rows."""
    first, last = (int(n) * other // size for n in interval)
    start = ceil_div(first, step) * step
    if start + step > last:
        start = first // step * step
    return Interval(start, start + step)


def _whole(stop: int, step: int) -> int:
    """Return the end of the last whole pattern."""
    return stop // step * step


def _joined(first: Reaches, second: Reaches) -> Reaches:
    return tuple(a.joined(b) for a, b in zip(first, second, strict=True))


def _inside(images: Iterable[Depends | None]) -> bool:
    """Return whether images may have background: pixels that depend on no padding, and small patterns."""
    return all(
        r.inside.start < r.inside.stop and r.period <= MOST_PATTERN
        for depends in images
        for reaches in (depends or {}).values()
        for r in reaches
    )
