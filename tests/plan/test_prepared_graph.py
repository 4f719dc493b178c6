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
    residual,
)

from tfbig.network.graph import Graph
from tfbig.plan.prepared_graph import shape_of


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


def test_graphs_of_one_shape() -> None:
    """Equal for a model that is read twice, and unlike for other layers, losses or element types."""
    graphs = [build(chain()) for build in (mse, dice, read)]
    assert len({shape_of(graph) for graph in graphs}) == 3
    assert shape_of(mse(chain())) == shape_of(graphs[0])
    assert shape_of(graphs[0]) != shape_of(mse(residual()))
