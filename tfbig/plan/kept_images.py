"""Choice of the images that are kept on the device. Arithmetic only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from tfbig.plan import lifetimes, placement
from tfbig.plan.plan import Plan
from tfbig.plan.pricing import Problem


def keep(problem: Problem, plan: Plan, kept: frozenset[int]) -> Plan:
    """Return a plan without kept images, changed to keep some on the device.

    Kept images have the element type of the layers. Images that are cut into tiles are not kept, because images on the
    device are read by rows, nor are those of truth values, which are no words (`tfbig.stores.device_store`).

    Args:
        problem: The problem of the plan.
        plan: The plan.
        kept: Images to keep.

    Returns:
        The changed plan, without addresses.
    """
    graph = problem.prepared.graph
    kept -= {
        v
        for sweep in (*plan.sweeps, *plan.layout.replays)
        for v in (*sweep.reads, *sweep.writes)
        if sweep.axes > 1 or graph.values[v].dtype == "bool"
    }
    if not kept:
        return plan
    layout = replace(plan.layout, kept=kept)
    sizes = {**plan.image_bytes, **{v: plan.kept_bytes[v] for v in kept}}
    line = lifetimes.timeline(graph, layout, problem.learned, problem.prepared.fused)
    plan = replace(plan, layout=layout, timeline=line, image_bytes=sizes)
    device = int((_kept_bytes(plan) + _strip_bytes(plan)).max())
    return replace(plan, projected=replace(plan.projected, device=device))


def keep_all(problem: Problem, plan: Plan) -> Plan:
    """Return a plan without kept images, changed to keep all that sweeps store for other sweeps.

    Args:
        problem: The problem of the plan.
        plan: The plan.

    Returns:
        The changed plan, without addresses; it may exceed the device.
    """
    inner = frozenset(v for sweep in plan.sweeps for v in sweep.writes)
    return keep(problem, plan, inner.difference(problem.prepared.graph.outputs))


def candidates(problem: Problem, heights: Iterable[Plan], most: float) -> Iterator[Plan]:
    """Yield plans of a layout that keep as many images on the device as fit, the smallest or the largest first.

    Plans that must take longer than `most` seconds are omitted: an image that does not fit is copied at least
    twice, and lower strips do not compute less.

    Args:
        problem: The problem of the plans.
        heights: Plans without kept images, from high strips to low ones.
        most: Seconds of the fastest plan so far.

    Yields:
        Plans without addresses.
    """
    for plan in heights:
        if _least_seconds(plan, plan.allowed.device) >= most:
            return
        if _least_seconds(plan, plan.allowed.device - _strip_bytes(plan)) >= most:
            continue
        whole = keep_all(problem, plan)
        strips, images = _strip_bytes(whole), _kept_bytes(whole)
        excess_images, excess = (
            max(int(n.max()) - plan.allowed.device, 0) for n in (images, images + strips)
        )
        copies = problem.prepared.rates.copies
        if whole.seconds + 2 * excess_images / copies >= most:
            return
        if not excess:
            yield whole
            return
        if whole.seconds + 2 * excess / copies < most:
            order = sorted(whole.layout.kept, key=lambda v: plan.image_bytes[v])
            for some in (order, order[::-1]):
                yield keep(problem, plan, _fitting(whole, some))


def _least_seconds(plan: Plan, device: int | np.ndarray) -> float:
    """Return a lower bound of the seconds of a step, wherever the images of the plan are stored.

    All of the work is done, and what neither the device nor the host has room for at the worst moment is on disk.

    Args:
        plan: The plan without kept images.
        device: Bytes that the device has for images, at every moment.
    """
    line, rates = plan.timeline, plan.rates
    everything = frozenset(store.value for store in line.spans)
    work = replace(plan, layout=replace(plan.layout, kept=everything)).seconds
    room = np.maximum(device, 0) + max(placement.room(plan), 0)
    moved = placement.least_moved(plan, tuple(line.spans), room)
    return max(work + moved / rates.mapped, moved / rates.disk)


def _fitting(whole: Plan, order: Sequence[int]) -> frozenset[int]:
    """Select images greedily while the device has room next to the strips.

    Args:
        whole: The plan that keeps all images.
        order: The images in the order to try.
    """
    line, sizes = whole.timeline, whole.image_bytes
    stores = defaultdict(list)
    for store in line.spans:
        stores[store.value].append(store)
    free = whole.allowed.device - _strip_bytes(whole)
    selected = set()
    for value in order:
        left = free.copy()
        for store in stores[value]:
            first, last = line.spans[store]
            left[first : last + 1] -= sizes[value]
        if (left >= 0).all():
            free = left
            selected.add(value)
    return frozenset(selected)


def _strip_bytes(plan: Plan) -> np.ndarray:
    """Return the bytes of strips at every moment."""
    return np.array([plan.cost_of(m).strip_bytes for m in plan.timeline.moments], np.int64)


def _kept_bytes(plan: Plan) -> np.ndarray:
    """Return the bytes of images on the device at every moment."""
    line = plan.timeline
    return line.live_bytes([s for s in line.spans if s.value in plan.layout.kept], plan.image_bytes)
