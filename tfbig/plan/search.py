"""Search for the fastest plan of a problem: candidate layouts, their prices, places, and the choice.

candidates   layouts that store every image, or fewer, or keep them on the device    (`layout_search`, `kept_images`)
price        strips, bytes and seconds of each                                       (`pricing`)
place        addresses; stores are spilled where host memory is too small            (`placement`)
choose       the fastest that fits, or an error that says what is needed              (`refusals`)

Deep networks have thousands of layouts. They come in families, see `layout_search.Family`: a few layouts of each family
are tried, then all layouts with the sweeps of the best one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from math import inf, prod
from typing import TypeVar

from tfbig.errors import BudgetError
from tfbig.network.graph import Node
from tfbig.plan import kept_images, layout_search, placement, plain_model, refusals
from tfbig.plan.activity import Activity
from tfbig.plan.cost import operations_of
from tfbig.plan.layout_search import Family
from tfbig.plan.limits import KERNEL_ELEMENTS
from tfbig.plan.plan import Plan
from tfbig.plan.prepared_graph import operations_of_node
from tfbig.plan.pricing import Pricing, Problem
from tfbig.plan.sweeps import Layout, Sweep
from tfbig.system import progress
from tfbig.units import format_bytes

Item = TypeVar("Item")
GOOD_ENOUGH = 1.1
"""The search, and the tracing of further layouts, ends when no plan could be faster by more than this factor."""

LEAST_GAIN = 1.05
"""Least ratio of predicted times at which background is skipped; tiles cost a little that is not predicted."""

LOWER = (2, 4, 8, 16)
"""Divisors of the device limit for strips that are tried too on an accelerator.

Lower strips recompute more halo, but leave room for images.
"""


def fastest(problem: Problem) -> Plan:
    """Return the fastest plan that fits.

    Args:
        problem: The problem.

    Returns:
        The plan, with addresses.

    Raises:
        BudgetError: If the smallest strip, or the images that must be stored, exceed the limits.
    """
    plain = plain_model.plan_of(problem)
    if plain is not None and not problem.backgrounds:
        return plain
    activity = problem.activity(problem.prepared.straight)
    if activity is None:
        return plain or _everywhere(problem)
    return replace(_fastest_of_both(problem, activity), everywhere=activity.everywhere)


def _fastest_of_both(problem: Problem, activity: Activity) -> Plan:
    """Return the fastest plan of those that skip background and those that compute it."""
    skipping = _skipping(problem, activity)
    try:
        everywhere = plain_model.plan_of(problem) or _everywhere(problem)
    except BudgetError:
        if skipping is None:
            raise
        return skipping
    if skipping is None or everywhere.seconds <= LEAST_GAIN * skipping.seconds:
        return everywhere
    return skipping


def _everywhere(problem: Problem) -> Plan:
    """Return the fastest plan that computes all of the image."""
    pricing, prepared = Pricing(problem), problem.prepared
    try:
        straight = pricing.price(prepared.straight, problem.limits.device)
    except BudgetError as error:
        raise refusals.device(pricing, error) from None
    if not prepared.options.keeps:
        return _on_host(pricing, straight)
    plan = _on_accelerator(pricing, straight)
    return replace(plan, layout=plan.layout.in_one_strip()) if _has_one_strip(plan) else plan


def _has_one_strip(plan: Plan) -> bool:
    """Return whether no sweep or replay of a plan cuts its images."""
    return all(prod(cost.counts) == 1 for cost in (*plan.costs, *plan.replay_costs))


def _skipping(problem: Problem, activity: Activity) -> Plan | None:
    """Return the fastest plan that skips background; None if no image has any, or no such plan fits."""
    if not activity.is_of_use:
        return None
    pricing = Pricing(problem, activity=activity)
    with suppress(BudgetError):
        straight = pricing.price(problem.prepared.straight, problem.limits.device)
        return _with_active_tiles(_on_host(pricing, straight), activity)
    return None


def _with_active_tiles(plan: Plan, activity: Activity) -> Plan | None:
    """Return a plan with the tiles that it computes; None if its background is nowhere computed."""
    costs = (*plan.costs, *plan.replay_costs)
    counts, joined = [cost.counts for cost in costs], [cost.joined for cost in costs]
    active_tiles = activity.active_tiles(plan.layout, counts, joined)
    return None if active_tiles is None else replace(plan, active_tiles=active_tiles)


def with_layout(problem: Problem, layout: Layout) -> Plan:
    """Return the plan of a layout that was chosen for this size or another one.

    Args:
        problem: The problem.
        layout: The layout.

    Returns:
        The plan, with addresses.

    Raises:
        BudgetError: If it does not fit.
    """
    if layout.skips:
        return _with_skipping_layout(problem, layout)
    if layout.plain:
        return _with_plain_layout(problem)
    prepared, plans = problem.prepared, []
    for bare in _heights(Pricing(problem, chooses_axes=False), layout):
        if layout.single and not _has_one_strip(bare):
            raise BudgetError(
                f"'{prepared.options.name}': the layout is for images that are not cut into strips."
            )
        plans.append(kept_images.keep(problem, bare, layout.kept))
        if not layout.kept or plans[-1].projected.device <= problem.limits.device:
            break
    else:
        raise refusals.kept(plans, prepared.options.name)
    placed = placement.place(plans[-1])
    if placement.fits(placed):
        return placed
    raise _host_error(problem, [placed])


def _with_plain_layout(problem: Problem) -> Plan:
    """Return the plan of the plain model, as `with_layout` does."""
    plan = plain_model.plan_of(problem)
    if plan is None:
        raise BudgetError(
            f"'{problem.prepared.options.name}': the plain model needs more than the "
            f"{format_bytes(problem.limits.plain)} for images, or the host memory, that are allowed without strips, or "
            f"a tensor of more than {KERNEL_ELEMENTS} elements. Use smaller images, or strips."
        )
    return plan


def _with_skipping_layout(problem: Problem, layout: Layout) -> Plan:
    """Return the plan of a layout that skips background, as `with_layout` does."""
    name = problem.prepared.options.name
    activity = problem.activity(layout)
    if activity is None:
        raise BudgetError(f"'{name}': the layout skips background, but the images have none.")
    bare = Pricing(problem, activity=activity).price(layout, problem.limits.device)
    placed = placement.place(bare)
    if not placement.fits(placed):
        raise _host_error(problem, [placed])
    plan = _with_active_tiles(placed, activity)
    if plan is None:
        raise BudgetError(f"'{name}': no pixel of background stands for all of it.")
    return plan


def _on_host(pricing: Pricing, straight: Plan) -> Plan:
    """Return the fastest plan that fits: the one that stores every image, or else one that stores less.

    Raises:
        BudgetError: None fits.
    """
    if placement.fits(placed := placement.place(straight)):
        return placed
    problem = pricing.problem
    families = list(_families(problem))
    plans = [straight, *_priced(pricing, chain.from_iterable(each.some for each in families))]
    plans += _priced(pricing, _alike(families, _choose(problem, plans)))
    if (best := _choose(problem, plans)) is None:
        raise _host_error(problem, _smallest(plans))
    return best


def _on_accelerator(pricing: Pricing, straight: Plan) -> Plan:
    """Return the fastest plan that fits; plans keep images on the device, or rematerialise them.

    Several heights of strips are tried for each layout. The search ends where no further plan could be much faster.

    Raises:
        BudgetError: None fits.
    """
    plans = list[Plan]()
    enough = GOOD_ENOUGH * kept_images.keep_all(pricing.problem, straight).seconds

    def best_of(layouts: Iterable[Layout], best: Plan | None = None) -> Plan | None:
        """Return the fastest plan that fits, of those of some layouts and the best one so far."""
        for layout in _reported(pricing.problem, layouts, "layout"):
            most = inf if best is None else best.seconds
            if most <= enough:
                break
            with suppress(BudgetError):
                for plan in kept_images.candidates(
                    pricing.problem, _heights(pricing, layout), most
                ):
                    plans.append(plan)
                    best = placement.fit(plan, inf if best is None else best.seconds) or best
        return best

    best = best_of(chain([straight.layout], _with_remat(pricing.problem)))
    if best is None or best.seconds > enough:
        families = list(_families(pricing.problem))
        best = best_of(chain.from_iterable(each.some for each in families), best)
        best = best_of(_alike(families, best), best)
    if best is None:
        raise _host_error(pricing.problem, _smallest(plans))
    return best


def _priced(pricing: Pricing, layouts: Iterable[Layout]) -> Iterator[Plan]:
    """Yield the plans of some layouts; the strips of a sweep with many layers may be too large for the device."""
    for layout in _reported(pricing.problem, layouts, "layout"):
        with suppress(BudgetError):
            yield pricing.price(layout, pricing.problem.limits.device)


def _reported(problem: Problem, items: Iterable[Item], unit: str) -> Iterator[Item]:
    """Yield the items, and report the number of each as progress of the planning."""
    progress.METER.begin()
    try:
        for number, item in enumerate(items, 1):
            progress.METER.report(f"planning {problem.prepared.options.name}, {unit} {number}")
            yield item
    finally:
        progress.METER.end()


def _heights(pricing: Pricing, layout: Layout) -> Iterator[Plan]:
    """Yield the plan of a layout with the highest strips, then with lower ones that leave room for images.

    Raises:
        BudgetError: If the smallest strip of a sweep exceeds the limit.
    """
    limits = pricing.problem.limits
    strips = limits.device - limits.workspace
    yield pricing.price(layout, limits.device)
    for divisor in LOWER if pricing.problem.prepared.options.keeps else ():
        with suppress(BudgetError):
            yield pricing.price(layout, strips // divisor + limits.workspace)


def _families(problem: Problem) -> Iterator[Family]:
    """Return families of layouts that store less."""
    prepared, stored = problem.prepared, problem.image_bytes

    def worth(replay: Sweep) -> float:
        """Return the bytes that a replay frees, per operation of the replay."""
        pixels = {v: prod(problem.extents[v]) for v in replay.images}
        operations, *_ = operations_of(replay, problem.batch, problem.extents, pixels)
        return sum(stored[v] for v in replay.writes) / max(operations, 1)

    graph, cuts, effort = prepared.graph, prepared.cuts, _effort(problem)
    if prepared.options.training:
        return layout_search.families_storing_less(
            graph, cuts, stored, worth, effort, problem.learned
        )
    return layout_search.with_fewer_cuts(graph, cuts, stored)


def _with_remat(problem: Problem) -> Iterator[Layout]:
    """Return layouts of a training step on an accelerator that are faster where copies are slow."""
    prepared = problem.prepared
    if not prepared.options.training:
        return iter(())
    return layout_search.with_remat(
        prepared.graph, prepared.cuts, problem.image_bytes, _effort(problem)
    )


def _effort(problem: Problem) -> Callable[[Node], int]:
    """Return the function from a node to its operations."""
    return lambda node: operations_of_node(node, problem.batch, problem.extents)


def _alike(families: Sequence[Family], best: Plan | None) -> Iterator[Layout]:
    """Yield all layouts of the families with the sweeps of a plan; without a plan, of all families."""
    for family in families:
        if best is None or family.sweeps == best.sweeps:
            yield from family.layouts


def _choose(problem: Problem, plans: Sequence[Plan]) -> Plan | None:
    """Return the fastest plan that fits, after spilling what it has to; to spill makes no plan faster."""
    best = None
    for plan in _reported(problem, sorted(plans, key=lambda p: p.seconds), "plan"):
        if best is not None and plan.seconds >= best.seconds:
            return best
        best = placement.fit(plan, inf if best is None else best.seconds) or best
    return best


def _smallest(plans: list[Plan]) -> list[Plan]:
    """Return the plans that need the least host memory, with all their stores in memory and on disk."""
    few = sorted(plans, key=placement.live_bytes)[:3]
    spilled = [placement.spill(plan, 0) for plan in few if plan.allowed.disk]
    on_disk = [plan for plan in spilled if plan.projected.disk <= plan.allowed.disk]
    return [*map(placement.place, few), *on_disk]


def _host_error(problem: Problem, plans: list[Plan]) -> BudgetError:
    options = problem.prepared.options
    return refusals.host(plans, options.name, narrow=bool(options.store))
