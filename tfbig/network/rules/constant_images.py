"""Images of equal pixels, made by enlarging a pooled image `[N, 1, 1, C]`, and their concatenation with others.

Networks for segmentation (PSPNet, DeepLab) pool an image to one pixel, enlarge that pixel to the size of the image
with `UpSampling2D`, `Resizing`, `ops.image.resize`, `ops.broadcast_to`, `ops.tile` or `ops.repeat`, and concatenate
both. The graph keeps the pixel as a whole value, and its size in `Graph.constant_sizes`; layers that combine it with an
image broadcast it. A block that enlarges it to the size that `ops.shape` gives of an image makes one of unknown size.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf

from tfbig.errors import UnsupportedLayerError
from tfbig.network.graph import Graph
from tfbig.network.rules import channel_shapes, channels, whole_values
from tfbig.network.rules.call import Call, Slot
from tfbig.network.rules.channel_shapes import any_channel_shape
from tfbig.network.rules.channels import axes_of, check_axes
from tfbig.network.rules.joining import joined
from tfbig.network.rules.nodes import check_broadcast, of_fixed_size, per_pixel
from tfbig.network.rules.operations import ELEMENTWISE
from tfbig.network.rules.registry import rule
from tfbig.system import keras_internals
from tfbig.system.keras_internals import operations

layers = keras.layers

RESIZING = (layers.Resizing, *operations("Resize"))
"""Layers and operations that resize to a size, which may be that of another image."""

ENLARGING = (
    *(layers.UpSampling1D, layers.UpSampling2D, layers.UpSampling3D),
    *operations("BroadcastTo Repeat Tile"),
    *RESIZING,
)
"""Layers and operations that may make an image of equal pixels from one pixel."""

ELEMENT_BY_ELEMENT = (
    *(layers.Activation, layers.ELU, layers.LeakyReLU, layers.ReLU),
    *operations(ELEMENTWISE),
)
"""Layers and operations that compute each element of an image from that element."""

COMBINING = (
    *(layers.Add, layers.Average, layers.Concatenate, layers.Maximum, layers.Minimum),
    *(layers.Multiply, layers.Subtract, keras_internals.CustomScaleLayer),
    *operations(f"Concatenate {ELEMENTWISE}"),
)
"""Layers and operations that combine such an image with others."""


def on_whole_values(call: Call) -> list[int]:
    """Add a call without images among its inputs; see `tfbig.network.rules.whole_values.on_whole_values`.

    A pixel that is enlarged to an image stays one pixel, until a layer needs the whole of it.
    """
    if _keeps_pixels_equal(call):
        [value] = whole_values.on_whole_values(call)
        call.graph.constant_sizes[value] = call.graph.constant_sizes[call.inputs[0]]
        return [value]
    size = _size_of_result(call)
    if size is None:
        return whole_values.on_whole_values(_in_full(call))
    batch = call.outputs[0].shape[0]
    through = tf.float32 if _resizes(call) else None  # in which TensorFlow computes bilinear pixels

    def enlarge(x: list[Any], w: Any) -> tf.Tensor:
        pixel = x[0] if through is None else tf.cast(x[0], through)
        if batch is not None:
            pixel = tf.broadcast_to(pixel, tf.concat([[batch], tf.shape(pixel)[1:]], 0))
        return tf.cast(pixel, call.dtype)

    value = call.whole(enlarge, call.inputs[:1])
    call.graph.constant_sizes[value] = size
    return [value]


def _keeps_pixels_equal(call: Call) -> bool:
    """Return whether a call computes each element of one such image alone, so that its pixels stay equal."""
    of_equal_pixels = [v in call.graph.constant_sizes for v in call.inputs] == [True]
    constants = [a for a in keras.tree.flatten(call.arguments) if not isinstance(a, Slot)]
    alone = all(isinstance(a, (int, float, str, type(None))) for a in constants)
    function = getattr(call.layer, "activation", None)
    known = str(getattr(function, "__module__", "keras.")).startswith("keras.")
    return of_equal_pixels and alone and known and isinstance(call.layer, ELEMENT_BY_ELEMENT)


def _resizes(call: Call) -> bool:
    return getattr(call.layer, "interpolation", "nearest") != "nearest"


def _size_of_result(call: Call) -> tuple[int, ...] | None:
    """Return the size of the image of equal pixels that a call makes from one pixel; None if it does not.

    It is empty if it is known only when the network runs.
    """
    if not isinstance(call.layer, ENLARGING) or len(call.inputs) != 1:
        return None
    before, after = tuple(call.specs[0].shape), tuple(call.outputs[0].shape)
    size = after[1:-1]
    is_pixel = all(n == 1 for n in before[1:-1]) or call.inputs[0] in call.graph.constant_sizes
    if len(before) != call.rank or len(after) != call.rank or not is_pixel:
        return None
    if None in size and not isinstance(call.layer, RESIZING):
        return None
    layer: Any = call.layer
    known_batch = isinstance(call.layer, operations("BroadcastTo")[0])
    if before[-1] != after[-1] or all(n == 1 for n in size):
        return None
    if before[0] != after[0] and not known_batch:
        return None
    repeats: Any = getattr(layer, "repeats", None)
    same_batch = (
        not isinstance(call.layer, operations("Tile")[0])
        or len(repeats) < call.rank
        or repeats[0] == 1
    )
    same_axis = not isinstance(call.layer, operations("Repeat")[0]) or layer.axis not in (
        0,
        None,
        -call.rank,
    )
    exact = getattr(layer, "interpolation", "nearest") in ("nearest", "bilinear")
    cuts = getattr(layer, "crop_to_aspect_ratio", False) or getattr(
        layer, "pad_to_aspect_ratio", False
    )
    turned = getattr(layer, "data_format", None) == "channels_first"
    enlarges = same_batch and same_axis and exact and not cuts and not turned
    if not enlarges:
        return None
    return () if None in size else tuple(int(n) for n in size)


def _in_full(call: Call) -> Call:
    """Return a call whose inputs have all their pixels."""
    sizes = call.graph.constant_sizes
    if any(not sizes[v] for v in call.inputs if v in sizes):
        call.refuse(
            "receives a pixel enlarged to a size that is known only when the network runs; combine it with an image "
            "of that size at once, or give keras.Input the size of the images."
        )
    return call.with_inputs([in_full(call.graph, v) for v in call.inputs])


def in_full(graph: Graph, value: int) -> int:
    """Return a value, with all its pixels if it is an image of equal pixels.

    Args:
        graph: The graph, to which a node may be added.
        value: The value.

    Raises:
        UnsupportedLayerError: The size of the image is known only when the network runs.
    """
    size = graph.constant_sizes.get(value)
    if size is None:
        return value
    name = graph.values[value].name
    if not size:
        raise UnsupportedLayerError(
            f"{name}: is a pixel enlarged to a size that is known only when the network runs, and an output of the "
            "network; give keras.Input the size of the images."
        )

    def repeat(x: list[Any], w: Any) -> tf.Tensor:
        shape = tf.shape(x[0])
        full = tf.broadcast_to(x[0], tf.concat([shape[:1], size, shape[-1:]], 0))
        return tf.ensure_shape(full, [x[0].shape[0], *size, x[0].shape[-1]])

    return graph.whole(f"{name}/pixels", repeat, [value])


def with_one_pixel(call: Call) -> Call:
    """Return a call with images in which every image of equal pixels is one pixel, `[N, 1, ..., C]`.

    Raises:
        UnsupportedLayerError: The layer does not combine such an image with another one, or their sizes differ.
    """
    sizes = {v: call.graph.constant_sizes[v] for v in call.inputs if v in call.graph.constant_sizes}
    if not sizes:
        return call
    if not isinstance(call.layer, COMBINING):
        call.refuse(
            "receives an image whose pixels are all equal, enlarged from one; only layers that concatenate images or "
            "compute each element from those at the same position can combine it with an image."
        )
    size = next(filter(None, sizes.values()), ())
    inputs, specs = list(call.inputs), list(call.specs)
    for position, (value, spec) in enumerate(zip(call.inputs, call.specs, strict=True)):
        if value in sizes:
            specs[position] = keras.KerasTensor(_pixel(spec.shape), spec.dtype)
        elif size and call.graph.values[value].image:
            inputs[position] = _of_size(call, value, position, size)
    return replace(call, inputs=tuple(inputs), specs=tuple(specs))


def _pixel(shape: Any) -> tuple[Any, ...]:
    return (shape[0], *[1] * (len(shape) - 2), shape[-1])


def _of_size(call: Call, value: int, position: int, size: tuple[int, ...]) -> int:
    """Return an image, checked to have a size when it is known."""
    shape = tuple(call.specs[position].shape[1:-1])
    if shape == size:
        return value
    if None not in shape:
        call.refuse(
            f"combines an image of size {shape} with a pixel enlarged to {size}; expected equal sizes."
        )
    return of_fixed_size(call, value, size, f"of_size_{position}")


def apply(call: Call) -> list[int]:
    """Add the nodes of a call with images among its inputs; see `tfbig.network.rules.registry.apply`."""
    return channels.apply(with_one_pixel(call))


@rule(layers.Concatenate, *operations("Concatenate"))
@any_channel_shape
def concatenate(call: Call) -> int:
    """Add a concatenation of channels, of images and of pixels enlarged to images; or of images side by side."""
    axis, graph = call.layer.axis, call.graph
    if 1 <= axes_of(call, axis)[0] <= graph.spatial:
        return joined(call, axes_of(call, axis)[0])
    check_axes(call, axes_of(call, axis), axis)
    pixels = [p for p, v in enumerate(call.inputs) if not graph.values[v].image]
    if any(call.inputs[p] not in graph.constant_sizes for p in pixels):
        call.refuse("joins images and vectors; expected only images [N, rows, ..., C].")
    if pixels and not channel_shapes.is_plain(call):
        call.refuse("joins a pixel enlarged to an image with images of several channel axes.")
    check_broadcast(call)
    return _concatenation(call, axes_of(call, axis)[0], pixels)


def _concatenation(call: Call, axis: int, pixels: list[int]) -> int:
    """Add a concatenation; the inputs at the positions `pixels` are broadcast to the size of the first image."""
    first = next(p for p in range(len(call.inputs)) if p not in pixels)

    def run(x: list[tf.Tensor]) -> tf.Tensor:
        leading = tf.shape(x[first])[:-1]
        parts = [
            tf.ensure_shape(
                tf.broadcast_to(t, tf.concat([leading, tf.shape(t)[-1:]], 0)),
                [*x[first].shape[:-1], t.shape[-1]],
            )
            if p in pixels
            else t
            for p, t in enumerate(x)
        ]
        return tf.concat([tf.cast(t, call.dtype) for t in parts], axis)

    return per_pixel(call, function=run, any_channels=True)
