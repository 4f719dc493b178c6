"""When each stored image of a step exists, and which bytes it may have meanwhile: arithmetic only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tfbig.network.graph import Graph
from tfbig.plan import replay_segments
from tfbig.plan.address_ranges import aligned
from tfbig.plan.sweeps import Layout, Store, Sweep, foldable

Span = tuple[int, int]
"""Positions of the first and the last moment."""


class Moment(NamedTuple):
    """One visit of all strips.

    Args:
        what: "forward", "backward", "both" (a loss, forward and backward together) or "replay".
        sweep: index of the sweep; of a replay, before the backward of which sweep it runs.
        touched: stores that are read or written as a whole, once per time.
        given: images from outside that are read.
    """

    what: str
    sweep: int
    touched: tuple[Store, ...]
    given: tuple[int, ...] = ()


@dataclass(frozen=True)
class Timeline:
    """The moments of a step, and when each of its stores exists.

    Args:
        moments: in order.
        spans: first and last moment of each store, by position.
    """

    moments: tuple[Moment, ...]
    spans: Mapping[Store, Span]

    def live_bytes(self, stores: Iterable[Store], sizes: Mapping[int, int]) -> np.ndarray:
        """Bytes of some of the stores at every moment.

        Args:
            stores: which.
            sizes: bytes of each image.
        """
        changes = np.zeros(len(self.moments) + 1, np.int64)
        for store in stores:
            first, last = self.spans[store]
            changes[first] += sizes[store.value]
            changes[last + 1] -= sizes[store.value]
        return np.cumsum(changes)[:-1]


class _Recorder:
    """Follows the stores of a step."""

    def __init__(self, inner: frozenset[int]) -> None:
        self.inner = inner
        self.moments: list[Moment] = []
        self.spans: dict[Store, Span] = {}
        self._touched: list[Store] = []
        self._since: dict[Store, int] = {}

    def make(self, kind: str, values: Iterable[int]) -> None:
        for value in values:
            self._since.setdefault(Store(kind, value), len(self.moments))

    def touch(self, kind: str, values: Iterable[int]) -> None:
        self._touched += [Store(kind, v) for v in values]

    def touch_kept(self, values: Iterable[int]) -> None:
        """Images as a backward finds them."""
        for value in values:
            self.touch("again" if value in self.inner else "image", [value])

    def drop(self, kind: str, values: Iterable[int]) -> None:
        for store in (Store(kind, v) for v in values):
            if store in self._since:
                first = self._since.pop(store)
                self.spans[store] = first, max(len(self.moments) - 1, first)

    def drop_kept(self, values: Iterable[int]) -> None:
        for kind in ("image", "again"):
            self.drop(kind, values)

    def moment(self, what: str, sweep: Sweep, given: Iterable[int]) -> None:
        self.moments.append(Moment(what, sweep.index, tuple(self._touched), tuple(given)))
        self._touched = []

    def finish(self) -> Timeline:
        for store in list(self._since):
            self.drop(store.kind, [store.value])
        return Timeline(tuple(self.moments), self.spans)


def timeline(graph: Graph, layout: Layout, training: bool, fused: bool) -> Timeline:
    """Forward sweeps, then backward sweeps in reverse order; a store exists until its last reader has ended.

    Args:
        graph: what runs.
        layout: how.
        training: whether a backward follows.
        fused: whether the last sweep runs forward and backward together.
    """
    seen = _Recorder(layout.inner)
    _forward(graph, layout, training, fused, seen)
    if training:
        _backward(graph, layout, fused, seen)
    return seen.finish()


def _forward(graph: Graph, layout: Layout, training: bool, fused: bool, seen: _Recorder) -> None:
    sweeps = layout.sweeps
    until = replay_segments.last_readers(graph, sweeps)
    gone = layout.inner if training else frozenset(until)
    for sweep in sweeps[:-1] if fused else sweeps:
        seen.make("image", sweep.writes)
        seen.touch("image", [*sweep.writes, *_stored(graph, sweep)])
        seen.moment("forward", sweep, _outside(graph, sweep))
        seen.drop("image", [v for v in sorted(gone) if until[v] <= sweep.index])


def _backward(graph: Graph, layout: Layout, fused: bool, seen: _Recorder) -> None:
    for sweep in reversed(layout.sweeps):
        for made in layout.replays:
            if made.index == sweep.index:
                seen.make("again", made.writes)
                seen.touch_kept([*made.writes, *_stored(graph, made)])
                seen.moment("replay", made, _outside(graph, made))
        together = fused and sweep is layout.sweeps[-1]
        if not together:
            folded = [n.inputs[0] for n in foldable(sweep) if n.inputs[0] not in layout.kept]
            seen.touch_kept(folded)
            seen.touch("gradient", [*folded, *folded])
            seen.drop_kept(folded)
            summed = {v for n in sweep.reductions for v in n.inputs}
            seen.touch_kept(v for v in sweep.writes if v in summed.difference(folded))
        reads = _stored(graph, sweep)
        seen.make("gradient", reads)
        seen.touch("gradient", [*reads, *sweep.writes])
        seen.touch_kept(reads)
        seen.moment("both" if together else "backward", sweep, _outside(graph, sweep))
        seen.drop("gradient", sweep.writes)
        seen.drop_kept(sweep.writes)


def _stored(graph: Graph, sweep: Sweep) -> list[int]:
    """What a sweep reads from stores: everything but what comes from outside."""
    return [v for v in sweep.reads if v not in graph.inputs]


def _outside(graph: Graph, sweep: Sweep) -> list[int]:
    return [v for v in sweep.reads if v in graph.inputs]


def place(spans: Mapping[Store, Span], sizes: Mapping[int, int]) -> dict[Store, int]:
    """The first byte of each store in one range, such that no two that exist at once overlap.

    Large ones come first, each at the lowest bytes that are free as long as it exists.

    Args:
        spans: of the stores to place.
        sizes: bytes of each image.
    """
    order = sorted(spans, key=lambda s: (-sizes[s.value], spans[s]))
    first = np.array([spans[s][0] for s in order], np.int64)
    last = np.array([spans[s][1] for s in order], np.int64)
    start = np.zeros(len(order), np.int64)
    stop = np.zeros(len(order), np.int64)
    for i, store in enumerate(order):
        beside = (first[:i] <= last[i]) & (first[i] <= last[:i])
        start[i] = _lowest(start[:i][beside], stop[:i][beside], aligned(sizes[store.value]))
        stop[i] = start[i] + aligned(sizes[store.value])
    return {s: int(b) for s, b in zip(order, start, strict=True)}


def _lowest(starts: np.ndarray, stops: np.ndarray, size: int) -> int:
    """The start of the first gap of `size` between parts that are in use."""
    order = np.argsort(starts, kind="stable")
    free = 0
    for begin, end in zip(starts[order].tolist(), stops[order].tolist(), strict=True):
        if begin - free >= size:
            break
        free = max(free, end)
    return free


def top(places: Mapping[Store, int], sizes: Mapping[int, int]) -> int:
    """The end of the range that places need."""
    return max((b + aligned(sizes[s.value]) for s, b in places.items()), default=0)
