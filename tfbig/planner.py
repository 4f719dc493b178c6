"""Chooses strips and layouts: the cheapest plan that stays inside a budget. Arithmetic only."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf, prod

import numpy as np

from tfbig import cuts, layouts, lifetimes
from tfbig.cost import bytes_of, heights_of, itemsize, operations_of, sweep_limit
from tfbig.errors import BudgetError
from tfbig.graph import Graph, Local
from tfbig.plan import (
    AT_ONCE,
    RUNTIME_BYTES,
    SWEEP_BYTES,
    Plan,
    Rates,
    SweepCost,
    format_bytes,
    layers_of,
)
from tfbig.schedule import Layout, Size, Sweep, schedule


class Planner:
    """Plans for images of any size.

    Args:
        graph: what to run.
        device_bytes: most bytes that strips may take at any time.
        host_bytes: most bytes of stored images, or None for no limit.
        disk_bytes: most bytes of stored images in a file.
        strip_rows: fixes the strip height, in rows of the first input.
        training: whether a backward follows.
        name: of the model, for messages.
        max_elements: most input elements of a strip, instead of `device_bytes` (the papers' max_N).
        shared: whether strips live in host memory too; `host_bytes` then is for all that the model takes.
        model_bytes: what it takes between steps: weights, state of the optimiser.
        keeps: whether whole images may stay on the device, where single strips do.
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
        disk_bytes: int = 0,
        strip_rows: int | None = None,
        training: bool = True,
        name: str = "model",
        max_elements: int | None = None,
        store: str | None = None,
        shared: bool = False,
        model_bytes: int = 0,
        keeps: bool = False,
        rates: Rates | None = None,
    ) -> None:
        self.rates = rates or Rates()
        self.graph = graph
        self.shared = shared
        self.model_bytes = model_bytes
        self.keeps = keeps
        self.store = store
        self.device_bytes = device_bytes
        self.host_bytes = host_bytes
        self.disk_bytes = disk_bytes
        self.strip_rows = strip_rows
        self.training = training
        self.name = name
        self.max_elements = max_elements
        self._cuts = cuts.choose(graph, self.rates)
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
        key = (batch, *sorted(sizes.items()), layout)
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

    def _stored_bytes(self, batch: int, extents: dict[int, Size]) -> dict[int, int]:
        """Bytes of every image in a store."""
        return {v: bytes_of(self.graph, v, batch, extents, self.stored_dtype(v)) for v in extents}

    def _make(self, batch: int, sizes: dict[int, Size], layout: Layout | None) -> Plan:
        known: dict[int, tuple[Sweep, SweepCost]] = {}
        if layout is not None:
            plan = _placed(self._checked(self._plan(batch, sizes, layout, known)))
            if self._inside(plan):
                return plan
            raise self._refused([plan])
        best = _placed(self._keeping(self._plan(batch, sizes, self._straight(), known)))
        if self._inside(best):
            return best
        found = [best]
        if self.training:
            for way in self._replaying(batch, sizes):
                with suppress(BudgetError):  # a replay of many layers may have too large a strip
                    found.append(self._keeping(self._plan(batch, sizes, way, known)))
        if self.disk_bytes:
            found += [p for each in found for p in self._spilling(each)]
        for plan in sorted(found, key=lambda p: p.seconds):
            if self._live(plan) <= self._room(plan) and self._inside(placed := _placed(plan)):
                return placed
        raise self._refused([_placed(p) for p in sorted(found, key=self._live)[:3]])

    def _replaying(self, batch: int, sizes: dict[int, Size]) -> Iterator[Layout]:
        extents = self.graph.extents(sizes)
        stored = self._stored_bytes(batch, extents)

        def worth(replay: Sweep) -> float:
            """Bytes that it frees, per operation that it takes."""
            heights = {v: np.array([extents[v][0]]) for v in replay.images}
            operations, _ = operations_of(replay, batch, extents, heights)
            return sum(stored[v] for v in replay.writes) / max(operations, 1)

        return layouts.replaying(self.graph, self._cuts, stored, worth)

    def _straight(self) -> Layout:
        """Everything is kept in memory: the fastest."""
        return Layout(tuple(self.sweeps))

    def _plan(
        self,
        batch: int,
        sizes: dict[int, Size],
        layout: Layout,
        known: dict[int, tuple[Sweep, SweepCost]],
    ) -> Plan:
        """The plan of a layout, its stores not yet placed.

        Args:
            known: costs of sweeps that other layouts have too.
        """
        extents = self.graph.extents(sizes)
        for sweep in (*layout.sweeps, *layout.replays):
            if id(sweep) not in known:
                known[id(sweep)] = sweep, self._cost(sweep, batch, extents)
        costs, replay_costs = (
            tuple(known[id(s)][1] for s in sweeps) for sweeps in (layout.sweeps, layout.replays)
        )
        first = next(i for i in self.graph.inputs if self.graph.values[i].image)
        return Plan(
            shape=(batch, *extents[first], self.graph.values[first].channels),
            layout=layout,
            costs=costs,
            replay_costs=replay_costs,
            timeline=lifetimes.timeline(self.graph, layout, self.training, self.fused),
            image_bytes=self._stored_bytes(batch, extents),
            places={},
            device_bytes=max(c.device_bytes for c in (*costs, *replay_costs)),
            host_bytes=0,
            disk_bytes=0,
            limit_bytes=self.device_bytes,
            fixed_bytes=self._fixed_bytes(),
            model_bytes=self.model_bytes,
            training=self.training,
            rates=self.rates,
        )

    def _spilling(self, plan: Plan) -> Iterator[Plan]:
        """The plan with as much in a file as the host budget asks for, if that is not more than the disk takes."""
        room = limit = self._room(plan)
        for _ in range(
            4
        ):  # stores that do not fit side by side leave gaps: then a little more goes
            if limit < 0:
                return
            spilled = layouts.to_spill(plan.timeline, plan.image_bytes, limit, plan.layout.kept)
            tried = _placed(replace(plan, layout=replace(plan.layout, spilled=spilled)))
            if tried.disk_bytes > self.disk_bytes:
                return
            room = self._room(tried)
            if tried.host_bytes <= room:
                yield tried
                return
            limit -= tried.host_bytes - room

    def _keeping(self, plan: Plan) -> Plan:
        """The plan with images left on the device that its budget holds beside the strips, the smallest first."""
        if not self.keeps:
            return plan
        found = _touched_in_one_strip(plan) - set(self.graph.outputs)
        order = sorted(found, key=lambda v: plan.image_bytes[v])

        def keeping(count: int) -> Plan:
            layout = replace(plan.layout, kept=frozenset(order[:count]))
            line = lifetimes.timeline(self.graph, layout, self.training, self.fused)
            made = replace(plan, layout=layout, timeline=line)
            return replace(made, device_bytes=_device_bytes(made))

        most = bisect_right(
            range(1, len(order) + 1), self.device_bytes, key=lambda n: keeping(n).device_bytes
        )
        return keeping(most) if most else plan

    def _checked(self, plan: Plan) -> Plan:
        """The plan of a layout that was made for another size, if it keeps nothing that has several strips here."""
        if plan.layout.kept:
            most = _device_bytes(plan)
            if most > self.device_bytes or not plan.layout.kept <= _touched_in_one_strip(plan):
                raise BudgetError(
                    f"'{self.name}': images that another size leaves on the device need {format_bytes(most)} of it, "
                    f"{format_bytes(self.device_bytes)} are allowed. Use images of one size."
                )
            return replace(plan, device_bytes=most)
        return plan

    def _room(self, plan: Plan) -> float:
        """Bytes that stores may take in host memory."""
        if self.host_bytes is None:
            return inf
        return self.host_bytes - self._beside(plan)

    def _beside(self, plan: Plan) -> int:
        """Bytes of host memory that are not stores."""
        if not self.shared:
            return plan.mapped_bytes
        return plan.device_bytes + plan.mapped_bytes + plan.fixed_bytes + plan.model_bytes

    def _live(self, plan: Plan) -> int:
        """Most bytes of stores in host memory at any moment; their places may need more."""
        return _most(plan, "host")

    def _inside(self, placed: Plan) -> bool:
        return placed.host_bytes <= self._room(placed) and placed.disk_bytes <= self.disk_bytes

    def _refused(self, found: Sequence[Plan]) -> BudgetError:
        """Why none of these placed plans will do, and what would."""
        plan = min(found, key=lambda p: p.host_bytes)
        shape = " x ".join(map(str, plan.shape[:-1]))
        least = format_bytes(plan.host_bytes + self._beside(plan))
        parts = f"images {format_bytes(plan.host_bytes)}"
        if self.shared:
            rest = format_bytes(plan.fixed_bytes + plan.model_bytes)
            parts += f", strips {format_bytes(plan.device_bytes)}, the rest {rest}"
        disk = f", and {format_bytes(self.disk_bytes)} of disk" if self.disk_bytes else ""
        return BudgetError(
            f"'{self.name}' on {shape}: a step needs {least} of host memory at least ({parts}), "
            f"{format_bytes(self.host_bytes or 0)} are allowed{disk}. Raise `host` to {least}, or use smaller "
            "images, a smaller batch or store='bfloat16'."
        )

    def _fixed_bytes(self) -> int:
        """What a step takes for images of any size. Gradients of weights: the sums so far and those of one sweep."""
        weights = sum(prod(w.shape) * itemsize(w.dtype) for w in self.graph.weights)
        graphs = len(self.sweeps) * SWEEP_BYTES
        return RUNTIME_BYTES + graphs + (2 * weights if self.training else 0)

    def _cost(self, sweep: Sweep, batch: int, extents: dict[int, Size]) -> SweepCost:
        strips = self._num_strips(sweep, batch, extents)
        table = sweep.table({v: extents[v][0] for v in sweep.images}, strips)
        heights = {v: heights_of(sweep, table, v) for v in sweep.images}
        operations, exact = operations_of(sweep, batch, extents, heights)
        return SweepCost(
            strips,
            max((int(heights[v].max()) for v in sweep.reads), default=0),
            max((int(heights[v].max()) + -extents[v][0] // strips for v in sweep.reads), default=0),
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
        if self._fits(sweep, batch, extents, 1):
            return 1  # two are worked on at once, and take more than the whole
        low, high = min(2, most), most
        while low < high:  # the smallest number that fits
            middle = (low + high) // 2
            if self._fits(sweep, batch, extents, middle):
                high = middle
            else:
                low = middle + 1
        while not self._fits(sweep, batch, extents, low, range(low)):
            if low == most:
                self._refuse(sweep, batch, extents, most)
            low = min(low + max(low // 64, 1), most)  # a strip between those looked at is larger
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
        """Bytes of as many strips as are worked on at once, of the largest of those chosen.

        By default the first, the one in the middle and the last are looked at.

        Counted are its images, their gradients in training, and temporaries of the kernels: four times the
        largest image in training and where a loss and metrics are computed, else once. That is what the loss of
        a wide output needs; narrower sweeps stay below (measured by `tests/test_memory.py`).
        """
        chosen = sorted({0, strips // 2, strips - 1}) if chosen is None else chosen
        table = sweep.table({v: extents[v][0] for v in sweep.images}, strips, chosen)
        tiles = {
            v: int(heights_of(sweep, table, v).max(initial=0))
            * (bytes_of(self.graph, v, batch, extents) // extents[v][0])
            for v in sweep.images
        }
        scored = any(n.op.together is not None for n in sweep.reductions)
        learns = self.training and not sweep.again
        temporaries = max(tiles.values(), default=0) * (4 if learns or scored else 1)
        learning = self._learning if learns else ()
        one = sum(b * (2 if v in learning else 1) for v, b in tiles.items()) + temporaries
        return one * min(strips, AT_ONCE)


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


def _touched_in_one_strip(plan: Plan) -> frozenset[int]:
    """Images that only sweeps of a single strip make or read."""
    sweeps = [*zip(plan.sweeps, plan.costs, strict=True)]
    sweeps += zip(plan.layout.replays, plan.replay_costs, strict=True)
    made = {v for sweep, _ in sweeps for v in sweep.writes}
    for sweep, cost in sweeps:
        if cost.strips > 1:
            made -= {*sweep.writes, *sweep.reads}
    return frozenset(made)


def _device_bytes(plan: Plan) -> int:
    """Most bytes of the device at any moment: strips, and images that stay there."""
    stores = [s for s in plan.timeline.spans if plan.layout.where(s) == "device"]
    live = plan.timeline.live_bytes(stores, plan.image_bytes)
    costs = [plan.cost_of(m).device_bytes for m in plan.timeline.moments]
    return int((live + np.array(costs, np.int64)).max())


def _placed(plan: Plan) -> Plan:
    """The plan with a place for each of its stores."""
    spans, sizes, where = plan.timeline.spans, plan.image_bytes, plan.layout.where
    disk, host = (
        lifetimes.place({s: spans[s] for s in spans if where(s) == each}, sizes)
        for each in ("disk", "host")
    )
    return replace(
        plan,
        places=host | disk,
        host_bytes=lifetimes.top(host, sizes),
        disk_bytes=lifetimes.top(disk, sizes),
    )


def _most(plan: Plan, where: str) -> int:
    """Most bytes of stores in one place at any moment."""
    stores = [s for s in plan.timeline.spans if plan.layout.where(s) == where]
    return int(plan.timeline.live_bytes(stores, plan.image_bytes).max(initial=0))
