"""The moments between which each store of a step exists, and its address. Arithmetic only."""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tfbig.network.graph import Graph
from tfbig.plan import replay_segments
from tfbig.plan.passes import Kind, Pass, backward_passes, forward_passes, read_backward
from tfbig.plan.sweeps import Layout, Store, Sweep, foldable
from tfbig.units import aligned

Span = tuple[int, int]
"""Positions of the first and the last moment."""


class Moment(NamedTuple):
    """The stores that one pass of a step reads and writes.

    Args:
        kind: What the pass computes.
        sweep: Index of the sweep; for a replay, the sweep whose backward pass it precedes.
        touched: Stores that are read or written as a whole, once for each time.
        external: Images from outside that are read.
    """

    kind: Kind
    sweep: int
    touched: tuple[Store, ...]
    external: tuple[int, ...] = ()


@dataclass(frozen=True)
class Timeline:
    """The moments of a step, and when each of its stores exists.

    Args:
        moments: The moments in order.
        spans: First and last moment of each store, by position.
    """

    moments: tuple[Moment, ...]
    spans: Mapping[Store, Span]

    @cached_property
    def stores(self) -> tuple[Store, ...]:
        """Everything that a moment reads or writes, also gradients that nothing made, in the order of `touches`."""
        return tuple(dict.fromkeys(store for moment in self.moments for store in moment.touched))

    @cached_property
    def times_touched(self) -> Mapping[Store, int]:
        """Number of times that each store is read or written."""
        return Counter(store for moment in self.moments for store in moment.touched)

    @cached_property
    def touches(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Position of the moment, and index of the store, of everything that a moment reads or writes."""
        index = {store: number for number, store in enumerate(self.stores)}
        pairs = [(n, index[s]) for n, moment in enumerate(self.moments) for s in moment.touched]
        moments, stores = np.array(pairs, np.int64).reshape(-1, 2).T
        return moments, stores

    def live_bytes(self, stores: Iterable[Store], sizes: Mapping[int, int]) -> np.ndarray:
        """Return the bytes of some stores at every moment.

        Args:
            stores: The stores to count.
            sizes: Bytes of each image.

        Returns:
            Bytes, `[moments]` int64.
        """
        changes = [0] * (len(self.moments) + 1)  # faster than an array, element by element
        for store in stores:
            first, last = self.spans[store]
            changes[first] += sizes[store.value]
            changes[last + 1] -= sizes[store.value]
        return np.cumsum(np.array(changes, np.int64))[:-1]


@cache
def _store(kind: str, value: int) -> Store:
    """Return a store, the same object each time: a plan compares hundreds of timelines with thousands of stores."""
    return Store(kind, value)


class _StoreTracker:
    """Record of the stores of a step. `inner` are the images that replays rematerialise."""

    def __init__(self, inner: frozenset[int]) -> None:
        self.inner = inner
        self.moments: list[Moment] = []
        self.spans: dict[Store, Span] = {}
        self._touched: list[Store] = []
        self._since: dict[Store, int] = {}

    def make(self, kind: str, values: Iterable[int]) -> None:
        for value in values:
            self._since.setdefault(_store(kind, value), len(self.moments))

    def touch(self, kind: str, values: Iterable[int]) -> None:
        self._touched.extend([_store(kind, v) for v in values])

    def touch_images(self, values: Iterable[int]) -> None:
        """Touch images in the store that a backward pass reads them from."""
        inner = self.inner
        self._touched.extend([_store("remat" if v in inner else "image", v) for v in values])

    def drop(self, kind: str, values: Iterable[int]) -> None:
        for value in values:
            store = _store(kind, value)
            if store in self._since:
                first = self._since.pop(store)
                self.spans[store] = first, max(len(self.moments) - 1, first)

    def drop_images(self, values: Iterable[int]) -> None:
        for kind in ("image", "remat"):
            self.drop(kind, values)

    def moment(self, each: Pass, external: Iterable[int]) -> None:
        index, touched = each.sweep.index, tuple(self._touched)
        self.moments.append(Moment(each.kind, index, touched, tuple(external)))
        self._touched.clear()

    def finish(self) -> Timeline:
        for store in list(self._since):
            self.drop(store.kind, [store.value])
        return Timeline(tuple(self.moments), self.spans)


def timeline(graph: Graph, layout: Layout, learned: Collection[int], fused: bool) -> Timeline:
    """Return the timeline of a step; a store exists until its last reader has ended.

    Args:
        graph: The graph to run.
        layout: Layout of the step.
        learned: Values that need a gradient, see `tfbig.network.graph.values_with_gradient`; none in inference.
        fused: Whether the last sweep runs forward and backward together.

    Returns:
        The timeline.
    """
    recorder = _StoreTracker(layout.inner)
    backward = backward_passes(layout, learned, fused)
    waiting = _waiting(backward, learned) - layout.inner
    ending: dict[int, list[int]] = {}
    for value, last in sorted(replay_segments.last_readers(graph, layout.sweeps).items()):
        if value not in waiting:
            ending.setdefault(last, []).append(value)
    for each in forward_passes(layout, fused):
        _forward(graph, each, recorder)
        recorder.drop("image", ending.get(each.sweep.index, ()))
    for each in backward:
        _backward(graph, layout, learned, each, recorder)
    return recorder.finish()


def _waiting(backward: Sequence[Pass], learned: Collection[int]) -> set[int]:
    """Return the images that the backward passes read."""
    images = set[int]()
    for kind, sweep in backward:
        if kind is Kind.REPLAY:
            images |= {*sweep.reads}
        elif kind is not Kind.FROZEN:
            images |= read_backward(sweep, learned)
    return images


def _forward(graph: Graph, each: Pass, recorder: _StoreTracker) -> None:
    recorder.make("image", each.sweep.writes)
    recorder.touch("image", [*each.sweep.writes, *_stored(graph, each.sweep)])
    recorder.moment(each, _external(graph, each.sweep))


def _backward(
    graph: Graph, layout: Layout, learned: Collection[int], each: Pass, recorder: _StoreTracker
) -> None:
    kind, sweep = each
    reads = _stored(graph, sweep)
    if kind is Kind.REPLAY:
        recorder.make("remat", sweep.writes)
        recorder.touch_images([*sweep.writes, *reads])
        recorder.moment(each, _external(graph, sweep))
        return
    if kind is Kind.BACKWARD:
        reduced = [n for n in foldable(sweep) if n.inputs[0] in learned]
        folded = [n.inputs[0] for n in reduced if n.inputs[0] not in layout.kept]
        recorder.touch_images(folded)
        recorder.touch("gradient", [*folded, *folded])
        recorder.drop_images(folded)
        summed = read_backward(sweep, learned).difference(sweep.reads, folded)
        recorder.touch_images(v for v in sweep.writes if v in summed)
    if kind is not Kind.FROZEN:
        targets = [v for v in reads if v in learned]
        recorder.make("gradient", targets)
        recorder.touch("gradient", [*targets, *(v for v in sweep.writes if v in learned)])
        recorder.touch_images(reads)
        recorder.moment(each, _external(graph, sweep))
        recorder.drop("gradient", sweep.writes)
    recorder.drop_images(sweep.writes)


def _stored(graph: Graph, sweep: Sweep) -> list[int]:
    """Return the images that a sweep reads from stores: all but the inputs of the graph."""
    return [v for v in sweep.reads if v not in graph.inputs]


def _external(graph: Graph, sweep: Sweep) -> list[int]:
    return [v for v in sweep.reads if v in graph.inputs]


def place(spans: Mapping[Store, Span], sizes: Mapping[int, int]) -> dict[Store, int]:
    """Assign an address in one range to each store, so that stores that exist at once do not overlap.

    Large stores come first; each gets the lowest address that is free while it exists.

    Args:
        spans: First and last moment of each store to place.
        sizes: Bytes of each image.

    Returns:
        First byte of each store.
    """
    used: list[tuple[int, int, int, int]] = []  # start, stop, first and last moment; sorted
    addresses = {}
    for store in sorted(spans, key=lambda s: (-sizes[s.value], spans[s])):
        first, last = spans[store]
        size, free = aligned(sizes[store.value]), 0
        for start, stop, since, until in used:
            if since <= last and first <= until:
                if start - free >= size:
                    break
                if stop > free:
                    free = stop
        insort(used, (free, free + size, first, last))
        addresses[store] = free
    return addresses


def top(addresses: Mapping[Store, int], sizes: Mapping[int, int]) -> int:
    """Return the end of the range that the stores occupy.

    Args:
        addresses: First byte of each store.
        sizes: Bytes of each image.

    Returns:
        Number of bytes.
    """
    return max((b + aligned(sizes[s.value]) for s, b in addresses.items()), default=0)
