"""Mean and variance of images too large for memory, from a count, a mean and a sum of squared deviations.

    merge: delta = mean_b - mean_a
           n     = n_a + n_b
           mean  = mean_a + delta * n_b / n
           m2    = m2_a + m2_b + delta**2 * n_a * n_b / n

(Chan, Golub, LeVeque: "Updating formulae and a pairwise algorithm for computing sample variances", 1979.)
Counts are int64: a float32 count stops at 2**24, which one gigapixel exceeds 61 times. Every sum over pixels is one of
`total`, which adds up a few pixels in float32 and the rest in float64: so it hardly depends on the cut into strips.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import mul
from typing import Any, NamedTuple

import tensorflow as tf

from tfbig.system import traces
from tfbig.units import ceil_div


class Moments(NamedTuple):
    """Count (int64 scalar), mean, and sum of squared deviations from the mean (float64)."""

    count: tf.Tensor
    mean: tf.Tensor
    m2: tf.Tensor


def wide(dtype: tf.DType) -> tf.DType:
    """Return float64 for float64, and float32 for all other types."""
    return tf.float64 if dtype == tf.float64 else tf.float32


CHUNK = 32
"""Pixels that are summed in their own dtype: 31 roundings, at most 16 units in the last place of float32."""


def total(x: tf.Tensor, axes: Sequence[int]) -> tf.Tensor:
    """Return the sum over `axes`, which are kept with size 1, in float64.

    TensorFlow adds up numbers one after the other: in float32, a million numbers 800 have a mean of 788.48, and what a
    strip adds depends on its height. Here `CHUNK` consecutive pixels of a row are added up in float32, and all else in
    float64, so a cut between rows changes the last digits of float64 only.

    Args:
        x: Tensor `[N, rows, ..., C]`, of any floating-point dtype.
        axes: Axes to sum over, ascending.
    """

    @traces.custom_gradient
    def summed(x: tf.Tensor) -> Any:
        shape = tf.shape(x)

        def gradient(dy: tf.Tensor) -> tf.Tensor:
            return tf.broadcast_to(tf.cast(dy, x.dtype), shape)

        return _total(x, axes, shape), gradient

    return summed(x)


def _total(x: tf.Tensor, axes: Sequence[int], shape: tf.Tensor) -> tf.Tensor:
    """Return `total`; every operation is traced for each statistic of a network, so few of them are used."""
    within = 2  # the axes before this one, from 2 on, are those of the pixels of a row
    while within in axes and within < x.shape.rank:
        within += 1
    if x.dtype == tf.float64 or within == 2:
        return tf.reduce_sum(tf.cast(x, tf.float64), axes, keepdims=True)
    sizes = tf.unstack(shape, num=x.shape.rank)
    pixels = tf.cast(x, tf.float32)
    if within > 3:
        pixels = tf.reshape(pixels, tf.stack([*sizes[:2], -1, *sizes[within:]]))
    rows = _sums_of_rows(pixels, [*sizes[:2], reduce(mul, sizes[2:within]), *sizes[within:]])
    if within > 3:
        rows = tf.reshape(rows, [*sizes[:2], *[1] * (within - 2), *sizes[within:]])
    rows.set_shape([1 if 2 <= axis < within else n for axis, n in enumerate(x.shape)])
    left = [axis for axis in axes if not 2 <= axis < within]
    return tf.reduce_sum(rows, left, keepdims=True) if left else rows


def _sums_of_rows(pixels: tf.Tensor, sizes: Sequence[tf.Tensor]) -> tf.Tensor:
    """Return the sums over the pixels of each row, `[N, rows, 1, ...]` float64.

    Args:
        pixels: Tensor `[N, rows, pixels of a row, ...]`, float32.
        sizes: Its shape, int32 scalars.
    """
    before, count, others = sizes[:2], sizes[2], sizes[3:]
    chunks = ceil_div(count, CHUNK)
    ends = [0] * 5 + [chunks * CHUNK - count] + [0] * 2 * len(others)
    filled = tf.pad(pixels, tf.reshape(tf.stack(ends), [-1, 2]))  # no copy if nothing is added
    sums = tf.reduce_sum(tf.reshape(filled, tf.stack([*before, chunks, CHUNK, *others])), 3)
    return tf.reduce_sum(tf.cast(sums, tf.float64), 2, keepdims=True)


def total_of_all(x: tf.Tensor) -> tf.Tensor:
    """Return the sum of all elements of a tensor `[N, rows, ...]`, a float64 scalar."""
    return tf.reshape(total(x[..., None], range(x.shape.rank)), [])


EPSILON = 1e-3
"""Epsilon of the fused operation: any value above the minimum that accelerators accept."""


def fuses(x: tf.Tensor, slope: tf.Tensor) -> bool:
    """Return whether `scale` supports these arguments: a 16-bit image `[N, H, W, C]` and one slope per channel.

    TensorFlow's batch normalisation with fixed statistics reads and writes the image once. Casts, Mul and AddV2 on wide
    copies took 1.1 of the 4.3 seconds that the operations of a step of ResNet-18 add up to, and this 0.3.
    """
    narrow = x.shape.rank == 4 and x.dtype in (tf.bfloat16, tf.float16)
    sizes = [1, *slope.shape.as_list()]
    return narrow and sizes[-1] == x.shape[-1] and all(n == 1 for n in sizes[:-1])


def scale(x: tf.Tensor, slope: tf.Tensor, offset: tf.Tensor) -> tf.Tensor:
    """Compute `x * slope + offset` per channel in float32, rounded once."""
    slope, offset, zero, one = _fused_arguments(slope, offset)
    y, *_ = tf.raw_ops.FusedBatchNormV3(
        x=x, scale=slope, offset=offset, mean=zero, variance=one, epsilon=EPSILON, is_training=False
    )
    return y


def scale_gradient(
    x: tf.Tensor, slope: tf.Tensor, dy: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return the gradients of `scale` for `x`, `slope` and `offset`; a strip is summed in float32."""
    slope, _, zero, one = _fused_arguments(slope, slope)
    dx, d_slope, d_offset, *_ = tf.raw_ops.FusedBatchNormGradV3(
        y_backprop=dy,
        x=x,
        scale=slope,
        reserve_space_1=zero,
        reserve_space_2=one,
        reserve_space_3=tf.zeros([0]),
        epsilon=EPSILON,
        is_training=False,
    )
    return dx, d_slope, d_offset


def _fused_arguments(slope: tf.Tensor, offset: tf.Tensor) -> list[tf.Tensor]:
    """Return slope, offset, and the mean and variance that make normalisation the identity, in float32."""
    slope, offset = (tf.cast(t, tf.float32) for t in (slope, offset))
    return [slope, offset, tf.zeros_like(slope), tf.fill(tf.shape(slope), 1 - EPSILON)]


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
    n, kind = tf.cast(count, tf.float64), wide(x.dtype)
    slope = 2 * d_variance / n
    shift = d_mean / n - slope * mean
    if fuses(x, slope):
        return scale(x, tf.reshape(slope, [-1]), tf.reshape(shift, [-1]))
    return tf.cast(tf.cast(x, kind) * tf.cast(slope, kind) + tf.cast(shift, kind), x.dtype)
