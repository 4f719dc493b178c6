"""Activations with gradients of their own equal those of Keras, and the mathematical ones as closely."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfbig.ops import activations

WIDE = np.concatenate([np.linspace(-120, 120, 4001), [0.0, -0.0, 1e4, -1e4, 1e30, -1e30]])


def value_and_gradient(function: Any, x: Any, dy: Any) -> tuple[np.ndarray, np.ndarray]:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return np.asarray(y), np.asarray(tape.gradient(y, x, dy))


@pytest.mark.parametrize("name", ["silu", "swish"])
def test_equals_keras_in_float64(name: str) -> None:
    function = getattr(keras.activations, name)
    x = tf.constant(WIDE)
    dy = tf.constant(np.random.default_rng(0).normal(size=WIDE.shape))
    y, dx = value_and_gradient(activations.fastest(function), x, dy)
    expected_y, expected = value_and_gradient(function, x, dy)
    np.testing.assert_array_equal(y, expected_y)
    np.testing.assert_allclose(dx, expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(
    ("dtype", "unit"), [("float32", 2.0**-24), ("float16", 2.0**-11), ("bfloat16", 2.0**-8)]
)
def test_is_as_exact_as_keras(dtype: str, unit: float) -> None:
    """Errors are those of `x - y`, a rounding of `x`, and of four operations; Keras' largest is of this size."""
    x = tf.cast(np.linspace(-12, 12, 4001), dtype)
    given = np.asarray(tf.cast(x, tf.float64))
    s = 1 / (1 + np.exp(-given))
    exact = s + given * s * (1 - s)

    def errors(function: Any) -> np.ndarray:
        _, dx = value_and_gradient(function, x, tf.ones_like(x))
        return np.abs(dx.astype(np.float64) - exact)

    ours, theirs = (errors(f) for f in (activations.silu, keras.activations.silu))
    assert (ours <= (np.abs(given) + 5) * unit).all()
    assert ours.max() <= 2 * theirs.max()


def test_other_functions_are_returned() -> None:
    class Unhashable:
        __hash__ = None  # type: ignore[assignment]

        def __call__(self, x: Any) -> Any:
            return x

    for function in (keras.activations.relu, Unhashable(), lambda x: 2 * x):
        assert activations.fastest(function) is function
