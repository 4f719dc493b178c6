"""Which images to store although no barrier asks for it. Arithmetic only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tfbig.cost import bytes_of, heights_of, operations_of, sweep_limit
from tfbig.graph import Graph, Local, Node
from tfbig.plan import Rates
from tfbig.schedule import Size, Sweep, schedule

TWO_CORES = Rates()


def choose(
    graph: Graph, rates: Rates = TWO_CORES, side: int = 4096, strips: int = 16
) -> frozenset[int]:
    """Images worth storing although no barrier asks for it.

    A chain of windows in one sweep makes halo rows again for every strip. Storing the output of a convolution ends
    the halo there, at the price of writing and reading it and its gradient. Greedy in every sweep: the cut that saves
    most is added until none saves anything, on an image of `side` rows cut into `strips`.
    """
    sizes = {i: (side,) * graph.spatial for i in graph.inputs if graph.values[i].image}
    try:
        extents = graph.extents(sizes)
    except ValueError:  # inputs that meet at different sizes: nothing to compare on squares
        return frozenset()
    found: frozenset[int] = frozenset()
    for sweep in schedule(graph):
        candidates = _candidates(graph, sweep)
        if candidates:
            found |= _cuts(_alone(graph, sweep), candidates, extents, strips, rates)
    return found


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


def _cuts(
    graph: Graph,
    candidates: frozenset[int],
    extents: Mapping[int, Size],
    strips: int,
    rates: Rates,
) -> frozenset[int]:
    cuts: frozenset[int] = frozenset()
    best = _seconds(graph, cuts, extents, strips, rates)
    while True:
        tried = [
            (_seconds(graph, cuts | {v}, extents, strips, rates), v) for v in candidates - cuts
        ]
        seconds, value = min(tried, default=(best, -1))
        if seconds >= best:
            return cuts
        best, cuts = seconds, cuts | {value}


def _seconds(
    graph: Graph, cuts: frozenset[int], extents: Mapping[int, Size], strips: int, rates: Rates
) -> float:
    total = 0.0
    for sweep in schedule(graph, cuts):
        count = min(strips, sweep_limit(sweep, extents))
        chosen = [0, *[count // 2] * (count - 2), count - 1][:count]  # strips inside are alike
        lines = sorted(set(chosen))
        table = sweep.table({v: extents[v][0] for v in sweep.images}, count, lines)
        table = table[np.searchsorted(lines, chosen)]
        heights = {v: heights_of(sweep, table, v) for v in sweep.images}
        total += 3 * operations_of(sweep, 1, extents, heights)[0] / rates.operations
        moved = sum(bytes_of(graph, v, 1, extents) for v in (*sweep.writes, *sweep.reads))
        total += 2 * moved / rates.copies
    return total
