"""Layers that change the size: upsampling, padding, cropping."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfbig import kernels
from tfbig.errors import UnsupportedLayerError
from tfbig.geometry import Interval, Resize, Transposed, Window
from tfbig.graph import Graph
from tfbig.rules.nodes import cast, channels_last, images_only
from tfbig.rules.registry import rule

layers = keras.layers


@rule(layers.UpSampling2D)
def upsampling(layer: Any, graph: Graph, inputs: list[int], training: bool) -> int:
    channels_last(layer)
    images_only(layer, graph, inputs)
    axes: Any
    function: Any
    if layer.interpolation == "nearest":
        axes, function = tuple(Transposed(f, f) for f in layer.size), kernels.repeat
    elif layer.interpolation == "bilinear":
        axes, function = tuple(Resize(f) for f in layer.size), kernels.bilinear
    else:
        raise UnsupportedLayerError(
            f"layer '{layer.name}': interpolation='{layer.interpolation}' has no strip form; "
            "use 'nearest' or 'bilinear'."
        )
    return _geometric(layer, graph, inputs[0], axes, lambda x, strip: function(x, axes, strip))


def _geometric(layer: Any, graph: Graph, value: int, axes: Any, function: Any) -> int:
    value = cast(graph, value, layer.compute_dtype)
    return graph.local(
        layer.name,
        lambda x, w, strip: function(x[0], strip),
        [value],
        graph.values[value].channels,
        layer.compute_dtype,
        [axes],
        cheap=True,
    )


@rule(layers.ZeroPadding2D)
def zero_padding(layer: Any, graph: Graph, inputs: list[int], training: bool) -> int:
    channels_last(layer)
    images_only(layer, graph, inputs)
    axes = tuple(_Padding(padding=tuple(p)) for p in layer.padding)
    (above, _), sides = layer.padding

    def run(x: tf.Tensor, strip: kernels.Strip) -> tf.Tensor:
        return kernels.fit_rows(x, strip.inputs[0].start + above, strip, sides)

    return _geometric(layer, graph, inputs[0], axes, run)


class _Padding(Window):
    """Rows of zeros; a strip of nothing else still reads one row of the image, to start from."""

    def needs(self, rows: Interval, size: int) -> Interval:
        start, stop = super().needs(rows, size)
        return Interval(min(start, size - 1), max(stop, 1))


@rule(layers.Cropping2D)
def cropping(layer: Any, graph: Graph, inputs: list[int], training: bool) -> int:
    channels_last(layer)
    images_only(layer, graph, inputs)
    axes = tuple(Window(padding=(-a, -b)) for a, b in layer.cropping)
    left, right = layer.cropping[1]
    run = lambda x, strip: x[:, :, left : tf.shape(x)[2] - right]  # noqa: E731
    return _geometric(layer, graph, inputs[0], axes, run)
