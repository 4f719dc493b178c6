"""Plans of models whose front streams while the remaining layers run on whole tensors and share the budget."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Protocol

from tfbig.errors import BudgetError
from tfbig.geometry.windows import Size
from tfbig.network.graph import Graph
from tfbig.plan.limits import Limits, workspace_of
from tfbig.plan.plan import Plan
from tfbig.plan.planner import Planner
from tfbig.plan.prepared_graph import Cuts, Options
from tfbig.plan.pricing import Problem
from tfbig.plan.sweeps import Layout
from tfbig.units import format_bytes


class SplitModel(Protocol):
    """Model split into a front that streams and a rest, see `tfbig.network.front_and_rest.Split`."""

    @property
    def layers(self) -> str:
        """Names of the layers of the rest."""

    def whole_bytes(self, batch: int, size: Size) -> int:
        """Return the bytes of the tensors that cross into the rest and of all tensors of the rest.

        Args:
            batch: Number of images in a batch.
            size: Rows and columns of an image.

        Returns:
            Number of bytes.
        """


@dataclass(frozen=True, repr=False)
class SplitPlan(Plan):
    """Plan of the front, and the bytes of the rest.

    Args:
        whole_bytes: Bytes of whole tensors, which are part of `projected.device`.
        rest: Names of the layers that run on them.
    """

    whole_bytes: int = 0
    rest: str = ""

    def __repr__(self) -> str:
        """Return the table of the front, and a line about the rest."""
        whole = format_bytes(self.whole_bytes)
        return f"{super().__repr__()}\n{whole} of the device bytes are whole tensors of {self.rest}"


class SplitPlanner(Planner):
    """Planner of the front, within the part of the limits that the rest does not need.

    The rest is assumed to hold every tensor of its layers, and in training its gradient, without reuse of memory.

    Args:
        split: The split model.
        graph: As in `Planner`.
        limits: As in `Planner`.
        options: As in `Planner`.
        found: As in `Planner`.
    """

    def __init__(
        self,
        split: SplitModel,
        graph: Graph,
        limits: Limits,
        options: Options | None = None,
        found: Cuts | None = None,
    ) -> None:
        super().__init__(graph, limits, options, found)
        self.split = split

    def _make(self, problem: Problem, layout: Layout | None) -> Plan:
        batch, size = problem.batch, problem.extents[self.prepared.first_image]
        gradients = 2 if self.prepared.options.training else 1
        whole = self.split.whole_bytes(batch, size) * gradients
        try:
            plan = super()._make(replace(problem, limits=self.limits.without(whole)), layout)
        except BudgetError as error:
            if not error.need_bytes:  # of host memory, with what the rest takes
                raise
            raise self._of_both(error, whole, (batch, *size)) from error
        projected = replace(plan.projected, device=plan.projected.device + whole)
        of_front = {field.name: getattr(plan, field.name) for field in fields(plan)}
        joint = of_front | {"allowed": self.limits, "projected": projected}
        return SplitPlan(**joint, whole_bytes=whole, rest=self.split.layers)

    def _of_both(self, error: BudgetError, whole: int, shape: tuple[int, ...]) -> BudgetError:
        """Return the error that the front does not fit into what the rest leaves of the device.

        Args:
            error: Error of the front.
            whole: Bytes of the rest.
            shape: Batch and size of the images.
        """
        tile = error.need_bytes
        if self.limits.workspace:
            tile -= workspace_of(tile)
        need = self.limits.with_workspace(whole + tile)
        return BudgetError(
            f"'{self.prepared.options.name}' on {' x '.join(map(str, shape))}: the whole tensors of "
            f"{self.split.layers} take {format_bytes(whole)} of the device, and the smallest tile of the other layers "
            f"{format_bytes(tile)}, but {format_bytes(self.limits.device)} are allowed. "
            f"Raise `device` to {format_bytes(need)}, or use smaller images or a smaller batch.",
            need,
        )
