"""Price of a layout: the strips of each of its sweeps, and the bytes and seconds of a step. Arithmetic only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil

from tfbig.geometry.background import Background
from tfbig.geometry.windows import Size
from tfbig.plan import active_strips, lifetimes, tile_search
from tfbig.plan.activity import Activity
from tfbig.plan.cost import kept_bytes
from tfbig.plan.fixed_bytes import freed_bytes, replay_bytes
from tfbig.plan.limits import Limits, Projected
from tfbig.plan.plan import Plan, SweepCost
from tfbig.plan.prepared_graph import PreparedGraph
from tfbig.plan.strip_search import Images, StripLimits, Strips
from tfbig.plan.sweeps import Layout, Sweep
from tfbig.units import ceil_div


@dataclass(frozen=True)
class Problem:
    """One graph on images of one size within one set of limits: the question that a plan answers.

    Args:
        prepared: The graph with its sweeps.
        limits: Bytes that the plan is allowed.
        batch: Number of images in a batch.
        extents: Size of every image.
        backgrounds: Background of the input images that have one.
        learned: Values that need a gradient; none in inference.
    """

    prepared: PreparedGraph
    limits: Limits
    batch: int
    extents: Mapping[int, Size]
    backgrounds: Mapping[int, Background] = field(default_factory=dict)
    learned: frozenset[int] = frozenset()

    def activity(self, layout: Layout) -> Activity | None:
        """Return what a layout computes; None if no input has background, or a layer cannot compute tiles.

        Args:
            layout: The layout, whose images have a background if the inputs have one.
        """
        if not self.backgrounds or not all(s.can_tile for s in layout.sweeps):
            return None
        return Activity(self.prepared.graph, self.extents, self.backgrounds, layout)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape `(N, H, W, C)` of the first input, its axes in the order of the model."""
        graph, image = self.prepared.graph, self.prepared.first_image
        sizes = graph.to_model_order(self.extents[image])
        return self.batch, *sizes, graph.values[image].channels

    @cached_property
    def image_bytes(self) -> dict[int, int]:
        """Bytes of every image in its store."""
        return self.prepared.image_bytes(self.batch, self.extents)

    @cached_property
    def kept_bytes(self) -> dict[int, int]:
        """Bytes of every image if it is kept on the device."""
        graph = self.prepared.graph
        return {v: kept_bytes(graph, v, self.batch, self.extents) for v in self.extents}

    def fixed_bytes(self, layout: Layout) -> int:
        """Return the bytes of a step besides its images and strips, in a layout that knows the axes of its sweeps."""
        fixed = self.prepared.fixed_bytes(layout.sweeps, self.learned)
        fixed += replay_bytes(layout.replays)
        if not self.limits.shared:
            return fixed
        return fixed + freed_bytes(self.limits.device, self.image_bytes)

    @cached_property
    def images(self) -> Images:
        """The images of the graph."""
        return Images(self.prepared.graph, self.batch, self.extents)

    def strips(self, sweep: Sweep, device_bytes: int) -> Strips:
        """Return the division of a sweep into strips.

        Args:
            sweep: The sweep.
            device_bytes: Most bytes of its strips.
        """
        prepared, options = self.prepared, self.prepared.options
        rows = self.extents[prepared.first_image][0]
        limits = StripLimits(
            allowed_bytes=device_bytes,
            is_firm=self.limits.firm,
            max_elements=options.max_elements,
            count=options.devices,
            is_accelerator=options.keeps,
            im2col=options.im2col,
            workspace=self.limits.workspace,
        )
        return Strips(
            self.images,
            limits,
            sweep,
            training=prepared.runs_backward(sweep, self.learned),
            learned=self.learned,
            fixed=ceil_div(rows, options.strip_rows) if options.strip_rows else None,
            name=options.name,
        )


class Pricing:
    """Prices of layouts; layouts that have sweeps in common share their costs.

    Args:
        problem: The problem.
        chooses_axes: Whether sweeps whose strips do not fit are cut into tiles; otherwise `Sweep.axes` are as given.
        activity: What the sweeps compute, if they skip background.
    """

    def __init__(
        self, problem: Problem, chooses_axes: bool = True, activity: Activity | None = None
    ) -> None:
        self.problem = problem
        self.chooses_axes = chooses_axes
        self.activity = activity
        self._costs: dict[object, SweepCost] = {}
        self._steps: dict[int, tuple[Layout, lifetimes.Timeline, int]] = {}  # of the last layout

    def price(self, layout: Layout, device_bytes: int) -> Plan:
        """Return the plan of a layout without kept images; its stores have no addresses yet.

        Args:
            layout: The layout.
            device_bytes: Most bytes of strips.

        Returns:
            The plan.

        Raises:
            BudgetError: If the smallest strip of a sweep exceeds these bytes and they are firm.
        """
        problem, prepared = self.problem, self.problem.prepared
        (sweeps, costs), (replays, replay_costs) = (
            tuple(zip(*(self.cost(sweep, device_bytes) for sweep in some), strict=True)) or ((), ())
            for some in (layout.sweeps, layout.replays)
        )
        options = prepared.options
        bare = replace(layout, sweeps=sweeps, replays=replays, kept=frozenset())
        timeline, repeated = self._step_of(layout)
        device = max(c.strip_bytes for c in (*costs, *replay_costs))
        fixed = problem.fixed_bytes(bare)
        return Plan(
            shape=problem.shape,
            layout=bare,
            costs=costs,
            replay_costs=replay_costs,
            timeline=timeline,
            image_bytes=self._image_bytes((*sweeps, *replays), (*costs, *replay_costs)),
            kept_bytes=problem.kept_bytes,
            addresses={},
            allowed=problem.limits,
            projected=Projected(device, 0, 0, fixed, options.model_bytes),
            repeated_operations=repeated,
            training=options.training,
            rates=prepared.rates,
            replicas=options.replicas,
        )

    def cost(self, sweep: Sweep, device_bytes: int) -> tuple[Sweep, SweepCost]:
        """Return the cost of a sweep.

        Args:
            sweep: The sweep.
            device_bytes: Most bytes of its strips.

        Returns:
            The sweep, with the axes that its images are cut along, and its cost.

        Raises:
            BudgetError: If the smallest strip or tile exceeds these bytes and they are firm.
        """
        if self.activity is not None and sweep.even:
            sweep = replace(sweep, even=False)  # tiles are computed one by one, anywhere
        shape = (sweep.is_replay, sweep.axes, sweep.reads, sweep.writes)
        key = (device_bytes, *shape, *map(id, sweep.nodes))
        if key not in self._costs:
            self._costs[key] = self._division(self.problem.strips(sweep, device_bytes)).cost()
        cost, skips = self._costs[key], self.activity is not None
        axes = len(cost.counts)
        if (sweep.axes, sweep.skips) == (axes, skips):
            return sweep, cost
        return replace(sweep, axes=axes, skips=skips), cost

    def _step_of(self, layout: Layout) -> tuple[lifetimes.Timeline, int]:
        """Return what all plans of a layout share: its timeline, and the operations that sweeps repeat."""
        if id(layout) not in self._steps:
            prepared, problem = self.problem.prepared, self.problem
            bare = replace(layout, kept=frozenset())
            timeline = lifetimes.timeline(prepared.graph, bare, problem.learned, prepared.fused)
            repeated = prepared.repeated_operations(layout, problem.batch, problem.extents)
            self._steps.clear()
            self._steps[id(layout)] = layout, timeline, repeated
        return self._steps[id(layout)][1:]

    def _image_bytes(self, sweeps: Sequence[Sweep], costs: Sequence[SweepCost]) -> dict[int, int]:
        """Return the bytes of every image in its store; of tiles only, if background is skipped."""
        if self.activity is None:
            return self.problem.image_bytes
        sizes = dict(self.problem.image_bytes)
        for sweep, cost in zip(sweeps, costs, strict=True):
            share = self.activity.stored_shares(sweep, cost.counts)
            for v in sweep.writes:
                least = ceil(self.problem.image_bytes[v] * share[v])
                sizes[v] = max(least, sizes[v] if sweep.is_replay else 0)
        for v in self.problem.backgrounds:
            sizes[v] = ceil(sizes[v] * self.activity.read_share(v))
        return sizes

    def _division(self, strips: Strips) -> Strips:
        """Return strips, or tiles instead where they are needed and possible."""
        if self.activity is not None:
            return active_strips.fastest(strips, self.activity)
        if strips.sweep.axes == 1 and (strips.fewest or not self.chooses_axes):
            return strips
        return tile_search.tiles_of(strips) or strips
