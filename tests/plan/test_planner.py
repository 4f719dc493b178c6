"""Planner: one plan for every size."""

from __future__ import annotations

from graphs import (
    PLENTY,
    make_planner,
    single_convolution,
    squares,
)


def test_plan_is_cached() -> None:
    graph = single_convolution()
    planner = make_planner(graph, PLENTY)
    plan = planner.plan(1, squares(graph, 16))
    assert planner.plan(1, squares(graph, 16)) is plan
    for batch in range(2, 300):  # more sizes than the cache holds
        planner.plan(batch, squares(graph, 16))
    assert planner.plan(1, squares(graph, 16)) == plan
