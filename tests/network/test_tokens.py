"""Functions on tokens run on strips of images: the order of tokens, positions of strips, and reductions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tfbig
from tfbig.geometry.windows import Everything, Window
from tfbig.network import tokens
from tfbig.network.graph import Graph, Tokens
from tfbig.network.rules.call import Sum
from tfbig.ops.kernels import InputRows, Strip


def strip(start: int, stop: int, extent: int) -> Strip:
    return Strip(start, stop, extent, (InputRows(start, stop, 0, 0, extent), None))


def of_tokens(kind: Tokens) -> tuple[Graph, tokens.TokenGraph, int]:
    """Return a graph, its view, and an image that stands for tokens."""
    graph = Graph()
    value = graph.input("x", True, 4, "float32")
    graph.tokens[value] = kind
    view = tokens.of_call(graph, [value])
    assert isinstance(view, tokens.TokenGraph)
    return graph, view, value


@pytest.mark.parametrize(
    ("kind", "rows"),
    [((0, (4, 3)), 0), ((1, (4, 3)), 1), ((7, (4, 3)), 3), ((5, ()), 1), ((0, ()), 0)],
)
def test_rows_before_those_of_the_pixels(kind: Any, rows: int) -> None:
    assert Tokens(*kind).rows == rows


def test_a_function_gets_the_tokens_of_a_strip_and_their_place() -> None:
    graph, view, value = of_tokens(Tokens(0, (4, 3)))
    seen: list[Any] = []

    def run(x: list[tf.Tensor], w: Any, place: Strip) -> tf.Tensor:
        seen.append((x[0].numpy(), int(place.start), int(place.stop), int(place.extent)))
        return 2 * x[0]

    result = view.local("double", run, [value], 4, "float32")
    assert graph.tokens[result] == Tokens(0, (4, 3))
    image = np.arange(2 * 2 * 3 * 4, dtype="float32").reshape(2, 2, 3, 4)
    output = graph.nodes[0].op.function([tf.constant(image)], [], strip(1, 3, 4))
    np.testing.assert_array_equal(output, 2 * image)
    np.testing.assert_array_equal(seen[0][0], image.reshape(2, 6, 4))
    assert seen[0][1:] == (3, 9, 12)
    assert not graph.nodes[0].op.tiles


def test_what_is_read_in_full_is_read_along_all_axes() -> None:
    graph, view, value = of_tokens(Tokens())
    axes = [(Window(),), (Everything(),)]
    view.local("attend", lambda x, w, place: x[0], [value, value], 4, "float32", axes)
    assert graph.nodes[0].op.axes == ((Window(),) * 2, (Everything(),) * 2)
    with pytest.raises(tfbig.UnsupportedLayerError, match="combines neighbours"):
        view.local("blur", lambda x, w, place: x[0], [value], 4, "float32", [(Window(3),)])


def test_a_reduction_adds_up_the_tokens_of_strips() -> None:
    graph, view, value = of_tokens(Tokens())
    of_pixels = Sum(lambda x, place: tf.reduce_sum(x[0] ** 2, 1), [graph.values[value]], 1)
    view.reduce("energy", of_pixels, [value])
    op = graph.nodes[0].op
    image = tf.constant(np.random.default_rng(0).normal(size=(2, 4, 3, 4)), tf.float32)
    total = op.init(2, [4])
    for start in (0, 2):
        total = op.merge(
            total, op.partial([image[:, start : start + 2]], strip(start, start + 2, 4))
        )
    np.testing.assert_allclose(total[0], tf.reduce_sum(image**2, [1, 2]), rtol=1e-6)
    (gradient,) = op.pullback([image], strip(0, 4, 4), None, (tf.ones((2, 4)),))
    np.testing.assert_allclose(gradient, 2 * image, rtol=1e-6)


def test_tokens_before_the_pixels_are_not_pooled_with_them() -> None:
    graph, view, value = of_tokens(Tokens(1))
    of_pixels = Sum(lambda x, place: tf.reduce_sum(x[0], 1), [graph.values[value]], 1)
    with pytest.raises(tfbig.UnsupportedLayerError, match="pools 1 tokens"):
        view.reduce("mean", of_pixels, [value])
