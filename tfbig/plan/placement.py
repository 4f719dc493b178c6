"""Addresses of stores in host memory and in the scratch file, and the choice of those to spill. Arithmetic only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Any

import numpy.typing as npt

from tfbig.plan import layout_search, lifetimes
from tfbig.plan.plan import Plan
from tfbig.plan.sweeps import Store

TRIALS = 6
"""Most attempts to spill: gaps between stores, and rows of files in memory, require a little more each time."""


def place(plan: Plan) -> Plan:
    """Return the plan with an address for each of its stores.

    Args:
        plan: The plan.

    Returns:
        The plan with addresses.
    """
    spans, sizes, where = plan.timeline.spans, plan.image_bytes, plan.layout.where
    disk, host = (
        lifetimes.place({s: spans[s] for s in spans if where(s) == each}, sizes)
        for each in ("disk", "host")
    )
    projected = replace(
        plan.projected, host=lifetimes.top(host, sizes), disk=lifetimes.top(disk, sizes)
    )
    return replace(plan, addresses=host | disk, projected=projected)


def fit(plan: Plan, most: float = inf) -> Plan | None:
    """Return the plan with addresses within its limits, some stores spilled if necessary.

    Args:
        plan: The plan.
        most: Seconds that a step must take less than.

    Returns:
        The plan with addresses, or None if it does not fit or does not take less than `most`.
    """
    if plan.seconds >= most:
        return None
    if live_bytes(plan) <= room(plan) and fits(placed := place(plan)):
        return placed
    return _spill(plan, most) if plan.allowed.disk else None


def fits(placed: Plan) -> bool:
    """Return whether a plan with addresses is within the limits of host and disk.

    Args:
        placed: The plan.
    """
    return placed.projected.host <= room(placed) and placed.projected.disk <= placed.allowed.disk


def spill(plan: Plan, limit: float) -> Plan:
    """Return the plan with as many stores spilled that those in memory never exceed a limit.

    Args:
        plan: The plan.
        limit: Bytes of stores in host memory.

    Returns:
        The plan with addresses.
    """
    return place(_spilling(plan, limit))


def live_bytes(plan: Plan) -> int:
    """Return the most bytes of stores in host memory at any moment; with their addresses they may need more.

    Args:
        plan: The plan.
    """
    return int(plan.timeline.live_bytes(_in_host(plan), plan.image_bytes).max(initial=0))


def _in_host(plan: Plan) -> list[Store]:
    """Return the stores in host memory."""
    return [s for s in plan.timeline.spans if plan.layout.where(s) == "host"]


def least_moved(plan: Plan, stores: Sequence[Store], room: npt.NDArray[Any] | float) -> float:
    """Return the fewest bytes that a step moves to and from disk for those of some stores that have no room.

    At the moment that exceeds the room most, stores are moved that are read and written the fewest times.

    Args:
        plan: The plan.
        stores: The stores.
        room: Bytes of memory for them, at every moment.
    """
    line, sizes = plan.timeline, plan.image_bytes
    excess = line.live_bytes(stores, sizes) - room
    worst = int(excess.argmax())
    alive = [s for s in stores if line.spans[s][0] <= worst <= line.spans[s][1]]
    moved, left = 0.0, float(excess[worst])
    for count, size in sorted((line.times_touched[s], sizes[s.value]) for s in alive):
        if left <= 0:
            break
        moved += count * min(size, left)
        left -= size
    return moved


def other_host_bytes(plan: Plan) -> int:
    """Return the bytes of the host limit that are not stores.

    Args:
        plan: The plan.
    """
    projected = plan.projected
    if not plan.allowed.shared:
        return plan.mapped_bytes
    return projected.device + plan.mapped_bytes + projected.fixed + projected.model


def _spill(plan: Plan, most: float) -> Plan | None:
    """Spill stores to disk until host memory fits; None if the disk is too small, or a step takes `most` seconds."""
    limit = room(plan)
    if live_bytes(plan) - max(limit, 0) > plan.allowed.disk:
        return None
    moved, rates = least_moved(plan, _in_host(plan), max(limit, 0)), plan.rates
    slower = max(1 / rates.mapped - 1 / rates.copies, 0)
    if max(plan.seconds + moved * slower, moved / rates.disk) >= most:
        return None
    for _ in range(TRIALS):
        trial = _spilling(plan, max(limit, 0))
        if trial.seconds >= most:
            return None
        trial = place(trial)
        if fits(trial):
            return trial
        if limit <= 0 or trial.projected.disk > plan.allowed.disk:
            return None
        excess = trial.projected.host - room(trial)
        limit = max(
            min(limit, trial.projected.host) - excess, 0
        )  # fewer bytes than before; at last none
    return None


def _spilling(plan: Plan, limit: float) -> Plan:
    """Return the plan with the stores to spill, without addresses."""
    spilled = layout_search.to_spill(plan.timeline, plan.image_bytes, limit, plan.layout.kept)
    return replace(plan, layout=replace(plan.layout, spilled=spilled))


def room(plan: Plan) -> float:
    """Return the bytes that stores may use in host memory; infinite if it has no limit.

    Args:
        plan: The plan.
    """
    return inf if plan.allowed.host is None else plan.allowed.host - other_host_bytes(plan)
