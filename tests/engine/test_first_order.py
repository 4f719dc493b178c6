"""Gradients that refuse to be differentiated."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tfbig.engine.first_order import first_order_only


def test_values_are_unchanged() -> None:
    x = tf.constant([1.0, 2.0])
    first, missing = first_order_only([x, None])
    assert missing is None
    assert first.numpy().tolist() == [1.0, 2.0]
    assert first_order_only([None]) == [None]


def test_second_derivative_is_an_error() -> None:
    x = tf.constant(3.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        (y,) = first_order_only([x**2])
    with pytest.raises((NotImplementedError, tf.errors.OpError), match="are differentiable once"):
        tape.gradient(y, x)
