"""Errors of problems that no plan solves: what is allowed, what is needed, and what to change."""

from __future__ import annotations

from collections.abc import Sequence

from tfbig.errors import BudgetError
from tfbig.plan import placement
from tfbig.plan.fixed_bytes import FREED_BYTES, freed_bytes
from tfbig.plan.plan import Plan
from tfbig.plan.pricing import Pricing
from tfbig.system.budget import DEFAULT_STRIPS, HOST_SHARE
from tfbig.units import format_bytes


def host(plans: Sequence[Plan], name: str, narrow: bool) -> BudgetError:
    """Return the error that none of some plans fits, with the host budget that would suffice.

    Args:
        plans: The plans, without addresses or with.
        name: Name of the model.
        narrow: Whether stores already have a narrower element type.

    Returns:
        The error.
    """
    plan = min(plans, key=_least_host_bytes)
    limits, projected = plan.allowed, plan.projected
    shape = " x ".join(map(str, plan.shape[:-1]))
    least = format_bytes(_least_host_bytes(plan) + limits.reserved)
    parts = f"images {format_bytes(projected.host)}"
    if limits.shared:
        other = format_bytes(plan.mapped_bytes + projected.fixed + projected.model)
        parts += f", strips {format_bytes(projected.device)}, other {other}"
    disk = f", and {format_bytes(limits.disk)} of disk" if limits.disk else ""
    more = ", or `disk`" if limits.disk else ""
    allowed = format_bytes((limits.host or 0) + limits.reserved)
    less = "or a smaller batch" if narrow else "a smaller batch or store='bfloat16'"
    comma = "" if narrow else ","
    return BudgetError(
        f"'{name}' on {shape}: a step needs at least {least} of host memory ({parts}), "
        f"but {allowed} are allowed{disk}. Raise `host` to {least}{more}, or use smaller "
        f"images{comma} {less}."
    )


def device(pricing: Pricing, error: BudgetError) -> BudgetError:
    """Return the error of the sweep whose smallest strip needs most, among those that do not fit.

    Args:
        pricing: Prices of the problem.
        error: Error of the first sweep that does not fit.

    Returns:
        The error.
    """
    problem = pricing.problem
    for sweep in problem.prepared.sweeps:
        try:
            pricing.cost(sweep, problem.limits.device)
        except BudgetError as other:
            error = max(error, other, key=lambda e: e.need_bytes)
    return error


def kept(plans: Sequence[Plan], name: str) -> BudgetError:
    """Return the error that images of another size leave on the device do not fit for this size.

    Args:
        plans: Plans of the layout with strips of several heights.
        name: Name of the model.

    Returns:
        The error.
    """
    least = min(plan.projected.device for plan in plans)
    return BudgetError(
        f"'{name}': the layout chosen for another image size keeps images on the device, which needs "
        f"{format_bytes(least)} for this size, but {format_bytes(plans[0].allowed.device)} are allowed. Use images "
        "of one size."
    )


def _least_host_bytes(plan: Plan) -> int:
    """Return a host budget that suffices for the plan; strips without a firm budget grow with it."""
    need = plan.projected.host + placement.other_host_bytes(plan)
    if plan.allowed.firm or not plan.allowed.shared:
        return need
    freed = FREED_BYTES - freed_bytes(plan.allowed.device, plan.image_bytes)
    other = need - plan.projected.device + freed
    return max(need, min(other + DEFAULT_STRIPS, -(-other * HOST_SHARE // (HOST_SHARE - 1))))
