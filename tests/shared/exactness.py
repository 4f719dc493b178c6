"""Numbers with exact sums, gradients of Keras variables, and comparison of results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

FLOAT64 = 1e-10
"""Error of float64 sums in different orders, relative to the largest number."""


def integers(shape: Sequence[int], dtype: str = "float32", seed: int = 0, top: int = 3) -> Any:
    """Return random integers from -top to top; sums and products of a few thousand are exact in float32."""
    return np.random.default_rng(seed).integers(-top, top + 1, tuple(shape)).astype(dtype)


def integer_weights(layer: Any, top: int = 3) -> list[np.ndarray]:
    """Return integer weights for a layer or model; variances are positive."""
    weights = [integers(w.shape, "float64", seed, top) for seed, w in enumerate(layer.weights)]
    return [
        abs(w) + 1 if "variance" in v.path else w
        for v, w in zip(layer.weights, weights, strict=True)
    ]


def gradients(
    function: Callable[..., Any], inputs: Any, variables: Sequence[Any], cotangents: Any = None
) -> tuple[Any, Any, Any]:
    """Return outputs, and the gradients of `sum(cotangents * outputs)` for inputs and Keras variables."""
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = function(inputs)
    values = [v._value for v in variables]
    return outputs, *tape.gradient(outputs, (inputs, values), cotangents)


def assert_same(actual: Any, expected: Any, rtol: float = 0.0) -> None:
    """Assert that structures are equal, bitwise or up to `rtol` relative to the largest number (at least 1).

    The error is not relative to each number: rounding of a sum is relative to its terms, which are of order 1 in
    these tests, while the sum may be close to zero.
    """
    tf.nest.assert_same_structure(actual, expected)
    pairs = zip(tf.nest.flatten(actual), tf.nest.flatten(expected), strict=True)
    for position, (a, e) in enumerate(pairs):
        a, e = np.asarray(a), np.asarray(e)
        assert a.dtype == e.dtype, f"item {position}: {a.dtype}, expected {e.dtype}"
        if rtol == 0:
            np.testing.assert_array_equal(a, e, err_msg=f"item {position}", strict=True)
        else:
            assert a.shape == e.shape, f"item {position}: {a.shape}, expected {e.shape}"
            scale = max(float(np.abs(e).max(initial=0)), 1.0)
            error = np.abs(a.astype("float64") - e.astype("float64")).max(initial=0) / scale
            assert error <= rtol, f"item {position}: differs by {error:.1e} of {scale:.1e}"
