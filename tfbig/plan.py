"""From nodes, image size and budget to sweeps, strips and bytes: arithmetic only.

    level(node) = max(level(inputs)) + (1 if the input crosses a barrier or is stored else 0)

All nodes of one level run in one sweep over the image. What a later sweep needs is stored, unless making it again
from what is stored anyway is cheap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import ceil

import numpy as np

from tfbig.geometry import Interval, partition
from tfbig.graph import Graph, Local, Node, Reduce, Whole, axes_of, image_positions

RUNTIME_BYTES = 224 * 2**20
"""What TensorFlow takes for itself: kernels made at run time, freed strips (measured: 90 to 220 MB)."""

SWEEP_BYTES = 4 * 2**20
"""The graph of a sweep, forward and backward (measured: 4.2 MB each for the 50 of ResNet-50)."""

REMAT_DEPTH = 4
"""Longest chain of cheap nodes that later sweeps make again rather than read, at the least cost."""

SHORT_DEPTH = 2
"""The same where segments are replayed: images at the ends of residual blocks are then stored, and little else."""

Size = tuple[int, ...]


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
        chosen = range(num_strips) if strips is None else strips
        table = np.zeros((len(chosen), len(self.columns)), np.int32)
        covered = dict.fromkeys(self.reads, 0)
        for line, index in zip(table, chosen, strict=True):
            row = self._row(rows, num_strips, index, covered)
            line[:] = [row[key] for key in self.columns]
        return table

    def _row(
        self, rows: dict[int, int], num_strips: int, index: int, covered: dict[int, int]
    ) -> dict[tuple[object, ...], int]:
        row: dict[tuple[object, ...], int] = {}
        need: dict[int, Interval] = {}
        for value in self.observed:
            own = partition(rows[value], num_strips, index)
            row["own start", value], row["own stop", value] = own
            need[value] = own
        for node in reversed(self.locals):
            for p in image_positions(node):
                source = node.inputs[p]
                wanted = axes_of(node, p)[0].needs(need[node.output], rows[source])
                inside = wanted.clip(rows[source])
                row["start", node.output, p], row["stop", node.output, p] = inside
                before, after = inside.start - wanted.start, wanted.stop - inside.stop
                row["before", node.output, p] = max(min(before, wanted.size), 0)
                row["after", node.output, p] = max(min(after, wanted.size), 0)
                need[source] = need[source].hull(inside) if source in need else inside
        for value in self.images:
            row["start", value], row["stop", value] = need[value]
        for value in self.reads:
            row["covered", value] = covered[value]
            covered[value] = max(covered[value], need[value].stop)
            row["until", value] = rows[value] if index == num_strips - 1 else covered[value]
        return row


def schedule(
    graph: Graph, cuts: frozenset[int] = frozenset(), depth: int = REMAT_DEPTH
) -> list[Sweep]:
    """Sweeps of a graph.

    Args:
        cuts: images that are stored although no barrier asks for it, so that the halo of what follows
            starts anew.
        depth: longest chain of cheap nodes that is made again.
    """
    levels = _levels(graph, cuts)
    stored = _stored(graph, levels, cuts, depth)
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


def _stored(graph: Graph, levels: dict[int, int], cuts: frozenset[int], most: int) -> set[int]:
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
        if value in stored or (crosses and not cheap):
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
class SweepCost:
    """What one sweep takes for one image size.

    Args:
        strips: number of strips.
        rows: most rows that a strip reads.
        device_bytes: largest working set of a strip.
        stored_bytes: bytes written to host memory, gradients not counted.
        operations: floating-point operations of the forward sweep, halo included.
        exact_operations: the same without the rows made twice.
    """

    strips: int
    rows: int
    device_bytes: int
    stored_bytes: int
    operations: int
    exact_operations: int


@dataclass(frozen=True)
class Rates:
    """How fast a machine is; by default two CPU cores.

    Args:
        operations: floating-point operations of a convolution per second.
        copies: bytes per second between strips and stores.
        disk: bytes per second to a file.
    """

    operations: float = 1e11
    copies: float = 1e10
    disk: float = 5e8


@dataclass(frozen=True)
class Layout:
    """Where stored images are between forward and backward.

    Args:
        sweeps: what runs, in order.
        replays: sweeps that make a segment again (see `tfbig.segments`); the index is that of its last sweep.
    """

    sweeps: tuple[Sweep, ...] = ()
    replays: tuple[Sweep, ...] = ()

    @property
    def inner(self) -> frozenset[int]:
        """Images that the forward does not keep."""
        return frozenset(v for sweep in self.replays for v in sweep.writes)


@dataclass(frozen=True)
class Plan:
    """How one network runs on one image size: a value, made before anything is allocated.

    Args:
        shape: `[N, H, W, C]` of the first input.
        sweeps, costs: one each per sweep.
        device_bytes: most bytes of strips at any time.
        host_bytes: most bytes of stored images and their gradients at any time.
        operations: floating-point operations of a step (a backward counts twice its forward).
        limit_bytes: the device budget that was asked for.
        layout: what is kept between forward and backward.
        replay_costs: one per replay of the layout.
        moved_bytes: bytes copied between strips and stores in a step.
        seconds: what the step should take.
        fixed_bytes: what does not depend on the image: TensorFlow's own, graphs, gradients of the weights.
    """

    shape: tuple[int, ...]
    sweeps: tuple[Sweep, ...]
    costs: tuple[SweepCost, ...]
    device_bytes: int
    host_bytes: int
    operations: int
    limit_bytes: int
    layout: Layout = Layout()
    replay_costs: tuple[SweepCost, ...] = ()
    moved_bytes: int = 0
    seconds: float = 0.0
    fixed_bytes: int = RUNTIME_BYTES

    @property
    def strips(self) -> int:
        """The largest number of strips of a sweep."""
        return max(c.strips for c in self.costs)

    @property
    def peak_bytes(self) -> int:
        """Host stores, strips and what is fixed: what steps add to the memory of a process on a CPU."""
        return self.device_bytes + self.host_bytes + self.fixed_bytes

    @property
    def recompute_factor(self) -> float:
        """Operations of a training step over those on whole images: 1.0 means that nothing is made twice."""
        exact = 3 * sum(c.exact_operations for c in self.costs)
        done = 3 * sum(c.operations for c in self.costs)
        return (done + sum(c.operations for c in self.replay_costs)) / max(exact, 1)

    def summary(self, print_fn: Callable[[str], object] = print) -> None:
        """Prints the plan."""
        print_fn(str(self))

    def __str__(self) -> str:
        head = f"{'sweep':>5}  {'layers':<44} {'strips':>6} {'rows':>6} {'device':>10} {'stored':>10} {'GFLOP':>9}"
        lines = [f"Plan for an image of {' x '.join(map(str, self.shape))}", head, "-" * len(head)]
        for sweep, cost in zip(self.sweeps, self.costs, strict=True):
            lines.append(_line(f"{sweep.index}", sweep, cost))
        for sweep, cost in zip(self.layout.replays, self.replay_costs, strict=True):
            lines.append(_line(f"+{sweep.index}", sweep, cost))
        lines += [
            "-" * len(head),
            f"device {format_bytes(self.device_bytes)} of {format_bytes(self.limit_bytes)}, "
            f"host {format_bytes(self.host_bytes)}, {self.operations / 1e9:.1f} GFLOP a step, "
            f"recompute factor {self.recompute_factor:.3f}",
            f"{format_bytes(self.moved_bytes)} copied a step, predicted {self.seconds:.1f} s",
        ]
        if self.layout.replays:
            lines.append(
                "+ sweeps make images again before the backward of the sweep they are named after"
            )
        return "\n".join(lines)


def _line(name: str, sweep: Sweep, cost: SweepCost) -> str:
    return (
        f"{name:>5}  {layers_of(sweep):<44} {cost.strips:>6} {cost.rows:>6} "
        f"{format_bytes(cost.device_bytes):>10} {format_bytes(cost.stored_bytes):>10} "
        f"{cost.operations / 1e9:>9.1f}"
    )


def layers_of(sweep: Sweep) -> str:
    """First and last layer of a sweep, and how many."""
    names = list(dict.fromkeys(n.layer for n in sweep.nodes))
    text = (
        names[0]
        if len(names) == 1
        else f"{names[0]} .. {names[-1]} ({len(names)})"
        if names
        else "-"
    )
    return text if len(text) <= 44 else text[:41] + "..."


def format_bytes(count: float) -> str:
    """`1536 -> '1.5 KiB'`, rounded up: a budget of what is printed is enough."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{ceil(count * 10) / 10:.1f} {unit}"
        count /= 1024
    raise AssertionError
