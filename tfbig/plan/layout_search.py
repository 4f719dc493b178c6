"""Layouts worth comparing, and what of each has to go to a file: arithmetic only."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from tfbig.network.graph import Graph, Local, Node, Reduce
from tfbig.plan import replay_segments
from tfbig.plan.lifetimes import Timeline
from tfbig.plan.sweeps import REMAT_DEPTH, SHORT_DEPTH, Layout, Store, Sweep, made_from, schedule


def keeping_less(
    graph: Graph,
    cuts: frozenset[int],
    stored: Mapping[int, int],
    worth: Callable[[Sweep], float],
    effort: Callable[[Node], int],
) -> Iterator[Layout]:
    """Fewer and fewer cuts, or more and more images that are made again in the strip; with each, segments of several
    lengths, of which more and more are replayed.

    Args:
        graph: what runs.
        cuts: see `tfbig.plan.sweeps.schedule`.
        stored: bytes of every image.
        worth: of a replay; the best come first.
        effort: operations of a node.
    """
    ways = [(some, frozenset[int]()) for some in _fewer(graph, cuts, stored)]
    ways += [(cuts, remat) for remat in _remats(graph, cuts, stored, effort)]
    for some, remat in ways:
        for depth in (REMAT_DEPTH, SHORT_DEPTH):
            sweeps = schedule(graph, some, depth, remat)
            yield Layout(tuple(sweeps))
            for way in replay_segments.partitions(graph, sweeps, stored):
                made = [replay_segments.replay(graph, sweeps, segment) for segment in way[:-1]]
                replays = sorted((s for s in made if s is not None), key=worth, reverse=True)
                for count in _counts(len(replays)):
                    yield Layout(tuple(sweeps), tuple(replays[:count]))


def making_again(
    graph: Graph,
    cuts: frozenset[int],
    stored: Mapping[int, int],
    effort: Callable[[Node], int],
) -> Iterator[Layout]:
    """More and more images that are made again in the strip, for machines that compute faster than they copy.

    Args:
        As in `keeping_less`.
    """
    for remat in _remats(graph, cuts, stored, effort):
        for depth in (REMAT_DEPTH, SHORT_DEPTH):
            yield Layout(tuple(schedule(graph, cuts, depth, remat)))


def _remats(
    graph: Graph,
    cuts: frozenset[int],
    stored: Mapping[int, int],
    effort: Callable[[Node], int],
) -> Iterator[frozenset[int]]:
    """1, 2, 4, ... of the images that barriers ask for, the largest first, of equal ones those of the least work.

    None is made again from another: the work would grow with the square of the chain.
    """
    written = {v for sweep in schedule(graph, cuts) for v in sweep.writes}
    summed = {i for n in graph.nodes if isinstance(n.op, Reduce) for i in n.inputs}
    choices = written & summed - cuts - {*graph.outputs}
    makers = [n for n in graph.nodes if isinstance(n.op, Local) and n.output in choices]
    makers.sort(key=lambda n: (-stored[n.output], effort(n)))
    chosen: set[int] = set()
    for node in makers:
        tried = chosen | {node.output}
        if all(_alone(graph, value, written, tried) for value in tried):
            chosen = tried
            if len(chosen) & (len(chosen) - 1) == 0:
                yield frozenset(chosen)


def _alone(graph: Graph, value: int, written: set[int], remat: set[int]) -> bool:
    """Whether an image is made from what is stored without any other that is made again."""
    nodes, _ = made_from(graph, {value}, lambda v: v in written - remat)
    return all(n.output == value or n.output not in remat for n in nodes)


def _counts(most: int) -> Iterator[int]:
    """1, 2, ... up to the most, in steps of an eighth."""
    count = 1
    while count < most:
        yield count
        count += max(count // 8, 1)
    if most:
        yield most


def _fewer(
    graph: Graph, cuts: frozenset[int], stored: Mapping[int, int]
) -> Iterator[frozenset[int]]:
    """All cuts, then those without the largest images, each time without an eighth of what is stored or more; none
    at last."""
    written = {v for sweep in schedule(graph, cuts) for v in sweep.writes}
    step = sum(stored[v] for v in written) // 8
    yield cuts
    left = sorted(cuts, key=lambda v: stored[v])
    while left:
        without = 0
        while left and without < step:
            size = stored[left[-1]]
            while left and stored[left[-1]] == size:
                without += stored[left.pop()]
        yield frozenset(left)


def to_spill(
    timeline: Timeline, sizes: Mapping[int, int], limit: float, kept: frozenset[int] = frozenset()
) -> frozenset[Store]:
    """Stores that go to a file so that those in memory never take more than `limit` bytes.

    The next to go is always the one that is there at most of the moments that are above the limit for each time that
    it is read or written: what waits longest.

    Args:
        timeline: of the step.
        sizes: bytes of every image.
        limit: bytes of memory.
        kept: images that are elsewhere.
    """
    stores = sorted(
        (s for s in timeline.spans if s.value not in kept), key=lambda s: -sizes[s.value]
    )
    first, last = np.array([timeline.spans[s] for s in stores], np.int64).reshape(-1, 2).T
    touches = np.zeros(len(stores), np.int64)
    place = {s: i for i, s in enumerate(stores)}
    for moment in timeline.moments:
        for store in moment.touched:
            if store in place:
                touches[place[store]] += 1
    bytes_of = np.array([sizes[s.value] for s in stores], np.int64)
    live = timeline.live_bytes(stores, sizes)
    inside = np.ones(len(stores), bool)
    while inside.any() and live.max(initial=0) > limit:
        above = np.concatenate([[0], np.cumsum(live > limit)])
        gain = np.where(inside, (above[last + 1] - above[first]) / np.maximum(touches, 1), -1)
        chosen = int(gain.argmax())
        inside[chosen] = False
        live[first[chosen] : last[chosen] + 1] -= bytes_of[chosen]
    return frozenset(s for s, kept in zip(stores, inside, strict=True) if not kept)
