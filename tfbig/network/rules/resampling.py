"""Rules for layers that change the size: upsampling, padding, cropping."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfbig.geometry.windows import Interval, Resize, Transposed, Window
from tfbig.network.rules.call import Call
from tfbig.network.rules.nodes import geometric
from tfbig.network.rules.registry import rule
from tfbig.network.rules.resizing import enlarged
from tfbig.ops import kernels
from tfbig.system.keras_internals import operations

layers = keras.layers


@rule(layers.UpSampling1D, layers.UpSampling2D, layers.UpSampling3D)
def upsampling(call: Call) -> int:
    """Add upsampling by nearest neighbours or interpolation."""
    layer = call.layer
    factors = (layer.size,) * call.graph.spatial if isinstance(layer.size, int) else layer.size
    interpolation = getattr(layer, "interpolation", "nearest")
    if interpolation not in ("nearest", "bilinear"):
        return enlarged(call, factors, interpolation)
    axes: Any
    function: Any
    if interpolation == "nearest":
        axes, function = tuple(Transposed(f, f) for f in factors), kernels.repeat
    else:
        axes, function = tuple(Resize(f) for f in factors), kernels.bilinear
    graph_axes = call.graph.to_graph_order(axes)
    return geometric(call, axes, lambda x, strip: function(x, graph_axes, strip))


def _amounts(call: Call, amounts: Any) -> list[tuple[int, int]]:
    """Return `(before, after)` per spatial axis; layers of one axis have a single pair."""
    return [tuple(amounts)] if call.graph.spatial == 1 else [tuple(a) for a in amounts]


@rule(layers.ZeroPadding1D, layers.ZeroPadding2D, layers.ZeroPadding3D)
def zero_padding(call: Call) -> int:
    """Add padding with zeros."""
    return padding(call, _amounts(call, call.layer.padding))


def padding(call: Call, amounts: Sequence[Any], value: float = 0, then: Any = lambda x: x) -> int:
    """Add rows, columns, ... around an image.

    Args:
        call: The call.
        amounts: `(before, after)` per spatial axis of the model.
        value: Value of the new pixels.
        then: Function of the padded strip.
    """
    around = call.graph.to_graph_order(amounts)

    def run(x: tf.Tensor, strip: kernels.Strip) -> tf.Tensor:
        pairs = zip(strip.of_input(0), around, strict=False)
        firsts = [rows.start + before for rows, (before, _) in pairs]
        return then(kernels.fit(x, firsts, strip, around, value))

    return geometric(call, tuple(_Padding(padding=a) for a in amounts), run)


class _Padding(Window):
    """Window of a layer that adds rows of zeros; a strip of only zeros still reads one row of the image."""

    def needs(self, rows: Interval, size: int) -> Interval:
        """Return the input rows of some output rows, at least one."""
        start, stop = super().needs(rows, size)
        return Interval(np.minimum(start, size - 1), np.maximum(stop, 1))


@rule(layers.Cropping1D, layers.Cropping2D, layers.Cropping3D)
def cropping(call: Call) -> int:
    """Add cropping."""
    amounts = _amounts(call, call.layer.cropping)
    around = call.graph.to_graph_order(amounts)

    def run(x: tf.Tensor, strip: kernels.Strip) -> tf.Tensor:
        read = len(strip.axes)  # along these axes, only what remains was read
        cut = [slice(a, tf.shape(x)[i] - b) for i, (a, b) in enumerate(around[read:], read + 1)]
        return x[(slice(None), *[slice(None)] * read, *cut)]

    return geometric(call, tuple(Window(padding=(-a, -b)) for a, b in amounts), run)


@rule(*operations("DepthToSpace"))
def depth_to_space(call: Call) -> int:
    """Add an image with blocks of pixels out of the channels."""
    block = call.layer.block_size
    axes = (Transposed(block, block),) * 2
    to_model, to_graph = call.graph.inverse_permutation, call.graph.permutation

    def run(x: tf.Tensor, strip: kernels.Strip) -> tf.Tensor:
        y = tf.transpose(tf.nn.depth_to_space(tf.transpose(x, to_model), block), to_graph)
        return kernels.fit(y, [rows.start * block for rows in strip.of_input(0)], strip)

    return geometric(call, axes, run)


class _Blocks(Window):
    """Window of blocks that cover the image."""

    def extent(self, size: int) -> int:
        """Return the number of blocks."""
        if size % self.stride:
            raise ValueError(
                f"an axis of {size} pixels is no multiple of the block_size {self.stride} of keras.ops.space_to_depth; "
                "pad or crop the image."
            )
        return size // self.stride


@rule(*operations("SpaceToDepth"))
def space_to_depth(call: Call) -> int:
    """Add an image with blocks of pixels in the channels."""
    block = call.layer.block_size
    to_model, to_graph = call.graph.inverse_permutation, call.graph.permutation

    def run(x: tf.Tensor, strip: kernels.Strip) -> tf.Tensor:
        return tf.transpose(tf.nn.space_to_depth(tf.transpose(x, to_model), block), to_graph)

    return geometric(call, (_Blocks(block, block),) * 2, run)
