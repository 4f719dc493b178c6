"""Mean and variance of images too large for memory, from a count, a mean and a sum of squared deviations.

    merge: delta = mean_b - mean_a
           n     = n_a + n_b
           mean  = mean_a + delta * n_b / n
           m2    = m2_a + m2_b + delta**2 * n_a * n_b / n

(Chan, Golub, LeVeque: "Updating formulae and a pairwise algorithm for computing sample variances", 1979.)
Counts are int64: a float32 count stops at 2**24, which one gigapixel exceeds 61 times. Every sum over pixels is one of
`totals`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfbig.ops import affine
from tfbig.ops.totals import total, wide
from tfbig.system import traces


class Moments(NamedTuple):
    """Count (int64 scalar), mean, and sum of squared deviations from the mean (float64)."""

    count: tf.Tensor
    mean: tf.Tensor
    m2: tf.Tensor


def init(shape: Sequence[int] | tf.Tensor) -> Moments:
    """Return the moments of an empty set, with means of the given shape."""
    zeros = tf.zeros(shape, tf.float64)
    return Moments(tf.constant(0, tf.int64), zeros, zeros)


def of(x: tf.Tensor, axes: Sequence[int]) -> Moments:
    """Return the moments of `x` over `axes`: two passes within each row, as in `tf.nn.moments`, then over rows.

    Within a row, with `c` its mean, rounded to the dtype of `x`:

        m2 = sum((x - c)**2) - n * (mean - c)**2
    """
    x = tf.cast(x, wide(x.dtype))
    inner = [axis for axis in axes if axis >= 2]
    n = _size(x, inner)
    each = total(x, inner) / n
    centre = tf.cast(each, x.dtype)
    m2 = total(tf.math.squared_difference(x, centre), inner)
    m2 = tf.maximum(m2 - n * tf.math.squared_difference(each, tf.cast(centre, tf.float64)), 0)
    mean = tf.reduce_mean(each, axes, keepdims=True)
    m2 = tf.reduce_sum(m2 + n * tf.math.squared_difference(each, mean), axes)
    return Moments(tf.cast(_size(x, axes), tf.int64), tf.reshape(mean, tf.shape(m2)), m2)


def _size(x: tf.Tensor, axes: Sequence[int]) -> tf.Tensor:
    """Return the number of elements along `axes`, as float64."""
    sizes = tf.gather(tf.shape(x, tf.int64), tf.constant(axes, tf.int32))
    return tf.cast(tf.reduce_prod(sizes), tf.float64)


def merge(a: Moments, b: Moments) -> Moments:
    """Return the moments of the union of two sets."""
    count = a.count + b.count
    share = tf.cast(b.count, tf.float64) / tf.cast(tf.maximum(count, 1), tf.float64)
    weight = tf.cast(a.count, tf.float64) * share
    delta = b.mean - a.mean
    return Moments(count, a.mean + delta * share, a.m2 + b.m2 + delta * delta * weight)


def finalize(moments: Moments) -> tuple[tf.Tensor, tf.Tensor]:
    """Return mean and biased variance."""
    return moments.mean, moments.m2 / tf.cast(moments.count, tf.float64)


def of_replicas(
    mean: tf.Tensor, variance: tf.Tensor, count: tf.Tensor, items: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Return mean and biased variance over all replicas of a `tf.distribute` strategy.

        n        = sum(count)
        mean     = sum(mean * count / n)
        variance = sum((variance + (mean - mean of all replicas)**2) * count / n)

    Differentiable. Gradients from other replicas are weighted by their numbers of items: the gradients of the mean loss
    of each replica, times its items, add up to the gradients of the sum of all losses.

    Args:
        mean: Mean of this replica, float64.
        variance: Biased variance of this replica, float64.
        count: Numbers that the statistics of this replica are computed from.
        items: Images in the batch of this replica, or any number proportional to it.
    """
    if tf.distribute.get_strategy().num_replicas_in_sync == 1:
        return mean, variance
    local = tf.cast(count, tf.float64)
    share = local / _sum_over_replicas(tf.expand_dims(local, 0), items)[0]
    global_mean = _sum_over_replicas(mean * share, items)
    spread = variance + tf.math.squared_difference(mean, global_mean)
    return global_mean, _sum_over_replicas(spread * share, items)


def _sum_over_replicas(x: tf.Tensor, items: tf.Tensor) -> tf.Tensor:
    """Return the sum over replicas, whose gradients are weighted by `items`."""
    sums = tf.distribute.ReduceOp.SUM

    @traces.custom_gradient
    def summed(x: tf.Tensor) -> Any:
        context = tf.distribute.get_replica_context()

        def gradient(dy: tf.Tensor) -> tf.Tensor:
            return context.all_reduce(sums, tf.identity(dy * items)) / items

        return context.all_reduce(sums, tf.identity(x)), gradient

    return summed(x)


def pullback(
    x: tf.Tensor, mean: tf.Tensor, d_mean: tf.Tensor, d_variance: tf.Tensor, count: tf.Tensor
) -> tf.Tensor:
    """Return the gradient of `x` from the gradients of its mean and biased variance.

        dx = (d_mean + 2 * d_variance * (x - mean)) / count

    The dependence of the variance on the mean cancels.

    Args:
        x: Image or strip.
        mean: Mean of the image; this and all arguments below broadcast against `x`.
        d_mean: Gradient of the mean.
        d_variance: Gradient of the variance.
        count: Numbers that the statistics are computed from.
    """
    n = tf.cast(count, tf.float64)
    slope = 2 * d_variance / n
    shift = d_mean / n - slope * mean
    return affine.apply(x, slope, shift)
