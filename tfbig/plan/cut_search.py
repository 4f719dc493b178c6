"""Which images to store although no barrier asks for it. Arithmetic only."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np

from tfbig.geometry.windows import Size
from tfbig.network.graph import Graph, Local, Node, axes_of, image_positions, output_extent
from tfbig.plan.cost import bytes_of, heights_of, operations_of
from tfbig.plan.plan import Rates
from tfbig.plan.strip_search import Strips
from tfbig.plan.sweeps import Sweep, schedule
from tfbig.system.budget import DEFAULT_STRIPS

TWO_CORES = Rates()

LEAST_STRIPS = 16
"""The number that is reckoned with where fewer would fit an image of the size that it is computed for: others are
larger."""

SIDES = 64
"""Sides of an image that are tried."""

LONG = 2**20
"""Rows from which the stride of an axis is read."""


def choose(
    graph: Graph,
    rates: Rates = TWO_CORES,
    device_bytes: int = DEFAULT_STRIPS,
    training: bool = True,
    side: int = 4096,
) -> frozenset[int]:
    """Images worth storing although no barrier asks for it.

    A chain of windows in one sweep makes halo rows again for every strip, and all of it but its end again in the
    backward. Storing the output of a convolution ends that there, at the price of writing and reading it and its
    gradient. Greedy in every sweep: the cut that saves most is added until none saves anything.

    Args:
        graph: what to cut.
        rates: of the machine.
        device_bytes: for strips; where they are small, the halo is a larger part of them.
        training: whether a backward follows.
        side: rows and columns of the image that it is computed for, or a little less.
    """
    extents = _extents(graph, side)
    if extents is None:
        return frozenset()
    found: frozenset[int] = frozenset()
    for sweep in schedule(graph):
        candidates = _candidates(graph, sweep)
        if candidates:
            case = _Case(_alone(graph, sweep), extents, device_bytes, training, rates)
            found |= _cuts(case, candidates)
    return found


def _extents(graph: Graph, side: int) -> dict[int, Size] | None:
    """Sizes of all images for a square that the model takes: without padding, a U-Net takes one of 16 sides.

    None for a model of one size, or where padding hides how sizes of inputs are related.
    """
    for rows in range(side, side - SIDES, -1):
        with suppress(ValueError):
            return graph.extents(_inputs(graph, (rows,) * graph.spatial))
    return None


def _inputs(graph: Graph, square: Size) -> dict[int, Size]:
    """Sizes of the inputs: the first is a square; others, and labels, are as large as what they meet, if anything."""
    images = [i for i in graph.inputs if graph.values[i].image]
    known: dict[int, Size] = {}
    for value in images:
        if value not in known:
            known[value] = square
            _follow(graph, known)
    return {i: known[i] for i in images}


def _follow(graph: Graph, known: dict[int, Size]) -> None:
    """Adds sizes of all images that follow from those known, in both directions."""
    before = 0
    while len(known) > before:
        before = len(known)
        for node in graph.nodes:
            sources = [(p, node.inputs[p]) for p in image_positions(node)]
            made = [output_extent(node, p, known[v]) for p, v in sources if v in known]
            made += [known[node.output]] if node.output in known else []
            for p, v in sources if made else []:
                known.setdefault(v, _input_extent(node, p, made[0]))
            if made and isinstance(node.op, Local):
                known.setdefault(node.output, made[0])


def _input_extent(node: Node, position: int, size: Size) -> Size:
    """Of one input of a node whose output has a size, as far as strides tell."""
    if not isinstance(node.op, Local):
        return size
    axes = zip(axes_of(node, position), size, strict=True)
    return cast(Size, tuple(n * LONG // axis.extent(LONG) for axis, n in axes))


def _candidates(graph: Graph, sweep: Sweep) -> frozenset[int]:
    """Outputs of costly local nodes of a sweep, where a halo may grow from one to the next."""

    def windowed(node: Node) -> bool:
        return isinstance(node.op, Local) and not node.op.cheap and node.op.operations > 0

    inside = [n for n in sweep.locals if windowed(n)]
    if len(inside) < 2:
        return frozenset()
    return frozenset(n.output for n in inside if graph.consumers(n.output))


def _alone(graph: Graph, sweep: Sweep) -> Graph:
    """A sweep as a graph of its own: cuts change nothing outside it."""
    made = {n.output for n in sweep.nodes}
    used = dict.fromkeys(i for n in sweep.nodes for i in n.inputs)
    return replace(
        graph,
        nodes=list(sweep.nodes),
        inputs=[i for i in used if i not in made and i not in graph.sizes],
        outputs=list(sweep.writes),
    )


@dataclass
class _Case:
    """One sweep to cut, see `choose`."""

    graph: Graph
    extents: Mapping[int, Size]
    device_bytes: int
    training: bool
    rates: Rates
    known: dict[Sweep, float] = field(default_factory=dict)

    def seconds(self, cuts: frozenset[int]) -> float:
        """What the sweep takes with these cuts."""
        return sum(self._of(replace(sweep, index=0)) for sweep in schedule(self.graph, cuts))

    def _of(self, sweep: Sweep) -> float:
        if sweep not in self.known:
            self.known[sweep] = self._measured(sweep)
        return self.known[sweep]

    def _measured(self, sweep: Sweep) -> float:
        graph, extents, rates = self.graph, self.extents, self.rates
        count = Strips(
            graph=graph,
            sweep=sweep,
            batch=1,
            extents=extents,
            device_bytes=self.device_bytes,
            training=self.training,
            learning=frozenset(extents),
        ).about(LEAST_STRIPS)
        chosen = _standing_for(count)
        lines = sorted(set(chosen.tolist()))
        table = sweep.table({v: extents[v][0] for v in sweep.images}, count, lines)
        table = table[np.searchsorted(lines, chosen)]
        heights = {v: heights_of(sweep, table, v) for v in sweep.images}
        moved = sum(bytes_of(graph, v, 1, extents) for v in (*sweep.writes, *sweep.reads))
        work, _, again = operations_of(sweep, 1, extents, heights)
        if not self.training:
            return work / rates.operations + moved / rates.copies
        return (3 * work + again) / rates.operations + 2 * moved / rates.copies


def _standing_for(count: int) -> np.ndarray:
    """For each of `count` strips one that is like it: the first, the last and four inside, which differ where an
    image is cropped, as strips of it and of what it is cropped from are then not side by side."""
    inside = np.arange(max(count - 2, 0))
    quarter = 4 * inside // max(count - 2, 1)
    near = 1 + (2 * quarter + 1) * (count - 2) // 8
    return np.concatenate([[0], near, [count - 1]])[:count]


def _cuts(case: _Case, candidates: frozenset[int]) -> frozenset[int]:
    cuts: frozenset[int] = frozenset()
    best = case.seconds(cuts)
    while True:
        tried = [(case.seconds(cuts | {v}), v) for v in candidates - cuts]
        seconds, value = min(tried, default=(best, -1))
        if seconds >= best:
            return cuts
        best, cuts = seconds, cuts | {value}
