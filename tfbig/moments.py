"""Mean and variance of something too large to hold: a count, a mean and a sum of squared deviations.

    merge: delta = mean_b - mean_a
           n     = n_a + n_b
           mean  = mean_a + delta * n_b / n
           m2    = m2_a + m2_b + delta**2 * n_a * n_b / n

(Chan, Golub, LeVeque: "Updating formulae and a pairwise algorithm for computing sample variances", 1979.)
Counts are int64: a float32 count stops at 2**24, which one gigapixel exceeds 61 times. Sums are float32,
or float64 for float64 data.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf


class Moments(NamedTuple):
    """Count (int64 scalar), mean, and sum of squared deviations from the mean."""

    count: tf.Tensor
    mean: tf.Tensor
    m2: tf.Tensor


def wide(dtype: tf.DType) -> tf.DType:
    """float64 for float64, otherwise float32."""
    return tf.float64 if dtype == tf.float64 else tf.float32


def init(shape: Sequence[int] | tf.Tensor, dtype: tf.DType) -> Moments:
    """The moments of nothing."""
    zeros = tf.zeros(shape, wide(dtype))
    return Moments(tf.constant(0, tf.int64), zeros, zeros)


def of(x: tf.Tensor, axes: Sequence[int]) -> Moments:
    """The moments of `x` over `axes`, two passes, as `tf.nn.moments`."""
    x = tf.cast(x, wide(x.dtype))
    mean = tf.reduce_mean(x, axes, keepdims=True)
    m2 = tf.reduce_sum(tf.math.squared_difference(x, mean), axes)
    count = tf.reduce_prod([tf.shape(x, tf.int64)[axis] for axis in axes])
    return Moments(count, tf.reshape(mean, tf.shape(m2)), m2)


def merge(a: Moments, b: Moments) -> Moments:
    """The moments of both together."""
    count = a.count + b.count
    whole = tf.cast(tf.maximum(count, 1), tf.float64)
    share = tf.cast(tf.cast(b.count, tf.float64) / whole, a.mean.dtype)
    weight = tf.cast(
        tf.cast(a.count, tf.float64) * tf.cast(b.count, tf.float64) / whole, a.mean.dtype
    )
    delta = b.mean - a.mean
    return Moments(count, a.mean + delta * share, a.m2 + b.m2 + delta * delta * weight)


def finalize(moments: Moments) -> tuple[tf.Tensor, tf.Tensor]:
    """Mean and biased variance."""
    count = tf.cast(tf.cast(moments.count, tf.float64), moments.m2.dtype)
    return moments.mean, moments.m2 / count


def pullback(
    x: tf.Tensor, mean: tf.Tensor, d_mean: tf.Tensor, d_variance: tf.Tensor, count: tf.Tensor
) -> tf.Tensor:
    """Gradient of `x` from those of its mean and biased variance over `count` numbers.

        dx = (d_mean + 2 * d_variance * (x - mean)) / count

    All but `x` broadcast against it; the variance's own dependence on the mean cancels.
    """
    n = tf.cast(tf.cast(count, tf.float64), mean.dtype)
    wide_x = tf.cast(x, mean.dtype)
    scale = 2 * d_variance / n
    return tf.cast(wide_x * scale + (d_mean / n - scale * mean), x.dtype)
