"""From nodes to sweeps: what runs together, what is stored between. Arithmetic only.

    level(node) = max(level(inputs)) + (1 if the input crosses a barrier or is stored else 0)

All nodes of one level run in one sweep over the image. What a later sweep needs is stored, unless making it again
from what is stored anyway is cheap, or memory is dear.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from tfbig.geometry.windows import Interval, partition
from tfbig.network.graph import Graph, Local, Node, Reduce, Whole, axes_of, image_positions

REMAT_DEPTH = 4
"""Longest chain of cheap nodes that later sweeps make again rather than read, at the least cost."""

SHORT_DEPTH = 2
"""The same where segments are replayed: images at the ends of residual blocks are then stored, and little else."""


class Store(NamedTuple):
    """What is kept in memory or in a file for a part of a step.

    Args:
        kind: "image", "again" (an image that is made a second time for the backward) or "gradient".
        value: of which image.
    """

    kind: str
    value: int


@dataclass(frozen=True)
class Sweep:
    """One visit of all strips.

    Args:
        index: position in the plan; 0 is first.
        nodes: local and reduce nodes, in order.
        reads: images read from stores or sources.
        writes: images stored for later sweeps.
        observed: images of which the sweep owns rows: those written and those reduced.
        wholes: whole nodes that run once the sweep has ended.
        again: whether it makes images of earlier sweeps again, before their backward; it has none itself.
    """

    index: int
    nodes: tuple[Node, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    observed: tuple[int, ...]
    wholes: tuple[Node, ...]
    again: bool = False

    def without(self, nodes: Sequence[Node]) -> Sweep:
        """The same sweep, of the same geometry, without these reductions."""
        return replace(self, nodes=tuple(n for n in self.nodes if n not in nodes))

    @property
    def reductions(self) -> list[Node]:
        return [n for n in self.nodes if isinstance(n.op, Reduce)]

    @property
    def locals(self) -> list[Node]:
        return [n for n in self.nodes if isinstance(n.op, Local)]

    @cached_property
    def images(self) -> tuple[int, ...]:
        """Every image that lives in the sweep: read or made."""
        return (*self.reads, *(n.output for n in self.locals))

    @cached_property
    def uses(self) -> dict[int, int]:
        """How many times each image is read: by nodes, and as one that the sweep owns."""
        counts = dict.fromkeys(self.images, 0)
        for value in self.observed:
            counts[value] += 1
        for node in self.locals:
            for p in image_positions(node):
                counts[node.inputs[p]] += 1
        return counts

    @cached_property
    def columns(self) -> dict[tuple[object, ...], int]:
        """Where in a row of `table` each number stands."""
        keys: list[tuple[object, ...]] = []
        for value in self.images:
            keys += [("start", value), ("stop", value)]
        for value in self.reads:
            keys += [("covered", value), ("until", value)]
        for value in self.observed:
            keys += [("own start", value), ("own stop", value)]
        for node in self.locals:
            for p in image_positions(node):
                keys += [(name, node.output, p) for name in ("start", "stop", "before", "after")]
        return {key: column for column, key in enumerate(keys)}

    def table(
        self, rows: dict[int, int], num_strips: int, strips: Sequence[int] | None = None
    ) -> np.ndarray:
        """All geometry of the sweep, `[len(strips), len(columns)]` int32.

        Args:
            rows: rows of every image.
            num_strips: how many strips the images are cut into.
            strips: which of them; all by default.
        """
        chosen = np.arange(num_strips) if strips is None else np.asarray(strips, np.int64)
        table = np.zeros((len(chosen), len(self.columns)), np.int32)
        for key, numbers in self._geometry(rows, num_strips, chosen).items():
            table[:, self.columns[key]] = numbers
        return table

    def _geometry(
        self, rows: dict[int, int], num_strips: int, chosen: np.ndarray
    ) -> dict[tuple[object, ...], np.ndarray]:
        found: dict[tuple[object, ...], np.ndarray] = {}
        need: dict[int, Interval] = {}
        for value in self.observed:
            own = partition(rows[value], num_strips, chosen)
            found["own start", value], found["own stop", value] = own
            need[value] = own
        for node in reversed(self.locals):
            for p in image_positions(node):
                source = node.inputs[p]
                wanted = axes_of(node, p)[0].needs(need[node.output], rows[source])
                inside = wanted.clip(rows[source])
                found["start", node.output, p], found["stop", node.output, p] = inside
                most = np.maximum(wanted.size, 0)
                found["before", node.output, p] = np.clip(inside.start - wanted.start, 0, most)
                found["after", node.output, p] = np.clip(wanted.stop - inside.stop, 0, most)
                need[source] = need[source].hull(inside) if source in need else inside
        for value in self.images:
            found["start", value], found["stop", value] = need[value]
        for value in self.reads:
            until = np.maximum.accumulate(need[value].stop)
            found["covered", value] = np.concatenate([[0], until[:-1]])
            found["until", value] = np.where(chosen == num_strips - 1, rows[value], until)
        return found


def schedule(
    graph: Graph,
    cuts: frozenset[int] = frozenset(),
    depth: int = REMAT_DEPTH,
    remat: frozenset[int] = frozenset(),
) -> list[Sweep]:
    """Sweeps of a graph.

    Args:
        cuts: images that are stored although no barrier asks for it, so that the halo of what follows
            starts anew.
        depth: longest chain of cheap nodes that is made again.
        remat: images that every sweep makes again which needs them, at any cost.
    """
    levels = _levels(graph, cuts)
    stored = _stored(graph, levels, cuts, depth, remat)
    last = max(levels.values(), default=0)
    return [_sweep(graph, p, levels, stored) for p in range(last + 1)]


def _levels(graph: Graph, cuts: frozenset[int]) -> dict[int, int]:
    """The sweep that makes each value; -1 for what comes from outside."""
    levels = dict.fromkeys([*graph.inputs, *graph.sizes], -1)
    for node in graph.nodes:
        level = -1
        for value in node.inputs:
            crosses = value in cuts or not graph.values[value].image
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
    """Images that are written: outputs, cuts, and what crosses a level and is not cheap to make again."""
    images = {v.id for v in graph.values if v.image}
    stored = {v for v in (*graph.outputs, *cuts) if v in images and v not in graph.inputs}
    depth = dict.fromkeys(graph.inputs, 0)
    for node in graph.nodes:
        value = node.output
        if value not in images:
            continue
        above = [depth[i] for i in node.inputs if i in images]
        cheap = isinstance(node.op, Local) and node.op.cheap and max(above) < most
        crosses = any(levels[n.output] > levels[value] for n in graph.consumers(value))
        if value in remat and value not in stored:
            depth[value] = max(above)
        elif value in stored or (crosses and not cheap):
            stored.add(value)
            depth[value] = 0
        else:
            depth[value] = max(above) + 1 if cheap else most
    return stored


def foldable(sweep: Sweep) -> list[Node]:
    """Reductions of one stored image; their gradient can join that of the image before the sweep's backward."""
    return [n for n in sweep.reductions if len(n.inputs) == 1 and n.inputs[0] in sweep.writes]


def made_from(
    graph: Graph, targets: set[int], has: Callable[[int], bool]
) -> tuple[list[Node], set[int]]:
    """Nodes that make images from those that exist, and which of these they read.

    Args:
        targets: images to make.
        has: whether an image exists already; inputs of the graph always do.
    """
    nodes: list[Node] = []
    reads: set[int] = set()
    waiting, seen = sorted(targets), set(targets)
    while waiting:
        value = waiting.pop()
        node = graph.producer(value)
        if node is None or has(value):
            reads.add(value)
            continue
        nodes.append(node)
        fresh = {node.inputs[p] for p in image_positions(node)} - seen
        seen |= fresh
        waiting += sorted(fresh)
    return nodes, reads


def in_order(graph: Graph, nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The nodes as they stand in the graph."""
    order = {id(n): position for position, n in enumerate(graph.nodes)}
    return tuple(sorted(nodes, key=lambda n: order[id(n)]))


def _sweep(graph: Graph, index: int, levels: dict[int, int], stored: set[int]) -> Sweep:
    writes = [v for v in sorted(stored) if levels[v] == index]
    reductions = [n for n in graph.nodes if isinstance(n.op, Reduce) and levels[n.output] == index]
    targets = {*writes, *(i for n in reductions for i in n.inputs)}
    local, reads = made_from(graph, targets, lambda v: v in stored and levels[v] < index)
    return Sweep(
        index,
        in_order(graph, [*reductions, *local]),
        tuple(sorted(reads)),
        tuple(writes),
        tuple(sorted(targets)),
        tuple(n for n in graph.nodes if isinstance(n.op, Whole) and levels[n.output] == index),
    )


@dataclass(frozen=True)
class Layout:
    """What is kept between forward and backward, and where.

    Args:
        sweeps: what runs, in order.
        replays: sweeps that make a segment again (see `tfbig.plan.replay_segments`); the index is that of its last
            sweep.
        spilled: stores in a file.
        kept: images that stay where strips are worked on, and their gradients. All other stores are in host memory.
    """

    sweeps: tuple[Sweep, ...] = ()
    replays: tuple[Sweep, ...] = ()
    spilled: frozenset[Store] = frozenset()
    kept: frozenset[int] = frozenset()

    def where(self, store: Store) -> str:
        """ "device", "host" or "disk"."""
        if store.value in self.kept:
            return "device"
        return "disk" if store in self.spilled else "host"

    @property
    def inner(self) -> frozenset[int]:
        """Images that the forward does not keep."""
        return frozenset(v for sweep in self.replays for v in sweep.writes)
