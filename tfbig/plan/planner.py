"""Chooses strips and layouts: the cheapest plan that stays inside a budget. Arithmetic only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from math import inf, prod

import numpy as np

from tfbig.errors import BudgetError
from tfbig.geometry.windows import Size
from tfbig.network.graph import Graph, Node
from tfbig.plan import cut_search, layout_search, lifetimes
from tfbig.plan.cost import bytes_of, operations_of
from tfbig.plan.plan import PAGES, RUNTIME_BYTES, SWEEP_BYTES, Plan, Rates, SweepCost
from tfbig.plan.strip_search import Strips, learning
from tfbig.plan.sweeps import Layout, Sweep, schedule
from tfbig.system.budget import DEFAULT_STRIPS, HOST_SHARE
from tfbig.units import format_bytes, itemsize

GOOD_ENOUGH = 1.1
"""No more is looked for, nor traced, where nothing could be faster than by this factor."""

LOWER = (2, 4, 8, 16)
"""Strips of so small parts of an accelerator are tried too: each reads its halo again, but images have the room."""


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
        firm: whether `device_bytes` is a limit; else a sweep whose smallest strip takes more may have that.
        shared: whether strips live in host memory too; `host_bytes` then is for all that the model takes.
        model_bytes: what it takes between steps: weights, state of the optimiser.
        keeps: whether whole images may stay on the device.
        rates: of the machine.
        devices: how many share the strips of a sweep, each with `device_bytes`.
        replicas: of the model on this machine, each with a plan of its own.
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
        firm: bool = True,
        shared: bool = False,
        model_bytes: int = 0,
        keeps: bool = False,
        rates: Rates | None = None,
        devices: int = 1,
        replicas: int = 1,
    ) -> None:
        self.replicas = replicas
        self.rates = (rates or Rates()).times(devices)
        self.devices = devices
        self.graph = graph
        self.firm = firm
        self.shared = shared
        self.model_bytes = model_bytes
        self.keeps = keeps
        self.store = store
        self.device_bytes = device_bytes
        self.host_bytes = host_bytes
        self.disk_bytes = disk_bytes
        self.taken_bytes = 0  # of the host budget, by what is not streamed
        self.strip_rows = strip_rows
        self.training = training
        self.name = name
        self.max_elements = max_elements
        # Slices of a bag of a size that was asked for are to be all that is held: no halo ends where an image is cut.
        slices = strip_rows is not None and bool(graph.instance_shapes)
        self._cuts = (
            frozenset() if slices else cut_search.choose(graph, self.rates, device_bytes, training)
        )
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

    def _image_bytes(self, batch: int, extents: dict[int, Size]) -> dict[int, int]:
        """Bytes of every image in a store."""
        return {v: bytes_of(self.graph, v, batch, extents, self.stored_dtype(v)) for v in extents}

    def _make(self, batch: int, sizes: dict[int, Size], layout: Layout | None) -> Plan:
        extents = self.graph.extents(sizes)
        known: dict[object, SweepCost] = {}
        if layout is not None:
            return self._of_layout(layout, batch, extents)
        try:
            straight = self._plan(self._straight(), batch, extents, self.device_bytes, known)
        except BudgetError as error:
            raise self._too_large(batch, extents, error) from None
        if self.keeps:
            return self._on_device(straight, batch, extents, known)
        found = [straight]
        if self.training and not self._inside(_placed(straight)):
            for way in self._ways(batch, extents):
                with suppress(BudgetError):  # a sweep of many layers may have too large a strip
                    found.append(self._plan(way, batch, extents, self.device_bytes, known))
        return self._fastest(found)

    def _on_device(
        self, straight: Plan, batch: int, extents: dict[int, Size], known: dict[object, SweepCost]
    ) -> Plan:
        """The fastest plan on an accelerator: strips of several heights, images that stay there, others made again."""
        found: list[Plan] = []
        most, enough = inf, GOOD_ENOUGH * self._with(straight, self._inner(straight)).seconds
        ways = self._ways(batch, extents) if self.training else ()
        for layout in (straight.layout, *ways):
            if most <= enough:
                break
            with suppress(BudgetError):
                heights = self._heights(layout, batch, extents, known)
                for plan in self._keeping(heights, most):
                    found.append(plan)
                    if plan.seconds < most and (placed := self._fitted(plan)):
                        most = min(most, placed.seconds)
        return self._fastest(found)

    def _heights(
        self, layout: Layout, batch: int, extents: dict[int, Size], known: dict[object, SweepCost]
    ) -> Iterator[Plan]:
        """The plan of a layout, with strips as high as they can be, and lower where that leaves room for images.

        Raises:
            BudgetError: the smallest strip of a sweep is above the budget.
        """
        yield self._plan(layout, batch, extents, self.device_bytes, known)
        for share in LOWER if self.keeps else ():
            with suppress(BudgetError):
                yield self._plan(layout, batch, extents, self.device_bytes // share, known)

    def _of_layout(self, layout: Layout, batch: int, extents: dict[int, Size]) -> Plan:
        """The plan of a layout that was chosen for another size, or for this one.

        Raises:
            BudgetError: it does not fit.
        """
        found = []
        for plan in self._heights(layout, batch, extents, {}):
            found.append(plan)
            if not layout.kept or plan.device_bytes <= self.device_bytes:
                break
        else:
            least = min(plan.device_bytes for plan in found)
            raise BudgetError(
                f"'{self.name}': images that another size leaves on the device need {format_bytes(least)} of it, "
                f"{format_bytes(self.device_bytes)} are allowed. Use images of one size."
            )
        placed = _placed(found[-1])
        if self._inside(placed):
            return placed
        raise self._refused([placed])

    def _fastest(self, found: list[Plan]) -> Plan:
        """The fastest of these plans that fits, with as much in a file as it has to; a file makes no plan faster."""
        best = None
        for plan in sorted(found, key=lambda p: p.seconds):
            if best is not None and plan.seconds >= best.seconds:
                return best
            placed = self._fitted(plan)
            if placed is not None and (best is None or placed.seconds < best.seconds):
                best = placed
        if best is None:
            smallest = sorted(found, key=_live)[:3]
            in_file = [_in_file(p, 0) for p in smallest] if self.disk_bytes else []
            on_disk = [p for p in in_file if p.disk_bytes <= self.disk_bytes]
            raise self._refused([*map(_placed, smallest), *on_disk])
        return best

    def _fitted(self, plan: Plan) -> Plan | None:
        """The plan with places inside the budget, if there are any."""
        if _live(plan) <= self._room(plan) and self._inside(placed := _placed(plan)):
            return placed
        return self._spilled(plan) if self.disk_bytes else None

    def _ways(self, batch: int, extents: dict[int, Size]) -> Iterator[Layout]:
        """Layouts that keep less; those that an accelerator may be faster with come first there."""
        stored = self._image_bytes(batch, extents)

        def worth(replay: Sweep) -> float:
            """Bytes that it frees, per operation that it takes."""
            heights = {v: np.array([extents[v][0]]) for v in replay.images}
            operations, *_ = operations_of(replay, batch, extents, heights)
            return sum(stored[v] for v in replay.writes) / max(operations, 1)

        def effort(node: Node) -> int:
            return self._effort(node, batch, extents)

        if self.keeps:
            yield from layout_search.making_again(self.graph, self._cuts, stored, effort)
        yield from layout_search.keeping_less(self.graph, self._cuts, stored, worth, effort)

    def _straight(self) -> Layout:
        """Everything is kept in memory: the fastest."""
        return Layout(tuple(self.sweeps))

    def _plan(
        self,
        layout: Layout,
        batch: int,
        extents: dict[int, Size],
        device_bytes: int,
        known: dict[object, SweepCost],
    ) -> Plan:
        """The plan of a layout with strips of so many bytes, its stores not yet placed.

        Args:
            known: costs of sweeps that other layouts have too.
        """

        def cost(sweep: Sweep) -> SweepCost:
            key = (device_bytes, sweep.again, sweep.reads, sweep.writes, *map(id, sweep.nodes))
            if key not in known:
                known[key] = self._cost(sweep, batch, extents, device_bytes)
            return known[key]

        costs, replay_costs = (tuple(map(cost, s)) for s in (layout.sweeps, layout.replays))
        first = next(i for i in self.graph.inputs if self.graph.values[i].image)
        bare = replace(layout, kept=frozenset())
        plan = Plan(
            shape=(batch, *extents[first], self.graph.values[first].channels),
            layout=bare,
            costs=costs,
            replay_costs=replay_costs,
            timeline=lifetimes.timeline(self.graph, bare, self.training, self.fused),
            image_bytes=self._image_bytes(batch, extents),
            places={},
            device_bytes=max(c.device_bytes for c in (*costs, *replay_costs)),
            host_bytes=0,
            disk_bytes=0,
            limit_bytes=self.device_bytes if self.firm else None,
            fixed_bytes=self._fixed_bytes,
            model_bytes=self.model_bytes,
            repeated_operations=self._repeated(batch, extents, layout),
            training=self.training,
            rates=self.rates,
            replicas=self.replicas,
        )
        return self._with(plan, layout.kept)

    def _repeated(self, batch: int, extents: dict[int, Size], layout: Layout) -> int:
        """Operations of what a sweep runs that an earlier one has run, but for what is cheap."""
        nodes = [n for sweep in layout.sweeps for n in sweep.locals if not n.op.cheap]
        seen = {id(n): n for n in nodes}.values()
        return sum(self._effort(n, batch, extents) for n in nodes) - sum(
            self._effort(n, batch, extents) for n in seen
        )

    def _effort(self, node: Node, batch: int, extents: dict[int, Size]) -> int:
        """Operations of a node on whole images."""
        return batch * prod(extents[node.output]) * int(node.op.operations)

    def _spilled(self, plan: Plan) -> Plan | None:
        """The plan with as much in a file as the host budget asks for, if that is not more than the disk takes."""
        limit = self._room(plan)
        for _ in range(6):  # gaps between stores and rows of files in memory ask for a little more
            tried = _in_file(plan, max(limit, 0))
            if self._inside(tried):
                return tried
            if limit <= 0 or tried.disk_bytes > self.disk_bytes:
                return None
            limit -= tried.host_bytes - self._room(tried)
        return None

    def _keeping(self, heights: Iterable[Plan], most: float) -> Iterator[Plan]:
        """Plans of a layout with images left on the device, as many as there is room for: the smallest, or the largest
        first. None that must take longer than `most` seconds.

        What there is no room for is copied twice at least, and lower strips compute no less.

        Args:
            heights: plans that leave none there, from high strips to low ones.
        """
        for plan in heights:
            whole = self._with(plan, self._inner(plan))
            strips = _strip_bytes(whole)
            images = _kept_bytes(whole)
            without, beside = (
                max(int(n.max()) - self.device_bytes, 0) for n in (images, images + strips)
            )
            if whole.seconds + 2 * without / self.rates.copies >= most:
                return
            if not beside:
                yield whole
                return
            if whole.seconds + 2 * beside / self.rates.copies < most:
                order = sorted(whole.layout.kept, key=lambda v: plan.image_bytes[v])
                for some in (order, order[::-1]):
                    yield self._with(plan, self._fitting(whole, some))

    def _inner(self, plan: Plan) -> frozenset[int]:
        """Images that sweeps give to each other."""
        return frozenset(v for sweep in plan.sweeps for v in sweep.writes).difference(
            self.graph.outputs
        )

    def _fitting(self, whole: Plan, order: Sequence[int]) -> frozenset[int]:
        """Of images in order, each for which the device has room beside the strips and those before it.

        Args:
            whole: the plan that leaves all of them there.
        """
        line, sizes = whole.timeline, whole.image_bytes
        stores = defaultdict(list)
        for store in line.spans:
            stores[store.value].append(store)
        free = self.device_bytes - _strip_bytes(whole)
        found = set()
        for value in order:
            taken = line.live_bytes(stores[value], sizes)
            if (taken <= free).all():
                free -= taken
                found.add(value)
        return frozenset(found)

    def _with(self, plan: Plan, kept: frozenset[int]) -> Plan:
        """A plan that leaves nothing on the device, with these images left there.

        They are as the layers made them, in pages of which each strip may hold one as it was before.
        """
        if not kept:
            return plan
        layout, sizes = replace(plan.layout, kept=kept), dict(plan.image_bytes)
        for v in kept:
            wide = itemsize(self.graph.values[v].dtype)
            size = sizes[v] // itemsize(self.stored_dtype(v)) * wide
            sizes[v] = size + size * plan.strips // PAGES
        line = lifetimes.timeline(self.graph, layout, self.training, self.fused)
        made = replace(plan, layout=layout, timeline=line, image_bytes=sizes)
        return replace(made, device_bytes=int((_kept_bytes(made) + _strip_bytes(made)).max()))

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

    def _inside(self, placed: Plan) -> bool:
        return placed.host_bytes <= self._room(placed) and placed.disk_bytes <= self.disk_bytes

    def _refused(self, found: Sequence[Plan]) -> BudgetError:
        """Why none of these placed plans will do, and what would."""
        plan = min(found, key=self._least)
        shape = " x ".join(map(str, plan.shape[:-1]))
        least = format_bytes(self._least(plan) + self.taken_bytes)
        parts = f"images {format_bytes(plan.host_bytes)}"
        if self.shared:
            rest = format_bytes(plan.mapped_bytes + plan.fixed_bytes + plan.model_bytes)
            parts += f", strips {format_bytes(plan.device_bytes)}, the rest {rest}"
        disk = f", and {format_bytes(self.disk_bytes)} of disk" if self.disk_bytes else ""
        more = ", or `disk`" if self.disk_bytes else ""
        allowed = format_bytes((self.host_bytes or 0) + self.taken_bytes)
        less = "or a smaller batch" if self.store else "a smaller batch or store='bfloat16'"
        comma = "" if self.store else ","
        return BudgetError(
            f"'{self.name}' on {shape}: a step needs {least} of host memory at least ({parts}), "
            f"{allowed} are allowed{disk}. Raise `host` to {least}{more}, or use smaller "
            f"images{comma} {less}."
        )

    def _too_large(self, batch: int, extents: dict[int, Size], error: BudgetError) -> BudgetError:
        """Of the sweeps with too large a smallest strip, the one that needs most."""
        for sweep in self.sweeps:
            try:
                self._cost(sweep, batch, extents, self.device_bytes)
            except BudgetError as found:
                error = max(error, found, key=lambda e: e.need_bytes)
        return error

    def _least(self, placed: Plan) -> int:
        """A host budget that holds the plan; strips that nobody limits grow with it."""
        need = placed.host_bytes + self._beside(placed)
        if self.firm or not self.shared:
            return need
        rest = need - placed.device_bytes
        return max(need, min(rest + DEFAULT_STRIPS, -(-rest * HOST_SHARE // (HOST_SHARE - 1))))

    @cached_property
    def _fixed_bytes(self) -> int:
        """What a step takes for images of any size. Gradients of weights: the sums so far and those of one sweep."""
        weights = sum(prod(w.shape) * itemsize(w.dtype) for w in self.graph.weights)
        graphs = len(self.sweeps) * SWEEP_BYTES
        return RUNTIME_BYTES + graphs + (2 * weights if self.training else 0)

    def _cost(
        self, sweep: Sweep, batch: int, extents: dict[int, Size], device_bytes: int
    ) -> SweepCost:
        first = next(i for i in self.graph.inputs if self.graph.values[i].image)
        strips = Strips(
            graph=self.graph,
            sweep=sweep,
            batch=batch,
            extents=extents,
            device_bytes=device_bytes,
            firm=self.firm,
            fixed=-(-extents[first][0] // self.strip_rows) if self.strip_rows else None,
            max_elements=self.max_elements,
            devices=self.devices,
            keeps=self.keeps,
            training=self.training and not sweep.again,
            learning=self._learning,
            name=self.name,
        )
        return strips.cost()


def _strip_bytes(plan: Plan) -> np.ndarray:
    """Bytes of strips at every moment."""
    return np.array([plan.cost_of(m).device_bytes for m in plan.timeline.moments], np.int64)


def _kept_bytes(plan: Plan) -> np.ndarray:
    """Bytes of images that stay on the device at every moment."""
    line = plan.timeline
    return line.live_bytes([s for s in line.spans if s.value in plan.layout.kept], plan.image_bytes)


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


def _in_file(plan: Plan, limit: float) -> Plan:
    """The plan with so much in a file that what is in memory never takes more than `limit` bytes."""
    spilled = layout_search.to_spill(plan.timeline, plan.image_bytes, limit, plan.layout.kept)
    return _placed(replace(plan, layout=replace(plan.layout, spilled=spilled)))


def _live(plan: Plan) -> int:
    """Most bytes of stores in host memory at any moment; their places may need more."""
    stores = [s for s in plan.timeline.spans if plan.layout.where(s) == "host"]
    return int(plan.timeline.live_bytes(stores, plan.image_bytes).max(initial=0))
