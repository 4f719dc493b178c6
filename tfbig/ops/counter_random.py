"""Random numbers that do not depend on how an image is cut into strips.

Philox is a counter-based generator: number `i` of a stream is a function of the key and `i // 4` alone (Salmon et al.,
"Parallel random numbers: as easy as 1, 2, 3", SC 2011). A strip therefore starts its counter at its first row, and a
mask can be recomputed row by row in the backward sweep.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

PHILOX = 1

Part = tuple[Any, Any]
"""First column (..., along one axis) of a tile, and the columns of the image."""


def uniform_rows(
    shape: Any, seed: tf.Tensor, first_row: Any, others: Sequence[Part] = ()
) -> tf.Tensor:
    """Draw uniform float32 numbers in [0, 1) for the rows of a strip.

    Args:
        shape: `[N, rows, ..., C]` of the strip.
        seed: Two integers.
        first_row: Row of the image at which the strip starts.
        others: Of a tile, its part of the columns, ...; the numbers of whole rows are drawn, and these kept.

    Returns:
        Tensor `[N, rows, ..., C]`; a row of the image gets the same numbers in every strip.
    """
    return _rows(tf.raw_ops.StatelessRandomUniformV2, shape, seed, first_row, others)


def normal_rows(
    shape: Any, seed: tf.Tensor, first_row: Any, others: Sequence[Part] = ()
) -> tf.Tensor:
    """Draw float32 numbers of the standard normal distribution for the rows of a strip.

    Args:
        shape: `[N, rows, ..., C]` of the strip.
        seed: Two integers.
        first_row: Row of the image at which the strip starts.
        others: Of a tile, its part of the columns, ...; the numbers of whole rows are drawn, and these kept.

    Returns:
        Tensor `[N, rows, ..., C]`; a row of the image gets the same numbers in every strip.
    """
    return _rows(tf.raw_ops.StatelessRandomNormalV2, shape, seed, first_row, others)


def _rows(
    draw: Callable[..., tf.Tensor],
    shape: Any,
    seed: tf.Tensor,
    first_row: Any,
    others: Sequence[Part],
) -> tf.Tensor:
    shape, kept = tf.unstack(shape), [slice(None), slice(None)]
    for axis, (first, size) in enumerate(others, 2):
        kept.append(slice(first, first + shape[axis]))
        shape[axis] = size
    numbers = _whole_rows(draw, tf.stack(shape), seed, first_row)
    return numbers[tuple(kept)] if others else numbers


def _whole_rows(
    draw: Callable[..., tf.Tensor], shape: tf.Tensor, seed: tf.Tensor, first_row: Any
) -> tf.Tensor:
    batch, rows, row = shape[0], shape[1], tf.reduce_prod(shape[2:])
    blocks = (row + 3) // 4  # each counter value yields four numbers
    counter = tf.cast(first_row, tf.int64) * tf.cast(batch * blocks, tf.int64)
    numbers = draw(
        shape=tf.stack([rows, batch, blocks * 4]),
        key=tf.bitcast(tf.cast(seed[:1], tf.int64), tf.uint64),
        counter=tf.bitcast(tf.stack([counter, tf.cast(seed[1], tf.int64)]), tf.uint64),
        alg=PHILOX,
        dtype=tf.float32,
    )
    return tf.reshape(tf.transpose(numbers[:, :, :row], [1, 0, 2]), shape)


def dropout(
    x: tf.Tensor,
    rate: float,
    seed: tf.Tensor,
    first_row: Any,
    alike: bool = False,
    others: Sequence[Part] = (),
) -> tf.Tensor:
    """Set a share `rate` of a strip to zero and scale the remaining numbers by `1 / (1 - rate)`.

    Args:
        x: Strip `[N, rows, ..., C]`.
        rate: Share to drop, from 0 to 1.
        seed: Two integers.
        first_row: Row of the image at which the strip starts.
        alike: Drop all channels of a pixel or none.
        others: Of a tile, its part of the columns, ..., as in `uniform_rows`.
    """
    shape = tf.shape(x)
    shape = tf.concat([shape[:-1], [1]], 0) if alike else shape
    keep = uniform_rows(shape, seed, first_row, others) >= rate
    scale = 1.0 / (1.0 - rate) if rate < 1 else 0.0
    return tf.where(keep, x * tf.constant(scale, x.dtype), tf.zeros([], x.dtype))


def uniform_at(seed: tf.Tensor, *coordinates: tf.Tensor) -> tf.Tensor:
    """Draw uniform float32 numbers in [0, 1), each a function of the seed and its coordinates alone.

    The bits are mixed by two multiplications and three shifts a coordinate (C. Wellons, "Prospecting for hash
    functions", 2018: `lowbias32`). They are good enough for dropout, where Philox would need the numbers of whole rows.

    Args:
        seed: Two integers.
        *coordinates: int32 tensors whose shapes broadcast to that of the result.
    """
    bits = tf.zeros([], tf.uint32)
    for each in (*tf.unstack(seed, num=2), *coordinates):
        bits = _mixed(tf.bitwise.bitwise_xor(bits, tf.cast(each, tf.uint32) * _CONSTANTS[0]))
    return tf.cast(tf.bitwise.right_shift(bits, tf.constant(8, tf.uint32)), tf.float32) / 2**24


_CONSTANTS = 0x9E3779B9, 0x7FEB352D, 0x846CA68B


def _mixed(bits: tf.Tensor) -> tf.Tensor:
    for shift, factor in zip((16, 15, 16), (*_CONSTANTS[1:], 1), strict=True):
        moved = tf.bitwise.right_shift(bits, tf.constant(shift, tf.uint32))
        bits = tf.bitwise.bitwise_xor(bits, moved) * tf.constant(factor, tf.uint32)
    return bits
