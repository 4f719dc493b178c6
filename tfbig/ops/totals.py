"""Sums over the pixels of images, in float64, that hardly depend on the cut into strips."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import mul
from typing import Any

import tensorflow as tf

from tfbig.system import traces
from tfbig.units import ceil_div


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
