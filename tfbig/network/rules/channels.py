"""Rules for operations over the channels of each pixel, and over their axes: argmax, cumsum, take, reshape, transpose.

An operation over channels only may change the axes of the channels: see `tfbig.network.rules.channel_shapes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import keras
import tensorflow as tf

from tfbig.errors import Advice, UnsupportedLayerError
from tfbig.network.rules import channel_shapes, registry
from tfbig.network.rules.call import Call, Slot
from tfbig.network.rules.channel_shapes import any_channel_shape
from tfbig.network.rules.nodes import check_broadcast, per_pixel, per_pixel_parts
from tfbig.network.rules.pooling import has_fixed_size, read_whole
from tfbig.network.rules.registry import rule
from tfbig.system.keras_internals import operations

layers = keras.layers

OF_CHANNELS = """
    Argmax Argmin Argsort Average Cumprod Cumsum Diff Glu LayerNorm Median Nanargmax Nanargmin Nancumprod Nancumsum
    Nanmax Nanmean Nanmedian Nanmin Nanpercentile Nanprod Nanquantile Nanstd Nansum Nanvar Percentile Ptp Quantile Roll
    Sort Split Take TakeAlongAxis Unstack
"""
"""Operations that are per pixel if all of `axis` are axes of the channels."""

MADE = "ExpandDims OneHot Stack"
"""Operations whose `axis` is one that the result has in addition."""


def apply(call: Call) -> list[int]:
    """Add the nodes of a call with images among its inputs; see `tfbig.network.rules.registry.apply`.

    If channels have several axes or none, a layer that cannot run strip by strip on these gets whole images of fixed
    size.
    """
    if not channel_shapes.shaped(call.graph, call.inputs):
        return registry.apply(call)
    first = len(call.graph.nodes)
    try:
        return registry.apply(call)
    except UnsupportedLayerError:
        if not has_fixed_size(call):
            raise
        del call.graph.nodes[first:]
        result = read_whole(call)
        return result if isinstance(result, list) else [result]


def axes_of(call: Call, axis: Any, rank: int | None = None) -> list[int]:
    """Return axes as numbers from 0, sorted; all of them for None.

    Args:
        call: The call.
        axis: An axis or several, as arguments of operations name them.
        rank: Number of axes; by default that of the first image.
    """
    if rank is None:
        rank = rank_of(call)
    requested = range(rank) if axis is None else [axis] if isinstance(axis, int) else axis
    return sorted(int(a) % rank for a in requested)


def rank_of(call: Call) -> int:
    """Return the number of axes of the first image of a call, in the model."""
    pairs = zip(call.specs, call.inputs, strict=True)
    return next(len(s.shape) for s, i in pairs if call.graph.values[i].image)


def check_axes(call: Call, axes: Iterable[int], axis: Any) -> None:
    """Raise if one of the axes is not one of the channels.

    Raises:
        UnsupportedLayerError: One is a spatial axis or that of the batch.
    """
    if any(a <= call.graph.spatial for a in axes):
        call.refuse(
            f"only runs strip by strip over the channels, axis=-1; received axis={axis}. Pool the image to a vector "
            "first, as GlobalAveragePooling2D does.",
            Advice.PLAIN_KERAS,
        )


@rule(*operations(OF_CHANNELS))
@any_channel_shape
def over_channels(call: Call) -> list[int]:
    """Add an operation over the channels of each pixel."""
    axis = getattr(call.layer, "axis", -1)
    check_axes(call, axes_of(call, axis), axis)
    _check_operands(call)
    return per_pixel_parts(call)


def _check_operands(call: Call) -> None:
    """Raise if an operand besides the first image is an image of other axes, or differs between pixels."""
    if type(call.layer).__name__ in ("Average", "LayerNorm", "Percentile", "Quantile", "Take"):
        if len(call.images) > 1 or not call.graph.values[call.inputs[0]].image:
            call.refuse("has an image among its parameters; expected one image, and constants.")
        return
    if len(call.inputs) > 1:
        check_broadcast(call)


@rule(*operations("TopK"))
@any_channel_shape
def top_k(call: Call) -> list[int]:
    """Add the largest channels of each pixel, and their positions."""
    check_axes(call, axes_of(call, -1), -1)
    return per_pixel_parts(call)


@rule(*operations(MADE))
@any_channel_shape
def made_axis(call: Call) -> int:
    """Add an operation that adds an axis to those of the channels."""
    axis = call.layer.axis
    check_axes(call, axes_of(call, axis, len(call.outputs[0].shape)), axis)
    if len(call.images) < len(call.inputs):
        call.refuse("joins images and vectors; expected only images [N, rows, ..., C].")
    check_broadcast(call)
    return per_pixel(call)


@rule(*operations("Squeeze"))
@any_channel_shape
def squeeze(call: Call) -> int:
    """Add the removal of axes of the channels."""
    axis = call.layer.axis
    if axis is None:
        call.refuse("has axis=None, which may remove spatial axes; give the axis to remove.")
    check_axes(call, axes_of(call, axis), axis)
    return per_pixel(call)


@rule(*operations("BatchNorm"))
@any_channel_shape
def normalise_by_constants(call: Call) -> int:
    """Add a normalisation by one mean and variance per channel, which are constants or whole values."""
    axis = call.layer.axis
    check_axes(call, axes_of(call, axis), axis)
    if len(call.images) > 1:
        call.refuse("has an image among its parameters; expected one image, and vectors [C].")
    return per_pixel(call)


@rule(*operations("Digitize IsIn SearchSorted"))
@any_channel_shape
def look_up(call: Call) -> int:
    """Add an elementwise operation with a table that all pixels share."""
    if len(call.images) > 1:
        call.refuse("has an image for its table; expected a constant or a vector.")
    first = keras.tree.flatten(call.arguments)[0]
    is_image = isinstance(first, Slot) and call.graph.values[call.inputs[first.position]].image
    if is_image == (type(call.layer).__name__ == "SearchSorted"):
        call.refuse("has an image for its table; expected a constant or a vector.")
    return per_pixel(call)


@rule(*operations("Cross"))
@any_channel_shape
def cross(call: Call) -> int:
    """Add the cross product of the channels."""
    axes = [getattr(call.layer, name) for name in ("axisa", "axisb", "axisc")]
    if any(a not in (-1, rank_of(call) - 1) for a in axes):
        call.refuse(f"has axes {axes}; strip by strip expected -1, the channels.")
    check_broadcast(call)
    return per_pixel(call)


# ------------------------------------------------------------------------------ axes of the channels


@rule(layers.Reshape, *operations("Reshape"))
@any_channel_shape
def reshape(call: Call) -> int | list[int]:
    """Add a change of the axes of the channels, or of a whole image of fixed size."""
    leading, before, after = call.graph.spatial + 1, call.specs[0].shape, call.outputs[0].shape
    kept = tuple(before[:leading]) == tuple(after[:leading])
    number = call.graph.values[call.inputs[0]].channels
    if not kept or None in after[leading:] or number != prod(after[leading:]):
        return read_whole(call)
    shape = tuple(int(n) for n in after[leading:])

    def run(x: Sequence[tf.Tensor]) -> tf.Tensor:
        return tf.reshape(
            x[0], tf.concat([tf.shape(x[0])[:leading], tf.constant(shape, tf.int32)], 0)
        )

    return per_pixel(call, function=run)


def _permutation(call: Call) -> list[int]:
    """Return the axes of the input in the order of the output."""
    layer, rank = call.layer, rank_of(call)
    if isinstance(layer, layers.Permute):
        return [0, *layer.dims]
    if hasattr(layer, "axis1"):
        axes = list(range(rank))
        a, b = layer.axis1 % rank, layer.axis2 % rank
        axes[a], axes[b] = b, a
        return axes
    if hasattr(layer, "source"):
        sources, targets = (
            [a % rank for a in ([each] if isinstance(each, int) else each)]
            for each in (layer.source, layer.destination)
        )
        axes = [a for a in range(rank) if a not in sources]
        for target, source in sorted(zip(targets, sources, strict=True)):
            axes.insert(target, source)
        return axes
    return [a % rank for a in layer.axes] if layer.axes is not None else [*range(rank)][::-1]


@rule(layers.Permute, *operations("Moveaxis Swapaxes Transpose"))
@any_channel_shape
def transpose(call: Call) -> int | list[int]:
    """Add another order of the axes of the channels, or of those of a whole image of fixed size."""
    leading = call.graph.spatial + 1
    if _permutation(call)[:leading] != [*range(leading)]:
        return read_whole(call)
    return per_pixel(call)
