"""Rules for pooling over windows and whole images, and for layers that need the whole image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfbig.network.graph import Reduce
from tfbig.network.rules.call import Call
from tfbig.network.rules.nodes import numbers, of_fixed_size, windows
from tfbig.network.rules.registry import Rule, rule
from tfbig.network.rules.whole_values import on_whole_values
from tfbig.ops import kernels, totals
from tfbig.system.keras_internals import operations

layers = keras.layers


def _pooling(function: Any) -> Rule:
    def apply(call: Call) -> int:
        model_axes = windows(call, numbers(call, call.layer.pool_size))
        axes = call.graph.to_graph_order(model_axes)
        return call.local(
            lambda x, w, strip: function(x[0], axes, strip),
            model_axes,
            outside=None,
            operations=call.channels * kernels.taps(axes),
            any_channels=True,
        )

    return apply


MAX = layers.MaxPooling1D, layers.MaxPooling2D, layers.MaxPooling3D
AVERAGE = layers.AveragePooling1D, layers.AveragePooling2D, layers.AveragePooling3D
rule(*MAX, *operations("MaxPool"))(_pooling(kernels.max_pool))
rule(*AVERAGE, *operations("AveragePool"))(_pooling(kernels.average_pool))


def _expand_spatial(call: Call, t: tf.Tensor) -> tf.Tensor:
    """Insert spatial axes of length one, `[N, C] -> [N, 1, ..., C]`."""
    for _ in range(call.graph.spatial):
        t = tf.expand_dims(t, 1)
    return t


@rule(layers.GlobalAveragePooling1D, layers.GlobalAveragePooling2D, layers.GlobalAveragePooling3D)
def global_average(call: Call) -> int:
    """Add the mean over all pixels of each image."""
    axes = list(range(1, call.rank - 1))

    def finish(total: tf.Tensor, pixels: tf.Tensor, w: Any) -> tf.Tensor:
        mean = total / pixels
        return _expand_spatial(call, mean) if call.layer.keepdims else mean

    def sums(x: list[tf.Tensor], strip: Any) -> tf.Tensor:
        return tf.squeeze(totals.total(x[0], axes), axes)

    return call.reduce(sums, finish, any_channels=True)


@rule(layers.GlobalMaxPooling1D, layers.GlobalMaxPooling2D, layers.GlobalMaxPooling3D)
def global_maximum(call: Call) -> int:
    """Add the maximum over all pixels; pixels that attain it share the gradient, as in TensorFlow."""
    op = Maximum(call.channels, call.rank - 2, tf.as_dtype(call.dtype))
    result = call.graph.reduce(f"{call.layer.name}/reduce", op, call.inputs)
    shape = (lambda t: _expand_spatial(call, t)) if call.layer.keepdims else (lambda t: t)
    return call.whole(lambda x, w: shape(x[0][0]), [result])


class Maximum(Reduce):
    """Maximum of each channel over all pixels, and the number of pixels that attain it.

    Args:
        channels: Channels of the image.
        spatial: Number of spatial axes.
        dtype: Element type of the image.
    """

    any_channels = True

    def __init__(self, channels: int, spatial: int, dtype: tf.DType) -> None:
        self.operations = channels
        self.spatial = spatial
        self.dtype = dtype

    def init(self, batch: Any, channels: Sequence[Any]) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the least number, which no pixel attains."""
        shape = [batch, channels[0]]
        return tf.fill(shape, self._least), tf.zeros(shape, tf.int64)

    def partial(self, inputs: list[tf.Tensor], strip: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the maximum of a strip."""
        axes = list(range(1, self.spatial + 1))
        top = tf.reduce_max(inputs[0], axes)
        return top, tf.reduce_sum(tf.cast(self._ties(inputs[0], top), tf.int64), axes)

    def merge(self, first: Any, second: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the larger maximum."""
        top = tf.maximum(first[0], second[0])
        counts = [tf.where(tf.equal(p[0], top), p[1], 0) for p in (first, second)]
        return top, counts[0] + counts[1]

    def times(self, partial: Any, copies: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the maximum of many strips with the same pixels; of none, the least number."""
        return tf.where(copies.number > 0, partial[0], self._least), copies.of(partial[1])

    def pullback(
        self, inputs: list[tf.Tensor], strip: Any, result: Any, cotangent: Any
    ) -> list[Any]:
        """Return the gradient of the image."""
        if not self.dtype.is_floating:
            return [None]
        chosen = tf.cast(self._ties(inputs[0], result[0]), self.dtype)
        counts, gradient = (self._expand(t) for t in (result[1], cotangent[0]))
        return [chosen / tf.cast(counts, self.dtype) * gradient]  # rounded as in TensorFlow

    @property
    def _least(self) -> tf.Tensor:
        """Scalar that no pixel is below."""
        return tf.constant(self.dtype.min if self.dtype.is_integer else float("-inf"), self.dtype)

    def _ties(self, x: tf.Tensor, top: tf.Tensor) -> tf.Tensor:
        return tf.equal(x, self._expand(top))  # `==` would lose the shape

    def _expand(self, t: tf.Tensor) -> tf.Tensor:
        """Return `[N, C]` as `[N, 1, ..., C]`."""
        for _ in range(self.spatial):
            t = t[:, None]
        return t


def read_whole(call: Call) -> list[int]:
    """Make images of fixed size whole values, and run the layer on those."""
    if not has_fixed_size(call):
        call.refuse(
            f"needs the whole image, whose size {call.specs[0].shape} is unknown; give the model a fixed input "
            "size, or pool the image to a vector first, as GlobalAveragePooling2D does."
        )
    values = [
        _whole_image(call, position) if call.graph.values[value].image else value
        for position, value in enumerate(call.inputs)
    ]
    return on_whole_values(call.with_inputs(values))


rule(layers.Flatten)(read_whole)


def has_fixed_size(call: Call) -> bool:
    """Return whether the sizes of all images of a call are known."""
    return all(
        None not in spec.shape[1 : call.graph.spatial + 1]
        for spec, value in zip(call.specs, call.inputs, strict=True)
        if call.graph.values[value].image
    )


def _whole_image(call: Call, position: int) -> int:
    """Add an image of fixed size as a whole value, in the shape of the model."""
    graph, value = call.graph, call.inputs[position]
    size, spec = call.specs[position].shape[1 : graph.spatial + 1], graph.values[value]
    number = f"_{position}" if position else ""
    fixed = of_fixed_size(call, value, size, f"image{number}")
    op = Gather(graph.to_graph_order(size), spec.channels, tf.as_dtype(spec.dtype))
    whole = graph.reduce(f"{call.layer.name}/whole{number}", op, [fixed])
    shape = graph.channel_shapes.get(value)
    if graph.order is None and shape is None:
        return whole

    def in_model(x: list[tf.Tensor], w: Any) -> tf.Tensor:
        image = x[0] if graph.order is None else tf.transpose(x[0], graph.inverse_permutation)
        return image if shape is None else tf.reshape(image, [-1, *size, *shape])

    return call.whole(in_model, [whole], (), f"transpose{number}")


class Gather(Reduce):
    """The whole image, assembled from its strips.

    Args:
        size: Rows, columns, ... of the image.
        channels: Channels of the image.
        dtype: Element type of the image.
    """

    def __init__(self, size: Sequence[int], channels: int, dtype: tf.DType) -> None:
        self.size = size
        self.channels = channels
        self.dtype = dtype

    def init(self, batch: Any, channels: Sequence[Any]) -> tuple[tf.Tensor]:
        """Return zeros."""
        return (tf.zeros([batch, *self.size, self.channels], self.dtype),)

    def partial(self, inputs: list[tf.Tensor], strip: Any) -> tuple[tf.Tensor]:
        """Return the rows of a strip, with zeros around."""
        around = [(0, 0)] * len(self.size)
        for i, along in enumerate(strip.axes):
            around[i] = along.start, self.size[i] - along.stop
        shape = [None, *self.size, self.channels]
        return (tf.ensure_shape(kernels.pad(inputs[0], *around), shape),)

    def finalize(self, partial: tuple[tf.Tensor], pixels: Any) -> tf.Tensor:
        """Return the image."""
        return partial[0]

    def pullback(
        self, inputs: list[tf.Tensor], strip: Any, result: Any, cotangent: Any
    ) -> list[tf.Tensor]:
        """Return the rows of the gradient."""
        return [cotangent[(slice(None), *(slice(a.start, a.stop) for a in strip.axes))]]
