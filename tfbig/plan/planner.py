"""Planner of one graph: finds a plan for every image size, once. Arithmetic only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tfbig.geometry.background import Background
from tfbig.geometry.windows import Size
from tfbig.network.graph import Graph, values_with_gradient
from tfbig.plan import cutouts, rest, search
from tfbig.plan.limits import Limits
from tfbig.plan.plan import Plan
from tfbig.plan.prepared_graph import Cuts, Options, PreparedGraph
from tfbig.plan.pricing import Problem
from tfbig.plan.rest import SplitModel
from tfbig.plan.sweeps import Layout, Sweep

MAX_PLANS = 256
"""Most plans that a planner remembers; then it forgets all."""


class Planner:
    """Planner of one graph for images of any size.

    Args:
        graph: The graph to run.
        limits: Bytes that plans are allowed.
        options: What plans depend on besides.
        found: As in `PreparedGraph`.
        split: The model, if the graph is the front of one whose rest does not stream.
    """

    def __init__(
        self,
        graph: Graph,
        limits: Limits,
        options: Options | None = None,
        found: Cuts | None = None,
        split: SplitModel | None = None,
    ) -> None:
        self.graph = graph
        self.split = split
        self.limits = limits
        strips = limits.device - limits.workspace
        self.prepared = PreparedGraph(graph, options or Options(), strips, found)
        self._plans: dict[tuple[object, ...], Plan] = {}

    @property
    def sweeps(self) -> list[Sweep]:
        """Sweeps of the layout that stores every image."""
        return self.prepared.sweeps

    @property
    def fused(self) -> bool:
        """Return whether the last sweep, with a loss, can run forward and backward together."""
        return self.prepared.fused

    def plan(
        self,
        batch: int,
        sizes: dict[int, Size],
        layout: Layout | None = None,
        backgrounds: Mapping[int, Background] | None = None,
        learned: frozenset[int] | None = None,
    ) -> Plan:
        """Return the plan for input images of some sizes.

        Args:
            batch: Number of images in a batch.
            sizes: Size of each input image, `{value: (rows, columns)}`.
            layout: Layout to use. Default: the fastest that fits.
            backgrounds: Background of the input images that have one.
            learned: Values that need a gradient, see `tfbig.network.graph.values_with_gradient`. Default: those that
                depend on a weight that is trainable now.

        Returns:
            The plan; the same object for the same arguments.

        Raises:
            BudgetError: If the smallest strip, or the images that must be stored, exceed the limits.
        """
        background, learned = frozenset((backgrounds or {}).items()), self._learned(learned)
        key = (batch, *sorted(sizes.items()), layout, background, learned, self.graph.trained)
        if key not in self._plans:
            if len(self._plans) >= MAX_PLANS:
                self._plans.clear()
            problem = self._problem(batch, sizes, dict(background), learned)
            self._plans[key] = self._make(problem, layout)
        return self._plans[key]

    def _learned(self, learned: frozenset[int] | None) -> frozenset[int]:
        """Return the values that need a gradient; none in inference."""
        if not self.prepared.options.training:
            return frozenset()
        return values_with_gradient(self.graph, self.graph.trained) if learned is None else learned

    def tables(self, plan: Plan, sizes: dict[int, Size]) -> list[np.ndarray]:
        """Return the geometry of all strips or tiles of a plan.

        Args:
            plan: The plan.
            sizes: Size of each input image.

        Returns:
            A table for every sweep, then one for every replay, see `Sweep.table_columns` and `ActiveTiles.table`.
        """
        if plan.active_tiles:
            return [active_tiles.table() for active_tiles in plan.active_tiles]
        extents = self.graph.extents(sizes)
        pairs = [*zip(plan.sweeps, plan.costs, strict=True)]
        pairs += zip(plan.layout.replays, plan.replay_costs, strict=True)
        return [_table(sweep, extents, cost.counts) for sweep, cost in pairs]

    def _make(self, problem: Problem, layout: Layout | None) -> Plan:
        """Return the plan of a problem, with a layout if one is given."""

        def plan_of(problem: Problem) -> Plan:
            return (
                search.fastest(problem) if layout is None else search.with_layout(problem, layout)
            )

        if self.split is None:
            return plan_of(problem)
        return rest.plan_beside(self.split, problem, plan_of)

    def _problem(
        self,
        batch: int,
        sizes: dict[int, Size],
        backgrounds: Mapping[int, Background] | None = None,
        learned: frozenset[int] | None = None,
    ) -> Problem:
        """Return the problem of `plan`. Args: as there."""
        extents, learned = self.graph.extents(sizes), self._learned(learned)
        return Problem(self.prepared, self.limits, batch, extents, backgrounds or {}, learned)


def _table(sweep: Sweep, extents: dict[int, Size], counts: Sequence[int]) -> np.ndarray:
    """Return the geometry of the tiles of a sweep, and of their cutouts if XLA compiles them."""
    tiles = sweep.tiles(extents, counts)
    return np.hstack([tiles, cutouts.table(sweep, extents, tiles)]) if sweep.is_compiled else tiles
