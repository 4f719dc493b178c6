"""What nodes compute once for all strips, and the gradients that are pulled back to statistics and weights."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import tensorflow as tf

from tfbig.engine.sweep_preparation import Preparation
from tfbig.geometry.windows import Window
from tfbig.network.graph import Local, Node

STATISTICS, IMAGE, FIRST, SECOND = range(4)
"""Values by position: a whole value, and images."""


def prepared(wholes: list[Any], weights: list[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """Return two tensors that depend on a mean, a variance and a weight."""
    mean, variance = wholes[0]
    return weights[0] / variance, mean * weights[0]


def sweep() -> Any:
    """Return a node that prepares from statistics and weight 0, and one that uses weights 0 and 1 in each strip."""
    first = Local(lambda x, given, strip: x, ((Window(),), None), prepare=prepared)
    second = Local(lambda x, w, strip: x, ((Window(),),))
    nodes = (
        Node("first", first, (IMAGE, STATISTICS), FIRST, (0,)),
        Node("second", second, (FIRST,), SECOND, (0, 1)),
    )
    return SimpleNamespace(locals=nodes)


def tensors() -> Any:
    statistics = tf.constant(3.0, tf.float64), tf.constant(2.0, tf.float64)
    weights = [tf.constant(5.0, tf.float64), tf.constant(7.0, tf.float64)]
    return SimpleNamespace(wholes={STATISTICS: statistics}, weights=weights)


def test_nodes_prepare_once() -> None:
    found = Preparation(sweep()).prepare(tensors())
    assert list(found) == [FIRST]
    np.testing.assert_array_equal(found[FIRST], [2.5, 15.0])


def test_gradients_are_pulled_back() -> None:
    """Weight 0 has a gradient in each strip, and one by what is prepared from it, as the statistics have."""
    local = tensors()
    preparation = Preparation(sweep(), {STATISTICS, IMAGE, FIRST}, (0, 1))
    local.prepared = preparation.prepare(local)
    wholes, weights, own = preparation.sources_of(local)
    assert (list(wholes), list(weights), list(own)) == ([], [0, 1], [FIRST])
    of_prepared = {FIRST: (tf.constant(1.0, tf.float64), tf.constant(10.0, tf.float64))}
    d_wholes, d_weights = preparation.pull(local, of_prepared)
    np.testing.assert_allclose(d_wholes[STATISTICS], [10 * 5, -5 / 4])
    assert list(d_weights) == [0]
    np.testing.assert_allclose(d_weights[0], 1 / 2 + 10 * 3)


def test_what_is_frozen_has_no_gradients() -> None:
    local = tensors()
    preparation = Preparation(sweep(), {IMAGE}, ())
    local.prepared = preparation.prepare(local)
    assert preparation.sources_of(local) == ({}, {}, {})
    assert preparation.pull(local, {}) == ({}, {})
