"""The rest of a split model: layers that run on whole tensors, and share the budget with the front, which streams."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from tfbig.errors import Advice, BudgetError
from tfbig.geometry.windows import Size
from tfbig.plan.limits import workspace_of
from tfbig.plan.plan import Plan, Rest
from tfbig.plan.pricing import Problem
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


def plan_beside(split: SplitModel, problem: Problem, plan_of: Callable[[Problem], Plan]) -> Plan:
    """Return the plan of the front, within the part of the limits that the rest does not need.

    The rest is assumed to hold every tensor of its layers, and in training its gradient, without reuse of memory.

    Args:
        split: The split model.
        problem: The front, and the limits of both.
        plan_of: Function that plans the front.

    Raises:
        BudgetError: They do not fit together.
    """
    size = problem.extents[problem.prepared.first_image]
    gradients = 2 if problem.prepared.options.training else 1
    whole = split.whole_bytes(problem.batch, size) * gradients
    try:
        plan = plan_of(replace(problem, limits=problem.limits.without(whole)))
    except BudgetError as error:
        if not error.need_bytes:  # of host memory, with what the rest takes
            raise
        raise _error_of_both(error, split, problem, whole) from error
    projected = replace(plan.projected, device=plan.projected.device + whole)
    rest = Rest(split.layers, whole)
    return replace(plan, allowed=problem.limits, projected=projected, rest=rest)


def _error_of_both(
    error: BudgetError, split: SplitModel, problem: Problem, whole: int
) -> BudgetError:
    """Return the error that the front does not fit into what the rest leaves of the device.

    Args:
        error: Error of the front.
        split: The split model.
        problem: The problem.
        whole: Bytes of the rest.
    """
    limits, prepared, tile = problem.limits, problem.prepared, error.need_bytes
    if limits.workspace:
        tile -= workspace_of(tile)
    need = limits.with_workspace(whole + tile)
    shape = problem.batch, *problem.extents[prepared.first_image]
    return BudgetError(
        f"'{prepared.options.name}' on {' x '.join(map(str, shape))}: the whole tensors of {split.layers} take "
        f"{format_bytes(whole)} of the device, and the smallest tile of the other layers {format_bytes(tile)}, but "
        f"{format_bytes(limits.device)} are allowed.",
        Advice.RAISE_DEVICE,
        Advice.SMALLER_IMAGES,
        need_bytes=need,
        need=format_bytes(need),
    )
