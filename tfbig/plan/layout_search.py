"""Layouts worth comparing, and the stores that each has to spill. Arithmetic only."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping
from typing import NamedTuple

import numpy as np

from tfbig.network.graph import Graph, Local, Node, Reduce
from tfbig.plan import replay_segments
from tfbig.plan.lifetimes import Timeline
from tfbig.plan.passes import waiting_images
from tfbig.plan.sweeps import (
    REMAT_DEPTH,
    SHORT_DEPTH,
    Layout,
    NodeIndex,
    Store,
    Sweep,
    schedule,
)
from tfbig.units import ceil_div


class Family(NamedTuple):
    """Layouts with the same sweeps, which differ in the number of segments that are replayed.

    Attributes:
        sweeps: The sweeps of all its layouts.
        replays: Replays from the best to the worst; each layout has the first of them.
    """

    sweeps: tuple[Sweep, ...]
    replays: tuple[Sweep, ...] = ()

    @property
    def layouts(self) -> Iterator[Layout]:
        """All layouts, by increasing number of replays."""
        return map(self._with, _counts(len(self.replays)))

    @property
    def some(self) -> Iterator[Layout]:
        """Layouts with a third, two thirds and all of the replays."""
        count = len(self.replays)
        return map(self._with, sorted({ceil_div(count, 3), ceil_div(2 * count, 3), count}))

    def _with(self, count: int) -> Layout:
        return Layout(self.sweeps, self.replays[:count])


def families_storing_less(
    graph: Graph,
    cuts: frozenset[int],
    stored: Mapping[int, int],
    worth: Callable[[Sweep], float],
    effort: Callable[[Node], int],
    learned: Container[int],
) -> Iterator[Family]:
    """Yield families of layouts that store less and less.

    They have fewer and fewer cut points, or rematerialise more and more images within the strip. Each is combined
    with segments of several lengths, and an increasing number of replayed segments.

    Args:
        graph: The graph to run.
        cuts: Cut points, see `tfbig.plan.sweeps.schedule`.
        stored: Bytes of every image.
        worth: Value of a replay; the best come first.
        effort: Operations of a node.
        learned: Values that need a gradient.

    Yields:
        The families, those with the same sweeps one after the other; the first of them has no replays.
    """
    ways = [(some, frozenset[int]()) for some in _fewer_cuts(graph, cuts, stored)]
    ways += [(cuts, remat) for remat in _remats(graph, cuts, stored, effort)]
    known: list[tuple[Sweep, ...]] = []
    for some, remat in ways:
        for depth in (REMAT_DEPTH, SHORT_DEPTH):
            sweeps = tuple(schedule(graph, some, depth, remat))
            if sweeps in known:
                continue
            known.append(sweeps)
            yield Family(sweeps)
            waiting = frozenset(waiting_images(sweeps, learned))
            for way in replay_segments.partitions(graph, sweeps, stored, waiting):
                segments = [replay_segments.replay(graph, sweeps, s, waiting) for s in way[:-1]]
                replays = sorted((s for s in segments if s is not None), key=worth, reverse=True)
                if replays:
                    yield Family(sweeps, tuple(replays))


def with_remat(
    graph: Graph,
    cuts: frozenset[int],
    stored: Mapping[int, int],
    effort: Callable[[Node], int],
) -> Iterator[Layout]:
    """Yield layouts that rematerialise more and more images, for machines that compute faster than they copy.

    Args:
        graph: The graph to run.
        cuts: Cut points, see `tfbig.plan.sweeps.schedule`.
        stored: Bytes of every image.
        effort: Operations of a node.

    Yields:
        The layouts.
    """
    for remat in _remats(graph, cuts, stored, effort):
        for depth in (REMAT_DEPTH, SHORT_DEPTH):
            yield Layout(tuple(schedule(graph, cuts, depth, remat)))


def with_fewer_cuts(
    graph: Graph, cuts: frozenset[int], stored: Mapping[int, int]
) -> Iterator[Family]:
    """Yield layouts of a prediction that store less and less, each a family: with fewer and fewer cut points.

    Args:
        graph: The graph to run.
        cuts: Cut points, see `tfbig.plan.sweeps.schedule`.
        stored: Bytes of every image.

    Yields:
        The families.
    """
    for some in _fewer_cuts(graph, cuts, stored):
        if some != cuts:
            yield Family(tuple(schedule(graph, some)))


def _remats(
    graph: Graph,
    cuts: frozenset[int],
    stored: Mapping[int, int],
    effort: Callable[[Node], int],
) -> Iterator[frozenset[int]]:
    """Yield 1, 2, 4, ... of the images that barriers need: the largest first, among equals those of the least work.

    No image is rematerialised from another one that is, because the work would grow with the square of the chain.
    """
    written = {v for sweep in schedule(graph, cuts) for v in sweep.writes}
    summed = {i for n in graph.nodes if isinstance(n.op, Reduce) for i in n.inputs}
    choices = written & summed - cuts - {*graph.outputs}
    makers = [n for n in graph.nodes if isinstance(n.op, Local) and n.output in choices]
    makers.sort(key=lambda n: (-stored[n.output], effort(n)))
    chosen: set[int] = set()
    index = NodeIndex(graph)
    for node in makers:
        trial = chosen | {node.output}
        if all(_is_independent(index, value, written, trial) for value in trial):
            chosen = trial
            if len(chosen) & (len(chosen) - 1) == 0:
                yield frozenset(chosen)


def _is_independent(index: NodeIndex, value: int, written: set[int], remat: set[int]) -> bool:
    """Return whether an image is computed from stored images without another rematerialised one."""
    nodes, _ = index.between({value}, lambda v: v in written - remat)
    return all(n.output == value or n.output not in remat for n in nodes)


def _counts(most: int) -> Iterator[int]:
    """Yield 1, 2, ... up to `most`, in steps of an eighth of the number; 0 alone if `most` is 0."""
    count = 1
    while count < most:
        yield count
        count += max(count // 8, 1)
    yield most


def _fewer_cuts(
    graph: Graph, cuts: frozenset[int], stored: Mapping[int, int]
) -> Iterator[frozenset[int]]:
    """Yield all cut points, then fewer and fewer.

    Each time the largest images are dropped, of at least an eighth of all stored bytes, until none is left.
    """
    written = {v for sweep in schedule(graph, cuts) for v in sweep.writes}
    step = sum(stored[v] for v in written) // 8
    yield cuts
    left = sorted(cuts, key=lambda v: stored[v])
    while left:
        dropped = 0
        while left and dropped < step:
            size = stored[left[-1]]
            while left and stored[left[-1]] == size:
                dropped += stored[left.pop()]
        yield frozenset(left)


def to_spill(
    timeline: Timeline, sizes: Mapping[int, int], limit: float, kept: frozenset[int] = frozenset()
) -> frozenset[Store]:
    """Choose the stores to spill so that those in memory never exceed a limit.

    The next store to spill is the one with the highest ratio of moments that it exists at and that are above the
    limit, to the number of times that it is read or written: the one that waits longest. Small ones may be spilled
    before a large one that then makes room for them; in the end those that fit beside the others stay in memory.

    Args:
        timeline: Moments of the step.
        sizes: Bytes of every image.
        limit: Bytes of memory.
        kept: Images on the device.

    Returns:
        The stores to spill.
    """
    stores = sorted(
        (s for s in timeline.spans if s.value not in kept), key=lambda s: -sizes[s.value]
    )
    first, last = np.array([timeline.spans[s] for s in stores], np.int64).reshape(-1, 2).T
    touches = np.array([timeline.times_touched[s] for s in stores], np.int64)
    bytes_of = np.array([sizes[s.value] for s in stores], np.int64)
    live = timeline.live_bytes(stores, sizes)
    in_memory, spilled = np.ones(len(stores), bool), list[int]()
    while in_memory.any() and live.max(initial=0) > limit:
        above = np.concatenate([[0], np.cumsum(live > limit)])
        gain = np.where(in_memory, (above[last + 1] - above[first]) / np.maximum(touches, 1), -1)
        chosen = int(gain.argmax())
        in_memory[chosen] = False
        spilled.append(chosen)
        live[first[chosen] : last[chosen] + 1] -= bytes_of[chosen]
    for chosen in reversed(spilled):
        span = slice(first[chosen], last[chosen] + 1)
        if live[span].max() + bytes_of[chosen] <= limit:
            in_memory[chosen] = True
            live[span] += bytes_of[chosen]
    return frozenset(s for s, stays in zip(stores, in_memory, strict=True) if not stays)
