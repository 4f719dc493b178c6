"""Sweeps of a graph: the nodes that run together, and the images to store between them. Arithmetic only.

    level(node) = max(level(inputs)) + (1 if the input crosses a barrier, is stored or is read in full else 0)

All nodes of one level run in one sweep over the image. An image that a later sweep needs is stored, unless it is
cheap to rematerialise from other stored images, or memory is scarce.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import NamedTuple

import numpy as np

from tfbig.geometry.rates import Link, Rates, rate_of, together
from tfbig.geometry.windows import (
    Interval,
    Number,
    Size,
    clip,
    is_pixelwise,
    may_be_empty,
    partition,
)
from tfbig.network.graph import Graph, Local, Node, Reduce, Whole, axes_of, reads_all

REMAT_DEPTH = 4
"""Longest chain of cheap nodes that later sweeps rematerialise rather than read; the fastest choice."""

SHORT_DEPTH = 2
"""The same if segments are replayed: then images at the ends of residual blocks are stored, and little else."""


class Store(NamedTuple):
    """Name of a store: the memory, file or device space of an image or gradient between two sweeps.

    Args:
        kind: "image", "remat" (an image that is rematerialised for the backward pass) or "gradient".
        value: The image.
    """

    kind: str
    value: int


@dataclass(frozen=True)
class Sweep:
    """One pass over all strips of an image.

    Args:
        index: Position in the plan; 0 is first. A replay has the index of the last sweep of its segment.
        nodes: Local and reduce nodes, in order.
        reads: Images read from stores or sources.
        writes: Images stored for later sweeps.
        observed: Images whose rows the sweep owns: those written and those reduced.
        wholes: Whole nodes that run when the sweep has ended.
        is_replay: Whether it rematerialises images of earlier sweeps before their backward pass; a replay has no
            backward pass itself.
        axes: Number of spatial axes that images are cut along: 1 for strips of whole rows, 2 for tiles.
        skips: Whether the sweep skips tiles of background, and computes one pattern of it instead.
        single: Whether there is one strip, whatever the size of the image.
        even: Whether every strip reads and computes as many rows of an image as the strip that needs most of them. It
            then also computes rows that it does not need, all of them inside of the image.
        compiles: Whether XLA compiles what computes a strip, where it can, see `is_compiled`.
    """

    index: int
    nodes: tuple[Node, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    observed: tuple[int, ...]
    wholes: tuple[Node, ...]
    is_replay: bool = False
    axes: int = 1
    skips: bool = False
    single: bool = False
    even: bool = False
    compiles: bool = False

    def without(self, nodes: Sequence[Node]) -> Sweep:
        """Return the sweep with the same geometry but without some of its reductions.

        Args:
            nodes: The reductions to leave out.

        Returns:
            The new sweep.
        """
        return replace(self, nodes=tuple(n for n in self.nodes if n not in nodes))

    @cached_property
    def reductions(self) -> tuple[Node, ...]:
        """Reduce nodes."""
        return tuple(n for n in self.nodes if isinstance(n.op, Reduce))

    @cached_property
    def locals(self) -> tuple[Node, ...]:
        """Local nodes."""
        return tuple(n for n in self.nodes if isinstance(n.op, Local))

    @cached_property
    def images(self) -> tuple[int, ...]:
        """Every image that the sweep reads or computes."""
        return (*self.reads, *(n.output for n in self.locals))

    @cached_property
    def num_reads(self) -> dict[int, int]:
        """Number of reads of each image: by nodes, and once more if it is observed."""
        counts = dict.fromkeys(self.images, 0)
        for value in self.observed:
            counts[value] += 1
        for node in self.locals:
            for p in node.image_positions:
                counts[node.inputs[p]] += 1
        return counts

    @cached_property
    def columns(self) -> dict[tuple[object, ...], int]:
        """Column of each number in `table`.

        The keys are: `("start", image)` and `("stop", image)` for every image; `("covered", image)` and
        `("until", image)` for images read; `("own start", image)` and `("own stop", image)` for images observed; and
        `(name, output, position)` for each input of each local node, where the name is "start", "stop", "before" or
        "after" (the last two count rows of padding).
        """
        keys: list[tuple[object, ...]] = []
        for value in self.images:
            keys += [("start", value), ("stop", value)]
        for value in self.reads:
            keys += [("covered", value), ("until", value)]
        for value in self.observed:
            keys += [("own start", value), ("own stop", value)]
        for node in self.locals:
            for p in node.image_positions:
                keys += [(name, node.output, p) for name in ("start", "stop", "before", "after")]
        return {key: column for column, key in enumerate(keys)}

    @property
    def table_columns(self) -> int:
        """Number of columns of the geometry of all tiles: of each axis, and the mark of the pattern of background.

        If the strips are compiled, those of `tfbig.plan.cutouts.table` follow.
        """
        return self.axes * len(self.columns) + self.skips + self.cutout_columns

    @property
    def cutout_columns(self) -> int:
        """Number of columns of the geometry of tiles in their cutouts; 0 if these are not needed."""
        return self.axes * (len(self.columns) + len(self.images)) if self.is_compiled else 0

    @cached_property
    def rates(self) -> tuple[Rates, ...] | None:
        """Rates of the images along each axis, see `tfbig.geometry.rates`; None if shifts change results.

        They do not where equal pixels give equal results anywhere, as background is also computed once.
        """
        pairs = [(node, p) for node in self.locals for p in node.image_positions]
        spatial = min((len(axes_of(*pair)) for pair in pairs), default=0)
        if not spatial or not all(node.op.uniform for node in self.locals):
            return None
        found = []
        for axis in range(spatial):
            links = [Link(n.output, n.inputs[p], rate_of(axes_of(n, p)[axis])) for n, p in pairs]
            found.append(together(self.images, links))
        return tuple(r for r in found if r is not None) if None not in found else None

    @property
    def is_compiled(self) -> bool:
        """Whether XLA compiles what computes a strip: one program for all strips that are alike."""
        if not self.compiles or self.skips or any(node.op.draws for node in self.locals):
            return False
        return self.rates is not None

    def columns_of(self, value: int, *names: str) -> list[int]:
        """Return the columns of an image in the geometry of all tiles, and the mark of the pattern of background.

        Args:
            value: The image.
            *names: The first entries of keys of `columns`, such as "own start", along each axis.
        """
        along = [self.columns[name, value] for name in names]
        width = len(self.columns)
        marks = [self.table_columns - 1] if self.skips else []
        return [axis * width + column for axis in range(self.axes) for column in along] + marks

    @cached_property
    def can_tile(self) -> bool:
        """Return whether images may be cut along further axes than the rows."""
        return all(node.op.tiles for node in self.locals)

    def tiles(self, sizes: Mapping[int, Size], counts: Sequence[int]) -> np.ndarray:
        """Return the geometry of all tiles, row by row; of strips if images are cut along the rows only.

        Args:
            sizes: Size of every image.
            counts: Number of parts that images are cut into along each of the `axes`.

        Returns:
            Array `[tiles, axes * len(columns)]` int32: for each axis, the numbers of `table`.
        """
        tables = [
            self.table({v: sizes[v][axis] for v in self.images}, count, axis=axis)
            for axis, count in enumerate(counts)
        ]
        places = np.unravel_index(np.arange(prod(counts)), counts)
        return np.hstack([table[place] for table, place in zip(tables, places, strict=True)])

    def line(
        self, sizes: Mapping[int, Size], owned: Mapping[int, Sequence[Interval]]
    ) -> np.ndarray:
        """Return the geometry of one tile anywhere in the image.

        Args:
            sizes: Size of every image.
            owned: What the tile owns of each observed image, along each axis that images are cut along.

        Returns:
            Array `[1, axes * len(columns)]` int32, as a line of `tiles`.
        """
        tables = []
        for axis in range(len(next(iter(owned.values())))):
            along = {
                v: Interval(*np.array([[i[axis].start], [i[axis].stop]])) for v, i in owned.items()
            }
            geometry = self._geometry({v: sizes[v][axis] for v in self.images}, along, axis)
            tables.append(self._as_table(geometry, 1))
        return np.hstack(tables)

    def table(
        self,
        rows: Mapping[int, int],
        num_strips: int,
        axis: int = 0,
        steps: Mapping[int, int] | None = None,
    ) -> np.ndarray:
        """Return the geometry of all strips.

        Args:
            rows: Rows of every image, or its size along `axis`.
            num_strips: Number of strips that the images are cut into.
            axis: Axis that is cut into strips, 0 for the rows.
            steps: For each observed image, the number of rows that its strips begin at multiples of. Default: 1.

        Returns:
            Array `[num_strips, len(columns)]` int32, see `columns`.
        """
        strips = np.arange(num_strips)
        geometry = self._geometry(rows, self.owned(rows, num_strips, strips, steps), axis)
        for value in self.reads:
            until = np.maximum.accumulate(geometry["stop", value])
            geometry["covered", value] = np.concatenate([[0], until[:-1]])
            geometry["until", value] = np.where(strips == num_strips - 1, rows[value], until)
        return self._as_table(geometry, num_strips)

    def owned(
        self,
        rows: Mapping[int, int],
        num_strips: Number,
        strips: np.ndarray,
        steps: Mapping[int, int] | None = None,
    ) -> dict[int, Interval]:
        """Return the rows of each observed image that strips own.

        Args:
            rows: Rows of every image, or its size along another axis.
            num_strips: Number of strips that the images are cut into; or an array, with one number for each index.
            strips: Indices of the strips.
            steps: As in `table`.

        Returns:
            For each observed image an interval, whose bounds have one number per strip.
        """
        return {
            v: partition(rows[v], num_strips, strips, steps[v] if steps else 1)
            for v in self.observed
        }

    def needs(
        self, rows: Mapping[int, int], owned: Mapping[int, Interval], axis: int = 0
    ) -> dict[int, Interval]:
        """Return the rows of every image that strips read or compute.

        Of each image at least one, even where all that is needed of it is padding: TensorFlow does not initialise the
        gradient of a kernel where a convolution has no rows, and some of its kernels refuse such images.

        Args:
            rows: Rows of every image, or its size along `axis`.
            owned: The rows that the strips own, see `owned`.
            axis: Axis that is cut into strips, 0 for the rows.

        Returns:
            For every image an interval, whose bounds have one number per strip. If the strips are `even`, the bounds
            are arrays of all strips, along the first axis.
        """
        need = dict(owned)
        for node in reversed(self.locals):
            need[node.output] = self._even(need[node.output], rows[node.output])
            for p in node.image_positions:
                source = node.inputs[p]
                _, inside = window_of(node, p, axis, need[node.output], rows)
                if may_be_empty(axes_of(node, p)[axis]):
                    inside = inside.not_empty(rows[source])
                need[source] = need[source].hull(inside) if source in need else inside
        return need | {v: self._even(need[v], rows[v]) for v in self.reads if v in need}

    def _even(self, need: Interval, extent: int) -> Interval:
        return need.even(extent) if self.even else need

    def _as_table(self, geometry: dict[tuple[object, ...], np.ndarray], lines: int) -> np.ndarray:
        table = np.zeros((lines, len(self.columns)), np.int32)
        for key, numbers in geometry.items():
            table[:, self.columns[key]] = numbers
        return table

    def _geometry(
        self, rows: Mapping[int, int], owned: Mapping[int, Interval], axis: int
    ) -> dict[tuple[object, ...], np.ndarray]:
        """Return the columns of strips that own some rows of each observed image."""
        geometry: dict[tuple[object, ...], np.ndarray] = {}
        need = self.needs(rows, owned, axis)
        for value in self.observed:
            geometry["own start", value], geometry["own stop", value] = owned[value]
        for node in self.locals:
            for p in node.image_positions:
                window, inside = window_of(node, p, axis, need[node.output], rows)
                geometry["start", node.output, p], geometry["stop", node.output, p] = inside
                if window is inside:
                    continue  # no padding
                most = np.maximum(window.size, 0)
                geometry["before", node.output, p] = clip(inside.start - window.start, 0, most)
                geometry["after", node.output, p] = clip(window.stop - inside.stop, 0, most)
        for value in self.images:
            geometry["start", value], geometry["stop", value] = need[value]
        return geometry


def window_of(
    node: Node, position: int, axis: int, need: Interval, rows: Mapping[int, int]
) -> tuple[Interval, Interval]:
    """Return the rows of one input that some rows of the output need: with padding, and those inside of the image."""
    extent, along = rows[node.inputs[position]], axes_of(node, position)[axis]
    if is_pixelwise(along) and extent == rows[node.output]:
        return need, need
    window = along.needs(need, extent)
    return window, window.clip(extent)


def schedule(
    graph: Graph,
    cuts: frozenset[int] = frozenset(),
    depth: int = REMAT_DEPTH,
    remat: frozenset[int] = frozenset(),
) -> list[Sweep]:
    """Return the sweeps of a graph.

    Args:
        graph: The graph to run.
        cuts: Images to store although no barrier asks for it, to start a new halo.
        depth: Longest chain of cheap nodes to rematerialise.
        remat: Images to rematerialise in every sweep that needs them, at any cost.

    Returns:
        The sweeps in order.
    """
    levels = _levels(graph, cuts)
    stored = _stored(graph, levels, cuts, depth, remat)
    nodes, last = NodeIndex(graph), max(levels.values(), default=0)
    reductions = _by_level((n for n in graph.nodes if isinstance(n.op, Reduce)), levels)
    wholes = _by_level((n for n in graph.nodes if isinstance(n.op, Whole)), levels)
    writes: dict[int, list[int]] = {}
    for value in sorted(stored):
        writes.setdefault(levels[value], []).append(value)

    def sweep(index: int) -> Sweep:
        reduced, written = reductions.get(index, []), writes.get(index, [])
        targets = {*written, *(i for n in reduced for i in n.inputs)}
        local, reads = nodes.between(targets, lambda v: v in stored and levels[v] < index)
        return Sweep(
            index,
            nodes.in_order([*reduced, *local]),
            tuple(sorted(reads)),
            tuple(written),
            tuple(sorted(targets)),
            tuple(wholes.get(index, [])),
            even=graph.even,
            compiles=graph.compiles,
        )

    return [sweep(index) for index in range(last + 1)]


def _levels(graph: Graph, cuts: frozenset[int]) -> dict[int, int]:
    """Return the index of the sweep that computes each value; -1 for inputs of the graph."""
    levels = dict.fromkeys([*graph.inputs, *graph.sizes, *graph.batches], -1)
    for node in graph.nodes:
        level = -1
        for position, value in enumerate(node.inputs):
            image = graph.values[value].image
            crosses = value in cuts or not image or reads_all(node, position)
            step = 1 if crosses and not isinstance(node.op, Whole) else 0
            level = max(level, levels[value] + step)
        if not isinstance(node.op, Whole):
            level = max(level, 0)
        levels[node.output] = level
    return levels


def _stored(
    graph: Graph,
    levels: dict[int, int],
    cuts: frozenset[int],
    most: int,
    remat: frozenset[int],
) -> set[int]:
    """Return the images to store: outputs, cut points, and images of a lower level that are not cheap to recompute."""
    images = {v.id for v in graph.values if v.image}
    stored = {v for v in (*graph.outputs, *cuts) if v in images and v not in graph.inputs}
    depth = dict.fromkeys(graph.inputs, 0)
    last_read = _last_read(graph, levels)
    for node in graph.nodes:
        value = node.output
        if value not in images:
            continue
        above = [depth[i] for i in node.inputs if i in images]
        cheap = isinstance(node.op, Local) and node.op.cheap and max(above) < most
        crosses = last_read.get(value, -1) > levels[value]
        if value in remat and value not in stored:
            depth[value] = max(above)
        elif value in stored or (crosses and not cheap):
            stored.add(value)
            depth[value] = 0
        else:
            depth[value] = max(above) + 1 if cheap else most
    return stored


def _last_read(graph: Graph, levels: dict[int, int]) -> dict[int, int]:
    """Return the index of the last sweep that reads each value."""
    last: dict[int, int] = {}
    for node in graph.nodes:
        for value in node.inputs:
            last[value] = max(last.get(value, -1), levels[node.output])
    return last


def foldable(sweep: Sweep) -> list[Node]:
    """Return the reductions of one stored image.

    Their gradient can be added to the gradient of the image before the backward pass of the sweep.

    Args:
        sweep: The sweep.

    Returns:
        Reduce nodes.
    """
    return [n for n in sweep.reductions if len(n.inputs) == 1 and n.inputs[0] in sweep.writes]


class NodeIndex:
    """The nodes of a graph by their outputs, for searches in graphs of hundreds of nodes.

    Args:
        graph: The graph.
    """

    def __init__(self, graph: Graph) -> None:
        self._producers = {n.output: n for n in graph.nodes}
        self._order = {value: position for position, value in enumerate(self._producers)}

    def between(self, targets: set[int], has: Callable[[int], bool]) -> tuple[list[Node], set[int]]:
        """Find the nodes that compute images from existing ones.

        Args:
            targets: Images to compute.
            has: Function that tells whether an image exists; inputs of the graph always do.

        Returns:
            The nodes in no particular order, and the existing images that they read.
        """
        nodes: list[Node] = []
        reads: set[int] = set()
        waiting, seen = sorted(targets), set(targets)
        while waiting:
            value = waiting.pop()
            node = self._producers.get(value)
            if node is None or has(value):
                reads.add(value)
                continue
            nodes.append(node)
            fresh = {node.inputs[p] for p in node.image_positions} - seen
            seen |= fresh
            waiting += sorted(fresh)
        return nodes, reads

    def in_order(self, nodes: Sequence[Node]) -> tuple[Node, ...]:
        """Return some nodes in the order of the graph.

        Args:
            nodes: The nodes.

        Returns:
            The nodes, sorted.
        """
        return tuple(sorted(nodes, key=lambda n: self._order[n.output]))


def _by_level(nodes: Iterable[Node], levels: dict[int, int]) -> dict[int, list[Node]]:
    """Return the nodes of each sweep."""
    groups: dict[int, list[Node]] = {}
    for node in nodes:
        groups.setdefault(levels[node.output], []).append(node)
    return groups


@dataclass(frozen=True)
class Layout:
    """Places where images wait between forward and backward pass.

    Stores that are neither spilled nor kept are in host memory.

    Args:
        sweeps: The sweeps in order.
        replays: Sweeps that replay a segment (see `tfbig.plan.replay_segments`); each has the index of the last sweep
            of its segment.
        spilled: Stores in the scratch file.
        kept: Images that stay on the device, with their gradients.
        plain: Whether the plain model runs instead, because it fits; then there is one sweep, with all layers.
    """

    sweeps: tuple[Sweep, ...] = ()
    replays: tuple[Sweep, ...] = ()
    spilled: frozenset[Store] = frozenset()
    kept: frozenset[int] = frozenset()
    plain: bool = False

    def where(self, store: Store) -> str:
        """Return the place of a store.

        Args:
            store: The store.

        Returns:
            One of "device", "host" and "disk".
        """
        if store.value in self.kept:
            return "device"
        return "disk" if store in self.spilled else "host"

    @property
    def skips(self) -> bool:
        """Return whether the sweeps skip background."""
        return any(sweep.skips for sweep in self.sweeps)

    @property
    def single(self) -> bool:
        """Return whether every sweep has one strip: images on the device are then what it computes."""
        return all(sweep.single for sweep in (*self.sweeps, *self.replays))

    def in_one_strip(self, single: bool = True) -> Layout:
        """Return the layout for images that no sweep cuts into strips.

        Args:
            single: False returns it for images of any size.
        """
        sweeps, replays = (
            tuple(replace(sweep, single=single) for sweep in some)
            for some in (self.sweeps, self.replays)
        )
        return replace(self, sweeps=sweeps, replays=replays)

    @property
    def inner(self) -> frozenset[int]:
        """Images that the forward pass does not store until the backward pass."""
        return frozenset(v for sweep in self.replays for v in sweep.writes)
