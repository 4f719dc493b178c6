"""What runs on one strip: convolution, pooling, resampling, with the padding that the image has.

Every function takes the rows that `Strip` describes and gives exactly the rows `[start, stop)` of the
output; sums run in the order of the plain TensorFlow kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import tensorflow as tf

from tfbig.geometry.windows import Resize, Transposed, Window


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


def take_rows(
    x: tf.Tensor, start: Any, size: Any, rows: Any = None, copy: bool = False
) -> tf.Tensor:
    """`x[:, start : start + size]`; without a copy where N is known to be 1.

    Args:
        rows: rows of `x`, where they are known without it: its gradient then does not depend on `x`, so that an
            operation whose value nothing else needs is pruned from a backward sweep.
        copy: make one in any case, of memory that is not TensorFlow's. That it never overwrites, but may overwrite the
            last slice of it, which says that it owns its memory (`SubBuffer` in `tensor.cc`).
    """
    rows = tf.shape(x)[1] if rows is None else rows

    @tf.custom_gradient
    def take(x: tf.Tensor) -> Any:
        def gradient(dy: tf.Tensor) -> tf.Tensor:
            return pad(dy, (start, rows - start - size), *[(0, 0)] * (dy.shape.rank - 3))

        return x[:, start : start + size] if copy else _slice_rows(x, start, size), gradient

    return take(x)


def _slice_rows(x: tf.Tensor, start: Any, size: Any) -> tf.Tensor:
    if x.shape[0] != 1:
        return x[:, start : start + size]
    flat = tf.reshape(x, tf.concat([[-1], tf.shape(x)[2:]], 0))  # [H, W, C]
    taken = tf.reshape(flat[start : start + size], tf.concat([[1, size], tf.shape(x)[2:]], 0))
    return tf.ensure_shape(taken, [1, None, *x.shape[2:]])


def pad(x: tf.Tensor, *amounts: Any, value: Any = 0) -> tf.Tensor:
    """Pads rows, columns, ... by `(before, after)` each; costs nothing where all are zero."""
    if all(isinstance(n, int) and n == 0 for pair in amounts for n in pair):
        return x
    paddings = [(0, 0), *amounts, (0, 0)]
    return tf.pad(
        x, tf.stack([tf.stack(p) for p in paddings]), constant_values=tf.cast(value, x.dtype)
    )


def pads(window: Window, x: tf.Tensor, axis: int) -> tuple[Any, Any]:
    """Padding of an axis that strips span in full; tensors where its size is not known."""
    size = x.shape[axis]
    if size is not None or window.padding != "same":
        return window.pads(size or 0)
    if window.stride == 1:
        return window.pads(window.span)
    size = tf.shape(x)[axis]
    outputs = (size + window.stride - 1) // window.stride
    total = tf.maximum((outputs - 1) * window.stride + window.span - size, 0)
    return total // 2, total - total // 2


def padded(
    x: tf.Tensor, axes: Sequence[Window], strip: Strip, value: Any = 0, position: int = 0
) -> tf.Tensor:
    """Input `position` of a strip with the padding of the image, so that a valid window gives its rows."""
    rows = strip.inputs[position]
    free = axes[0].span == 1 and axes[0].padding in ("valid", (0, 0))
    others = [pads(window, x, axis) for axis, window in enumerate(axes[1:], 2)]
    return pad(x, (0, 0) if free else (rows.before, rows.after), *others, value=value)


def is_same(axes: Sequence[Window]) -> bool:
    """Whether TensorFlow's own `SAME` on the strip is right up to the rows at its seams."""
    return all(a.padding == "same" and a.stride == 1 for a in axes)


def windowed(function: Any, x: tf.Tensor, axes: Sequence[Window], strip: Strip) -> tf.Tensor:
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
    x: tf.Tensor, kernel: tf.Tensor, axes: Sequence[Window], groups: int, strip: Strip
) -> tf.Tensor:
    """`[N, r, ..., C]` by `[k, ..., C / groups, F]`, as `keras.layers.Conv1D` to `Conv3D` without bias."""
    strides, dilations = [a.stride for a in axes], [a.dilation for a in axes]
    channels = x.shape[-1]
    if groups == channels and len(axes) < 3 and groups > 1:
        shape = [*kernel.shape[:-2], channels, kernel.shape[-1] // channels]
        return depthwise_convolution(x, tf.reshape(kernel, shape), axes, strip)

    def one(x: tf.Tensor, kernel: tf.Tensor, padding: str) -> tf.Tensor:
        return tf.nn.convolution(x, kernel, strides, padding, dilations=dilations)

    def run(x: tf.Tensor, padding: str) -> tf.Tensor:
        if groups == 1:
            return one(x, kernel, padding)
        parts = zip(tf.split(x, groups, -1), tf.split(kernel, groups, -1), strict=True)
        return tf.concat([one(a, k, padding) for a, k in parts], -1)

    return windowed(run, x, axes, strip)


def depthwise_convolution(
    x: tf.Tensor, kernel: tf.Tensor, axes: Sequence[Window], strip: Strip
) -> tf.Tensor:
    """`[N, r, ..., C]` by `[k, ..., C, M]`, as `keras.layers.DepthwiseConv1D` and `2D` without bias."""
    line = len(axes) == 1  # TensorFlow has two axes: the other one has a single place
    strides = (1, axes[0].stride, axes[-1].stride, 1)
    dilations = (axes[0].dilation, 1 if line else axes[1].dilation)
    kernel = tf.expand_dims(kernel, 1) if line else kernel

    def run(x: tf.Tensor, padding: str) -> tf.Tensor:
        x = tf.expand_dims(x, 2) if line else x
        y = tf.nn.depthwise_conv2d(x, kernel, strides, padding, dilations=dilations)
        return tf.squeeze(y, 2) if line else y

    return windowed(run, x, axes, strip)


def fit_rows(y: tf.Tensor, first: Any, strip: Strip, *others: Any) -> tf.Tensor:
    """Cuts or pads `y`, whose row 0 is row `first` of the output, to the rows of the strip.

    Args:
        others: padding of columns and further axes, none by default.
    """
    missing = tf.maximum(first - strip.start, 0)
    beyond = tf.maximum(strip.stop - (first + tf.shape(y)[1]), 0)
    others = others or ((0, 0),) * (y.shape.rank - 3)
    y = pad(y, (missing, beyond), *others)
    return take_rows(y, tf.maximum(strip.start - first, 0), strip.stop - strip.start)


def transposed_convolution(
    x: tf.Tensor, kernel: tf.Tensor, axes: Sequence[Transposed], strip: Strip
) -> tf.Tensor:
    """`[N, r, ..., C]` by `[k, ..., F, C]`, as `keras.layers.Conv1DTranspose` to `3D` without bias."""
    shape, filters = tf.shape(x), kernel.shape[-2]
    sizes = [shape[1], *(shape[i] if x.shape[i] is None else x.shape[i] for i in _others(axes))]
    full = [(n - 1) * a.stride + a.span for n, a in zip(sizes, axes, strict=True)]
    y = tf.nn.conv_transpose(
        x,
        kernel,
        tf.stack([shape[0], *full, filters]),
        [a.stride for a in axes],
        "VALID",
        dilations=[a.dilation for a in axes],
    )
    for i, window in zip(_others(axes), axes[1:], strict=True):
        y = _cut(y, i, window.cuts()[0], window.extent(sizes[i - 1]), full[i - 1])
    known = [a.extent(n) if isinstance(n, int) else None for a, n in zip(axes, sizes, strict=True)]
    y = tf.ensure_shape(y, [x.shape[0], None, *known[1:], filters])
    return fit_rows(y, strip.inputs[0].start * axes[0].stride - axes[0].cuts()[0], strip)


def _others(axes: Sequence[Any]) -> range:
    """Dimensions of the axes that strips span in full."""
    return range(2, len(axes) + 1)


def _cut(y: tf.Tensor, axis: int, first: int, wanted: Any, size: Any) -> tf.Tensor:
    """`wanted` places of an axis from `first` on; zeros where it ends before."""
    short = tf.maximum(wanted + first - size, 0)
    amounts = [(0, short) if i == axis else (0, 0) for i in range(1, y.shape.rank - 1)]
    return pad(y, *amounts)[(*[slice(None)] * axis, slice(first, first + wanted))]


def taps(axes: Sequence[Window]) -> int:
    """Places that a window reads."""
    return prod(a.kernel for a in axes)


def max_pool(x: tf.Tensor, axes: Sequence[Window], strip: Strip) -> tf.Tensor:
    """Maximum over windows; padding never wins."""
    x = padded(x, axes, strip, x.dtype.min)
    sizes, strides = [a.kernel for a in axes], [a.stride for a in axes]

    @tf.custom_gradient
    def pool(x: tf.Tensor) -> Any:
        return tf.nn.max_pool(x, sizes, strides, "VALID"), lambda dy: _max_pool_gradient(
            x, dy, sizes, strides
        )

    return pool(x)


def _max_pool_gradient(
    x: tf.Tensor, dy: tf.Tensor, sizes: Sequence[int], strides: Sequence[int]
) -> tf.Tensor:
    """Gradient of a pooling, in a graph of its own.

    TensorFlow replaces the gradient by that of oneDNN, 20 times as fast, only where it meets the pooling itself first,
    and in a graph with a loop it may meet it after (`MaxpoolGradRewrite` in `mkl_layout_pass.cc`).
    """

    @tf.function(autograph=False, experimental_attributes={"_noinline": True})
    def gradient(x: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.nn.max_pool(x, sizes, strides, "VALID")
        return tape.gradient(y, x, dy)

    return gradient(x, dy)


def average_pool(x: tf.Tensor, axes: Sequence[Window], strip: Strip) -> tf.Tensor:
    """Mean over the real pixels of each window."""
    sizes, strides = [a.kernel for a in axes], [a.stride for a in axes]
    if all(a.padding == "valid" for a in axes):
        return tf.nn.avg_pool(x, sizes, strides, "VALID")
    rows = strip.inputs[0]
    counts = _real_taps(
        axes[0], tf.range(strip.start, strip.stop), _row_pad(axes[0], rows), rows.extent
    )
    for i, window in zip(_others(axes), axes[1:], strict=True):
        size, before = tf.shape(x)[i], pads(window, x, i)[0]
        wanted = (size + window.stride - 1) // window.stride
        counts = counts[..., None] * _real_taps(window, tf.range(wanted), before, size)
    return _window_sums(padded(x, axes, strip), axes) / tf.cast(counts[..., None], x.dtype)


def _row_pad(window: Window, rows: Rows) -> Any:
    outputs = (rows.extent + window.stride - 1) // window.stride
    return tf.maximum((outputs - 1) * window.stride + window.span - rows.extent, 0) // 2


def _real_taps(window: Window, outputs: tf.Tensor, before: Any, extent: Any) -> tf.Tensor:
    first = outputs * window.stride - before
    return tf.minimum(first + window.kernel, extent) - tf.maximum(first, 0)


def _window_sums(x: tf.Tensor, axes: Sequence[Window]) -> tf.Tensor:
    shape, total = tf.shape(x), None
    counts = [(shape[i] - a.kernel) // a.stride + 1 for i, a in enumerate(axes, 1)]
    for taps in product(*(range(a.kernel) for a in axes)):
        places = zip(taps, counts, axes, strict=True)
        cut = [slice(t, t + (n - 1) * a.stride + 1, a.stride) for t, n, a in places]
        tap = x[(slice(None), *cut)]
        total = tap if total is None else total + tap
    return total


def repeat(x: tf.Tensor, axes: Sequence[Transposed], strip: Strip) -> tf.Tensor:
    """Nearest upsampling by the strides of the axes."""
    for i, axis in enumerate(axes, 1):
        x = tf.repeat(x, axis.stride, i)
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
