"""Convolutions of volumes by those of planes.

On a CPU TensorFlow's own convolution of volumes takes longer for the same operations than that of planes, and so do its
gradients; on accelerators it is used. Sums over the taps along the first axis are in another order than those of the
plain kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import tensorflow as tf

from tfbig.geometry.windows import Transposed, Window
from tfbig.ops import kernels
from tfbig.ops.kernels import Strip
from tfbig.system import backend


def by_planes(axes: Sequence[Window | Transposed]) -> bool:
    """Return whether a convolution along these axes is computed by planes.

    Where the rows have a stride, their planes would be copied one by one; dilated ones have no gradient on a CPU.
    """
    strided = isinstance(axes[0], Window) and axes[0].stride > 1
    dilated = any(a.dilation > 1 for a in axes)
    return len(axes) == 3 and not strided and not dilated and backend.accelerator() is None


def convolution(
    x: tf.Tensor, kernel: tf.Tensor, axes: Sequence[Window], groups: int, strip: Strip
) -> tf.Tensor:
    """Convolve a strip of a volume, whose rows have stride 1, as `tfbig.ops.kernels.convolution`.

        y[r] = sum(planes[r + t] * kernel[t] for t in range(len(kernel)))

    Args:
        x: Input rows `[N, r, H, W, C]`.
        kernel: Weights `[k, k, k, C / groups, F]`.
        axes: Window of each axis.
        groups: Number of channel groups.
        strip: Position of the strip.
    """
    rows, *across = axes
    pads = [kernels.padding_along(x, axis, window, strip) for axis, window in enumerate(axes)]
    same = kernels.is_same(across) and len(strip.axes) == 1
    if rows.span > 1 or not same:
        x = kernels.pad(x, pads[0], *([(0, 0)] * 2 if same else pads[1:]))
    count = tf.shape(x)[1] - rows.span + 1
    taps = [_planes(x, t, count) for t in range(rows.kernel)]

    def of_plane(planes: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
        return tf.nn.conv2d(
            planes, weights, [a.stride for a in across], "SAME" if same else "VALID"
        )

    parts = tf.split(kernel, groups, -1) if groups > 1 else [kernel]
    sums = []
    for i, part in enumerate(parts):
        inputs = [tf.split(t, groups, -1)[i] for t in taps] if groups > 1 else taps
        sums.append(tf.add_n([of_plane(t, part[k]) for k, t in enumerate(inputs)]))
    y = sums[0] if groups == 1 else tf.concat(sums, -1)  # [N * rows, H', W', F]
    shape = tf.shape(y)
    y = tf.reshape(y, tf.concat([[tf.shape(x)[0], count], shape[1:]], 0))
    return tf.ensure_shape(y, [x.shape[0], None, *y.shape[2:4], kernel.shape[-1]])


def _planes(x: tf.Tensor, first: int, count: tf.Tensor) -> tf.Tensor:
    """Return some rows of a volume as images `[N * count, H, W, C]`."""
    rows = kernels.take_rows(x, first, count)
    planes = tf.reshape(rows, tf.concat([[-1], tf.shape(x)[2:]], 0))
    return tf.ensure_shape(planes, [None, *x.shape[2:]])


def transposed_convolution(
    x: tf.Tensor, kernel: tf.Tensor, axes: Sequence[Transposed], strip: Strip
) -> tf.Tensor:
    """Compute the transposed convolution of a strip of a volume, as `tfbig.ops.kernels.transposed_convolution`.

    Where the kernel is as long as its stride, voxels are multiplied with it, and the products lie side by side.

    Args:
        x: Input rows `[N, r, H, W, C]`.
        kernel: Weights `[k, k, k, F, C]`.
        axes: Transposed window of each axis.
        strip: Position of the strip.
    """
    if not all(a.span == a.kernel == a.stride and a.extent(1) == a.stride for a in axes):
        return kernels.transposed_convolution(x, kernel, axes, strip)
    steps, filters = [a.stride for a in axes], kernel.shape[-2]
    shape = tf.shape(x)
    columns = tf.reshape(kernel, [prod(steps) * filters, -1])  # [k * k * k * F, C]
    products = tf.matmul(tf.reshape(x, [-1, x.shape[-1]]), columns, transpose_b=True)
    n, d, h, w = (shape[i] for i in range(4))
    cells = tf.reshape(products, [n * d, h, w, steps[0], steps[1], steps[2] * filters])
    cells = tf.transpose(cells, [0, 3, 1, 4, 2, 5])  # [N * d, k, h, k, w, k * F]
    sizes = [size * step for size, step in zip((d, h, w), steps, strict=True)]
    y = tf.reshape(cells, [n, *sizes, filters])
    known = [None if m is None else m * s for m, s in zip(x.shape[2:4], steps[1:], strict=True)]
    y = tf.ensure_shape(y, [x.shape[0], None, *known, filters])
    pairs = zip(strip.of_input(0), axes, strict=False)
    return kernels.fit(
        y, [rows.start * axis.stride - axis.cuts()[0] for rows, axis in pairs], strip
    )
