"""Search for cut points: images to store although no barrier asks for it. Arithmetic only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import fsum, inf, prod
from typing import NamedTuple, cast

import numpy as np

from tfbig.geometry.windows import Size
from tfbig.network.graph import Graph, Local, Node, axes_of, output_extent, reads_all
from tfbig.plan.cost import bytes_of, operations_of
from tfbig.plan.plan import Rates
from tfbig.plan.strip_search import Images, StripLimits, Strips
from tfbig.plan.sweeps import Sweep, schedule
from tfbig.system.budget import DEFAULT_STRIPS

TWO_CORES = Rates()

LEAST_STRIPS = 16
"""Number of strips assumed where an image of the reference size would need fewer, because other images are larger."""

SIDE = {1: 4096, 2: 4096, 3: 256}
"""Side of the reference image by its number of axes: a row of a volume is a plane."""

SIDES = 64
"""Number of image sides to try."""

LONG = 2**20
"""Rows from which the stride of an axis is computed."""


def choose(
    graph: Graph,
    rates: Rates = TWO_CORES,
    device_bytes: int = DEFAULT_STRIPS,
    training: bool = True,
    side: int | None = None,
    report: Callable[[int, int], None] = lambda done, count: None,
) -> frozenset[int]:
    """Choose the images that are worth storing although no barrier asks for it.

    A chain of windows in one sweep recomputes halo rows for every strip, and in the backward pass all images of the
    chain but its last. Storing the output of a convolution ends both, at the cost of writing and reading it and its
    gradient. The search is greedy within each sweep: the cut point that saves most is added until none saves time.

    Args:
        graph: The graph to cut.
        rates: Speed of the machine.
        device_bytes: Most bytes of strips; the halo is a larger share of small strips.
        training: Whether a backward pass follows.
        side: Rows and columns of the reference image, by default `SIDE`; up to 63 fewer are used if the model rejects
            this size.
        report: Called for each candidate with the number of the sweep, from 1, and the number of sweeps.

    Returns:
        The cut points.
    """
    extents = _extents(graph, side or SIDE[graph.spatial])
    if extents is None:
        return frozenset()
    cuts: frozenset[int] = frozenset()
    sweeps = schedule(graph)
    for number, sweep in enumerate(sweeps, 1):
        candidates = _candidates(graph, sweep)
        if candidates:
            case = _Case(_subgraph(graph, sweep), extents, device_bytes, training, rates)
            cuts |= _cuts(case, candidates, partial(report, number, len(sweeps)))
    return cuts


def _extents(graph: Graph, side: int) -> dict[int, Size] | None:
    """Return the sizes of all images for a square that the model accepts.

    Sides are tried downwards, because an unpadded U-Net, for example, accepts only every 16th. None if no side
    works: the model has a fixed size, or padding hides how the sizes of the inputs are related.
    """
    for rows in range(side, side - SIDES, -1):
        with suppress(ValueError):
            return graph.extents(_inputs(graph, (rows,) * graph.spatial))
    return None


def _inputs(graph: Graph, square: Size) -> dict[int, Size]:
    """Return sizes of the inputs.

    The first input is a square. Other inputs, and labels, get the size of the image that they are combined with;
    an input that is combined with none is a square too.
    """
    images = [i for i in graph.inputs if graph.values[i].image]
    sizes: dict[int, Size] = {}
    for value in images:
        if value not in sizes:
            sizes[value] = square
            _propagate(graph, sizes)
    return {i: sizes[i] for i in images}


def _propagate(graph: Graph, sizes: dict[int, Size]) -> None:
    """Add the sizes of all images that follow from those in `sizes`, in both directions."""
    before = 0
    while len(sizes) > before:
        before = len(sizes)
        for node in graph.nodes:
            positions = [p for p in node.image_positions if not reads_all(node, p)]
            sources = [(p, node.inputs[p]) for p in positions]
            outputs = [output_extent(node, p, sizes[v]) for p, v in sources if v in sizes]
            outputs += [sizes[node.output]] if node.output in sizes else []
            for p, v in sources if outputs else []:
                if v not in sizes:
                    sizes[v] = _input_extent(node, p, outputs[0])
            if outputs and isinstance(node.op, Local):
                sizes.setdefault(node.output, outputs[0])


def _input_extent(node: Node, position: int, size: Size) -> Size:
    """Return the size of an input of a node whose output has `size`, as far as strides determine it."""
    if not isinstance(node.op, Local):
        return size
    axes = zip(axes_of(node, position), size, strict=True)
    return cast(Size, tuple(n * LONG // max(axis.extent(LONG), 1) for axis, n in axes))


def _candidates(graph: Graph, sweep: Sweep) -> frozenset[int]:
    """Return the outputs of costly local nodes of a sweep in which the halo may grow from node to node."""

    def is_costly(node: Node) -> bool:
        return isinstance(node.op, Local) and not node.op.cheap and node.op.operations > 0

    costly = [n for n in sweep.locals if is_costly(n)]
    if len(costly) < 2:
        return frozenset()
    return frozenset(n.output for n in costly if graph.consumers(n.output))


def _subgraph(graph: Graph, sweep: Sweep) -> Graph:
    """Return a sweep as a graph; cuts do not change anything outside of it."""
    outputs = {n.output for n in sweep.nodes}
    used = dict.fromkeys(i for n in sweep.nodes for i in n.inputs)
    return replace(
        graph,
        nodes=list(sweep.nodes),
        inputs=[i for i in used if i not in outputs and i not in graph.sizes],
        outputs=list(sweep.writes),
    )


@dataclass
class _Case:
    """A sweep to cut; the arguments are those of `choose`."""

    graph: Graph
    extents: Mapping[int, Size]
    device_bytes: int
    training: bool
    rates: Rates
    numbers: dict[Sweep, int] = field(default_factory=dict)
    """Index of each sweep; sweeps are compared by index, because hashing them is slow."""
    costs: list[float] = field(default_factory=list)
    """Predicted seconds of each sweep, by its index."""
    images: list[frozenset[int]] = field(default_factory=list)
    """Images that each sweep computes, by its index."""

    def sweeps(self, cuts: frozenset[int]) -> list[int]:
        """Return the numbers of the sweeps with these cut points."""
        return [self._number(replace(s, index=0)) for s in schedule(self.graph, cuts)]

    def _number(self, sweep: Sweep) -> int:
        number = self.numbers.setdefault(sweep, len(self.costs))
        if number == len(self.costs):
            self.costs.append(self._predict(sweep))
            self.images.append(frozenset(n.output for n in sweep.locals))
        return number

    def seconds(self, sweeps: Iterable[int], minus: Iterable[int] = ()) -> float:
        """Return the predicted seconds of `sweeps` minus those of `minus`; independent of the order."""
        return fsum([*(self.costs[s] for s in sweeps), *(-self.costs[s] for s in minus)])

    def holders(self, value: int, sweeps: list[int]) -> tuple[int, ...]:
        """Return the sweeps that compute an image, each followed by the next sweep, which a cut may also change."""
        places = (i for i, s in enumerate(sweeps) if value in self.images[s])
        return tuple(s for i in places for s in sweeps[i : i + 2])

    def _predict(self, sweep: Sweep) -> float:
        graph, extents, rates = self.graph, self.extents, self.rates
        images, limits = Images(graph, 1, extents), StripLimits(self.device_bytes)
        strips = Strips(images, limits, sweep, self.training, frozenset(extents))
        count = strips.about(LEAST_STRIPS)
        each, times = np.unique(_representatives(count), return_counts=True)
        heights = strips.lengths(0, count, each)
        pixels = {v: int((n * times).sum()) * prod(extents[v][1:]) for v, n in heights.items()}
        moved = sum(bytes_of(graph, v, 1, extents) for v in (*sweep.writes, *sweep.reads))
        operations, _, recomputed = operations_of(sweep, 1, extents, pixels)
        if not self.training:
            return operations / rates.operations + moved / rates.copies
        return (3 * operations + recomputed) / rates.operations + 2 * moved / rates.copies


def _representatives(count: int) -> np.ndarray:
    """Return, for each of `count` strips, the index of a strip of about the same cost.

    These are the first strip, the last and four inner ones. Inner strips differ where an image is cropped, because
    strips of the cropped image and of the original then lie at different rows.
    """
    inside = np.arange(max(count - 2, 0))
    quarter = 4 * inside // max(count - 2, 1)
    near = 1 + (2 * quarter + 1) * (count - 2) // 8
    return np.concatenate([[0], near, [count - 1]])[:count]


def _cuts(case: _Case, candidates: frozenset[int], report: Callable[[], None]) -> frozenset[int]:
    """Add the cut point that saves most until none saves time."""
    cuts: frozenset[int] = frozenset()
    sweeps = case.sweeps(cuts)
    changes = _Changes(case, report)
    while True:
        best = case.seconds(sweeps)
        seconds, value = changes.best(cuts, candidates, sweeps)
        new = case.sweeps(cuts | {value})
        if (seconds >= best or seconds != case.seconds(new)) and cuts:
            changes.cache.clear()  # a cached change was computed with other neighbouring sweeps
            seconds, value = changes.best(cuts, candidates, sweeps)
            new = case.sweeps(cuts | {value})
        if seconds >= best:
            return cuts
        cuts, sweeps = cuts | {value}, new


class _Change(NamedTuple):
    """Numbers of the sweeps that a cut adds and removes."""

    added: list[int]
    removed: list[int]


class _Changes:
    """Cache of the effects of cuts: each is computed once, and again when a sweep that contains the cut has changed.

    A cut rarely affects other sweeps than these and, where branches are parallel, the next one.

    Args:
        case: The sweep to cut.
        report: Called for each change that is computed.
    """

    def __init__(self, case: _Case, report: Callable[[], None]) -> None:
        self.case, self.report = case, report
        self.cache: dict[tuple[int, tuple[int, ...]], _Change] = {}

    def best(
        self, cuts: frozenset[int], candidates: frozenset[int], sweeps: list[int]
    ) -> tuple[float, int]:
        """Return the predicted seconds with the cut that saves most, and this cut.

        Args:
            cuts: The cuts so far.
            candidates: All cuts.
            sweeps: Numbers of the sweeps with the cuts so far.
        """
        found, counts = (inf, -1), Counter(sweeps)
        for value in candidates - cuts:
            key = value, self.case.holders(value, sweeps)
            if key not in self.cache or Counter(self.cache[key].removed) - counts:
                self.report()
                self.cache[key] = _change(sweeps, self.case.sweeps(cuts | {value}))
            added, removed = self.cache[key]
            found = min(found, (self.case.seconds([*sweeps, *added], removed), value))
        return found


def _change(old: list[int], new: list[int]) -> _Change:
    before, after = Counter(old), Counter(new)
    return _Change([*(after - before).elements()], [*(before - after).elements()])
