"""Reductions over all pixels: numbers that occur twice, zeros and infinities, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from exactness import assert_same
from keras import layers, ops
from twins import assert_streams

import tfbig

Check = Callable[[Any, Any], None]


pytestmark = pytest.mark.usefixtures("float64")


def test_equal_numbers_share_the_gradient_of_a_maximum(check: Check) -> None:
    """Across pixels, channels and images, as in TensorFlow."""
    inputs = keras.Input((None, None, 3))
    x = ops.clip(layers.Conv2D(3, 3, padding="same")(inputs), -0.1, 0.1)
    check(inputs, [f(x, a) for f in (ops.max, ops.min) for a in ((1, 2), (1, 2, 3), None)])


@pytest.mark.parametrize("zeros", [0, 1, 2])
def test_product_with_zeros(zeros: int) -> None:
    inputs = keras.Input((None, None, 2))
    model = keras.Model(inputs, ops.prod(inputs, (1, 2)))
    x = np.random.default_rng(0).normal(size=(2, 5, 4, 2))
    x[:, 1:4:2, 2][:, :zeros] = 0
    assert_streams(model, ops.convert_to_tensor(x), 2, training=False)


def test_exponentials_do_not_overflow() -> None:
    inputs = keras.Input((None, None, 2))
    model = keras.Model(inputs, ops.logsumexp(inputs, (1, 2)))
    x = 1e4 * np.random.default_rng(0).normal(size=(2, 5, 4, 2))
    assert_streams(model, ops.convert_to_tensor(x), 2, training=False)


def test_integers_are_summed_exactly() -> None:
    """Their sum does not fit the digits of float32."""
    inputs = keras.Input((None, None, 1), dtype="int32")
    model = keras.Model(inputs, [ops.sum(inputs, (1, 2)), ops.max(inputs, (1, 2))])
    x = np.full((1, 8, 8, 1), 2**20 + 1, "int32")
    assert_same(tfbig.stream(model, strip_rows=3, source_dtype="int32")(x), model(x))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda x: ops.var(x, 2), "reduce the channels, axis=-1, or all pixels"),
        (
            lambda x: ops.norm(x, ord=1, axis=(1, 2)),
            "expected None, the root of the sum of squares",
        ),
        (lambda x: ops.max(x, (1, 2), initial=0.0), "has an initial value; use keras.ops.maximum"),
    ],
)
def test_refused(build: Any, message: str) -> None:
    start = keras.Input((None, None, 3))
    with pytest.raises(tfbig.UnsupportedLayerError, match=message):
        tfbig.stream(keras.Model(start, build(start)))
