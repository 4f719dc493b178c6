"""Choice of strips and layout: the fastest plan within a budget. Arithmetic only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from tfbig.plan.fixed_bytes import FREED_BYTES, fixed_bytes, freed_bytes
from tfbig.plan.plan import PAGES, Plan, Rates, SweepCost
from tfbig.plan.strip_search import Strips, images_with_gradient
from tfbig.plan.sweeps import Layout, Sweep, schedule
from tfbig.system.budget import DEFAULT_STRIPS, HOST_SHARE
from tfbig.units import format_bytes, itemsize

GOOD_ENOUGH = 1.1
"""The search, and the tracing of further layouts, ends when no plan could be faster by more than this factor."""

LOWER = (2, 4, 8, 16)
"""Divisors of the device budget for strips that are tried too on an accelerator.

Lower strips recompute more halo, but leave room for images.
"""


class Planner:
    """Planner of one graph for images of any size.

    Args:
        graph: The graph to run.
        device_bytes: Most bytes of strips at any time.
        host_bytes: Most bytes of stored images in host memory, or None for no limit.
        disk_bytes: Most bytes of stored images in the scratch file.
        strip_rows: Height of a strip, in rows of the first input. Default: chosen by the budget.
        training: Whether a backward pass follows.
        name: Name of the model, for messages.
        max_elements: Most input elements of a strip; replaces `device_bytes` (max_N in the papers).
        store: Element type of stored images whose own type is wider, such as "bfloat16". Default: their own.
        firm: Whether `device_bytes` is a limit; otherwise a sweep may exceed it if its smallest strip needs more.
        shared: Whether strips are in host memory too; `host_bytes` then limits all bytes of the model.
        model_bytes: Bytes of the model between steps: weights and optimizer state.
        keeps: Whether images may be kept on the device.
        rates: Speed of the machine. Default: `Rates()`.
        devices: Number of devices that share the strips of a sweep; each has `device_bytes`.
        replicas: Number of replicas of the model on this machine; each has such a plan.

    Attributes:
        fused: Whether the last sweep, with a loss, can run forward and backward together.
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
        self.taken_bytes = 0  # bytes of the host budget that layers use that do not stream
        self.strip_rows = strip_rows
        self.training = training
        self.name = name
        self.max_elements = max_elements
        # If the user sets the size of the slices of a bag, only one slice may be in memory: nothing is cut.
        slices = strip_rows is not None and bool(graph.instance_shapes)
        self._cuts = (
            frozenset() if slices else cut_search.choose(graph, self.rates, device_bytes, training)
        )
        self.sweeps = schedule(graph, self._cuts)
        self._with_gradient = images_with_gradient(graph)
        last = self.sweeps[-1]
        self.fused = (
            training
            and [n.output for n in last.reductions] == graph.outputs
            and last.reductions[0].op.fused is not None
            and not last.wholes
        )
        self._plans: dict[tuple[object, ...], Plan] = {}

    def stored_dtype(self, value: int) -> str:
        """Return the element type of an image in its store.

        Args:
            value: Id of the image.

        Returns:
            Name of the type, such as "bfloat16": that of `store` if it is narrower than the image's own.
        """
        dtype = self.graph.values[value].dtype or "float32"
        inner = value not in self.graph.inputs  # the gradient of an input is a result
        if (
            self.store
            and inner
            and dtype.startswith("float")
            and itemsize(dtype) > itemsize(self.store)
        ):
            return self.store
        return dtype

    def plan(self, batch: int, sizes: dict[int, Size], layout: Layout | None = None) -> Plan:
        """Return the plan for input images of given sizes.

        Args:
            batch: Number of images in a batch.
            sizes: Size of each input image, `{value: (rows, columns)}`.
            layout: Layout to use. Default: the fastest that fits.

        Returns:
            The plan; the same object for the same arguments.

        Raises:
            BudgetError: If the smallest strip, or the images that must be stored, exceed the budget.
        """
        key = (batch, *sorted(sizes.items()), layout)
        if key not in self._plans:
            if len(self._plans) >= 256:
                self._plans.clear()
            self._plans[key] = self._make(batch, sizes, layout)
        return self._plans[key]

    def tables(self, plan: Plan, sizes: dict[int, Size]) -> list[np.ndarray]:
        """Return the geometry of all strips of a plan.

        Args:
            plan: The plan.
            sizes: Size of each input image.

        Returns:
            A table for every sweep, then one for every replay, see `Sweep.table`.
        """
        rows = {v: size[0] for v, size in self.graph.extents(sizes).items()}
        pairs = [*zip(plan.sweeps, plan.costs, strict=True)]
        pairs += zip(plan.layout.replays, plan.replay_costs, strict=True)
        return [sweep.table(rows, cost.strips) for sweep, cost in pairs]

    def _image_bytes(self, batch: int, extents: dict[int, Size]) -> dict[int, int]:
        """Return the bytes of every image in its store."""
        return {v: bytes_of(self.graph, v, batch, extents, self.stored_dtype(v)) for v in extents}

    def _make(self, batch: int, sizes: dict[int, Size], layout: Layout | None) -> Plan:
        extents = self.graph.extents(sizes)
        costs: dict[object, SweepCost] = {}
        if layout is not None:
            return self._plan_for_layout(layout, batch, extents)
        try:
            straight = self._plan(self._straight(), batch, extents, self.device_bytes, costs)
        except BudgetError as error:
            raise self._device_error(batch, extents, error) from None
        if self.keeps:
            return self._plan_for_accelerator(straight, batch, extents, costs)
        plans = [straight]
        if self.training and not self._fits(_placed(straight)):
            for other in self._layouts(batch, extents):
                with suppress(
                    BudgetError
                ):  # the strips of a sweep with many layers may be too large
                    plans.append(self._plan(other, batch, extents, self.device_bytes, costs))
        return self._fastest(plans)

    def _plan_for_accelerator(
        self, straight: Plan, batch: int, extents: dict[int, Size], costs: dict[object, SweepCost]
    ) -> Plan:
        """Return the fastest plan among several strip heights, kept images and rematerialised ones."""
        plans: list[Plan] = []
        most, enough = inf, GOOD_ENOUGH * self._with_kept(straight, self._inner(straight)).seconds
        layouts = self._layouts(batch, extents) if self.training else ()
        for layout in (straight.layout, *layouts):
            if most <= enough:
                break
            with suppress(BudgetError):
                heights = self._heights(layout, batch, extents, costs)
                for plan in self._plans_with_kept(heights, most):
                    plans.append(plan)
                    if plan.seconds < most and (placed := self._fitted(plan)):
                        most = min(most, placed.seconds)
        return self._fastest(plans)

    def _heights(
        self, layout: Layout, batch: int, extents: dict[int, Size], costs: dict[object, SweepCost]
    ) -> Iterator[Plan]:
        """Yield the plan of a layout with the highest strips, then with lower ones that leave room for images.

        Raises:
            BudgetError: If the smallest strip of a sweep exceeds the budget.
        """
        yield self._plan(layout, batch, extents, self.device_bytes, costs)
        for divisor in LOWER if self.keeps else ():
            with suppress(BudgetError):
                yield self._plan(layout, batch, extents, self.device_bytes // divisor, costs)

    def _plan_for_layout(self, layout: Layout, batch: int, extents: dict[int, Size]) -> Plan:
        """Return the plan of a layout that was chosen for this size or another one.

        Raises:
            BudgetError: If it does not fit.
        """
        plans = []
        for plan in self._heights(layout, batch, extents, {}):
            plans.append(plan)
            if not layout.kept or plan.device_bytes <= self.device_bytes:
                break
        else:
            least = min(plan.device_bytes for plan in plans)
            raise BudgetError(
                f"'{self.name}': the layout chosen for another image size keeps images on the device, which needs "
                f"{format_bytes(least)} for this size, but {format_bytes(self.device_bytes)} are allowed. Use images "
                "of one size."
            )
        placed = _placed(plans[-1])
        if self._fits(placed):
            return placed
        raise self._host_error([placed])

    def _fastest(self, plans: list[Plan]) -> Plan:
        """Return the fastest plan that fits, after spilling what it has to; to spill makes no plan faster."""
        best = None
        for plan in sorted(plans, key=lambda p: p.seconds):
            if best is not None and plan.seconds >= best.seconds:
                return best
            placed = self._fitted(plan)
            if placed is not None and (best is None or placed.seconds < best.seconds):
                best = placed
        if best is None:
            smallest = sorted(plans, key=_live_bytes)[:3]
            spilled = [_with_spill(p, 0) for p in smallest] if self.disk_bytes else []
            on_disk = [p for p in spilled if p.disk_bytes <= self.disk_bytes]
            raise self._host_error([*map(_placed, smallest), *on_disk])
        return best

    def _fitted(self, plan: Plan) -> Plan | None:
        """Return the plan with addresses within the budget, or None if there are none."""
        if _live_bytes(plan) <= self._room(plan) and self._fits(placed := _placed(plan)):
            return placed
        return self._spilled(plan) if self.disk_bytes else None

    def _layouts(self, batch: int, extents: dict[int, Size]) -> Iterator[Layout]:
        """Yield layouts that store less; on an accelerator, those that may be faster come first."""
        stored = self._image_bytes(batch, extents)

        def worth(replay: Sweep) -> float:
            """Return the bytes that a replay frees, per operation of the replay."""
            heights = {v: np.array([extents[v][0]]) for v in replay.images}
            operations, *_ = operations_of(replay, batch, extents, heights)
            return sum(stored[v] for v in replay.writes) / max(operations, 1)

        def effort(node: Node) -> int:
            return self._operations(node, batch, extents)

        if self.keeps:
            yield from layout_search.with_remat(self.graph, self._cuts, stored, effort)
        yield from layout_search.layouts_storing_less(self.graph, self._cuts, stored, worth, effort)

    def _straight(self) -> Layout:
        """Return the layout that stores every image in host memory: the fastest one that keeps none on the device."""
        return Layout(tuple(self.sweeps))

    def _plan(
        self,
        layout: Layout,
        batch: int,
        extents: dict[int, Size],
        device_bytes: int,
        cache: dict[object, SweepCost],
    ) -> Plan:
        """Return the plan of a layout; its stores have no addresses yet.

        Args:
            layout: The layout.
            batch: Number of images in a batch.
            extents: Size of every image.
            device_bytes: Most bytes of strips.
            cache: Costs of sweeps, which layouts have in common.
        """

        def cost(sweep: Sweep) -> SweepCost:
            key = (device_bytes, sweep.is_replay, sweep.reads, sweep.writes, *map(id, sweep.nodes))
            if key not in cache:
                cache[key] = self._cost(sweep, batch, extents, device_bytes)
            return cache[key]

        costs, replay_costs = (tuple(map(cost, s)) for s in (layout.sweeps, layout.replays))
        first = next(i for i in self.graph.inputs if self.graph.values[i].image)
        bare = replace(layout, kept=frozenset())
        image_bytes = self._image_bytes(batch, extents)
        plan = Plan(
            shape=(batch, *extents[first], self.graph.values[first].channels),
            layout=bare,
            costs=costs,
            replay_costs=replay_costs,
            timeline=lifetimes.timeline(self.graph, bare, self.training, self.fused),
            image_bytes=image_bytes,
            places={},
            device_bytes=max(c.device_bytes for c in (*costs, *replay_costs)),
            host_bytes=0,
            disk_bytes=0,
            limit_bytes=self.device_bytes if self.firm else None,
            fixed_bytes=self._fixed_bytes + self._freed_bytes(image_bytes),
            model_bytes=self.model_bytes,
            repeated_operations=self._repeated(batch, extents, layout),
            training=self.training,
            rates=self.rates,
            replicas=self.replicas,
        )
        return self._with_kept(plan, layout.kept)

    def _repeated(self, batch: int, extents: dict[int, Size], layout: Layout) -> int:
        """Return the operations of nodes that an earlier sweep has run already, except cheap nodes."""
        nodes = [n for sweep in layout.sweeps for n in sweep.locals if not n.op.cheap]
        distinct = {id(n): n for n in nodes}.values()
        return sum(self._operations(n, batch, extents) for n in nodes) - sum(
            self._operations(n, batch, extents) for n in distinct
        )

    def _operations(self, node: Node, batch: int, extents: dict[int, Size]) -> int:
        """Return the operations of a node on whole images."""
        return batch * prod(extents[node.output]) * int(node.op.operations)

    def _spilled(self, plan: Plan) -> Plan | None:
        """Spill stores to disk until host memory fits; None if the disk is too small."""
        limit = self._room(plan)
        # Gaps between stores, and rows of files in memory, require a little more each time.
        for _ in range(6):
            trial = _with_spill(plan, max(limit, 0))
            if self._fits(trial):
                return trial
            if limit <= 0 or trial.disk_bytes > self.disk_bytes:
                return None
            limit -= trial.host_bytes - self._room(trial)
        return None

    def _plans_with_kept(self, heights: Iterable[Plan], most: float) -> Iterator[Plan]:
        """Yield plans of a layout that keep as many images on the device as fit, the smallest or the largest first.

        Plans that must take longer than `most` seconds are omitted: an image that does not fit is copied at least
        twice, and lower strips do not compute less.

        Args:
            heights: Plans without kept images, from high strips to low ones.
            most: Seconds of the fastest plan so far.
        """
        for plan in heights:
            whole = self._with_kept(plan, self._inner(plan))
            strips = _strip_bytes(whole)
            images = _kept_bytes(whole)
            excess_images, excess = (
                max(int(n.max()) - self.device_bytes, 0) for n in (images, images + strips)
            )
            if whole.seconds + 2 * excess_images / self.rates.copies >= most:
                return
            if not excess:
                yield whole
                return
            if whole.seconds + 2 * excess / self.rates.copies < most:
                order = sorted(whole.layout.kept, key=lambda v: plan.image_bytes[v])
                for some in (order, order[::-1]):
                    yield self._with_kept(plan, self._fitting(whole, some))

    def _inner(self, plan: Plan) -> frozenset[int]:
        """Return the images that sweeps store for other sweeps."""
        return frozenset(v for sweep in plan.sweeps for v in sweep.writes).difference(
            self.graph.outputs
        )

    def _fitting(self, whole: Plan, order: Sequence[int]) -> frozenset[int]:
        """Select images greedily while the device has room next to the strips.

        Args:
            whole: The plan that keeps all images.
            order: The images in the order to try.
        """
        line, sizes = whole.timeline, whole.image_bytes
        stores = defaultdict(list)
        for store in line.spans:
            stores[store.value].append(store)
        free = self.device_bytes - _strip_bytes(whole)
        selected = set()
        for value in order:
            image_bytes = line.live_bytes(stores[value], sizes)
            if (image_bytes <= free).all():
                free -= image_bytes
                selected.add(value)
        return frozenset(selected)

    def _with_kept(self, plan: Plan, kept: frozenset[int]) -> Plan:
        """Return a plan without kept images, changed to keep some on the device.

        Kept images have the element type of the layers. They consist of pages; each strip may hold an old version of
        one page.
        """
        if not kept:
            return plan
        layout, sizes = replace(plan.layout, kept=kept), dict(plan.image_bytes)
        for v in kept:
            wide = itemsize(self.graph.values[v].dtype)
            size = sizes[v] // itemsize(self.stored_dtype(v)) * wide
            sizes[v] = size + size * plan.strips // PAGES
        line = lifetimes.timeline(self.graph, layout, self.training, self.fused)
        plan = replace(plan, layout=layout, timeline=line, image_bytes=sizes)
        return replace(plan, device_bytes=int((_kept_bytes(plan) + _strip_bytes(plan)).max()))

    def _room(self, plan: Plan) -> float:
        """Return the bytes that stores may use in host memory."""
        if self.host_bytes is None:
            return inf
        return self.host_bytes - self._other_host_bytes(plan)

    def _other_host_bytes(self, plan: Plan) -> int:
        """Return the bytes of host memory that are not stores."""
        if not self.shared:
            return plan.mapped_bytes
        return plan.device_bytes + plan.mapped_bytes + plan.fixed_bytes + plan.model_bytes

    def _fits(self, placed: Plan) -> bool:
        return placed.host_bytes <= self._room(placed) and placed.disk_bytes <= self.disk_bytes

    def _host_error(self, plans: Sequence[Plan]) -> BudgetError:
        """Return the error that none of the plans fits, with the host budget that would suffice."""
        plan = min(plans, key=self._least_host_bytes)
        shape = " x ".join(map(str, plan.shape[:-1]))
        least = format_bytes(self._least_host_bytes(plan) + self.taken_bytes)
        parts = f"images {format_bytes(plan.host_bytes)}"
        if self.shared:
            other = format_bytes(plan.mapped_bytes + plan.fixed_bytes + plan.model_bytes)
            parts += f", strips {format_bytes(plan.device_bytes)}, other {other}"
        disk = f", and {format_bytes(self.disk_bytes)} of disk" if self.disk_bytes else ""
        more = ", or `disk`" if self.disk_bytes else ""
        allowed = format_bytes((self.host_bytes or 0) + self.taken_bytes)
        less = "or a smaller batch" if self.store else "a smaller batch or store='bfloat16'"
        comma = "" if self.store else ","
        return BudgetError(
            f"'{self.name}' on {shape}: a step needs at least {least} of host memory ({parts}), "
            f"but {allowed} are allowed{disk}. Raise `host` to {least}{more}, or use smaller "
            f"images{comma} {less}."
        )

    def _device_error(
        self, batch: int, extents: dict[int, Size], error: BudgetError
    ) -> BudgetError:
        """Return the error of the sweep whose smallest strip needs most, among those that do not fit."""
        for sweep in self.sweeps:
            try:
                self._cost(sweep, batch, extents, self.device_bytes)
            except BudgetError as other:
                error = max(error, other, key=lambda e: e.need_bytes)
        return error

    def _least_host_bytes(self, placed: Plan) -> int:
        """Return a host budget that suffices for the plan; strips without a firm budget grow with it."""
        need = placed.host_bytes + self._other_host_bytes(placed)
        if self.firm or not self.shared:
            return need
        freed = FREED_BYTES - self._freed_bytes(placed.image_bytes)
        other = need - placed.device_bytes + freed
        return max(need, min(other + DEFAULT_STRIPS, -(-other * HOST_SHARE // (HOST_SHARE - 1))))

    def _freed_bytes(self, image_bytes: Mapping[int, int]) -> int:
        """Return the bytes of freed strips; an upper bound that is the same for all layouts."""
        if not self.shared:
            return 0
        return freed_bytes(min(self.device_bytes, sum(image_bytes.values())))

    @cached_property
    def _fixed_bytes(self) -> int:
        """Bytes of a step for any image size, without freed strips."""
        return fixed_bytes(self.graph, self.sweeps, self.training)

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
            training=self.training and not sweep.is_replay,
            with_gradient=self._with_gradient,
            name=self.name,
        )
        return strips.cost()


def _strip_bytes(plan: Plan) -> np.ndarray:
    """Return the bytes of strips at every moment."""
    return np.array([plan.cost_of(m).device_bytes for m in plan.timeline.moments], np.int64)


def _kept_bytes(plan: Plan) -> np.ndarray:
    """Return the bytes of images on the device at every moment."""
    line = plan.timeline
    return line.live_bytes([s for s in line.spans if s.value in plan.layout.kept], plan.image_bytes)


def _placed(plan: Plan) -> Plan:
    """Return the plan with an address for each of its stores."""
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


def _with_spill(plan: Plan, limit: float) -> Plan:
    """Return the plan with as many stores spilled that those in memory never exceed `limit` bytes."""
    spilled = layout_search.to_spill(plan.timeline, plan.image_bytes, limit, plan.layout.kept)
    return _placed(replace(plan, layout=replace(plan.layout, spilled=spilled)))


def _live_bytes(plan: Plan) -> int:
    """Return the most bytes of stores in host memory at any moment; with their addresses they may need more."""
    stores = [s for s in plan.timeline.spans if plan.layout.where(s) == "host"]
    return int(plan.timeline.live_bytes(stores, plan.image_bytes).max(initial=0))
