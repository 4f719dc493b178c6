"""Space-to-depth layout, in which large kernels with large strides become small kernels with stride 1.

With stride s, the s x s pixels of a block become s * s channels of one pixel (space to depth). A convolution with
kernel k and stride s becomes one with kernel ceil(...) and stride 1: 18 x 18 with stride 8 on one channel becomes
3 x 3 on 64. The transposed convolution outputs this layout, and an elementwise loss is computed in it, with its labels
in the same layout, so nothing is converted back. Results are equal up to summation order.

`rewrite` converts a graph; pixelwise nodes move behind the conversion, so that it copies uint8.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import tensorflow as tf

from tfbig.geometry.windows import Interval, Transposed, Window
from tfbig.network.graph import Graph, Local, Node, Reduce
from tfbig.ops import kernels
from tfbig.system import traces
from tfbig.units import ceil_div

MIN_STRIDE = 4
MAX_CHANNELS = 256
"""The layout pays from `MIN_STRIDE` on, up to `MAX_CHANNELS` channels after space-to-depth."""


@dataclass(frozen=True)
class BlockAxis:
    """Axis of space-to-depth: an output row is `factor` input rows, and missing rows are zero.

    Args:
        factor: Input rows per output row.
        exact: Whether sizes must be a multiple of `factor`: labels must have the size of the prediction.
    """

    factor: int
    exact: bool = False

    @property
    def rate(self) -> Fraction:
        """Input rows for each output row."""
        return Fraction(self.factor)

    @property
    def window(self) -> Window:
        """Window that reads the same rows, apart from those that are missing."""
        return Window(self.factor, self.factor)

    def extent(self, size: int) -> int:
        """Return the number of output rows."""
        if self.exact and size % self.factor:
            raise ValueError(
                f"its inputs have different sizes: the labels have {size} rows or columns, the prediction a "
                f"multiple of {self.factor}; they must be equal."
            )
        return ceil_div(size, self.factor)

    def needs(self, rows: Interval, size: int) -> Interval:
        """Return the input rows of some output rows."""
        return Interval(rows.start * self.factor, rows.stop * self.factor)


@dataclass(frozen=True)
class Phase:
    """A strided layer in space-to-depth layout.

    Args:
        factor: The stride.
        side: "input" or "output": the image of the layer that has the layout.
        axes: Windows of stride 1 over rows and columns of the layout.
        function: As `Local.function`; with side "input" there is a second input, `[rows, columns]` of the plain image.
    """

    factor: int
    side: str
    axes: tuple[Window, Window]
    function: Callable[..., Any]


# ------------------------------------------------------------------------------------- layout


def space_to_depth(x: tf.Tensor, factor: int, strip: kernels.Strip | None = None) -> tf.Tensor:
    """Move blocks into channels: `[N, r * s, W, C] -> [N, r, ceil(W / s), s * s * C]`.

    Channels are in the order (row, column, channel). 8-bit images move eight bytes at a time: per gigapixel and
    stride 8, 0.6 s against 10.6 s of `tf.nn.space_to_depth`.

    Args:
        x: Image `[N, r * s, W, C]`.
        factor: Block size s.
        strip: Strip of the output; rows that the image lacks are padded with zeros.
    """
    after = [rows.after for rows in strip.of_input(0)] if strip else [0]
    columns = after[1] if len(after) > 1 else -tf.shape(x)[2] % factor
    x = kernels.pad(x, (0, after[0]), (0, columns))
    shape, channels = tf.shape(x), x.shape[3]
    rows, columns = shape[1] // factor, shape[2] // factor
    words = factor * channels * x.dtype.size // 8
    packs = x.dtype in (tf.uint8, tf.int8) and words * 8 == factor * channels
    dtype = x.dtype
    if packs:
        x = tf.bitcast(tf.reshape(x, [shape[0], rows, factor, columns, words, 8]), tf.int64)
    else:
        x = tf.reshape(x, [shape[0], rows, factor, columns, factor * channels])
    x = tf.transpose(x, [0, 1, 3, 2, 4])
    x = tf.bitcast(x, dtype) if packs else x
    return tf.reshape(x, [shape[0], rows, columns, factor * factor * channels])


# ---------------------------------------------------------------------------------- convolution


def strided(kernel: Any, axes: tuple[Window, Window], bias: bool) -> Phase | None:
    """Return a strided convolution in space-to-depth layout, or None where that does not pay.

    Output row `o` reads plain rows `s * o - before ... + k - 1`, block rows `o - lo ... o + hi`. With `same`, `before`
    depends on how far the image is from a multiple of s, so the kernel is padded when the size is known: when it runs.

    Args:
        kernel: Kernel `[kh, kw, C, F]`.
        axes: Windows of the rows and columns.
        bias: Whether there is a bias.
    """
    if not _pays(axes, int(kernel.shape[2])):
        return None
    factor = axes[0].stride
    windows: Any = tuple(Window(lo + hi + 1, padding=(lo, hi)) for lo, hi in map(_reach, axes))

    def run(x: list[tf.Tensor], w: list[tf.Tensor], strip: kernels.Strip) -> tf.Tensor:
        weights = tf.cast(w[0], x[0].dtype)
        for dimension, (axis, window) in enumerate(zip(axes, windows, strict=True)):
            front = window.padding[0] * factor - _before(axis, x[1][dimension])
            weights = _pad_axis(weights, dimension, front, window.kernel * factor)
        y = thin_convolution(x[0], _conv_kernel(weights, factor), windows, strip)
        return kernels.add_bias(y, tf.cast(w[1], y.dtype)) if bias else y

    return Phase(factor, "input", windows, run)


def _pays(axes: Any, channels: int) -> bool:
    a, b = axes
    square = (
        a.stride == b.stride and a.padding == b.padding == "same" and a.dilation == b.dilation == 1
    )
    return (
        square
        and a.stride >= MIN_STRIDE
        and channels * a.stride**2 <= MAX_CHANNELS
        and min(a.kernel, b.kernel) >= a.stride
    )


def _reach(axis: Window) -> tuple[int, int]:
    """Return the block rows before and after that any `before`, in `[(k - s) // 2, (k - 1) // 2]`, needs."""
    least, most = (axis.kernel - axis.stride) // 2, (axis.kernel - 1) // 2
    return ceil_div(most, axis.stride), (axis.kernel - 1 - least) // axis.stride


def _before(axis: Window, size: tf.Tensor) -> tf.Tensor:
    missing = -size % axis.stride
    return (axis.kernel - axis.stride + missing) // 2


def _pad_axis(x: tf.Tensor, axis: int, front: Any, size: int) -> tf.Tensor:
    amounts = [(0, 0)] * x.shape.rank
    amounts[axis] = (front, size - x.shape[axis] - front)
    shape = x.shape.as_list()
    shape[axis] = size
    return tf.ensure_shape(tf.pad(x, tf.stack([tf.stack(a) for a in amounts])), shape)


def _conv_kernel(kernel: tf.Tensor, factor: int) -> tf.Tensor:
    """Reshape a kernel, `[kh * s, kw * s, C, F] -> [kh, kw, s * s * C, F]`."""
    high, wide, channels, filters = kernel.shape
    rows, columns = high // factor, wide // factor
    x = tf.reshape(kernel, [rows, factor, columns, factor, channels, filters])
    return tf.reshape(tf.transpose(x, [0, 2, 1, 3, 4, 5]), [rows, columns, -1, filters])


def transposed(kernel: Any, axes: tuple[Transposed, Transposed], bias: bool) -> Phase | None:
    """Return a transposed convolution in space-to-depth layout, or None where that does not pay.

    Plain row `s * q + p` gets tap `s * d + p + cut` of input row `q - d`, for d from `low` to `high`.

    Args:
        kernel: Kernel `[kh, kw, F, C]`.
        axes: Axes of the rows and columns.
        bias: Whether there is a bias.
    """
    if not _pays(axes, int(kernel.shape[2])) or any(a.output_padding is not None for a in axes):
        return None
    factor = axes[0].stride
    reach = [_spread(a) for a in axes]
    windows: Any = tuple(Window(high - low + 1, padding=(high, -low)) for low, high in reach)

    def run(x: list[tf.Tensor], w: list[tf.Tensor], strip: kernels.Strip) -> tf.Tensor:
        weights = tf.cast(w[0], x[0].dtype)
        for dimension, (axis, (low, high)) in enumerate(zip(axes, reach, strict=True)):
            front = -(factor * low + axis.cuts()[0])
            weights = _pad_axis(weights, dimension, front, (high - low + 1) * factor)
        y = thin_convolution(x[0], _transposed_kernel(weights, factor), windows, strip)
        return kernels.add_bias(y, tf.cast(tf.tile(w[1], [factor**2]), y.dtype)) if bias else y

    return Phase(factor, "output", windows, run)


def _spread(axis: Transposed) -> tuple[int, int]:
    cut = axis.cuts()[0]
    return -((cut + axis.stride - 1) // axis.stride), (axis.kernel - 1 - cut) // axis.stride


def _transposed_kernel(kernel: tf.Tensor, factor: int) -> tf.Tensor:
    """Reshape a kernel and reverse its taps, `[kh * s, kw * s, F, C] -> [kh, kw, C, s * s * F]`."""
    high, wide, filters, channels = kernel.shape
    rows, columns = high // factor, wide // factor
    x = tf.reshape(kernel, [rows, factor, columns, factor, filters, channels])
    x = tf.reverse(tf.transpose(x, [0, 2, 5, 1, 3, 4]), [0, 1])
    return tf.reshape(x, [rows, columns, channels, -1])


def thin_convolution(
    x: tf.Tensor, kernel: tf.Tensor, windows: tuple[Window, Window], strip: kernels.Strip
) -> tf.Tensor:
    """Convolve with stride 1, where input or output has few channels.

    The weight gradient is one matrix product over shifted copies of the image with few channels (per gigapixel
    with blocks of 8 x 8: 2 s against 11 s of TensorFlow's gradient).
    """
    x = kernels.padded(x, windows, strip)

    @traces.custom_gradient
    def run(x: tf.Tensor, kernel: tf.Tensor) -> Any:
        def gradient(dy: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            dx = tf.nn.conv2d_transpose(dy, kernel, tf.shape(x), 1, "VALID")
            return dx, _kernel_gradient(x, dy, kernel.shape)

        return tf.nn.conv2d(x, kernel, 1, "VALID"), gradient

    return run(x, kernel)


def _kernel_gradient(x: tf.Tensor, dy: tf.Tensor, shape: Any) -> tf.Tensor:
    """Return `dK[i, j, c, f] = sum over n, h, w of x[n, h + i, w + j, c] * dy[n, h, w, f]`."""
    high, wide, channels, filters = shape
    taps = [(i, j) for i in range(high) for j in range(wide)]
    size = tf.shape(dy) if channels <= filters else tf.shape(x)
    if channels <= filters:
        parts = [x[:, i : i + size[1], j : j + size[2]] for i, j in taps]
        product = _product(tf.concat(parts, -1), dy)  # [taps * C, F]
        return tf.reshape(product, [high, wide, channels, filters])
    padded = kernels.pad(dy, (high - 1, high - 1), (wide - 1, wide - 1))
    parts = [
        padded[:, high - 1 - i : high - 1 - i + size[1], wide - 1 - j : wide - 1 - j + size[2]]
        for i, j in taps
    ]
    product = _product(x, tf.concat(parts, -1))  # [C, taps * F]
    product = tf.reshape(product, [channels, high, wide, filters])
    return tf.transpose(product, [1, 2, 0, 3])


def _product(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    flat = [tf.reshape(t, [-1, t.shape[-1]]) for t in (a, b)]
    return tf.matmul(*flat, transpose_a=True)


# --------------------------------------------------------------------------------------- rewrite


def rewrite(graph: Graph) -> None:
    """Put the layers of a graph for which it pays into space-to-depth layout."""
    for node in list(graph.nodes):
        if not isinstance(node.op, Local) or node.op.phase is None:
            continue
        if node.op.phase.side == "input":
            _rewrite_input(graph, node)
        elif _loss_of(graph, node) is not None:
            _rewrite_loss(graph, node)


def _rewrite_input(graph: Graph, node: Node) -> None:
    """Replace `pixelwise -> strided` by `space_to_depth -> pixelwise -> stride 1`."""
    phase = node.op.phase
    source = node.inputs[0]
    above: list[Node] = []
    producer = graph.producer(source)
    while producer is not None and _commutes(graph, producer):
        above.insert(0, producer)
        source = producer.inputs[0]
        producer = graph.producer(source)
    if source not in graph.inputs:  # an inner image would be copied for little gain
        return
    value = _add_space_to_depth(graph, source, phase.factor, node)
    for moved in above:
        value = _move(graph, moved, value)
    size = graph.size(source)
    op = replace(
        node.op, function=phase.function, axes=(phase.axes, None), phase=None, any_channels=False
    )
    _swap(graph, node, replace(node, op=op, inputs=(value, size)))


def _commutes(graph: Graph, node: Node) -> bool:
    op = node.op
    read_once = len(graph.consumers(node.output)) == 1 and node.output not in graph.outputs
    movable = isinstance(op, Local) and op.pixelwise and not node.weights and len(node.inputs) == 1
    return movable and read_once and _keeps_zero(graph, node)


def _keeps_zero(graph: Graph, node: Node) -> bool:
    """Return whether zero stays zero: the padding of incomplete blocks belongs after the node."""
    with tf.init_scope():
        zero = tf.zeros([1, 1, 1, 1], graph.values[node.inputs[0]].dtype)
        return not float(tf.cast(node.op.function([zero], [], None)[0, 0, 0, 0], tf.float64))


def _add_space_to_depth(
    graph: Graph, source: int, factor: int, before: Node, exact: bool = False
) -> int:
    spec = graph.values[source]
    axes = (BlockAxis(factor, exact), BlockAxis(factor, exact))
    position = graph.nodes.index(before)
    value = graph.local(
        f"{spec.name}/space_to_depth",
        lambda x, w, strip: space_to_depth(x[0], factor, strip),
        [source],
        spec.channels * factor**2,
        spec.dtype or "float32",
        [axes],
        cheap=True,
    )
    graph.nodes.insert(position, graph.nodes.pop())
    return value


def _move(graph: Graph, node: Node, value: int) -> int:
    """Move a pixelwise node behind space-to-depth and return its output."""
    spec, old = graph.values[value], graph.values[node.output]
    output = graph.value(old.name, True, spec.channels, old.dtype)
    _swap(graph, node, replace(node, inputs=(value,), output=output))
    position = next(i for i, n in enumerate(graph.nodes) if n.output == output)
    moved = graph.nodes.pop(position)
    producer = next(i for i, n in enumerate(graph.nodes) if n.output == value)
    graph.nodes.insert(producer + 1, moved)
    return output


def _swap(graph: Graph, old: Node, new: Node) -> None:
    graph.nodes[graph.nodes.index(old)] = new


def _loss_of(graph: Graph, node: Node) -> Node | None:
    """Return the loss that is the only reader of a node, if it can be computed in space-to-depth layout, else None."""
    consumers = graph.consumers(node.output)
    if len(consumers) != 1 or node.output in graph.outputs:
        return None
    op = consumers[0].op
    return consumers[0] if isinstance(op, Reduce) and op.pixelwise else None


def _rewrite_loss(graph: Graph, node: Node) -> None:
    """Replace `transposed -> loss(labels)` by `stride 1 -> loss(space_to_depth(labels))`."""
    phase, loss = node.op.phase, _loss_of(graph, node)
    assert loss is not None
    spec = graph.values[node.output]
    channels = spec.channels * phase.factor**2
    output = graph.value(spec.name, True, channels, spec.dtype)
    blocks = {name: getattr(node.op, name) * phase.factor**2 for name in ("operations", "im2col")}
    op = replace(
        node.op,
        function=phase.function,
        axes=(phase.axes,),
        phase=None,
        any_channels=False,
        **blocks,
    )
    _swap(graph, node, replace(node, op=op, output=output))
    target = _add_space_to_depth(graph, loss.inputs[1], phase.factor, loss, exact=True)
    _swap(graph, loss, replace(loss, inputs=(output, target)))
