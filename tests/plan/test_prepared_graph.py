"""What all plans of one graph have in common."""

from __future__ import annotations

from collections.abc import Callable

import keras
import pytest
from graphs import (
    PLENTY,
    chain,
    chain_graph,
    dice,
    make_planner,
    mse,
    read,
)

from tfbig.network.graph import Graph


@pytest.mark.parametrize(
    ("build", "fused"),
    [(mse, True), (dice, False), (read, False)],
)
def test_fused(build: Callable[[keras.Model], Graph], fused: bool) -> None:
    """Only a loss that is a sum over pixels runs forward and backward together."""
    assert make_planner(build(chain()), PLENTY).fused is fused
    assert not make_planner(build(chain()), PLENTY, training=False).fused


def test_stores_are_narrower_but_not_those_of_inputs_and_results_of_integers() -> None:
    graph = chain_graph()
    (source,) = graph.inputs
    prepared = make_planner(graph, store="bfloat16").prepared
    assert prepared.stored_dtype(source) == "float32"
    assert prepared.stored_dtype(graph.nodes[0].output) == "bfloat16"
    assert make_planner(graph).prepared.stored_dtype(graph.nodes[0].output) == "float32"
