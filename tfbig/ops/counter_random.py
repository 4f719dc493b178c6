"""Random numbers that do not depend on how an image is cut.

The Philox generator counts: number `i` of a stream is a function of the key and `i // 4` alone (Salmon et al.,
"Parallel random numbers: as easy as 1, 2, 3", SC 2011). A strip therefore starts its counter where its first row
lies, and a mask can be made again row by row in the backward sweep.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

PHILOX = 1


def uniform_rows(shape: Any, seed: tf.Tensor, first_row: Any) -> tf.Tensor:
    """Uniform float32 numbers in [0, 1) for the rows `first_row, ...` of an image.

    Args:
        shape: `[N, rows, ..., C]` of the strip.
        seed: two integers.
        first_row: row of the image at which the strip starts.

    Returns:
        `[N, rows, ..., C]`; equal rows whatever the strips.
    """
    return _rows(tf.raw_ops.StatelessRandomUniformV2, shape, seed, first_row)


def normal_rows(shape: Any, seed: tf.Tensor, first_row: Any) -> tf.Tensor:
    """The same of the standard normal distribution."""
    return _rows(tf.raw_ops.StatelessRandomNormalV2, shape, seed, first_row)


def _rows(draw: Callable[..., tf.Tensor], shape: Any, seed: tf.Tensor, first_row: Any) -> tf.Tensor:
    batch, rows, row = shape[0], shape[1], tf.reduce_prod(shape[2:])
    blocks = (row + 3) // 4  # one count of the generator gives four numbers
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
    x: tf.Tensor, rate: float, seed: tf.Tensor, first_row: Any, alike: bool = False
) -> tf.Tensor:
    """Sets a share `rate` of `[N, r, ..., C]` to zero and scales the rest by `1 / (1 - rate)`.

    Args:
        alike: all channels of a pixel share their fate.
    """
    shape = tf.shape(x)
    shape = tf.concat([shape[:-1], [1]], 0) if alike else shape
    keep = uniform_rows(shape, seed, first_row) >= rate
    scale = 1.0 / (1.0 - rate) if rate < 1 else 0.0
    return tf.where(keep, x * tf.constant(scale, x.dtype), tf.zeros([], x.dtype))
