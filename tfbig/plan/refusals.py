"""Errors of problems that no plan solves: what is allowed, what is needed, and what to change."""

from __future__ import annotations

from collections.abc import Sequence

from tfbig.errors import Advice, BudgetError
from tfbig.plan import placement
from tfbig.plan.fixed_bytes import FREED_BYTES, freed_bytes
from tfbig.plan.plan import Plan
from tfbig.plan.pricing import Pricing
from tfbig.system.budget import DEFAULT_STRIPS, HOST_SHARE
from tfbig.units import ceil_div, format_bytes


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
    limits, parts = plan.allowed, _parts(plan)
    shape = " x ".join(map(str, plan.shape[:-1]))
    least = format_bytes(sum(parts.values()))
    named = ", ".join(f"{part} {format_bytes(size)}" for part, size in parts.items())
    spills = bool(limits.disk and plan.projected.host)  # else there is nothing to spill
    disk = f", and {format_bytes(limits.disk)} of disk" if spills else ""
    allowed = format_bytes((limits.host or 0) + limits.reserved)
    return BudgetError(
        f"'{name}' on {shape}: a step needs at least {least} of host memory ({named}), but {allowed} are "
        f"allowed{disk}.",
        Advice.RAISE_HOST,
        *((Advice.RAISE_DISK,) if spills else ()),
        *_smaller(plan, narrow),
        need=least,
        store="bfloat16",
    )


def _smaller(plan: Plan, narrow: bool) -> tuple[Advice, ...]:
    """Return the advice to use smaller images, if images and strips are what does not fit.

    Args:
        plan: The plan that needs least.
        narrow: Whether stores already have a narrower element type.
    """
    projected, limits = plan.projected, plan.allowed
    freed = freed_bytes(limits.device, plan.image_bytes)
    if limits.shared and projected.fixed - freed + projected.model >= (limits.host or 0):
        return ()
    return (Advice.SMALLER_IMAGES if narrow or not projected.host else Advice.SMALLER_OR_NARROWER,)


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


def _parts(plan: Plan) -> dict[str, int]:
    """Return the bytes of each part of the least host budget, which they add up to."""
    projected, limits = plan.projected, plan.allowed
    parts = {"images": projected.host, "strips": 0, "rows of files": plan.mapped_bytes}
    if limits.shared:
        parts |= {
            "TensorFlow and gradients": projected.fixed,
            "model": projected.model,
            "layers that do not stream": limits.reserved,
        }
        least, strips = _least_host_bytes(plan), projected.device
        if least > sum(parts.values()) - limits.reserved + strips:  # strips grow with the budget
            parts["TensorFlow and gradients"] += _more_freed_bytes(plan)
            strips = least + limits.reserved - sum(parts.values())
        parts["strips"] = strips
    return {name: size for name, size in parts.items() if size or name == "images"}


def _more_freed_bytes(plan: Plan) -> int:
    """Return the bytes of freed strips that a larger budget adds to the fixed bytes of the plan."""
    return FREED_BYTES - freed_bytes(plan.allowed.device, plan.image_bytes)


def _least_host_bytes(plan: Plan) -> int:
    """Return a host budget that suffices for the plan; strips without a firm budget grow with it."""
    need = plan.projected.host + placement.other_host_bytes(plan)
    if plan.allowed.firm or not plan.allowed.shared:
        return need
    other = need - plan.projected.device + _more_freed_bytes(plan)
    return max(need, min(other + DEFAULT_STRIPS, ceil_div(other * HOST_SHARE, HOST_SHARE - 1)))
