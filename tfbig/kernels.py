"""What runs on one strip: convolution, pooling, resampling, with the padding that the image has.

Every function takes the rows that `Strip` describes and gives exactly the rows `[start, stop)` of the
output; sums run in the order of the plain TensorFlow kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfbig.geometry import Resize, Transposed, Window


@dataclass(frozen=True)
class Rows:
    """Rows that one input gives to a strip; all integers are int32 scalars.

    Args:
        start, stop: first row and row after the last, inside the image.
        before, after: rows of padding that the window reaches beyond the image.
        extent: rows of the whole input image.
    """

    start: Any
    stop: Any
    before: Any
    after: Any
    extent: Any


@dataclass(frozen=True)
class Strip:
    """Where a strip lies.

    Args:
        start, stop: output rows to make.
        extent: rows of the whole output image.
        inputs: one `Rows` per image input, None for whole inputs.
    """

    start: Any
    stop: Any
    extent: Any
    inputs: tuple[Any, ...]


def take_rows(x: tf.Tensor, start: Any, size: Any, rows: Any = None) -> tf.Tensor:
    """`x[:, start : start + size]`; without a copy where N is known to be 1.

    Args:
        rows: rows of `x`, where they are known without it: its gradient then does not depend on `x`, so that an
            operation whose value nothing else needs is pruned from a backward sweep.
    """
    rows = tf.shape(x)[1] if rows is None else rows

    @tf.custom_gradient
    def take(x: tf.Tensor) -> Any:
        def gradient(dy: tf.Tensor) -> tf.Tensor:
            return pad(dy, (start, rows - start - size), (0, 0))

        return _slice_rows(x, start, size), gradient

    return take(x)


def _slice_rows(x: tf.Tensor, start: Any, size: Any) -> tf.Tensor:
    if x.shape[0] != 1:
        return x[:, start : start + size]
    flat = tf.reshape(x, tf.concat([[-1], tf.shape(x)[2:]], 0))  # [H, W, C]
    taken = tf.reshape(flat[start : start + size], tf.concat([[1, size], tf.shape(x)[2:]], 0))
    return tf.ensure_shape(taken, [1, None, *x.shape[2:]])


def pad(x: tf.Tensor, rows: Any, columns: Any, value: Any = 0) -> tf.Tensor:
    """Pads rows and columns by `(before, after)` each; costs nothing where all are zero."""
    amounts = [rows[0], rows[1], columns[0], columns[1]]
    if all(isinstance(a, int) and a == 0 for a in amounts):
        return x
    paddings = [(0, 0), tuple(rows), tuple(columns), (0, 0)]
    return tf.pad(
        x, tf.stack([tf.stack(p) for p in paddings]), constant_values=tf.cast(value, x.dtype)
    )


def column_pads(window: Window, x: tf.Tensor) -> tuple[Any, Any]:
    """Columns of padding for a strip of full width; tensors where the width is not known."""
    width = x.shape[2]
    if width is not None or window.padding != "same":
        return window.pads(width or 0)
    if window.stride == 1:
        return window.pads(window.span)
    width = tf.shape(x)[2]
    outputs = (width + window.stride - 1) // window.stride
    total = tf.maximum((outputs - 1) * window.stride + window.span - width, 0)
    return total // 2, total - total // 2


def padded(x: tf.Tensor, axes: tuple[Window, Window], strip: Strip, value: Any = 0) -> tf.Tensor:
    """The strip with the padding of the image, so that a valid window gives its rows."""
    rows = strip.inputs[0]
    free = axes[0].span == 1 and axes[0].padding in ("valid", (0, 0))
    return pad(x, (0, 0) if free else (rows.before, rows.after), column_pads(axes[1], x), value)


def is_same(axes: tuple[Window, Window]) -> bool:
    """Whether TensorFlow's own `SAME` on the strip is right up to the rows at its seams."""
    return all(a.padding == "same" and a.stride == 1 for a in axes)


def windowed(function: Any, x: tf.Tensor, axes: tuple[Window, Window], strip: Strip) -> tf.Tensor:
    """Runs `function(x, padding)` so that it gives the rows of the strip.

    With stride 1 and `same`, TensorFlow pads the strip as it would the image; the rows at a seam are
    then wrong and cut off, which costs no copy. Otherwise the padding is made and the window is valid.
    (Explicit paddings of `tf.nn.conv2d` would do both, but their gradient takes 1.7 times as long.)
    """
    if is_same(axes):
        rows = strip.inputs[0]
        y = function(x, "SAME")
        return take_rows(y, strip.start - rows.start, strip.stop - strip.start, tf.shape(x)[1])
    return function(padded(x, axes, strip), "VALID")


def convolution(
    x: tf.Tensor, kernel: tf.Tensor, axes: tuple[Window, Window], groups: int, strip: Strip
) -> tf.Tensor:
    """`[N, r, W, C]` by `[kh, kw, C / groups, F]`, as `keras.layers.Conv2D` without its bias."""
    strides = (axes[0].stride, axes[1].stride)
    dilations = (axes[0].dilation, axes[1].dilation)

    def one(x: tf.Tensor, kernel: tf.Tensor, padding: str) -> tf.Tensor:
        return tf.nn.convolution(x, kernel, strides, padding, dilations=dilations)

    def run(x: tf.Tensor, padding: str) -> tf.Tensor:
        if groups == 1:
            return one(x, kernel, padding)
        parts = zip(tf.split(x, groups, -1), tf.split(kernel, groups, -1), strict=True)
        return tf.concat([one(a, k, padding) for a, k in parts], -1)

    return windowed(run, x, axes, strip)


def depthwise_convolution(
    x: tf.Tensor, kernel: tf.Tensor, axes: tuple[Window, Window], strip: Strip
) -> tf.Tensor:
    """`[N, r, W, C]` by `[kh, kw, C, M]`, as `keras.layers.DepthwiseConv2D` without its bias."""
    strides = (1, axes[0].stride, axes[1].stride, 1)
    dilations = (axes[0].dilation, axes[1].dilation)

    def run(x: tf.Tensor, padding: str) -> tf.Tensor:
        return tf.nn.depthwise_conv2d(x, kernel, strides, padding, dilations=dilations)

    return windowed(run, x, axes, strip)


def fit_rows(y: tf.Tensor, first: Any, strip: Strip, columns: Any = (0, 0)) -> tf.Tensor:
    """Cuts or pads `y`, whose row 0 is row `first` of the output, to the rows of the strip; pads its columns."""
    missing = tf.maximum(first - strip.start, 0)
    beyond = tf.maximum(strip.stop - (first + tf.shape(y)[1]), 0)
    y = pad(y, (missing, beyond), columns)
    return take_rows(y, tf.maximum(strip.start - first, 0), strip.stop - strip.start)


def transposed_convolution(
    x: tf.Tensor, kernel: tf.Tensor, axes: tuple[Transposed, Transposed], strip: Strip
) -> tf.Tensor:
    """`[N, r, W, C]` by `[kh, kw, F, C]`, as `keras.layers.Conv2DTranspose` without its bias."""
    rows, columns = axes
    shape = tf.shape(x)
    full_rows = (shape[1] - 1) * rows.stride + rows.span
    width = shape[2] if x.shape[2] is None else x.shape[2]
    full_columns = (width - 1) * columns.stride + columns.span
    y = tf.nn.conv_transpose(
        x,
        kernel,
        tf.stack([shape[0], full_rows, full_columns, kernel.shape[2]]),
        (rows.stride, columns.stride),
        "VALID",
        dilations=(rows.dilation, columns.dilation),
    )
    left, wanted = columns.cuts()[0], columns.extent(width)
    short = wanted + left - full_columns
    y = pad(y, (0, 0), (0, tf.maximum(short, 0)))[:, :, left : left + wanted]
    y = tf.ensure_shape(y, [x.shape[0], None, wanted if x.shape[2] else None, kernel.shape[2]])
    return fit_rows(y, strip.inputs[0].start * rows.stride - rows.cuts()[0], strip)


def max_pool(x: tf.Tensor, axes: tuple[Window, Window], strip: Strip) -> tf.Tensor:
    """Maximum over windows; padding never wins."""
    x = padded(x, axes, strip, x.dtype.min)
    size, strides = [(a.kernel, a.stride) for a in axes], None
    strides = [s for _, s in size]
    return tf.nn.max_pool2d(x, [k for k, _ in size], strides, "VALID")


def average_pool(x: tf.Tensor, axes: tuple[Window, Window], strip: Strip) -> tf.Tensor:
    """Mean over the real pixels of each window."""
    sizes, strides = [a.kernel for a in axes], [a.stride for a in axes]
    if all(a.padding == "valid" for a in axes):
        return tf.nn.avg_pool2d(x, sizes, strides, "VALID")
    rows = strip.inputs[0]
    left = column_pads(axes[1], x)[0]
    width = tf.shape(x)[2]
    wanted = (width + strides[1] - 1) // strides[1]
    deep = _real_taps(
        axes[0], tf.range(strip.start, strip.stop), _row_pad(axes[0], rows), rows.extent
    )
    wide = _real_taps(axes[1], tf.range(wanted), left, width)
    counts = tf.cast(deep[:, None, None] * wide[None, :, None], x.dtype)
    return _window_sums(padded(x, axes, strip), sizes, strides) / counts


def _row_pad(window: Window, rows: Rows) -> Any:
    outputs = (rows.extent + window.stride - 1) // window.stride
    return tf.maximum((outputs - 1) * window.stride + window.span - rows.extent, 0) // 2


def _real_taps(window: Window, outputs: tf.Tensor, before: Any, extent: Any) -> tf.Tensor:
    first = outputs * window.stride - before
    return tf.minimum(first + window.kernel, extent) - tf.maximum(first, 0)


def _window_sums(x: tf.Tensor, sizes: list[int], strides: list[int]) -> tf.Tensor:
    shape = tf.shape(x)
    rows = (shape[1] - sizes[0]) // strides[0] + 1
    columns = (shape[2] - sizes[1]) // strides[1] + 1
    total = None
    for i in range(sizes[0]):
        for j in range(sizes[1]):
            stop = (i + (rows - 1) * strides[0] + 1, j + (columns - 1) * strides[1] + 1)
            tap = x[:, i : stop[0] : strides[0], j : stop[1] : strides[1]]
            total = tap if total is None else total + tap
    return total


def repeat(x: tf.Tensor, axes: tuple[Transposed, Transposed], strip: Strip) -> tf.Tensor:
    """Nearest upsampling by the strides of the axes."""
    x = tf.repeat(tf.repeat(x, axes[0].stride, 1), axes[1].stride, 2)
    return fit_rows(x, strip.inputs[0].start * axes[0].stride, strip)


def bilinear(x: tf.Tensor, axes: tuple[Resize, Resize], strip: Strip) -> tf.Tensor:
    """Bilinear upsampling with half-pixel centres, as `tf.image.resize`, in float32 coordinates."""
    rows = strip.inputs[0]
    dtype, width = x.dtype, tf.shape(x)[2]
    x = tf.cast(x, tf.float32)
    lower, upper, share = _centres(axes[0].factor, tf.range(strip.start, strip.stop), rows.extent)
    left, right, part = _centres(axes[1].factor, tf.range(width * axes[1].factor), width)
    x = tf.gather(x, lower - rows.start, axis=1), tf.gather(x, upper - rows.start, axis=1)
    top, bottom = ((tf.gather(r, left, axis=2), tf.gather(r, right, axis=2)) for r in x)
    part, share = part[:, None], share[:, None, None]
    above = top[0] + (top[1] - top[0]) * part
    below = bottom[0] + (bottom[1] - bottom[0]) * part
    return tf.cast(above + (below - above) * share, dtype)


def _centres(
    factor: int, outputs: tf.Tensor, extent: Any
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    at = (tf.cast(outputs, tf.float32) + 0.5) * tf.constant(1.0 / factor, tf.float32) - 0.5
    lower = tf.maximum(tf.cast(tf.floor(at), tf.int32), 0)
    upper = tf.minimum(tf.cast(tf.math.ceil(at), tf.int32), extent - 1)
    return lower, upper, at - tf.floor(at)
