"""Prices of layouts."""

from __future__ import annotations

from graphs import (
    PLENTY,
    chain_graph,
    deep_graph,
    make_planner,
    squares,
)

from tfbig.plan import replay_segments
from tfbig.plan.fixed_bytes import replay_bytes
from tfbig.plan.pricing import Pricing
from tfbig.plan.sweeps import Layout


def test_layouts_share_costs_of_sweeps() -> None:
    graph = chain_graph()
    planner = make_planner(graph, PLENTY)
    pricing = Pricing(planner._problem(2, squares(graph, 64)))
    first, second = (pricing.price(planner.prepared.straight, PLENTY) for _ in range(2))
    assert all(a is b for a, b in zip(first.costs, second.costs, strict=True))
    assert first == second
    assert first.shape == (2, 64, 64, 1)
    assert first.projected.host == 0  # it has no addresses yet


def test_fewer_bytes_give_more_strips() -> None:
    graph = chain_graph()
    planner = make_planner(graph, PLENTY)
    pricing = Pricing(planner._problem(1, squares(graph, 256)))
    high = pricing.price(planner.prepared.straight, PLENTY)
    low = pricing.price(planner.prepared.straight, high.projected.device // 4)
    assert low.strips > high.strips
    assert low.projected.device <= high.projected.device // 4


def test_replays_take_fixed_bytes() -> None:
    graph = deep_graph(4)
    planner = make_planner(graph, PLENTY)
    problem = planner._problem(1, squares(graph, 64))
    sweeps = tuple(planner.prepared.straight.sweeps)
    replay = replay_segments.replay(graph, sweeps, (0, 2))
    assert replay is not None
    straight, replayed = (
        Pricing(problem).price(Layout(sweeps, replays), PLENTY) for replays in ((), (replay,))
    )
    assert straight.projected.fixed == problem.fixed_bytes(Layout(sweeps))
    assert replayed.projected.fixed == straight.projected.fixed + replay_bytes([replay])
