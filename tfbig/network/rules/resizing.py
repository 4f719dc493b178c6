"""Rules for interpolation: `Resizing`, `keras.ops.image.resize`, and `UpSampling2D` with an interpolation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfbig.geometry.selection import Scale
from tfbig.geometry.windows import Resize
from tfbig.network.rules.call import Call
from tfbig.network.rules.nodes import geometric
from tfbig.network.rules.registry import rule
from tfbig.ops import kernels
from tfbig.ops.resizing import RADIUS, resize
from tfbig.system.keras_internals import operations


@rule(keras.layers.Resizing, *operations("Resize"))
def resizing(call: Call) -> int:
    """Add an image resized to a fixed size."""
    layer = call.layer
    size = layer.size if hasattr(layer, "size") else (layer.height, layer.width)
    for option in ("crop_to_aspect_ratio", "pad_to_aspect_ratio"):
        if getattr(layer, option):
            call.refuse(
                f"has {option}=True, whose rows depend on the columns of the image; give the model images of that "
                f"aspect ratio, and set {option}=False."
            )
    if call.graph.spatial != 2:
        call.refuse(f"needs images with two spatial axes; received {call.graph.spatial}.")
    if not all(isinstance(n, int) for n in size):
        call.refuse(
            "resizes to a size that is known only when the network runs; enlarge by a fixed factor, with UpSampling2D, "
            "or give keras.Input the size of the images."
        )
    method, smooth = layer.interpolation, layer.antialias
    axes = [Scale(n, RADIUS[method], smooth) for n in size]
    return interpolated(call, axes, [_always(n) for n in size], method, smooth)


def enlarged(call: Call, factors: Sequence[int], method: str) -> int:
    """Add an image enlarged by integer factors, in the order of the model."""
    axes = [Resize(n, RADIUS[method]) for n in factors]
    return interpolated(call, axes, [_times(n) for n in factors], method)


def interpolated(
    call: Call,
    axes: Sequence[Any],
    sizes: Sequence[Callable[[Any], Any]],
    method: str,
    antialias: bool = False,
) -> int:
    """Add an interpolated image; `sizes` return the length of an axis from that of the input."""
    graph_sizes = call.graph.to_graph_order(sizes)

    def run(x: tf.Tensor, strip: kernels.Strip) -> tf.Tensor:
        return resize(x, graph_sizes, method, antialias, strip)

    return geometric(call, axes, run)


def _always(size: int) -> Callable[[Any], Any]:
    return lambda length: size


def _times(factor: int) -> Callable[[Any], Any]:
    return lambda length: length * factor
