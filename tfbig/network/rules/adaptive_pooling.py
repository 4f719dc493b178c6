"""Rules for pooling to a fixed number of windows, whatever the size of the image.

Window i of an axis of n pixels covers pixels `floor(i * n / size)` to `ceil((i + 1) * n / size)`. A window may be as
large as the image, so the windows are summed strip by strip, as global pooling is, and the result is a whole value.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfbig.network.graph import Graph, Reduce
from tfbig.network.rules.call import Call
from tfbig.network.rules.registry import Rule, rule
from tfbig.ops import totals
from tfbig.system.keras_internals import operations
from tfbig.units import ceil_div

layers = keras.layers

NOWHERE = tf.int64.max
"""Place of the largest pixel of a window that has none in a strip."""


def _adaptive(kind_of: Callable[[Graph], type[WindowSums]]) -> Rule:
    def apply(call: Call) -> int:
        size, graph = tuple(call.layer.output_size), call.graph
        kind = kind_of(graph)
        image = call.local(
            lambda x, w, strip: tf.identity(x[0]),
            outside=None,
            name="image",
            uniform=False,  # the windows that a pixel adds to depend on its place
            any_channels=True,
        )
        op = kind(graph, graph.to_graph_order(size), call.channels, tf.as_dtype(call.dtype))
        parts = graph.reduce(f"{call.layer.name}/windows", op, [image])
        shape = [None, *size, call.channels]

        def run(x: list[Any], w: Any) -> tf.Tensor:
            pooled = tf.transpose(op.pooled(x[0], x[1]), graph.inverse_permutation)
            return tf.ensure_shape(tf.cast(pooled, call.dtype), shape)

        return call.whole(run, [parts, graph.size(image)])

    return apply


class WindowSums(Reduce):
    """Sum of the pixels of each window.

    Args:
        graph: Graph of the image.
        windows: Number of windows along each axis, in the order of the graph.
        channels: Channels of the image.
        dtype: Element type of the image.
    """

    any_channels = True

    def __init__(
        self, graph: Graph, windows: Sequence[int], channels: int, dtype: tf.DType
    ) -> None:
        self.operations = 2 * channels
        self.windows = tuple(windows)
        self.model_axes = graph.to_model_order(range(graph.spatial))
        self.dtype = dtype
        self.wide = totals.wide(dtype)

    def init(self, batch: Any, channels: Sequence[Any]) -> tuple[tf.Tensor, ...]:
        """Return zeros."""
        return (tf.zeros([batch, *self.windows, channels[0]], self.wide),)

    def partial(self, inputs: list[tf.Tensor], strip: Any) -> tuple[tf.Tensor, ...]:
        """Return the sums over the pixels of a strip."""
        total = tf.cast(inputs[0], self.wide)
        for axis, count in enumerate(self.windows):
            windows, pixels = self._members(inputs[0], strip, axis)
            total = _regrouped(tf.math.unsorted_segment_sum, total, axis, pixels, windows, count)
        return (self._with_shape(total, inputs[0]),)

    def times(self, partial: Any, copies: Any) -> Any:
        """Return the partial result: strips are never alike."""
        return partial

    def pullback(
        self, inputs: list[tf.Tensor], strip: Any, result: Any, cotangent: Any
    ) -> list[tf.Tensor]:
        """Return the gradient of each pixel: the sum of those of its windows."""
        gradient, shape = cotangent[0], tf.shape(inputs[0])
        for axis in reversed(range(len(self.windows))):
            windows, pixels = self._members(inputs[0], strip, axis)
            gradient = _regrouped(
                tf.math.unsorted_segment_sum, gradient, axis, windows, pixels, shape[axis + 1]
            )
        return [tf.cast(gradient, self.dtype)]

    def pooled(self, result: Any, size: tf.Tensor) -> tf.Tensor:
        """Return the mean of each window.

        Args:
            result: The result of the reduction.
            size: Rows, columns, ... of the image, `[spatial]` int32.
        """
        counts = tf.ones([1], self.wide)
        for axis in reversed(range(len(self.windows))):
            start, stop = bounds(size[axis], self.windows[axis])
            along = tf.cast(stop - start, self.wide)
            counts = tf.reshape(along, [-1, *[1] * counts.shape.rank]) * counts
        return result[0] / counts

    def _members(self, x: tf.Tensor, strip: Any, axis: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Return all pairs of a window and one of its pixels along an axis; the first pixel of the strip is 0."""
        first, last, extent = self._part(x, strip, axis)
        ends = (tf.clip_by_value(n, first, last) for n in bounds(extent, self.windows[axis]))
        pixels = tf.ragged.range(*ends)
        return tf.cast(pixels.value_rowids(), tf.int32), pixels.flat_values - first

    @staticmethod
    def _part(x: tf.Tensor, strip: Any, axis: int) -> tuple[Any, Any, Any]:
        """Return the first pixel of a strip along an axis, the one after the last, and the length of the image."""
        along = strip.along(axis)
        if along is None:
            size = tf.shape(x)[axis + 1]
            return tf.constant(0), size, size
        return along.start, along.stop, along.extent

    def _with_shape(self, t: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(t, [x.shape[0], *self.windows, x.shape[-1]])


class TiedMaxima(WindowSums):
    """Largest pixel of each window of a volume; all pixels that are as large have its gradient, as in TensorFlow."""

    def init(self, batch: Any, channels: Sequence[Any]) -> tuple[tf.Tensor, ...]:
        """Return the least number for each window."""
        return (tf.fill([batch, *self.windows, channels[0]], self._least),)

    def partial(self, inputs: list[tf.Tensor], strip: Any) -> tuple[tf.Tensor, ...]:
        """Return the maxima over the pixels of a strip."""
        top = inputs[0]
        for axis, count in enumerate(self.windows):
            windows, pixels = self._members(inputs[0], strip, axis)
            top = _regrouped(tf.math.unsorted_segment_max, top, axis, pixels, windows, count)
        return (self._with_shape(top, inputs[0]),)

    def pooled(self, result: Any, size: tf.Tensor) -> tf.Tensor:
        """Return the largest pixel of each window."""
        return result[0]

    def merge(self, first: Any, second: Any) -> tuple[tf.Tensor, ...]:
        """Return the larger pixels."""
        return tuple(tf.maximum(a, b) for a, b in zip(first, second, strict=True))

    def pullback(
        self, inputs: list[tf.Tensor], strip: Any, result: Any, cotangent: Any
    ) -> list[tf.Tensor]:
        """Return the gradients of the windows at their largest pixels."""
        (x,), top, gradient = inputs, result[0], cotangent[0]
        members = [self._members(x, strip, axis) for axis in range(len(self.windows))]
        pairs = x
        for axis, (windows, pixels) in enumerate(members, 1):
            pairs = tf.gather(pairs, pixels, axis=axis)
            top, gradient = (tf.gather(t, windows, axis=axis) for t in (top, gradient))
        gradient = tf.where(tf.equal(pairs, top), gradient, tf.zeros_like(gradient))
        for axis, (_, pixels) in enumerate(members):
            every, size = tf.range(tf.size(pixels)), tf.shape(x)[axis + 1]
            gradient = _regrouped(tf.math.unsorted_segment_sum, gradient, axis, every, pixels, size)
        return [gradient]

    @property
    def _least(self) -> tf.Tensor:
        """Scalar that no pixel is below."""
        return tf.constant(self.dtype.min, self.dtype)


class FirstMaxima(TiedMaxima):
    """Largest pixel of each window of a plane or signal, and its place.

    TensorFlow pools along one axis of the model after the other. Of several largest pixels the gradient is that of the
    first along the last axis; of those with this place, the first along the axis before it.
    """

    def init(self, batch: Any, channels: Sequence[Any]) -> tuple[tf.Tensor, ...]:
        """Return windows without pixels."""
        shape = [batch, *self.windows, channels[0]]
        return tf.fill(shape, self._least), tf.fill(shape, tf.constant(NOWHERE, tf.int64))

    def partial(self, inputs: list[tf.Tensor], strip: Any) -> tuple[tf.Tensor, ...]:
        """Return the maxima over the pixels of a strip."""
        top, place = inputs[0], tf.zeros_like(inputs[0], tf.int64)
        for axis, count in enumerate(self.windows):
            windows, pixels = self._members(inputs[0], strip, axis)
            places = self._places(inputs[0], strip, axis)
            spread = [None, *[None] * axis, slice(None), *[None] * (top.shape.rank - 2 - axis)]
            place = tf.where(place < NOWHERE, place + places[tuple(spread)], NOWHERE)
            largest = _regrouped(tf.math.unsorted_segment_max, top, axis, pixels, windows, count)
            is_largest = tf.equal(
                tf.gather(top, pixels, axis=axis + 1), tf.gather(largest, windows, axis=axis + 1)
            )
            places = tf.where(is_largest, tf.gather(place, pixels, axis=axis + 1), NOWHERE)
            every = tf.range(tf.size(pixels))
            place = _regrouped(tf.math.unsorted_segment_min, places, axis, every, windows, count)
            top = largest
        return self._with_shape(top, inputs[0]), self._with_shape(place, inputs[0])

    def merge(self, first: Any, second: Any) -> tuple[tf.Tensor, ...]:
        """Return the larger pixels."""
        top = tf.maximum(first[0], second[0])
        places = [tf.where(tf.equal(p[0], top), p[1], NOWHERE) for p in (first, second)]
        return top, tf.minimum(*places)

    def pullback(
        self, inputs: list[tf.Tensor], strip: Any, result: Any, cotangent: Any
    ) -> list[tf.Tensor]:
        """Return the gradients of the windows at their largest pixels."""
        shape, rest = tf.shape(inputs[0], tf.int64), result[1]
        indices: list[Any] = [None] * len(self.windows)
        inside = rest < NOWHERE
        for axis in self.model_axes:
            first, last, extent = self._part(inputs[0], strip, axis)
            extent = tf.cast(extent, tf.int64)
            pixel = rest % extent
            inside &= (pixel >= tf.cast(first, tf.int64)) & (pixel < tf.cast(last, tf.int64))
            indices[axis], rest = pixel - tf.cast(first, tf.int64), rest // extent
        cells = tf.meshgrid(
            *(tf.range(n) for n in tf.unstack(tf.shape(rest, tf.int64))), indexing="ij"
        )
        indices = [tf.where(inside, i, 0) for i in (cells[0], *indices, cells[-1])]
        updates = tf.where(inside, cotangent[0], tf.zeros_like(cotangent[0]))
        return [
            tf.ensure_shape(tf.scatter_nd(tf.stack(indices, -1), updates, shape), inputs[0].shape)
        ]

    def _places(self, x: tf.Tensor, strip: Any, axis: int) -> tf.Tensor:
        """Return what each pixel of a strip along an axis adds to the place: `first + rows * (second + ...)`."""
        weight = tf.constant(1, tf.int64)
        for before in self.model_axes[: self.model_axes.index(axis)]:
            weight *= tf.cast(self._part(x, strip, before)[2], tf.int64)
        first, last, _ = self._part(x, strip, axis)
        return tf.cast(tf.range(first, last), tf.int64) * weight


def bounds(size: Any, windows: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the first pixel of each window and the one after its last.

    Keras computes them in float32, which is exact up to `size * windows == 2**24`. In a graph, TensorFlow replaces a
    division of such numbers by a multiplication, which is not; so these are integers.

    Args:
        size: Number of pixels, int32 scalar.
        windows: Number of windows.
    """
    edges = tf.range(windows + 1, dtype=tf.int64) * tf.cast(size, tf.int64)
    start, stop = edges[:-1] // windows, ceil_div(edges[1:], windows)
    return tf.cast(start, tf.int32), tf.cast(stop, tf.int32)


def _regrouped(
    function: Any, x: tf.Tensor, axis: int, sources: Any, targets: Any, count: Any
) -> tf.Tensor:
    """Return a segment function of the positions `sources` of an axis of an image, in the segments `targets`."""
    order = [axis + 1, *(i for i in range(x.shape.rank) if i != axis + 1)]
    back = [order.index(i) for i in range(x.shape.rank)]
    taken = tf.gather(tf.transpose(x, order), sources)
    return tf.transpose(function(taken, targets, count), back)


rule(
    layers.AdaptiveAveragePooling1D,
    layers.AdaptiveAveragePooling2D,
    layers.AdaptiveAveragePooling3D,
    *operations("AdaptiveAveragePool"),
)(_adaptive(lambda graph: WindowSums))
rule(
    layers.AdaptiveMaxPooling1D,
    layers.AdaptiveMaxPooling2D,
    layers.AdaptiveMaxPooling3D,
    *operations("AdaptiveMaxPool"),
)(_adaptive(lambda graph: TiedMaxima if graph.spatial == 3 else FirstMaxima))
