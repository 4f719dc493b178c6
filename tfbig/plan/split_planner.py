"""Plans of models whose front streams while the remaining layers run on whole tensors and share the budget."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from tfbig.errors import BudgetError
from tfbig.geometry.windows import Size
from tfbig.plan.plan import Plan
from tfbig.plan.planner import Planner
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


@dataclass(frozen=True)
class SplitPlan(Plan):
    """Plan of the front, and the bytes of the rest.

    Args:
        whole_bytes: Bytes of whole tensors, which are part of `device_bytes`.
        rest: Names of the layers that run on them.
    """

    whole_bytes: int = 0
    rest: str = ""

    def __str__(self) -> str:
        """Return the table of the front, and a line about the rest."""
        whole = format_bytes(self.whole_bytes)
        return f"{super().__str__()}\n{whole} of the device bytes are whole tensors of {self.rest}"


class SplitPlanner(Planner):
    """Planner of the front, with the part of the budget that the rest does not need.

    The rest is assumed to hold every tensor of its layers, and in training its gradient, without reuse of memory.

    Args:
        split: The split model.
        *arguments: As in `Planner`.
        **options: As in `Planner`.
    """

    def __init__(self, split: SplitModel, *arguments: Any, **options: Any) -> None:
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
            self.device_bytes = self._front_limit("device", device, whole, shape)
        if self.shared and host is not None:
            self.host_bytes = self._front_limit("host", host, whole, shape)
            self.taken_bytes = whole
        try:
            plan = super()._make(batch, sizes, layout)
        except BudgetError as error:
            raise BudgetError(f"{error} Of the budget, {where}.") from error
        fields = vars(plan) | {
            "device_bytes": plan.device_bytes + whole,
            "limit_bytes": device if self.firm else None,
        }
        return SplitPlan(**fields, whole_bytes=whole, rest=self.split.layers)

    def _front_limit(self, place: str, limit: int, whole: int, shape: tuple[int, ...]) -> int:
        """Return the bytes of a limit that remain for the front."""
        if whole >= limit:
            raise BudgetError(
                f"'{self.name}' on {' x '.join(map(str, shape))}: the whole tensors of {self.split.layers} take "
                f"{format_bytes(whole)} of the {place}, but {format_bytes(limit)} are allowed. Raise `{place}`, stream "
                "up to a later layer, or use smaller images or a smaller batch."
            )
        return limit - whole
