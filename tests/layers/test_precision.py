"""Big layers in mixed precision, with sums in float32 or wider."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from exactness import assert_same, gradients, integer_weights
from layer_pairs import FAST_KINDS, IMAGE, TABLE, Row, images, pair, shapes, twin_of

from tfbig import layers

EPSILON = {"bfloat16": 2.0**-7, "float16": 2.0**-10}
"""Distance from 1 to the next number: twice the error of one rounding."""


@pytest.mark.parametrize(
    ("kind", "policy"),
    [
        pytest.param(kind, "mixed_bfloat16", marks=() if kind in FAST_KINDS else pytest.mark.slow)
        for kind in TABLE
    ]
    + [(layers.BigConv2D, "mixed_float16")]
    + [pytest.param(layers.BigBatchNormalization, "mixed_float16", marks=pytest.mark.slow)],
)
def test_mixed_precision(kind: type, policy: str) -> None:
    """Compared with float64: inexact results are computed in float32 and rounded once.

    Not compared with the twin, whose bias gradient stops at 256 in bfloat16.
    """
    row = TABLE[kind] if kind is not layers.BigDropout else Row({"rate": 0.0})
    big, twin = pair(kind, row, dtype=policy, max_elements=1)
    truth = twin_of(kind)(**row.arguments, dtype="float64")
    truth.build(shapes(row))
    for layer in (big, twin, truth):
        layer.set_weights(integer_weights(big, top=1))
    x, wide = (images(row, IMAGE, dtype, top=1) for dtype in ("float32", "float64"))

    @tf.function(autograph=False)
    def traced(x: Any) -> Any:
        return gradients(lambda x: big(x, training=True), x, big.trainable_variables)

    actual = traced(x)
    expected = gradients(lambda x: truth(x, training=True), wide, truth.trainable_variables)
    assert actual[0].dtype == twin(x, training=True).dtype == big.compute_dtype
    assert all(d.dtype == "float32" for d in tf.nest.flatten(actual[1:]))
    count = None if row.exact else 1  # the gradient of a normalisation is rounded more often
    actual, expected = (
        [tf.cast(t, "float64") for t in tf.nest.flatten(r)[:count]] for r in (actual, expected)
    )
    assert_same(actual, expected, EPSILON[big.compute_dtype])


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.slow)])
def test_statistics_are_float32_or_wider(dtype: str) -> None:
    """Sums exceed the integers of the 16-bit types: bfloat16 stops at 256, float16 at 65504."""
    pixels = np.full((1, 300, 300, 2), 1.0)
    pixels[:, ::4] = 3.0  # mean 1.5, variance 0.75, the sum 135000
    x, strips = tf.constant(pixels, dtype), 10
    options = {"max_elements": 300 * 300 * 2 // strips}

    batch = layers.BigBatchNormalization(momentum=0.0, dtype=f"mixed_{dtype}", **options)
    batch(x, training=True)
    expected = [np.full(2, m, "float32") for m in (1.5, 0.75)]
    rounding = 300 * 300 // strips * 2.0**-24  # each sum has this many terms
    assert rounding < 2.0**-10  # less than one rounding of a 16-bit mean
    assert_same([v.numpy() for v in batch.non_trainable_variables], expected, rounding)

    mean = layers.BigGlobalAveragePooling2D(dtype=dtype, **options)(x)
    assert_same(tf.cast(mean, "float32"), np.full((1, 2), 1.5, "float32"))

    group = layers.BigGroupNormalization(1, epsilon=0.0625, dtype=f"mixed_{dtype}", **options)
    values = np.unique(tf.cast(group(x), "float32"))
    assert_same(values, np.float32([-0.5, 1.5]) / np.float32(0.8125**0.5), EPSILON[dtype])


def test_weight_gradients_are_summed_in_float32() -> None:
    """257 strips each add 1 to a gradient: a bfloat16 sum would stop at 256."""
    big = layers.BigConv2D(1, 1, dtype="mixed_bfloat16", max_elements=1)
    x = tf.ones([1, 257, 1, 1])
    big.build(x.shape)
    _, _, (kernel, bias) = gradients(big, x, big.trainable_variables)
    assert (float(kernel[0, 0, 0, 0]), float(bias[0])) == (257.0, 257.0)


def test_global_policy() -> None:
    keras.config.set_dtype_policy("mixed_bfloat16")
    layer = layers.BigConv2D(3, 3, max_elements=1)
    symbolic = layer(keras.Input((None, None, 2)))
    assert symbolic.dtype == layer(tf.ones([1, 5, 4, 2])).dtype == "bfloat16"
    assert {w.dtype for w in layer.weights} == {"float32"}
