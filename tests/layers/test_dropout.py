"""Masks of BigDropout are random and independent of strips, and the backward pass recomputes them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from exactness import assert_same, gradients

from tfbig import layers


def dropped(x: tf.Tensor, max_elements: int | None, **arguments: Any) -> tuple[Any, Any]:
    """Return the output of a new layer and the gradient of its sum."""
    layer = layers.BigDropout(**{"rate": 0.3, "seed": 11, **arguments}, max_elements=max_elements)
    return gradients(lambda x: layer(x, training=True), x, [])[:2]


def test_mask_does_not_depend_on_strips() -> None:
    x = tf.ones([2, 9, 7, 5])
    whole = dropped(x, None)
    for max_elements in (1, 200):
        assert_same(dropped(x, max_elements), whole)
    assert not np.array_equal(dropped(x, 1, seed=12)[0], whole[0])
    assert len(np.unique(np.reshape(whole[0], [18, -1]), axis=0)) == 18  # no row repeats another


@pytest.mark.slow
def test_backward_recomputes_mask() -> None:
    x = tf.random.normal([2, 13, 7, 5])
    for dtype in ("float32", "float64", "mixed_bfloat16"):
        y, dx = dropped(x, 1, dtype=dtype)
        kept = np.asarray(y) != 0
        assert np.array_equal(kept, np.asarray(dx) != 0)
        scale = tf.constant(1 / 0.7, y.dtype)
        assert_same(y, tf.where(kept, tf.cast(x, y.dtype) * scale, tf.zeros([], y.dtype)))
        assert_same(dx, tf.where(kept, tf.cast(scale, x.dtype), 0.0))


@pytest.mark.parametrize(
    "rate", [0.1, 1.0, *(pytest.param(r, marks=pytest.mark.slow) for r in (0.5, 0.9))]
)
def test_rate(rate: float) -> None:
    """Within five standard deviations of the binomial distribution."""
    x = tf.ones([2, 50, 50, 20])
    share = np.mean(dropped(x, 5000, rate=rate)[0].numpy() == 0)
    assert abs(share - rate) <= 5 * (rate * (1 - rate) / np.size(x)) ** 0.5


def test_masks_differ_between_calls() -> None:
    x, layer = tf.ones([1, 9, 9, 2]), layers.BigDropout(0.5, seed=1, max_elements=1)
    first, second = layer(x, training=True), layer(x, training=True)
    assert not np.array_equal(first, second)
    again = layers.BigDropout(0.5, seed=1)
    assert_same([again(x, training=True) for _ in range(2)], [first, second])
    assert_same(layer(x, training=False), x)
