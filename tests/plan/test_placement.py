"""Addresses of stores, and what is spilled."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import pytest
from graphs import (
    PLENTY,
    deep_graph,
    make_planner,
    squares,
)

from tfbig.network.graph import Graph
from tfbig.plan import placement
from tfbig.plan.plan import Plan
from tfbig.plan.pricing import Pricing
from tfbig.plan.sweeps import Store


def plan_of(graph: Graph, **limits: Any) -> Plan:
    """The plan of many strips that stores every image, without addresses."""
    planner = make_planner(graph, PLENTY, strip_rows=4, **limits)
    problem = planner._problem(1, squares(graph, 256))
    return Pricing(problem).price(planner.prepared.straight, PLENTY)


def test_fit_spills_as_much_as_it_has_to() -> None:
    graph = deep_graph(4)
    free = placement.place(plan_of(graph)).projected.host
    assert placement.fit(plan_of(graph, host_bytes=free)) == placement.place(
        plan_of(graph, host_bytes=free)
    )
    assert placement.fit(plan_of(graph, host_bytes=free // 2)) is None
    spilled = placement.fit(plan_of(graph, host_bytes=free // 2, disk_bytes=free))
    assert spilled is not None
    assert placement.fits(spilled)
    assert 0 < spilled.projected.disk < free
    assert spilled.projected.host + spilled.mapped_bytes <= free // 2


def test_fit_needs_enough_disk() -> None:
    graph = deep_graph(4)
    free = placement.place(plan_of(graph)).projected.host
    assert placement.fit(plan_of(graph, host_bytes=free // 2, disk_bytes=1000)) is None


def test_fit_returns_only_plans_that_are_fast_enough() -> None:
    graph = deep_graph(4)
    free = placement.place(plan_of(graph)).projected.host
    plan = plan_of(graph, host_bytes=free // 2, disk_bytes=free)
    spilled = placement.fit(plan)
    assert spilled is not None
    assert plan.seconds < spilled.seconds
    assert placement.fit(plan, spilled.seconds) is None
    assert placement.fit(plan, plan.seconds) is None
    assert placement.fit(plan, 1.001 * spilled.seconds) == spilled


@pytest.mark.parametrize("share", [0.9, 0.5, 0.1, 0.0])
def test_least_moved_bytes(share: float) -> None:
    """No choice of stores moves fewer bytes, neither the one that is made nor any that fits."""
    plan = plan_of(deep_graph(4), disk_bytes=PLENTY)
    limit = share * placement.live_bytes(plan)
    line, sizes = plan.timeline, plan.image_bytes
    stores = sorted(line.spans)
    least = placement.least_moved(plan, stores, limit)

    def moved(chosen: Collection[Store]) -> int:
        return sum(line.times_touched[s] * sizes[s.value] for s in chosen)

    assert 0 < least <= moved(placement.spill(plan, limit).layout.spilled)
    rng, fitting = np.random.default_rng(0), 0
    for _ in range(200):
        stays = rng.random(len(stores)) < share
        inside = [s for s, kept in zip(stores, stays, strict=True) if kept]
        if line.live_bytes(inside, sizes).max(initial=0) <= limit:
            fitting += 1
            assert least <= moved({*stores} - {*inside})
    assert fitting


def test_a_disk_that_is_too_small_for_the_excess() -> None:
    """It is refused without a choice of stores."""
    plan = plan_of(deep_graph(4), host_bytes=10**6, disk_bytes=1000)
    assert placement.live_bytes(plan) > 10**6 + 1000
    assert placement.fit(plan) is None


def test_shared_memory_holds_strips_too() -> None:
    plan = plan_of(deep_graph(4), host_bytes=PLENTY, shared=True)
    projected = plan.projected
    other = projected.device + projected.fixed + projected.model
    assert placement.other_host_bytes(plan) == other
    assert placement.other_host_bytes(plan_of(deep_graph(4), host_bytes=PLENTY)) == 0
