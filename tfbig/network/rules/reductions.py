"""Rules for reductions of `keras.ops`: over the channels of each pixel, or over all pixels of an image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfbig.network.graph import Reduce
from tfbig.network.rules.call import Call
from tfbig.network.rules.channel_shapes import any_channel_shape
from tfbig.network.rules.channels import axes_of
from tfbig.network.rules.nodes import cast, per_pixel, per_pixel_parts
from tfbig.network.rules.normalisation import MomentsOf
from tfbig.network.rules.pooling import Maximum
from tfbig.network.rules.registry import rule
from tfbig.ops import totals
from tfbig.system.keras_internals import operations

SUMS = "Amax Amin Max Mean Min Std Sum Var All Any CountNonzero Logsumexp Norm Prod"
"""Reductions to one number."""


@rule(*operations(f"{SUMS} Moments"))
@any_channel_shape
def reduction(call: Call) -> int | list[int]:
    """Add a reduction over the channels, or over all pixels of an image and possibly more axes."""
    layer, leading = call.layer, call.graph.spatial + 1
    axis = layer.axes if isinstance(layer, *operations("Moments")) else layer.axis
    axes = axes_of(call, axis)
    if getattr(layer, "initial", None) is not None:
        call.refuse("has an initial value; use keras.ops.maximum on the result.")
    if min(axes) >= leading:
        return (
            per_pixel_parts(call) if len(call.outputs) > 1 else per_pixel(call, dtype=_dtype(call))
        )
    if not set(range(1, leading)) <= set(axes):
        call.refuse(
            f"over axis={axis} cannot run strip by strip; reduce the channels, axis=-1, or all pixels, "
            f"axis={tuple(range(1, leading))}."
        )
    if getattr(layer, "synchronized", False):
        call.refuse("has synchronized=True; use BatchNormalization(synchronized=True).")
    return _over_image(call, axes)


def _dtype(call: Call, position: int = 0) -> str:
    """Return the element type of an output; Keras says float32 for `logsumexp` of any image."""
    image = str(call.graph.values[call.inputs[0]].dtype)
    declared = keras.backend.standardize_dtype(call.outputs[position].dtype)
    both = keras.backend.is_float_dtype(image) and keras.backend.is_float_dtype(declared)
    return image if both else declared


def _over_image(call: Call, axes: list[int]) -> int | list[int]:
    """Add a reduction over all pixels, and then over the other axes among `axes`, on whole values."""
    kind = type(call.layer).__name__
    pooled, finish = _POOLED[kind](call)
    leading, shape = call.graph.spatial + 1, call.graph.channel_shapes.get(call.inputs[0])
    keepdims = getattr(call.layer, "keepdims", False)
    others = [0] * (0 in axes) + [a - call.graph.spatial for a in axes if a >= leading]
    kept = [a for a in axes if a < leading and a] if keepdims else []

    def run(x: list[Any], w: Any) -> Any:
        parts = x[0] if isinstance(x[0], (tuple, list)) else (x[0],)
        if shape is not None:  # [N, C] to [N, ..., channels]
            parts = [tf.reshape(t, [-1, *shape]) for t in parts]
        results = finish(parts, others, keepdims)
        shaped = [_with_axes(t, kept) for t in results]
        shaped = [tf.cast(t, _dtype(call, i)) for i, t in enumerate(shaped)]
        return tuple(shaped) if len(shaped) > 1 else shaped[0]

    value = call.whole(run, [pooled], name="result")
    if len(call.outputs) == 1:
        return value
    return [call.whole(_item(i), [value], name=f"part_{i}") for i in range(len(call.outputs))]


def _item(position: int) -> Any:
    return lambda x, w: x[0][position]


def _with_axes(t: tf.Tensor, axes: Sequence[int]) -> tf.Tensor:
    """Insert axes of length one."""
    for axis in axes:
        t = tf.expand_dims(t, axis)
    return t


def _summed(call: Call, function: Any = None) -> int:
    """Add the sum of a function of the pixels, `[N, C]`; integers are summed in float64."""
    image = _floating(call)
    axes = list(range(1, call.graph.spatial + 1))

    def partial(x: list[tf.Tensor], strip: Any) -> tf.Tensor:
        image = x[0] if function is None else function(x[0])
        return tf.squeeze(totals.total(image, axes), axes)

    def finish(total: tf.Tensor, pixels: tf.Tensor, w: Any) -> Any:
        return total, total / pixels

    dtype = call.graph.values[image].dtype
    return call.reduce(
        partial,
        finish,
        inputs=[image],
        name="sum",
        any_channels=True,
        dtype=totals.wide(tf.as_dtype(dtype)).name,
    )


def _floating(call: Call, narrow: str | None = None) -> int:
    """Return the image, integers and truth values as float64."""
    value = call.inputs[0]
    dtype = tf.as_dtype(call.graph.values[value].dtype)
    return value if dtype.is_floating else cast(call.graph, value, narrow or "float64")


def _sum(call: Call) -> tuple[int, Any]:
    return _summed(call), lambda x, axes, keep: [tf.reduce_sum(x[0], axes, keepdims=keep)]


def _mean(call: Call) -> tuple[int, Any]:
    return _summed(call), lambda x, axes, keep: [tf.reduce_mean(x[1], axes, keepdims=keep)]


def _count(call: Call) -> tuple[int, Any]:
    counted = _summed(call, lambda x: tf.cast(tf.not_equal(x, 0), x.dtype))
    return counted, lambda x, axes, keep: [tf.reduce_sum(x[0], axes, keepdims=keep)]


def _norm(call: Call) -> tuple[int, Any]:
    order, axes = call.layer.ord, axes_of(call, call.layer.axis)
    if order not in (None, 2, "fro") or (order == 2 and len(axes) > 1):
        call.refuse(
            f"has ord={order!r}; over all pixels expected None, the root of the sum of squares."
        )
    if any(a == 0 or a > call.graph.spatial for a in axes):
        call.refuse(
            f"over axis={axes} is not the norm of an image; use keras.ops.sum of the squares."
        )
    squares = _summed(call, tf.square)
    return squares, lambda x, axes, keep: [tf.sqrt(x[0])]


def _maximum(call: Call, sign: int = 1) -> tuple[int, Any]:
    value, graph = call.inputs[0], call.graph
    if graph.values[value].dtype == "bool":
        value = cast(graph, value, "int32")
    spec = graph.values[value]
    if sign < 0:
        value = call.local(
            lambda x, w, strip: -x[0],
            inputs=[value],
            channels=spec.channels,
            dtype=spec.dtype,
            name="negative",
            pixelwise=True,
            any_channels=True,
        )
    op = Maximum(spec.channels, graph.spatial, tf.as_dtype(spec.dtype))
    top = graph.reduce(f"{call.layer.name}/reduce", op, [value])

    def finish(x: Sequence[tf.Tensor], axes: list[int], keep: bool) -> list[tf.Tensor]:
        top, counts = x
        if not axes:
            return [sign * top]
        result = tf.reduce_max(top, axes, keepdims=True)
        if top.dtype.is_floating:  # elements that attain it share the gradient
            ties = tf.where(tf.equal(top, result), tf.cast(counts, top.dtype), 0)
            shares = ties / tf.reduce_sum(ties, axes, keepdims=True)
            moved = tf.reduce_sum(shares * (top - tf.stop_gradient(top)), axes, keepdims=True)
            result = tf.stop_gradient(result) + moved
        return [sign * (result if keep else tf.squeeze(result, axes))]

    return top, finish


def _minimum(call: Call) -> tuple[int, Any]:
    return _maximum(call, -1)


def _any(call: Call) -> tuple[int, Any]:
    counted = _summed(call, lambda x: tf.cast(tf.not_equal(x, 0), x.dtype))
    return counted, lambda x, axes, keep: [tf.reduce_any(x[0] > 0, axes, keepdims=keep)]


def _all(call: Call) -> tuple[int, Any]:
    zeros = _summed(call, lambda x: tf.cast(tf.equal(x, 0), x.dtype))
    return zeros, lambda x, axes, keep: [tf.reduce_all(tf.equal(x[0], 0), axes, keepdims=keep)]


def _variance(call: Call) -> tuple[int, Any]:
    def finish(x: Sequence[tf.Tensor], axes: list[int], keep: bool) -> list[tf.Tensor]:
        return [_mean_and_variance(x, axes, keep)[1]]

    return _moments_of_image(call), finish


def _deviation(call: Call) -> tuple[int, Any]:
    def finish(x: Sequence[tf.Tensor], axes: list[int], keep: bool) -> list[tf.Tensor]:
        return [tf.sqrt(_mean_and_variance(x, axes, keep)[1])]

    return _moments_of_image(call), finish


def _moments(call: Call) -> tuple[int, Any]:
    return _moments_of_image(call), _mean_and_variance


def _moments_of_image(call: Call) -> int:
    """Add mean and variance `[N, C]` of all pixels of each image, in float64."""
    axes = list(range(1, call.graph.spatial + 1))
    op = MomentsOf(lambda n, c: [n, c], axes, lambda x: x, any_channels=True)
    value = call.graph.reduce(f"{call.layer.name}/moments", op, [_floating(call)])
    return call.whole(lambda x, w: x[0][:2], [value], name="moments_of_pixels")


def _mean_and_variance(x: Sequence[tf.Tensor], axes: list[int], keep: bool) -> list[tf.Tensor]:
    """Return mean and variance over more axes, from those of parts of equal size."""
    if not axes:
        return list(x)
    mean = tf.reduce_mean(x[0], axes, keepdims=True)
    spread = x[1] + tf.math.squared_difference(x[0], mean)
    variance = tf.reduce_mean(spread, axes, keepdims=keep)
    return [mean if keep else tf.squeeze(mean, axes), variance]


def _logarithm_of_sum(call: Call) -> tuple[int, Any]:
    op = LogSumExp(call.graph.spatial, tf.as_dtype(call.graph.values[call.inputs[0]].dtype))
    value = call.graph.reduce(f"{call.layer.name}/reduce", op, call.inputs)
    pooled = call.whole(lambda x, w: x[0][0], [value], name="of_pixels")
    return pooled, lambda x, axes, keep: [
        tf.reduce_logsumexp(x[0], axes, keepdims=keep) if axes else x[0]
    ]


def _product(call: Call) -> tuple[int, Any]:
    value = _floating(call)
    op = Product(call.graph.spatial, tf.as_dtype(call.graph.values[value].dtype))
    product = call.graph.reduce(f"{call.layer.name}/reduce", op, [value])
    pooled = call.whole(lambda x, w: x[0][0], [product], name="of_pixels")
    return pooled, lambda x, axes, keep: [tf.reduce_prod(x[0], axes, keepdims=keep)]


_POOLED = {
    "All": _all,
    "Amax": _maximum,
    "Amin": _minimum,
    "Any": _any,
    "CountNonzero": _count,
    "Logsumexp": _logarithm_of_sum,
    "Max": _maximum,
    "Mean": _mean,
    "Min": _minimum,
    "Moments": _moments,
    "Norm": _norm,
    "Prod": _product,
    "Std": _deviation,
    "Sum": _sum,
    "Var": _variance,
}
"""Functions of a call that add a reduction over all pixels; each returns the value of the result of every channel, and
a function `(tensors, axes, keepdims) -> results` that reduces these, `[N, channels]`, over more axes."""


class _OverPixels(Reduce):
    """A reduction of every channel over all pixels, `[N, C]`, in float32 or wider.

    Args:
        spatial: Number of spatial axes.
        dtype: Element type of the image.
    """

    operations = 2
    any_channels = True

    def __init__(self, spatial: int, dtype: tf.DType) -> None:
        self.axes = list(range(1, spatial + 1))
        self.dtype = totals.wide(dtype)


class LogSumExp(_OverPixels):
    """Logarithm of the sum of the exponentials of all pixels, `[N, C]`.

    A partial result holds the largest number, and the sum of the exponentials of the others relative to it.
    """

    def init(self, batch: Any, channels: Sequence[Any]) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the result of no pixels."""
        shape = [batch, channels[0]]
        return tf.fill(shape, self._least), tf.zeros(shape, self.dtype)

    @property
    def _least(self) -> tf.Tensor:
        """Finite number that no finite number is below: differences from it are defined."""
        return tf.constant(self.dtype.min, self.dtype)

    def partial(self, inputs: list[tf.Tensor], strip: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the result of a strip."""
        x = tf.cast(inputs[0], self.dtype)
        top = tf.maximum(tf.reduce_max(x, self.axes, keepdims=True), self._least)
        total = tf.reduce_sum(tf.exp(x - top), self.axes)
        return tf.reshape(top, tf.shape(total)), total

    def merge(self, first: Any, second: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the result of both."""
        top = tf.maximum(first[0], second[0])
        sums = [each[1] * tf.exp(each[0] - top) for each in (first, second)]
        return top, sums[0] + sums[1]

    def times(self, partial: Any, copies: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the result of many strips with the same pixels; of none, that of no pixels."""
        return tf.where(copies.number > 0, partial[0], self._least), copies.of(partial[1])

    def finalize(self, partial: Any, pixels: Any) -> tuple[tf.Tensor]:
        """Return the logarithm."""
        return (partial[0] + tf.math.log(partial[1]),)

    def pullback(
        self, inputs: list[tf.Tensor], strip: Any, result: Any, cotangent: Any
    ) -> list[tf.Tensor]:
        """Return the gradient of the image: the share of each pixel in the sum."""
        x = tf.cast(inputs[0], self.dtype)
        whole, gradient = (_with_axes(t[0], self.axes) for t in (result, cotangent))
        return [tf.cast(tf.exp(x - whole) * tf.cast(gradient, self.dtype), inputs[0].dtype)]


class Product(_OverPixels):
    """Product of all pixels, `[N, C]`.

    A partial result holds the product of the pixels that are not zero, and the number of those that are.
    """

    def init(self, batch: Any, channels: Sequence[Any]) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the product of no pixels."""
        shape = [batch, channels[0]]
        return tf.ones(shape, self.dtype), tf.zeros(shape, tf.int64)

    def partial(self, inputs: list[tf.Tensor], strip: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the result of a strip."""
        x = tf.cast(inputs[0], self.dtype)
        is_zero = tf.equal(x, 0)
        product = tf.reduce_prod(tf.where(is_zero, tf.ones_like(x), x), self.axes)
        return product, tf.reduce_sum(tf.cast(is_zero, tf.int64), self.axes)

    def merge(self, first: Any, second: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the result of both."""
        return first[0] * second[0], first[1] + second[1]

    def times(self, partial: Any, copies: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the result of many strips with the same pixels."""
        number = tf.cast(copies.number, self.dtype)
        return tf.pow(partial[0], number), copies.of(partial[1])

    def finalize(self, partial: Any, pixels: Any) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return the product, that of the pixels that are not zero, and the number of those that are."""
        product, zeros = partial
        return tf.where(zeros > 0, tf.zeros_like(product), product), product, zeros

    def pullback(
        self, inputs: list[tf.Tensor], strip: Any, result: Any, cotangent: Any
    ) -> list[tf.Tensor]:
        """Return the gradient of the image: for each pixel the product of all others."""
        x = tf.cast(inputs[0], self.dtype)
        _, product, zeros = (_with_axes(t, self.axes) for t in result)
        gradient = tf.cast(_with_axes(cotangent[0], self.axes), self.dtype)
        is_zero = tf.equal(x, 0)
        quotient = product / tf.where(is_zero, tf.ones_like(x), x)
        others = tf.where(zeros > 0, tf.zeros_like(x), quotient)
        alone = tf.where(tf.equal(zeros, 1), product, tf.zeros_like(product))
        return [tf.cast(gradient * tf.where(is_zero, alone, others), inputs[0].dtype)]
