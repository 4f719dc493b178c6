"""Tiles: within the limit, the fewest pixels computed twice, and only where rows do not fit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from graphs import PLENTY, chain, chain_graph, make_planner, read, squares

from tfbig.errors import BudgetError
from tfbig.network.graph import Local
from tfbig.system.budget import parse_bytes


def test_rows_that_fit_are_not_cut() -> None:
    graph = chain_graph()
    plan = make_planner(graph, PLENTY).plan(1, squares(graph, 64))
    assert not any(cost.blocks for cost in plan.costs)
    assert all(sweep.axes == 1 for sweep in plan.sweeps)


def test_tiles_where_a_row_does_not_fit() -> None:
    """Each sweep is within the limit; the fewer pixels are computed twice, the larger the limit."""
    graph = chain_graph()
    factors = []
    for limit in ("4 KiB", "10 KiB", "20 KiB", "40 KiB"):
        plan = make_planner(graph, parse_bytes(limit)).plan(1, squares(graph, 64))
        assert all(cost.strip_bytes <= parse_bytes(limit) for cost in plan.costs)
        assert [sweep.axes for sweep in plan.sweeps] == [len(cost.counts) for cost in plan.costs]
        factors.append(plan.recompute_factor)
        assert (
            make_planner(graph, parse_bytes(limit)).plan(1, squares(graph, 64), plan.layout).costs
            == plan.costs
        )
    assert factors == sorted(factors, reverse=True)


def test_layers_that_need_whole_rows() -> None:
    graph = read(chain())
    graph.nodes = [
        replace(node, op=replace(node.op, tiles=False)) if isinstance(node.op, Local) else node
        for node in graph.nodes
    ]
    with pytest.raises(
        BudgetError,
        match=r"the smallest strip needs .* or use narrower images \(now 64 columns\) or a smaller batch",
    ):
        make_planner(graph, parse_bytes("20 KiB")).plan(1, squares(graph, 64))
