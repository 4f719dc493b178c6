"""Graphs: sizes of images, values that need a gradient, and the order of axes."""

from __future__ import annotations

import pytest

from tfbig.geometry.windows import Window
from tfbig.network import graph as graphs
from tfbig.network.graph import Graph


def function(x: list[int], w: list[int], strip: object) -> int:
    return x[0]


def chain() -> tuple[Graph, int, int]:
    """Return a graph of a strided and a stopping node, and the values of both."""
    graph = Graph()
    start = graph.input("image", True, 1, "float32")
    axes = [(Window(3, 2), Window(2))]
    first = graph.local("first", function, [start], 1, "float32", axes, ["kernel"])
    stopped = graph.local("stopped", function, [first], 1, "float32", stops_gradient=True)
    return graph, first, stopped


def test_extents() -> None:
    graph, first, stopped = chain()
    size = graph.size(first)
    assert graph.extents({0: (9, 5)}) == {0: (9, 5), first: (4, 4), stopped: (4, 4)}
    assert graph.sizes == {size: first}


def test_too_small_image() -> None:
    graph = chain()[0]
    with pytest.raises(ValueError, match="'first': the image is too small, its output would be 0"):
        graph.extents({0: (2, 5)})


def test_inputs_of_different_sizes() -> None:
    graph, first, _ = chain()
    graph.local("sum", function, [0, first], 1, "float32")
    with pytest.raises(ValueError, match="'sum': its inputs have different sizes"):
        graph.extents({0: (9, 5)})


def test_producer_and_consumers() -> None:
    graph, first, stopped = chain()
    assert graph.producer(0) is None
    assert graph.producer(first) is graph.nodes[0]
    assert graph.consumers(first) == [graph.nodes[1]]
    assert graph.consumers(stopped) == []


def test_shared_weights_have_one_slot() -> None:
    graph, first, _ = chain()
    kernel = graph.weights[0]
    graph.local("second", function, [first], 1, "float32", weights=["bias", kernel])
    assert graph.weights == ["kernel", "bias"]
    assert graph.nodes[-1].weights == (1, 0)


def test_values_with_gradient() -> None:
    graph, first, _ = chain()
    assert graphs.values_with_gradient(graph, {0}, []) == {first}
    assert graphs.values_with_gradient(graph, set(), [0]) == {0, first}
    assert graphs.values_with_gradient(graph, set(), []) == set()


def test_order_of_axes() -> None:
    graph = Graph(spatial=3, order=(2, 0, 1))
    assert graph.to_graph_order("abc") == ("c", "a", "b")
    assert graph.to_model_order(graph.to_graph_order("abc")) == ("a", "b", "c")
    assert Graph(spatial=3).to_model_order("abc") == ("a", "b", "c")
    assert graph.permutation == (0, 3, 1, 2, 4)
    assert [graph.permutation[i] for i in graph.inverse_permutation] == [0, 1, 2, 3, 4]
