"""Plans of models of which only a front streams: the budget of the front is what the rest leaves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from tfbig.errors import BudgetError
from tfbig.geometry.windows import Size
from tfbig.plan.plan import Plan
from tfbig.plan.planner import Planner
from tfbig.plan.sweeps import Layout
from tfbig.units import format_bytes


class WholeTensors(Protocol):
    """A model cut into a front that streams and a rest, see `tfbig.network.front_and_rest.Split`."""

    @property
    def layers(self) -> str:
        """Names of the layers of the rest."""

    def whole_bytes(self, batch: int, size: Size) -> int:
        """Bytes of all tensors that exist complete, for images of `batch` x `size`."""


@dataclass(frozen=True)
class SplitPlan(Plan):
    """A plan of the front, and what the rest takes beside it.

    Args:
        whole_bytes: of the device bytes, those of tensors that exist complete.
        rest: what runs on them.
    """

    whole_bytes: int = 0
    rest: str = ""

    def __str__(self) -> str:
        return f"{super().__str__()}\n{format_bytes(self.whole_bytes)} of the device are whole tensors of {self.rest}"


class SplitPlanner(Planner):
    """Plans the front with what the rest leaves of the budget.

    The rest holds every tensor of its layers, and in training its gradient too: that is counted, and no reuse.

    Args:
        split: the model, cut.
        As in `Planner`.
    """

    def __init__(self, split: WholeTensors, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.split = split
        self._limits = self.device_bytes, self.host_bytes

    def _make(self, batch: int, sizes: dict[int, Size], layout: Layout | None) -> Plan:
        first = next(i for i in self.graph.inputs if self.graph.values[i].image)
        shape = (batch, *sizes[first])
        whole = self.split.whole_bytes(batch, sizes[first]) * (2 if self.training else 1)
        where = f"the whole tensors of {self.split.layers} take {format_bytes(whole)}"
        device, host = self._limits
        if self.firm:
            self.device_bytes = self._left("device", device, whole, shape)
        if self.shared and host is not None:
            self.host_bytes = self._left("host", host, whole, shape)
            self.taken_bytes = whole
        try:
            plan = super()._make(batch, sizes, layout)
        except BudgetError as error:
            raise BudgetError(f"{error} Of the budget, {where}.") from error
        known = vars(plan) | {
            "device_bytes": plan.device_bytes + whole,
            "limit_bytes": device if self.firm else None,
        }
        return SplitPlan(**known, whole_bytes=whole, rest=self.split.layers)

    def _left(self, place: str, limit: int, whole: int, shape: tuple[int, ...]) -> int:
        """What the rest leaves of a limit."""
        if whole >= limit:
            raise BudgetError(
                f"'{self.name}' on {' x '.join(map(str, shape))}: the whole tensors of {self.split.layers} take "
                f"{format_bytes(whole)} of the {place}, {format_bytes(limit)} are allowed. Raise `{place}`, stream up "
                "to a later layer, or use smaller images or a smaller batch."
            )
        return limit - whole
