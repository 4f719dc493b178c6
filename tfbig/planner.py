"""Chooses cuts and strips: the cheapest plan that stays inside a budget. Arithmetic only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from math import prod
from typing import NamedTuple

import numpy as np

from tfbig import segments
from tfbig.errors import BudgetError
from tfbig.graph import Graph, Local, Node, Whole
from tfbig.plan import (
    RUNTIME_BYTES,
    SHORT_DEPTH,
    SWEEP_BYTES,
    Layout,
    Plan,
    Rates,
    Size,
    Sweep,
    SweepCost,
    foldable,
    format_bytes,
    layers_of,
    schedule,
)
from tfbig.ranges import Ranges

TWO_CORES = Rates()

ITEMSIZE = {"bool": 1, "uint8": 1, "int8": 1, "uint16": 2, "int16": 2, "float16": 2, "bfloat16": 2}
ITEMSIZE |= {"int32": 4, "float32": 4, "int64": 8, "float64": 8}


class Event(NamedTuple):
    """One moment of a step: what happens, the bytes of all stored images then, and the memory that holds them."""

    what: str
    live_bytes: int
    held_bytes: int


class _Stores:
    """Images and gradients that live, and the ranges of memory they have."""

    def __init__(self, sizes: dict[int, int]) -> None:
        self.sizes = sizes
        self.starts: dict[tuple[str, int], int] = {}
        self.ranges = Ranges()

    def make(self, kind: str, values: Iterable[int]) -> None:
        for value in values:
            if (kind, value) not in self.starts:
                self.starts[kind, value] = self.ranges.take(self.sizes[value])

    def drop(self, kind: str, values: Iterable[int]) -> None:
        for value in values:
            if (kind, value) in self.starts:
                self.ranges.give(self.starts.pop((kind, value)), self.sizes[value])

    def event(self, what: str) -> Event:
        return Event(what, sum(self.sizes[v] for _, v in self.starts), self.ranges.top)


class Planner:
    """Plans for images of any size.

    Args:
        graph: what to run.
        device_bytes: most bytes that strips may take at any time.
        host_bytes: most bytes of stored images, or None for no limit.
        strip_rows: fixes the strip height, in rows of the first input.
        training: whether a backward follows.
        name: of the model, for messages.
        max_elements: most input elements of a strip, instead of `device_bytes` (the papers' max_N).
        shared: whether strips live in host memory too; `host_bytes` then is for all that a step adds.
        rates: of the machine.
        store: element type of stored images that are wider, such as "bfloat16"; their own by default.

    Attributes:
        fused: whether the last sweep of a loss can run forward and backward together.
    """

    def __init__(
        self,
        graph: Graph,
        device_bytes: int,
        host_bytes: int | None = None,
        strip_rows: int | None = None,
        training: bool = True,
        name: str = "model",
        max_elements: int | None = None,
        store: str | None = None,
        shared: bool = False,
        rates: Rates | None = None,
    ) -> None:
        self.rates = rates or Rates()
        self.graph = graph
        self.shared = shared
        self.store = store
        self.device_bytes = device_bytes
        self.host_bytes = host_bytes
        self.strip_rows = strip_rows
        self.training = training
        self.name = name
        self.max_elements = max_elements
        self._cuts = choose_cuts(graph, self.rates)
        self.sweeps = schedule(graph, self._cuts)
        self._learning = learning(graph)
        last = self.sweeps[-1]
        self.fused = (
            training
            and [n.output for n in last.reductions] == graph.outputs
            and last.reductions[0].op.together is not None
            and not last.wholes
        )
        self._plans: dict[tuple[object, ...], Plan] = {}

    def stored_dtype(self, value: int) -> str:
        """Element type of an image in its store."""
        own = self.graph.values[value].dtype or "float32"
        inner = value not in self.graph.inputs  # the gradient of an input is a result
        if (
            self.store
            and inner
            and own.startswith("float")
            and itemsize(own) > itemsize(self.store)
        ):
            return self.store
        return own

    def plan(self, batch: int, sizes: dict[int, Size], layout: Layout | None = None) -> Plan:
        """The plan for input images of these sizes, `{input value id: (rows, columns)}`.

        Args:
            layout: what is kept; by default the fastest that fits.

        Raises:
            BudgetError: the smallest strip, or what must be stored, is above the budget.
        """
        key = (batch, *sorted(sizes.items()), id(layout))
        if key not in self._plans:
            if len(self._plans) >= 256:
                self._plans.clear()
            self._plans[key] = self._make(batch, sizes, layout)
        return self._plans[key]

    def tables(self, plan: Plan, sizes: dict[int, Size]) -> list[np.ndarray]:
        """The geometry of every sweep, then of every replay, see `Sweep.table`."""
        rows = {v: size[0] for v, size in self.graph.extents(sizes).items()}
        visits = [*zip(plan.sweeps, plan.costs, strict=True)]
        visits += zip(plan.layout.replays, plan.replay_costs, strict=True)
        return [sweep.table(rows, cost.strips) for sweep, cost in visits]

    def trace(
        self, batch: int, sizes: dict[int, Size], layout: Layout | None = None
    ) -> list[Event]:
        """Allocations and sweeps of one step, in order."""
        found = self._stored_bytes(batch, self.graph.extents(sizes))
        return list(
            _events(self.graph, layout or self._straight(), self.training, self.fused, found)
        )

    def _stored_bytes(self, batch: int, extents: dict[int, Size]) -> dict[int, int]:
        """Bytes of every image in a store."""
        return {v: bytes_of(self.graph, v, batch, extents, self.stored_dtype(v)) for v in extents}

    def _make(self, batch: int, sizes: dict[int, Size], layout: Layout | None) -> Plan:
        extents = self.graph.extents(sizes)
        known: dict[int, tuple[Sweep, SweepCost]] = {}
        if layout is not None:
            return self._check(self._plan(batch, sizes, layout, known))
        best = self._plan(batch, sizes, self._straight(), known)
        if self.host_bytes is None or self._used(best) <= self.host_bytes or not self.training:
            return self._check(best)
        found = []
        for way in self._layouts(batch, extents):
            with suppress(BudgetError):  # a replay of many layers may have too large a strip
                found.append(self._plan(batch, sizes, way, known))
        fitting = [p for p in found if self._used(p) <= self.host_bytes]
        if fitting:
            return min(fitting, key=lambda p: p.seconds)
        return self._check(min([best, *found], key=self._used))

    def _straight(self) -> Layout:
        """Everything is kept: the fastest."""
        return Layout(tuple(self.sweeps))

    def _layouts(self, batch: int, extents: dict[int, Size]) -> Iterator[Layout]:
        """Layouts worth comparing: segments of several lengths, of which more and more are replayed."""
        stored = self._stored_bytes(batch, extents)
        for sweeps in (self.sweeps, schedule(self.graph, self._cuts, SHORT_DEPTH)):
            for way in segments.partitions(self.graph, sweeps, stored):
                made = [segments.replay(self.graph, sweeps, segment) for segment in way[:-1]]
                worth = sorted(
                    (s for s in made if s is not None),
                    key=lambda s: _worth(s, stored, batch, extents),
                    reverse=True,
                )
                for count in range(1, len(worth) + 1):
                    yield Layout(tuple(sweeps), tuple(worth[:count]))

    def _plan(
        self,
        batch: int,
        sizes: dict[int, Size],
        layout: Layout,
        known: dict[int, tuple[Sweep, SweepCost]],
    ) -> Plan:
        """The plan of a layout; costs of sweeps that other layouts have too are looked up in `known`."""
        extents = self.graph.extents(sizes)
        for sweep in (*layout.sweeps, *layout.replays):
            if id(sweep) not in known:
                known[id(sweep)] = sweep, self._cost(sweep, batch, extents)
        costs = tuple(known[id(s)][1] for s in layout.sweeps)
        first = next(i for i in self.graph.inputs if self.graph.values[i].image)
        replays = tuple(known[id(s)][1] for s in layout.replays)
        work = sum(c.operations for c in costs) * (3 if self.training else 1)
        work += sum(c.operations for c in replays)
        stored = self._stored_bytes(batch, extents)
        moved = sum(sum(stored[v] for v in (*s.writes, *s.reads)) for s in layout.sweeps)
        moved *= 3 if self.training else 1
        moved += sum(sum(stored[v] for v in (*s.writes, *s.reads)) for s in layout.replays)
        return Plan(
            (batch, *extents[first], self.graph.values[first].channels),
            layout.sweeps,
            costs,
            max(c.device_bytes for c in (*costs, *replays)),
            max((e.held_bytes for e in self.trace(batch, sizes, layout)), default=0),
            work,
            self.device_bytes,
            layout,
            replays,
            moved,
            work / self.rates.operations + moved / self.rates.copies,
            self._fixed_bytes(),
        )

    def _used(self, plan: Plan) -> int:
        """Host memory of a step."""
        return plan.peak_bytes if self.shared else plan.host_bytes

    def _fixed_bytes(self) -> int:
        """What a step takes for images of any size. Gradients of weights: the sums so far and those of one sweep."""
        weights = sum(prod(w.shape) * itemsize(w.dtype) for w in self.graph.weights)
        graphs = len(self.sweeps) * SWEEP_BYTES
        return RUNTIME_BYTES + graphs + (2 * weights if self.training else 0)

    def _check(self, plan: Plan) -> Plan:
        if self.host_bytes is None or self._used(plan) <= self.host_bytes:
            return plan
        shape = " x ".join(map(str, plan.shape[:-1]))
        least = format_bytes(self._used(plan))
        parts = f"images {format_bytes(plan.host_bytes)}"
        if self.shared:
            parts += f", strips {format_bytes(plan.device_bytes)}, the rest {format_bytes(plan.fixed_bytes)}"
        raise BudgetError(
            f"'{self.name}' on {shape}: a step needs {least} of host memory at least ({parts}), "
            f"{format_bytes(self.host_bytes)} are allowed. Raise `host` to {least}, or use smaller images, a "
            "smaller batch or store='bfloat16'."
        )

    def _cost(self, sweep: Sweep, batch: int, extents: dict[int, Size]) -> SweepCost:
        strips = self._num_strips(sweep, batch, extents)
        table = sweep.table({v: extents[v][0] for v in sweep.images}, strips)
        heights = {v: _heights(sweep, table, v) for v in sweep.images}
        operations, exact = _operations(sweep, batch, extents, heights)
        return SweepCost(
            strips,
            max((int(heights[v].max()) for v in sweep.reads), default=0),
            self._working_set(sweep, batch, extents, strips, range(strips)),
            sum(self._stored_bytes(batch, extents)[v] for v in sweep.writes),
            operations,
            exact,
        )

    def _num_strips(self, sweep: Sweep, batch: int, extents: dict[int, Size]) -> int:
        most = sweep_limit(sweep, extents)
        if self.strip_rows is not None:
            first = next(i for i in self.graph.inputs if self.graph.values[i].image)
            return max(min(-(-extents[first][0] // self.strip_rows), most), 1)
        if not self._fits(sweep, batch, extents, most):
            self._refuse(sweep, batch, extents, most)
        low, high = 1, most
        while low < high:  # the smallest number that fits
            middle = (low + high) // 2
            if self._fits(sweep, batch, extents, middle):
                high = middle
            else:
                low = middle + 1
        while not self._fits(sweep, batch, extents, low, range(low)):
            if low == most:
                self._refuse(sweep, batch, extents, most)
            low += 1  # a strip between those that were looked at is larger
        return low

    def _fits(
        self,
        sweep: Sweep,
        batch: int,
        extents: dict[int, Size],
        strips: int,
        chosen: Sequence[int] | None = None,
    ) -> bool:
        if self.max_elements is None:
            return self._working_set(sweep, batch, extents, strips, chosen) <= self.device_bytes
        return strips == sweep_limit(sweep, extents) or self.max_elements >= max(
            -(-extents[v][0] // strips) * batch * extents[v][1] * self.graph.values[v].channels
            for v in sweep.reads
        )

    def _refuse(self, sweep: Sweep, batch: int, extents: dict[int, Size], strips: int) -> None:
        need = format_bytes(self._working_set(sweep, batch, extents, strips, range(strips)))
        width = max(extents[v][1] for v in sweep.images)
        raise BudgetError(
            f"sweep {sweep.index} of '{self.name}' ({layers_of(sweep)}): the smallest strip needs {need} on "
            f"the device, {format_bytes(self.device_bytes)} are allowed. Raise `device` to {need}, or use "
            f"narrower images (now {width} columns) or a smaller batch (now {batch})."
        )

    def _working_set(
        self,
        sweep: Sweep,
        batch: int,
        extents: dict[int, Size],
        strips: int,
        chosen: Sequence[int] | None = None,
    ) -> int:
        """Bytes of the largest of the chosen strips (by default first, middle and last).

        Counted are its images, their gradients in training, and temporaries of the kernels: four times the
        largest image in training and where a loss and metrics are computed, else once. That is what the loss of
        a wide output needs; narrower sweeps stay below (measured by `tests/test_memory.py`).
        """
        chosen = sorted({0, strips // 2, strips - 1}) if chosen is None else chosen
        table = sweep.table({v: extents[v][0] for v in sweep.images}, strips, chosen)
        tiles = {
            v: int(_heights(sweep, table, v).max(initial=0))
            * (bytes_of(self.graph, v, batch, extents) // extents[v][0])
            for v in sweep.images
        }
        scored = any(n.op.together is not None for n in sweep.reductions)
        learns = self.training and not sweep.again
        temporaries = max(tiles.values(), default=0) * (4 if learns or scored else 1)
        learning = self._learning if learns else ()
        return sum(b * (2 if v in learning else 1) for v, b in tiles.items()) + temporaries


def learning(graph: Graph) -> frozenset[int]:
    """Images that take a gradient in training: those that some weight or statistic shapes."""
    found: set[int] = set()
    for node in graph.nodes:
        shaped = bool(node.weights) or any(
            i in found or not (graph.values[i].image or i in graph.sizes) for i in node.inputs
        )
        if isinstance(node.op, Local) and shaped:
            found.add(node.output)
    return frozenset(found)


def sweep_limit(sweep: Sweep, extents: dict[int, Size]) -> int:
    """The largest number of strips: every strip owns a row of every image of the sweep."""
    return min((extents[v][0] for v in sweep.observed), default=1)


def itemsize(dtype: str | None) -> int:
    """Bytes of one element."""
    return ITEMSIZE[dtype or "float32"]


def bytes_of(
    graph: Graph, value: int, batch: int, extents: dict[int, Size], dtype: str | None = None
) -> int:
    """Bytes of a whole image, by default of its own element type."""
    known = graph.values[value]
    return batch * prod(extents[value]) * known.channels * itemsize(dtype or known.dtype)


def _worth(sweep: Sweep, stored: dict[int, int], batch: int, extents: dict[int, Size]) -> float:
    """Bytes that a replay frees, per operation that it takes."""
    heights = {v: np.array([extents[v][0]]) for v in sweep.images}
    operations, _ = _operations(sweep, batch, extents, heights)
    return sum(stored[v] for v in sweep.writes) / max(operations, 1)


def _heights(sweep: Sweep, table: np.ndarray, value: int) -> np.ndarray:
    stop, start = (table[:, sweep.columns[key, value]] for key in ("stop", "start"))
    return stop.astype(np.int64) - start


def _operations(
    sweep: Sweep, batch: int, extents: dict[int, Size], heights: dict[int, np.ndarray]
) -> tuple[int, int]:
    done = exact = 0
    for node in sweep.nodes:
        if isinstance(node.op, Whole):
            continue
        value = node.output if isinstance(node.op, Local) else node.inputs[0]
        per_row = batch * prod(extents[value][1:]) * node.op.operations
        done += per_row * int(heights[value].sum())
        exact += per_row * extents[value][0]
    return done, exact


def needs_gradient(graph: Graph, value: int) -> bool:
    """Whether a stored image takes a gradient: everything but what comes from outside."""
    return value not in graph.inputs


def _events(
    graph: Graph, layout: Layout, training: bool, fused: bool, sizes: dict[int, int]
) -> Iterator[Event]:
    """Forward sweeps, then backward sweeps in reverse order; a store lives until its last reader ends."""
    sweeps = layout.sweeps
    until = segments.last_readers(graph, sweeps)
    gone = layout.inner if training else frozenset(until)
    live = _Stores(sizes)
    for sweep in sweeps[:-1] if fused else sweeps:
        live.make("image", sweep.writes)
        yield live.event(f"forward {sweep.index}")
        live.drop("image", [v for v in sorted(gone) if until[v] <= sweep.index])
    if not training and not fused:
        return
    for sweep in reversed(sweeps):
        for made in layout.replays:
            if made.index == sweep.index:
                live.make("image", made.writes)
                yield live.event(f"replay {sweep.index}")
        if not (fused and sweep is sweeps[-1]):
            live.drop("image", [n.inputs[0] for n in foldable(sweep)])
        live.make("gradient", [v for v in sweep.reads if needs_gradient(graph, v)])
        yield live.event(f"backward {sweep.index}")
        live.drop("gradient", sweep.writes)
        live.drop("image", sweep.writes)


def choose_cuts(
    graph: Graph, rates: Rates = TWO_CORES, side: int = 4096, strips: int = 16
) -> frozenset[int]:
    """Images worth storing although no barrier asks for it.

    A chain of windows in one sweep makes halo rows again for every strip. Storing the output of a convolution
    ends the halo there, at the price of writing and reading it and its gradient. Greedy: the cut that saves
    most is added until none saves anything, on an image of `side` rows cut into `strips`.
    """
    cuts: frozenset[int] = frozenset()
    candidates = _candidates(graph)
    if not candidates:
        return cuts
    sizes = {i: (side,) * graph.spatial for i in graph.inputs if graph.values[i].image}
    try:
        extents = graph.extents(sizes)
    except ValueError:  # inputs that meet at different sizes: nothing to compare on squares
        return cuts
    best = _seconds(graph, cuts, extents, strips, rates)
    while True:
        tried = [
            (_seconds(graph, cuts | {v}, extents, strips, rates), v) for v in candidates - cuts
        ]
        seconds, value = min(tried, default=(best, -1))
        if seconds >= best:
            return cuts
        best, cuts = seconds, cuts | {value}


def _candidates(graph: Graph) -> frozenset[int]:
    """Outputs of costly local nodes that a later window of the same sweep reads."""

    def windowed(node: Node) -> bool:
        return isinstance(node.op, Local) and not node.op.cheap and node.op.operations > 0

    found: set[int] = set()
    for sweep in schedule(graph):
        inside = [n for n in sweep.locals if windowed(n)]
        if len(inside) > 1:
            found |= {n.output for n in inside if graph.consumers(n.output)}
    return frozenset(found)


def _seconds(
    graph: Graph, cuts: frozenset[int], extents: dict[int, Size], strips: int, rates: Rates
) -> float:
    total = 0.0
    for sweep in schedule(graph, cuts):
        count = min(strips, sweep_limit(sweep, extents))
        table = sweep.table({v: extents[v][0] for v in sweep.images}, count)
        heights = {v: _heights(sweep, table, v) for v in sweep.images}
        total += 3 * _operations(sweep, 1, extents, heights)[0] / rates.operations
        moved = sum(bytes_of(graph, v, 1, extents) for v in (*sweep.writes, *sweep.reads))
        total += 2 * moved / rates.copies
    return total
