"""Convolution, pooling and resampling of one strip or tile, with the padding of the whole image.

Every function accepts the input rows that `Strip` describes and returns exactly the output rows `[start, stop)`;
numbers are summed in the order of the plain TensorFlow kernel. Images are always cut along the rows; those cut into
tiles are also cut along the columns, or further axes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from math import gcd, prod
from typing import Any

import tensorflow as tf

from tfbig.geometry.windows import Resize, Transposed, Window
from tfbig.ops import totals
from tfbig.system import backend, traces
from tfbig.system.backend import HOST


@dataclass(frozen=True)
class InputRows:
    """Rows, columns, ... of one input that a strip reads, along one axis; all fields are int32 scalars.

    Args:
        start: First row, inside the image.
        stop: Row after the last, inside the image.
        before: Rows of padding before the image that the window reads.
        after: Rows of padding after the image that the window reads.
        extent: Rows of the whole input image.
    """

    start: Any
    stop: Any
    before: Any
    after: Any
    extent: Any


@dataclass(frozen=True)
class Copies:
    """Number of times that a strip occurs in an image: 1, or many for a piece of the background.

    Args:
        number: float64 scalar.
    """

    number: tf.Tensor

    def of(self, t: tf.Tensor) -> tf.Tensor:
        """Return a tensor times the number, in its dtype."""
        return t * tf.cast(self.number, t.dtype)


@dataclass(frozen=True)
class Strip:
    """Position of a strip in the output image, and the input rows that it reads.

    Args:
        start: First output row.
        stop: Row after the last output row.
        extent: Rows of the whole output image.
        inputs: One `InputRows` per image input, None for whole values.
        others: Of a tile, its position along the columns and every further axis that the image is cut along; empty
            for a strip of whole rows.
        copies: Number of times that the strip occurs in the image; None for once.
        compiled: Whether XLA compiles what computes the strip.
    """

    start: Any
    stop: Any
    extent: Any
    inputs: tuple[Any, ...]
    others: tuple[Strip, ...] = ()
    copies: Copies | None = None
    compiled: bool = False

    @property
    def axes(self) -> tuple[Strip, ...]:
        """Position along each axis that the image is cut along, rows first."""
        return (self, *self.others)

    def along(self, axis: int) -> Strip | None:
        """Return the position along an axis, 0 for the rows; None if the image is not cut along it."""
        return self.axes[axis] if axis < len(self.axes) else None

    def of_input(self, position: int) -> list[InputRows]:
        """Return what the strip reads of an input, along each axis that the image is cut along."""
        return [along.inputs[position] for along in self.axes]


DATA_FORMATS = {1: "NWC", 2: "NHWC", 3: "NDHWC"}
"""Names of the layout of images by their number of spatial axes.

They are the defaults, but without its name TensorFlow has no gradient of a convolution of eager volumes.
"""

Part = tuple[Any, Any]
"""First row (column, ...) and number of rows to take."""


def take(
    x: tf.Tensor, parts: Sequence[Part], sizes: Sequence[Any] | None = None, copy: bool = False
) -> tf.Tensor:
    """Return a part of an image along its first spatial axes; rows alone are not copied if N is statically 1.

    Args:
        x: Image `[N, rows, ..., C]`.
        parts: The rows to take; then columns, ... if not all of them are taken.
        sizes: Size of `x` along these axes, if known otherwise: the gradient then does not depend on `x`, so an
            operation whose value is needed for nothing else is pruned from a backward sweep.
        copy: Always copy. Required if `x` is in memory that TensorFlow does not own: TensorFlow never overwrites
            that memory itself, but may overwrite its last slice, which claims to own it (`SubBuffer` in `tensor.cc`).
    """
    if sizes is None:
        sizes = tf.unstack(tf.shape(x), num=x.shape.rank)[1 : len(parts) + 1]

    @traces.custom_gradient
    def cut(x: tf.Tensor) -> Any:
        def gradient(dy: tf.Tensor) -> tf.Tensor:
            ends = zip(parts, sizes, strict=True)
            around = [(start, size - start - taken) for (start, taken), size in ends]
            return pad(dy, *around, *[(0, 0)] * (dy.shape.rank - 2 - len(parts)))

        return _slice(x, parts, copy), gradient

    return cut(x)


def take_rows(
    x: tf.Tensor, start: Any, size: Any, rows: Any = None, copy: bool = False
) -> tf.Tensor:
    """Return `x[:, start : start + size]`, see `take`.

    Args:
        x: Image `[N, rows, ..., C]`.
        start: First row.
        size: Number of rows.
        rows: Rows of `x`, if known otherwise.
        copy: Always copy.
    """
    return take(x, [(start, size)], None if rows is None else [rows], copy)


def _slice(x: tf.Tensor, parts: Sequence[Part], copy: bool) -> tf.Tensor:
    if len(parts) == 1 and not copy:
        return _slice_rows(x, *parts[0])
    return x[(slice(None), *(slice(start, start + size) for start, size in parts))]


def _slice_rows(x: tf.Tensor, start: Any, size: Any) -> tf.Tensor:
    if x.shape[0] != 1:
        return x[:, start : start + size]
    flat = tf.squeeze(x, 0)  # [H, W, C]: rows of it share its memory
    taken = tf.expand_dims(flat[start : start + size], 0)
    return tf.ensure_shape(taken, [1, None, *x.shape[2:]])


def pad(x: tf.Tensor, *amounts: Any, value: Any = 0) -> tf.Tensor:
    """Pad rows, columns, ... by `(before, after)` each; free if all amounts are the integer 0."""
    if all(isinstance(n, int) and n == 0 for pair in amounts for n in pair):
        return x
    zero = tf.constant(0)
    numbers = [zero if isinstance(n, int) and n == 0 else n for pair in amounts for n in pair]
    paddings = tf.reshape(tf.stack([zero, zero, *numbers, zero, zero]), [-1, 2])
    if isinstance(value, int) and value == 0:
        result = tf.pad(x, paddings)
    else:
        with tf.device(HOST):  # where the kernel of an accelerator reads the value
            filling = tf.constant(value, x.dtype)
        result = tf.pad(x, paddings, constant_values=filling)
    result.set_shape([x.shape[0], *[None] * (x.shape.rank - 2), x.shape[-1]])
    return result


def pads(window: Window, x: tf.Tensor, axis: int) -> tuple[Any, Any]:
    """Return the padding of an axis that strips span in full; tensors if its size is not static."""
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
    """Pad input `position` of a strip like the image, so that a valid window returns the rows of the strip."""
    around = [_padding_along(x, axis, window, strip, position) for axis, window in enumerate(axes)]
    return pad(x, *around, value=value)


def _padding_along(
    x: tf.Tensor, axis: int, window: Window, strip: Strip, position: int = 0
) -> tuple[Any, Any]:
    """Return the padding of an input of a strip along one axis, 0 for the rows."""
    along = strip.along(axis)
    if along is None:
        return pads(window, x, axis + 1)
    if window.span == 1 and window.padding in ("valid", (0, 0)):
        return 0, 0
    return along.inputs[position].before, along.inputs[position].after


def is_same(axes: Sequence[Window]) -> bool:
    """Return whether TensorFlow's SAME padding of the strip equals that of the image except at the strip borders.

    It does for windows with a dilation too, but TensorFlow pads those only for kernels of a static shape.
    """
    return all(a.padding == "same" and a.stride == a.dilation == 1 for a in axes)


def accepts_more(axes: Sequence[Window]) -> bool:
    """Return whether a convolution may be given rows around those that it needs: it cuts its result, see `windowed`."""
    return is_same(axes) and taps(axes) > 1


def windowed(function: Any, x: tf.Tensor, axes: Sequence[Window], strip: Strip) -> tf.Tensor:
    """Run `function(x, padding)` so that it returns the rows of the strip.

    With `same`, stride 1 and no dilation, TensorFlow pads the strip as it would the image; the rows at its borders are
    then wrong and cut off, which costs no copy. Otherwise `x` is padded here and the window is valid.
    (Explicit paddings of `tf.nn.conv2d` would do both, but their gradient takes 1.7 times as long.)
    """
    if is_same(axes):
        y, shape = function(x, "SAME"), tf.unstack(tf.shape(x), num=x.shape.rank)
        parts = [(a.start - a.inputs[0].start, a.stop - a.start) for a in strip.axes]
        return take(y, parts, shape[1 : len(parts) + 1])
    return function(padded(x, axes, strip), "VALID")


def convolution(
    x: tf.Tensor, kernel: tf.Tensor, axes: Sequence[Window], groups: int, strip: Strip
) -> tf.Tensor:
    """Convolve a strip, as `keras.layers.Conv1D` to `Conv3D` without bias.

    Args:
        x: Input rows `[N, r, ..., C]`.
        kernel: Weights `[k, ..., C / groups, F]`.
        axes: Window of each axis.
        groups: Number of channel groups.
        strip: Position of the strip.
    """
    strides, dilations = [a.stride for a in axes], [a.dilation for a in axes]
    channels = x.shape[-1]
    if groups == channels and len(axes) < 3 and groups > 1:
        shape = [*kernel.shape[:-2], channels, kernel.shape[-1] // channels]
        return depthwise_convolution(x, tf.reshape(kernel, shape), axes, strip)

    def one(x: tf.Tensor, kernel: tf.Tensor, padding: str) -> tf.Tensor:
        if len(axes) == 2 and taps(axes) == prod(strides) == 1 and not backend.accelerator():
            return pixelwise(x, kernel)
        data_format = DATA_FORMATS[len(axes)]
        return tf.nn.convolution(x, kernel, strides, padding, data_format, dilations)

    def run(x: tf.Tensor, padding: str) -> tf.Tensor:
        if groups == 1:
            return one(x, kernel, padding)
        parts = zip(tf.split(x, groups, -1), tf.split(kernel, groups, -1), strict=True)
        return tf.concat([one(a, k, padding) for a, k in parts], -1)

    return windowed(run, x, axes, strip)


@traces.custom_gradient
def pixelwise(x: tf.Tensor, kernel: tf.Tensor) -> Any:
    """Convolve with a kernel of one pixel, so that the gradient of the kernel is one product of matrices.

    On a CPU, this product takes less time than TensorFlow's gradient of the convolution.

    Args:
        x: Image `[N, H, W, C]`.
        kernel: Weights `[1, 1, C, F]`.
    """
    step = [1, 1, 1, 1]

    def gradient(dy: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        dx = tf.raw_ops.Conv2DBackpropInput(
            input_sizes=tf.shape(x), filter=kernel, out_backprop=dy, strides=step, padding="VALID"
        )
        shape = tf.shape(kernel)
        pixels, d_pixels = tf.reshape(x, [-1, shape[2]]), tf.reshape(dy, [-1, shape[3]])
        return dx, tf.reshape(tf.matmul(pixels, d_pixels, transpose_a=True), shape)

    return tf.nn.conv2d(x, kernel, step, "VALID"), gradient


@traces.custom_gradient
def add_bias(y: tf.Tensor, bias: tf.Tensor) -> Any:
    """Add a bias to every pixel; its gradient is summed as moments are.

    Args:
        y: Image `[N, rows, ..., C]`.
        bias: `[C]`.
    """

    def gradient(dy: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        summed = totals.total(dy, range(dy.shape.rank - 1))
        return dy, tf.cast(tf.reshape(summed, tf.shape(bias)), bias.dtype)

    return tf.nn.bias_add(y, bias), gradient


def depthwise_convolution(
    x: tf.Tensor, kernel: tf.Tensor, axes: Sequence[Window], strip: Strip
) -> tf.Tensor:
    """Convolve each channel of a strip, as `keras.layers.DepthwiseConv1D` and `2D` without bias.

    Args:
        x: Input rows `[N, r, ..., C]`.
        kernel: Weights `[k, ..., C, M]`.
        axes: Window of each axis.
        strip: Position of the strip.
    """
    line = len(axes) == 1  # TensorFlow requires two axes: add one of size 1
    dilations = (axes[0].dilation, 1 if line else axes[1].dilation)
    step = _common_stride(axes)
    kernel = tf.expand_dims(kernel, 1) if line else kernel

    def run(x: tf.Tensor, padding: str) -> tf.Tensor:
        x = tf.expand_dims(x, 2) if line else x
        y = tf.nn.depthwise_conv2d(x, kernel, (1, step, step, 1), padding, dilations=dilations)
        y = tf.squeeze(y, 2) if line else y
        skipped = [slice(None, None, a.stride // step) for a in axes]
        return y if all(a.stride == step for a in axes) else y[(slice(None), *skipped)]

    return windowed(run, x, axes, strip)


def _common_stride(axes: Sequence[Window]) -> int:
    """Return a stride that divides those of all axes and that TensorFlow has for a depthwise convolution.

    It has equal strides only, and with a dilation only 1.
    """
    return gcd(*(a.stride for a in axes)) if all(a.dilation == 1 for a in axes) else 1


def fit(
    y: tf.Tensor, firsts: Sequence[Any], strip: Strip, others: Sequence[Any] = (), value: Any = 0
) -> tf.Tensor:
    """Crop or pad `y` to the strip.

    Args:
        y: Image `[N, r, ..., C]`.
        firsts: Row, column, ... of the output image that is the first of `y`, along each axis.
        strip: Position of the strip.
        others: Padding `(before, after)` along each axis, for those that the image is not cut along; none by default.
        value: Value of the padding.
    """
    shape, amounts = tf.shape(y), list(others or [(0, 0)] * (y.shape.rank - 2))
    for i, along in enumerate(strip.axes):
        beyond = along.stop - (firsts[i] + shape[i + 1])
        amounts[i] = tf.maximum(firsts[i] - along.start, 0), tf.maximum(beyond, 0)
    cut = zip(strip.axes, firsts, strict=False)
    parts = [(tf.maximum(a.start - first, 0), a.stop - a.start) for a, first in cut]
    return take(pad(y, *amounts, value=value), parts)


def transposed_convolution(
    x: tf.Tensor, kernel: tf.Tensor, axes: Sequence[Transposed], strip: Strip
) -> tf.Tensor:
    """Compute the transposed convolution of a strip, as `keras.layers.Conv1DTranspose` to `3D` without bias.

    Args:
        x: Input rows `[N, r, ..., C]`.
        kernel: Weights `[k, ..., F, C]`.
        axes: Transposed window of each axis.
        strip: Position of the strip.
    """
    shape, filters = tf.shape(x), kernel.shape[-2]
    sizes = [
        x.shape[i] if i > len(strip.axes) and x.shape[i] is not None else shape[i]
        for i in range(1, len(axes) + 1)
    ]
    full = [(n - 1) * a.stride + a.span for n, a in zip(sizes, axes, strict=True)]
    y = tf.nn.conv_transpose(
        x,
        kernel,
        tf.stack([shape[0], *full, filters]),
        [a.stride for a in axes],
        "VALID",
        data_format=DATA_FORMATS[len(axes)],
        dilations=[a.dilation for a in axes],
    )
    cut = len(strip.axes)
    for i, window in enumerate(axes[cut:], cut):
        y = _cut(y, i + 1, window.cuts()[0], window.extent(sizes[i]), full[i])
    static = [a.extent(n) if isinstance(n, int) else None for a, n in zip(axes, sizes, strict=True)]
    y = tf.ensure_shape(y, [x.shape[0], *[None] * cut, *static[cut:], filters])
    pairs = zip(strip.of_input(0), axes, strict=False)
    return fit(y, [rows.start * axis.stride - axis.cuts()[0] for rows, axis in pairs], strip)


def _cut(y: tf.Tensor, axis: int, first: int, length: Any, size: Any) -> tf.Tensor:
    """Return `length` positions of an axis of length `size`, starting at `first`; zeros beyond its end."""
    short = tf.maximum(length + first - size, 0)
    amounts = [(0, short) if i == axis else (0, 0) for i in range(1, y.shape.rank - 1)]
    return pad(y, *amounts)[(*[slice(None)] * axis, slice(first, first + length))]


def taps(axes: Sequence[Window]) -> int:
    """Return the number of taps of a window, over all axes."""
    return prod(a.kernel for a in axes)


MOST_TAPS = 16
"""Largest window whose maximum is computed tap by tap where XLA compiles it.

Its gradient is then a sum over the windows of a pixel. In XLA, that of TensorFlow's pooling becomes a scatter with
atomic additions: slower on a GPU, and its sums are in no order.
"""


def max_pool(x: tf.Tensor, axes: Sequence[Window], strip: Strip) -> tf.Tensor:
    """Return the maximum over windows; padding is never the maximum."""
    x = padded(x, axes, strip, x.dtype.min)
    sizes, strides = [a.kernel for a in axes], [a.stride for a in axes]
    if strip.compiled and prod(sizes) <= MOST_TAPS:
        return reduce(tf.maximum, _taps(x, axes))  # the gradient goes to the first maximum

    @traces.custom_gradient
    def pool(x: tf.Tensor) -> Any:
        return tf.nn.max_pool(x, sizes, strides, "VALID"), lambda dy: _max_pool_gradient(
            x, dy, sizes, strides
        )

    return pool(x)


def _max_pool_gradient(
    x: tf.Tensor, dy: tf.Tensor, sizes: Sequence[int], strides: Sequence[int]
) -> tf.Tensor:
    """Return the gradient of max pooling, computed in a separate graph.

    TensorFlow replaces the gradient by the one of oneDNN, 20 times as fast, only if it visits the pooling before the
    gradient; in a graph with a loop it may visit it after (`MaxpoolGradRewrite` in `mkl_layout_pass.cc`).
    """

    @tf.function(autograph=False, experimental_attributes={"_noinline": True})
    def gradient(x: tf.Tensor, dy: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.nn.max_pool(x, sizes, strides, "VALID")
        return tape.gradient(y, x, dy)

    return gradient(x, dy)


def average_pool(x: tf.Tensor, axes: Sequence[Window], strip: Strip) -> tf.Tensor:
    """Return the mean over the pixels of each window, padding excluded."""
    sizes, strides = [a.kernel for a in axes], [a.stride for a in axes]
    if all(a.padding == "valid" for a in axes):
        return tf.nn.avg_pool(x, sizes, strides, "VALID")
    counts = tf.ones([], tf.int32)
    for i, window in enumerate(axes):
        counts = counts[..., None] * _tap_counts(x, i, window, strip.along(i))
    return _window_sums(padded(x, axes, strip), axes) / tf.cast(counts[..., None], x.dtype)


def _tap_counts(x: tf.Tensor, axis: int, window: Window, along: Strip | None) -> tf.Tensor:
    """Return the number of taps inside the image for each output position of a strip along an axis."""
    if along is not None:
        extent = along.inputs[0].extent
        return _real_taps(
            window, tf.range(along.start, along.stop), _row_pad(window, extent), extent
        )
    size, before = tf.shape(x)[axis + 1], pads(window, x, axis + 1)[0]
    outputs = (size + window.stride - 1) // window.stride
    return _real_taps(window, tf.range(outputs), before, size)


def _row_pad(window: Window, extent: Any) -> Any:
    """Return the rows of padding before an image of some rows with SAME padding."""
    outputs = (extent + window.stride - 1) // window.stride
    return tf.maximum((outputs - 1) * window.stride + window.span - extent, 0) // 2


def _real_taps(window: Window, outputs: tf.Tensor, before: Any, extent: Any) -> tf.Tensor:
    """Return the number of taps inside the image for each output position."""
    first = outputs * window.stride - before
    return tf.minimum(first + window.kernel, extent) - tf.maximum(first, 0)


def _window_sums(x: tf.Tensor, axes: Sequence[Window]) -> tf.Tensor:
    """Return the sum over each valid window."""
    return reduce(tf.add, _taps(x, axes))


def _taps(x: tf.Tensor, axes: Sequence[Window]) -> Iterator[tf.Tensor]:
    """Yield each tap of all valid windows, without dilation, an image each."""
    shape = tf.shape(x)
    counts = [(shape[i] - a.kernel) // a.stride + 1 for i, a in enumerate(axes, 1)]
    for taps in product(*(range(a.kernel) for a in axes)):
        places = zip(taps, counts, axes, strict=True)
        cut = [slice(t, t + (n - 1) * a.stride + 1, a.stride) for t, n, a in places]
        yield x[(slice(None), *cut)]


def repeat(x: tf.Tensor, axes: Sequence[Transposed], strip: Strip) -> tf.Tensor:
    """Upsample by the strides of the axes, nearest neighbour."""
    for i, axis in enumerate(axes, 1):
        x = tf.repeat(x, axis.stride, i)
    pairs = zip(strip.of_input(0), axes, strict=False)
    return fit(x, [rows.start * axis.stride for rows, axis in pairs], strip)


def bilinear(x: tf.Tensor, axes: tuple[Resize, Resize], strip: Strip) -> tf.Tensor:
    """Upsample bilinearly with half-pixel centres in float32 coordinates, as `tf.image.resize`."""
    rows = strip.inputs[0]
    dtype, across = x.dtype, strip.along(1)
    width = tf.shape(x)[2] if across is None else across.inputs[0].extent
    x = tf.cast(x, tf.float32)
    lower, upper, share = _centres(axes[0].factor, tf.range(strip.start, strip.stop), rows.extent)
    if across is None:
        left, right, part = _centres(axes[1].factor, tf.range(width * axes[1].factor), width)
    else:
        outputs, first = tf.range(across.start, across.stop), across.inputs[0].start
        left, right, part = _centres(axes[1].factor, outputs, width)
        left, right = left - first, right - first
    x = tf.gather(x, lower - rows.start, axis=1), tf.gather(x, upper - rows.start, axis=1)
    top, bottom = ((tf.gather(r, left, axis=2), tf.gather(r, right, axis=2)) for r in x)
    part, share = part[:, None], share[:, None, None]
    above = top[0] + (top[1] - top[0]) * part
    below = bottom[0] + (bottom[1] - bottom[0]) * part
    return tf.cast(above + (below - above) * share, dtype)


def _centres(
    factor: int, outputs: tf.Tensor, extent: Any
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return the lower and the upper input position of each output, and the weight of the upper one."""
    at = (tf.cast(outputs, tf.float32) + 0.5) * tf.constant(1.0 / factor, tf.float32) - 0.5
    lower = tf.maximum(tf.cast(tf.floor(at), tf.int32), 0)
    upper = tf.minimum(tf.cast(tf.math.ceil(at), tf.int32), extent - 1)
    return lower, upper, at - tf.floor(at)
