"""Interpolation of one strip or tile, with the weights that `tf.image.resize` has in the whole image.

Half-pixel centres: output row `o` of `size` is centred at `(o + 1/2) * n / size` of an input of n rows, in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfbig.ops.kernels import Strip
from tfbig.system import traces

RADIUS = {"bilinear": 1, "bicubic": 2, "lanczos3": 3, "lanczos5": 5, "nearest": 1}
"""Input rows from a centre to the farthest that counts, without antialiasing."""

TABLE = 1024
"""Places between two pixels at which TensorFlow computes bicubic weights."""

Taps = tuple[tf.Tensor, tf.Tensor]
"""First input row of each output row, `[o]` int32; weights of this row and those after it, `[o, taps]` float32."""


def resize(
    x: tf.Tensor, sizes: Sequence[Any], method: str, antialias: bool, strip: Strip
) -> tf.Tensor:
    """Resize a strip, as `tf.image.resize` the image.

    Args:
        x: Input rows `[N, r, c, C]`.
        sizes: Function from the length of each axis to that of the result.
        method: Key of `RADIUS`.
        antialias: Whether an image is smoothed where it gets smaller.
        strip: Position of the strip.

    Returns:
        The rows of the strip, in the element type of `x`; integers are rounded.
    """
    y = x if method == "nearest" else tf.cast(x, tf.float32)
    for axis, size in enumerate(sizes):
        along = strip.along(axis)
        if along is None:
            first, length = 0, tf.shape(x)[axis + 1]
            outputs = tf.range(size(length))
        else:
            first, length = along.inputs[0].start, along.inputs[0].extent
            outputs = tf.range(along.start, along.stop)
        if method == "nearest":
            y = tf.gather(y, nearest(outputs, length, size(length)) - first, axis=axis + 1)
            continue
        start, weights = taps(outputs, length, size(length), method, antialias)
        y = _blended(y, axis + 1, start, weights, first, length)
    if x.dtype.is_integer and method != "nearest":
        y = tf.round(y)
    return tf.saturate_cast(y, x.dtype)


def nearest(outputs: tf.Tensor, length: Any, size: Any) -> tf.Tensor:
    """Return the input row of some output rows. Args: as in `taps`."""
    rows = tf.floor((_float(outputs) + 0.5) * _ratio(length, size))
    return tf.minimum(tf.cast(rows, tf.int32), length - 1)


def taps(outputs: tf.Tensor, length: Any, size: Any, method: str, antialias: bool) -> Taps:
    """Return the rows that some output rows are computed from.

    Args:
        outputs: The output rows, `[o]` int32.
        length: Rows of the whole input image.
        size: Rows of the whole output image.
        method: `"bilinear"`, `"bicubic"`, `"lanczos3"` or `"lanczos5"`.
        antialias: As in `resize`.
    """
    if antialias or method.startswith("lanczos"):
        return _spans(outputs, length, size, method, antialias)
    at = (_float(outputs) + 0.5) * _ratio(length, size) - 0.5
    lower = tf.floor(at)
    share, start = at - lower, tf.cast(lower, tf.int32)
    if method == "bilinear":
        return start, tf.stack([1 - share, share], 1)
    share = tf.round(share * TABLE) / TABLE
    around = tf.stack([1 + share, share, 1 - share, 2 - share], 1)
    return start - 1, _normalised(_cubic(around), start - 1, length)


def _spans(outputs: tf.Tensor, length: Any, size: Any, method: str, antialias: bool) -> Taps:
    """Return the rows that `ScaleAndTranslate` reads."""
    radius, kernel = RADIUS[method], _KERNELS[method]
    inverse = tf.cast(1 / tf.cast(_ratio(size, length), tf.float64), tf.float32)
    scale = tf.maximum(inverse, 1.0) if antialias else tf.constant(1.0)
    centre = (_float(outputs) + 0.5) * inverse
    start = tf.cast(tf.math.ceil(centre - radius * scale - 0.5), tf.int32)
    stop = tf.cast(tf.floor(centre + radius * scale - 0.5), tf.int32) + 1
    count = 2 * tf.cast(tf.math.ceil(radius * scale), tf.int32) + 1
    rows = start[:, None] + tf.range(count if antialias else 2 * radius + 1)
    weights = kernel(tf.abs((_float(rows) + 0.5 - centre[:, None]) * (1 / scale)))
    weights = tf.where(rows < stop[:, None], weights, 0.0)
    return start, _normalised(weights, start, length)


def _normalised(weights: tf.Tensor, start: tf.Tensor, length: Any) -> tf.Tensor:
    """Return weights with a sum of 1, and of 0 for rows outside the image."""
    rows = start[:, None] + tf.range(tf.shape(weights)[1])
    inside = tf.where((rows >= 0) & (rows < length), weights, 0.0)
    return inside / tf.reduce_sum(inside, 1, keepdims=True)


def _cubic(x: tf.Tensor) -> tf.Tensor:
    near, far = ((1.5 * x - 2.5) * x) * x + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2
    return tf.where(x < 1, near, tf.where(x < 2, far, 0.0))


def _triangle(x: tf.Tensor) -> tf.Tensor:
    return tf.maximum(1 - x, 0)


def _lanczos(radius: int) -> Callable[[tf.Tensor], tf.Tensor]:
    def kernel(x: tf.Tensor) -> tf.Tensor:
        angle = np.float32(np.pi) * tf.maximum(x, 1e-3)
        wave = radius * tf.sin(angle) * tf.sin(angle / radius) / (angle * angle)
        return tf.where(x > radius, 0.0, tf.where(x <= 1e-3, 1.0, wave))

    return kernel


_KERNELS: dict[str, Callable[[tf.Tensor], tf.Tensor]] = {
    "bilinear": _triangle,
    "bicubic": _cubic,
    "lanczos3": _lanczos(3),
    "lanczos5": _lanczos(5),
}


def _blended(
    x: tf.Tensor, axis: int, start: tf.Tensor, weights: tf.Tensor, first: Any, length: Any
) -> tf.Tensor:
    """Return weighted sums of rows: `sum(weights[:, t] * x[start + t - first])` along an axis of a strip."""
    order = [axis, *(i for i in range(x.shape.rank) if i != axis)]
    back = [order.index(i) for i in range(x.shape.rank)]
    read, number = tf.shape(x)[axis], weights.shape[1] or tf.shape(weights)[1]

    def each(add: Callable[[Any, tf.Tensor, tf.Tensor], Any], total: Any) -> Any:
        """Return a sum over the taps of `add(total, rows, weights)`."""

        def step(tap: Any, total: Any) -> tuple[Any, Any]:
            inside = tf.clip_by_value(start + tap, 0, length - 1) - first
            along = weights[:, tap][(slice(None), *[None] * (x.shape.rank - 1))]
            return tap + 1, add(total, tf.clip_by_value(inside, 0, read - 1), along)

        loop = tf.while_loop(lambda tap, total: tap < number, step, (tf.constant(0), total))
        return loop[1]

    @traces.custom_gradient
    def blend(x: tf.Tensor) -> Any:
        rows = tf.transpose(x, order)
        shape = tf.concat([tf.shape(start), tf.shape(rows)[1:]], 0)

        def gradient(dy: tf.Tensor) -> tf.Tensor:
            dy = tf.transpose(dy, order)

            def add(total: tf.Tensor, rows: tf.Tensor, along: tf.Tensor) -> tf.Tensor:
                more = tf.math.unsorted_segment_sum(along * dy, rows, read)
                return total + tf.ensure_shape(more, total.shape)

            zeros = tf.zeros(tf.concat([[read], tf.shape(dy)[1:]], 0), dy.dtype)
            dx = each(add, tf.ensure_shape(zeros, [None, *rows.shape[1:]]))
            return tf.ensure_shape(tf.transpose(dx, back), x.shape)

        def add(total: tf.Tensor, places: tf.Tensor, along: tf.Tensor) -> tf.Tensor:
            return total + tf.ensure_shape(along * tf.gather(rows, places), total.shape)

        zeros = tf.ensure_shape(tf.zeros(shape, rows.dtype), [None, *rows.shape[1:]])
        return tf.transpose(each(add, zeros), back), gradient

    return blend(x)


def _float(number: Any) -> tf.Tensor:
    return tf.cast(number, tf.float32)


def _ratio(first: Any, second: Any) -> tf.Tensor:
    """Return a quotient, rounded once to float32.

    In a graph, TensorFlow replaces the division by a constant by a multiplication, which it may not round likewise in
    float32.
    """
    return _float(tf.cast(first, tf.float64) / tf.cast(second, tf.float64))
