"""Scale and shift equal NumPy in every way that computes them, with gradients that do not depend on strips."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfbig.ops import affine
from tfbig.system import backend

UNIT32 = 2.0**-24
UNITS = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": UNIT32, "float64": 2.0**-53}
"""Half a unit in the last place of numbers near 1."""

TINY = 2.0**-24
"""The smallest positive number of float16."""

SHAPES = ([2, 5, 3], [1, 4, 7, 5], [2, 5, 7, 3], [2, 3, 4, 5, 2], [1, 6, 5, 1])


def wide_room(x: np.ndarray, slope: np.ndarray, offset: np.ndarray, unit: float) -> np.ndarray:
    """Return what two roundings of the product and the sum make, one of which an operation may skip."""
    return 2 * unit * (np.abs(x * slope) + np.abs(x * slope + offset))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
def test_equals_numpy(shape: list[int], dtype: str, known: bool) -> None:
    """Values and gradients, for images whose channels are known or not."""
    rng = np.random.default_rng(5)
    x, dy = (tf.cast(rng.normal(size=shape), dtype) for _ in range(2))
    slope, offset = (tf.constant(rng.normal(size=shape[-1])) for _ in range(2))

    def run(x: Any, slope: Any, offset: Any, dy: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch([x, slope, offset])
            y = affine.scaled(x, slope, offset)
        return y, *tape.gradient(y, [x, slope, offset], dy)

    image = tf.TensorSpec(shape if known else [None] * len(shape), dtype)
    of_channels = tf.TensorSpec([shape[-1] if known else None], tf.float64)
    signature = [image, of_channels, of_channels, image]
    y, dx, d_slope, d_offset = tf.function(run, input_signature=signature)(x, slope, offset, dy)
    assert y.dtype == dx.dtype == dtype
    given, g = (np.asarray(tf.cast(t, tf.float64)) for t in (x, dy))
    unit = UNITS[dtype]
    room = wide_room(given, slope.numpy(), offset.numpy(), max(unit, UNITS["float64"]))
    least = TINY if dtype == "float16" else 0  # its subnormal numbers
    assert (np.abs(tf.cast(y, tf.float64) - (given * slope + offset)) <= room + least).all()
    np.testing.assert_allclose(tf.cast(dx, tf.float64), g * slope, rtol=4 * unit, atol=least)
    axes = tuple(range(len(shape) - 1))
    assert d_slope.dtype == d_offset.dtype == tf.float64
    sums = min(unit, UNIT32) * 2 * given[..., 0].size
    for actual, terms in ((d_slope, g * given), (d_offset, g)):
        room = sums * np.abs(terms).sum(axes)
        assert (np.abs(actual - terms.sum(axes)) <= room).all()


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_integers_are_exact(dtype: str) -> None:
    """Small integers have no roundings in any way."""
    rng = np.random.default_rng(6)
    x = tf.cast(rng.integers(-8, 8, [2, 5, 6, 4]), dtype)
    slope, offset = (tf.constant(rng.integers(-4, 4, 4).astype(float)) for _ in range(2))
    expected = np.asarray(tf.cast(x, tf.float64)) * slope + offset
    np.testing.assert_array_equal(tf.cast(affine.apply(x, slope, offset), tf.float64), expected)


@pytest.mark.parametrize("slope", [[2, 1, 1, 3], [2, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 3], [1, 3]])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_slopes_broadcast(slope: list[int], dtype: str) -> None:
    """A slope per image, per image and channel, or one for all."""
    rng = np.random.default_rng(7)
    x = tf.cast(rng.integers(-8, 8, [2, 4, 5, 3]), dtype)
    factors, terms = (tf.constant(rng.integers(-4, 4, slope).astype(float)) for _ in range(2))
    with tf.GradientTape() as tape:
        tape.watch([x, factors, terms])
        y = affine.scaled(x, factors, terms)
    given = np.asarray(tf.cast(x, tf.float64))
    np.testing.assert_array_equal(tf.cast(y, tf.float64), given * factors + terms)
    ones = np.ones_like(given)
    aligned = [1] * (4 - len(slope)) + slope
    axes = tuple(a for a, n in enumerate(aligned) if n == 1)
    for actual, terms_of in zip(tape.gradient(y, [factors, terms]), (given, ones), strict=True):
        np.testing.assert_array_equal(
            tf.reshape(actual, slope), terms_of.sum(axes, keepdims=True).reshape(slope)
        )


def test_strips_are_bitwise_equal() -> None:
    rng = np.random.default_rng(8)
    x = tf.constant(rng.normal(size=[1, 37, 19, 24]).astype("float32"))
    slope, offset = (tf.constant(rng.normal(size=24)) for _ in range(2))
    whole = affine.apply(x, slope, offset)
    strips = [affine.apply(x[:, a:b], slope, offset) for a, b in ((0, 1), (1, 20), (20, 37))]
    np.testing.assert_array_equal(tf.concat(strips, 1), whole)


@pytest.mark.skipif(backend.accelerator() is not None, reason="an accelerator has other operations")
def test_convolution_with_a_bias_on_a_cpu() -> None:
    """Scale and shift are what TensorFlow can fuse with a ReLU, also for a strip whose sizes are not known."""

    def run(x: Any, slope: Any, offset: Any) -> Any:
        return tf.nn.relu(affine.scaled(x, slope, offset))

    specs = [tf.TensorSpec([1, None, None, None]), *[tf.TensorSpec([None], tf.float64)] * 2]
    graph = tf.function(run, input_signature=specs).get_concrete_function().graph
    kinds = [op.type for op in graph.get_operations()]
    assert kinds.count("DepthwiseConv2dNative") == kinds.count("BiasAdd") == 1
    assert "Mul" not in kinds


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_gradients_are_summed_in_float32(dtype: str) -> None:
    """Sums of more ones than a 16-bit type can count: 257 and 2049 are its first missing integers."""
    x = tf.ones([1, 60, 50, 2], dtype)
    slope, offset = tf.constant([2.0, 3.0], tf.float64), tf.zeros([2], tf.float64)
    with tf.GradientTape() as tape:
        tape.watch([x, slope, offset])
        y = affine.scaled(x, slope, offset)
    dx, d_slope, d_offset = tape.gradient(y, [x, slope, offset], tf.ones_like(x))
    np.testing.assert_array_equal(tf.cast(dx[0, 0, 0], tf.float32), [2, 3])
    np.testing.assert_allclose(d_slope, [3000, 3000], rtol=1e-6)
    np.testing.assert_allclose(d_offset, [3000, 3000], rtol=1e-6)
