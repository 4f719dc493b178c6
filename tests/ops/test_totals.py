"""Sums over pixels that do not depend on strips: of constant areas, where float32 loses most."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from streamed_pairs import slow

import tfbig
from tfbig.ops import moments, totals

CONSTANT = np.float32(800.1)
ULP = 2.0**-23
"""Distance of neighbouring float32 numbers, relative to a number, at most."""

ROUNDINGS = totals.CHUNK * ULP / 2
"""Bound of the relative error of a sum: half a unit for each addition in float32; float64 adds nothing to that."""


@pytest.mark.parametrize("shape", [(1, 1024, 1024, 1), (2, 61, 203, 3), (1, 5, 3), (3, 4, 5, 6, 2)])
def test_sum_of_constant(shape: tuple[int, ...]) -> None:
    for axes in ([*range(1, len(shape) - 1)], [*range(len(shape) - 1)]):
        pixels = np.prod([shape[axis] for axis in axes])
        actual = totals.total(tf.fill(shape, CONSTANT), axes)
        np.testing.assert_allclose(actual, float(CONSTANT) * pixels, rtol=ROUNDINGS)
        assert actual.shape == [1 if axis in axes else n for axis, n in enumerate(shape)]


@pytest.mark.parametrize("axes", [[0, 1, 2], [1, 2], [1, 2, 4], [3], [0], [2, 4], [0, 1, 2, 3, 4]])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_sum_over_any_axes(axes: list[int], dtype: str) -> None:
    """Sums of integers are exact, and the gradient is the cotangent for every element."""
    x = np.random.default_rng(0).integers(-3, 4, (3, 5, 9, 4, 2)).astype(dtype)
    tensor = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(tensor)
        actual = totals.total(tensor, axes)
    np.testing.assert_array_equal(actual, x.sum(tuple(axes), "float64", keepdims=True))
    dy = np.arange(np.size(actual), dtype="float64").reshape(np.shape(actual))
    gradient = tape.gradient(actual, tensor, tf.constant(dy))
    np.testing.assert_array_equal(gradient, np.broadcast_to(dy, x.shape).astype(dtype))


@pytest.mark.parametrize("first", [0, 40])
def test_moments_of_constant_rows(first: int) -> None:
    """Variance of two constant halves: a quarter of the square of their distance."""
    x = np.full((1, 64, 2048, 2), 800, "float32")
    x[:, 32:] += first
    mean, variance = moments.finalize(moments.of(tf.constant(x), [0, 1, 2]))
    np.testing.assert_allclose(mean, 800 + first / 2, rtol=ROUNDINGS)
    np.testing.assert_allclose(variance, first**2 / 4, rtol=2 * ROUNDINGS)


def mean_of(kind: str) -> keras.Model:
    image = keras.Input((None, None, 1))
    if kind == "pooling":
        return keras.Model(image, layers.GlobalAveragePooling2D()(image))
    return keras.Model(image, keras.ops.mean(image, (1, 2)))


@pytest.mark.parametrize("kind", ["pooling", "ops.mean"])
@pytest.mark.parametrize("rows", [1024, slow(64), 7])
def test_mean_does_not_depend_on_strips(kind: str, rows: int) -> None:
    x = tf.fill([1, 1024, 1024, 1], CONSTANT)
    mean = tfbig.stream(mean_of(kind), strip_rows=rows)(x)
    np.testing.assert_allclose(mean, [[CONSTANT]], rtol=ROUNDINGS + ULP)


@pytest.mark.parametrize(
    ("kind", "rows"),
    [(k, r) if r == 5 else slow(k, r) for k in ("bias", "beta") for r in (512, 64, 5)],
)
def test_gradient_of_bias_does_not_depend_on_strips(kind: str, rows: int) -> None:
    """The derivative of the sum of all outputs is their number, here times a constant."""
    image = keras.Input((None, None, 1))
    x = layers.Conv2D(2, 1, use_bias=kind == "bias", name="conv")(image)
    if kind == "beta":
        x = layers.GroupNormalization(2)(x)
    model = keras.Model(image, keras.ops.sum(x, (1, 2)))
    big: Any = tfbig.stream(model, strip_rows=rows)
    x = tf.ones([1, 512, 512, 1])
    weights = model.trainable_variables
    bias = next(i for i, w in enumerate(weights) if w.name == kind)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(big(x) * CONSTANT)
    gradient = tape.gradient(loss, [w._value for w in weights])[bias]
    np.testing.assert_allclose(gradient, [512 * 512 * CONSTANT] * 2, rtol=ROUNDINGS + 2 * ULP)


@pytest.mark.parametrize(
    ("loss", "rows"),
    [
        (loss, rows) if rows == 5 else slow(loss, rows)
        for loss in ("mean_absolute_error", "sum", "dice")
        for rows in (512, 64, 5)
    ],
)
def test_loss_does_not_depend_on_strips(loss: str, rows: int) -> None:
    """The loss of a constant prediction is known: Dice of p and labels 1 is 1 - 2 * p / (p + 1)."""
    losses: dict[str, Any] = {
        "mean_absolute_error": "mean_absolute_error",
        "sum": keras.losses.MeanAbsoluteError(reduction="sum"),
        "dice": keras.losses.Dice(),
    }
    image = keras.Input((None, None, 1))
    model = keras.Model(image, layers.Rescaling(1.0)(image))
    big: Any = tfbig.stream(model, strip_rows=rows)
    big.compile(loss=losses[loss], jit_compile=False)
    p = np.float32(0.1)
    x, y = np.full((1, 512, 512, 1), p), np.ones((1, 512, 512, 1), "float32")
    each = abs(np.float32(1) - p)
    dice = 1 - 2 * float(p) / (float(p) + 1)
    expected = {"mean_absolute_error": each, "sum": 512 * 512 * each, "dice": dice}[loss]
    np.testing.assert_allclose(
        big.evaluate(x, y, verbose=0), expected, rtol=2 * ROUNDINGS + 2 * ULP
    )


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_total_matches_numpy(dtype: str) -> None:
    data = np.random.default_rng(5).integers(-8, 8, [2, 4, 8, 3]).astype(dtype)
    for axes in ([0, 1, 2], [1, 2], [0], [2], [2, 3]):
        actual = totals.total(tf.constant(data), axes)
        assert actual.dtype == tf.float64
        np.testing.assert_array_equal(actual, data.sum(tuple(axes), np.float64, keepdims=True))
