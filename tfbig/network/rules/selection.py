"""Rules for operations that copy pixels: slices, flips, padding, repetition, `CenterCrop`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfbig.geometry.selection import Centre, Flip, Mirror, Slice
from tfbig.geometry.windows import SAME, Transposed
from tfbig.network.rules.call import Call, Slot
from tfbig.network.rules.channel_shapes import any_channel_shape
from tfbig.network.rules.nodes import geometric, per_pixel
from tfbig.network.rules.registry import rule
from tfbig.network.rules.resampling import padding
from tfbig.ops import kernels
from tfbig.system.keras_internals import operations

EVERYTHING = slice(None)


@rule(*operations("GetItem"))
@any_channel_shape
def slices(call: Call) -> int:
    """Add `x[:, 1:-1, ::2, :3]`, or any selection among the axes of the channels, as in `x[..., 0, :, None]`."""
    key = call.arguments[0][1]
    if _is_of_channels(call, key):
        return per_pixel(call)
    if call.inputs[0] in call.graph.channel_shapes:
        call.refuse("selects pixels of an image with several axes of channels; select them before.")
    batch, *spatial, channels = _full_key(call, key)
    if batch != EVERYTHING:
        call.refuse(f"selects images of the batch, {_shown(batch)}; slice the data instead.")
    return _sliced(call, spatial, channels)


def _is_of_channels(call: Call, key: Any) -> bool:
    """Return whether a key selects all pixels, and numbers or slices of the axes of the channels; not slices alone.

    Slices of the only axis of channels are left to `_sliced`, which accepts any number of channels.
    """
    parts, rank = list(key) if isinstance(key, (tuple, list)) else [key], len(call.specs[0].shape)
    if any(isinstance(part, Slot) or hasattr(part, "shape") for part in parts):
        return False
    if Ellipsis in parts:
        at, given = parts.index(Ellipsis), sum(part is not None for part in parts) - 1
        parts[at : at + 1] = [EVERYTHING] * (rank - given)
    leading = call.graph.spatial + 1
    selected = parts[leading:]
    plain = rank == call.rank and all(isinstance(part, slice) for part in selected)
    return bool(selected) and not plain and all(part == EVERYTHING for part in parts[:leading])


def _full_key(call: Call, key: Any) -> list[slice]:
    """Return a slice for every dimension of an image."""
    parts = list(key) if isinstance(key, (tuple, list)) else [key]
    for part in parts:
        if part is not Ellipsis and not isinstance(part, slice):
            what = "inserts an axis" if part is None else f"selects {part!r}"
            call.refuse(
                f"{what}, so that the result has other axes than an image; expected slices, for example x[:, 3:4]."
            )
        if isinstance(part, slice) and not all(
            isinstance(n, (int, type(None))) for n in (part.start, part.stop, part.step)
        ):
            call.refuse(f"selects {_shown(part)}; expected a slice of integers, as in x[:, 1:-1].")
    if Ellipsis not in parts:
        parts.append(Ellipsis)
    at = parts.index(Ellipsis)
    return [*parts[:at], *[EVERYTHING] * (call.rank - len(parts) + 1), *parts[at + 1 :]]


def _shown(part: slice) -> str:
    numbers = ("" if n is None else str(n) for n in (part.start, part.stop))
    return ":".join(numbers) + ("" if part.step is None else f":{part.step}")


def _sliced(call: Call, spatial: Sequence[slice], channels: slice) -> int:
    """Add an image whose pixels are selected by slices of the spatial axes of the model, and of the channels."""
    axes, keys = [_axis(call, part) for part in spatial], call.graph.to_graph_order(spatial)

    def run(x: tf.Tensor, strip: kernels.Strip) -> tf.Tensor:
        cut = len(strip.axes)  # along these axes, no pixels before or after were read
        read = [slice(None, None, part.step) for part in keys[:cut]]
        return x[(EVERYTHING, *read, *keys[cut:], channels)]

    return geometric(call, axes, run)


def _axis(call: Call, part: slice) -> Any:
    if part == EVERYTHING:
        return SAME
    if part.step is None or part.step > 0:
        return Slice(part.start, part.stop, part.step or 1)
    if (part.start, part.stop, part.step) != (None, None, -1):
        call.refuse(
            f"selects {_shown(part)}; expected steps of 1 or more, or ::-1 alone. Slice first, then flip."
        )
    return Flip()


@rule(*operations("Flip Fliplr"))
def flip(call: Call) -> int:
    """Add an image in reversed order along some axes."""
    axis = getattr(call.layer, "axis", 1)  # that of ops.fliplr
    flipped = {a % call.rank for a in _listed(range(call.rank) if axis is None else axis)}
    if 0 in flipped:
        call.refuse(f"flips the batch, axis={axis}; expected axes from 1 to {call.rank - 1}.")
    keys = [slice(None, None, -1) if a in flipped else EVERYTHING for a in range(1, call.rank)]
    return _sliced(call, keys[:-1], keys[-1])


def _listed(numbers: Any) -> list[int]:
    return [numbers] if isinstance(numbers, int) else list(numbers)


@rule(keras.layers.CenterCrop)
def center_crop(call: Call) -> int:
    """Add the middle of an image."""
    size = call.layer.height, call.layer.width
    if call.graph.spatial != 2:
        call.refuse(f"needs images with two spatial axes; received {call.graph.spatial}.")
    sizes = call.graph.to_graph_order(size)

    def run(x: tf.Tensor, strip: kernels.Strip) -> tf.Tensor:
        read, shape = len(strip.axes), tf.shape(x)
        firsts = [(shape[i + 1] - n) // 2 for i, n in enumerate(sizes)]
        cut = [slice(a, a + n) for a, n in zip(firsts[read:], sizes[read:], strict=True)]
        return x[(EVERYTHING, *[EVERYTHING] * read, *cut)]

    return geometric(call, [Centre(n) for n in size], run)


@rule(*operations("Pad"))
def pad(call: Call) -> int:
    """Add padding of the spatial axes and the channels, with a number or mirrored."""
    widths = [tuple(int(n) for n in pair) for pair in call.layer.pad_width]
    widths = widths * call.rank if len(widths) == 1 else widths
    mode = call.layer.mode.lower()
    if widths[0] != (0, 0):
        call.refuse(f"pads the batch by {widths[0]}; expected (0, 0) for the first axis.")
    if min(n for pair in widths for n in pair) < 0:
        call.refuse(f"pads by {widths}; expected no negative number. Crop with x[:, 1:-1].")
    if mode == "constant":
        return _padded_with(call, widths)
    if mode not in ("reflect", "symmetric"):
        call.refuse(f"has mode='{mode}'; expected 'constant', 'reflect' or 'symmetric'.")
    edge, (*amounts, channels) = mode == "symmetric", widths[1:]
    axes = [Mirror(a, b, edge) if a or b else SAME for a, b in amounts]
    graph_axes = call.graph.to_graph_order(axes)

    def run(x: tf.Tensor, strip: kernels.Strip) -> tf.Tensor:
        x = _indexed(x, graph_axes, strip)
        return _with_channels(x, channels, lambda x, ends: tf.pad(x, ends, mode.upper()))

    return geometric(call, axes, run)


def _padded_with(call: Call, widths: Sequence[tuple[int, ...]]) -> int:
    value = call.arguments[1].get("constant_values")
    value = 0 if value is None else value
    if not isinstance(value, (int, float)):
        call.refuse(f"pads with constant_values={value!r}; expected a number.")
    *amounts, channels = widths[1:]

    def more(x: tf.Tensor) -> tf.Tensor:
        return _with_channels(x, channels, lambda x, ends: tf.pad(x, ends, constant_values=value))

    return padding(call, amounts, value, more)


def _with_channels(x: tf.Tensor, channels: tuple[int, ...], function: Any) -> tf.Tensor:
    """Return an image with its channels padded by `function(x, paddings)`."""
    if channels == (0, 0):
        return x
    return function(x, [*[(0, 0)] * (x.shape.rank - 1), channels])


def _indexed(x: tf.Tensor, axes: Sequence[Any], strip: kernels.Strip) -> tf.Tensor:
    """Return the rows, columns, ... that the axes of the graph select."""
    for i, axis in enumerate(axes):
        along, dimension = strip.along(i), i + 1
        if axis == SAME:
            continue
        if along is None:
            size = tf.shape(x)[dimension]
            places = axis.index(tf.range(axis.length(size)), size)
        else:
            rows = along.inputs[0]
            places = axis.index(tf.range(along.start, along.stop), rows.extent) - rows.start
        x = tf.gather(x, places, axis=dimension)
    return x


@rule(*operations("Repeat"))
def repeat(call: Call) -> int:
    """Add an image with every pixel, or channel, repeated."""
    repeats, axis = call.layer.repeats, call.layer.axis
    dimension = None if axis is None else axis % call.rank
    if dimension == call.rank - 1:
        return call.local(lambda x, w, strip: tf.repeat(x[0], repeats, -1), any_channels=True)
    counts = [int(n) for n in ([repeats] if isinstance(repeats, int) else repeats)]
    if not dimension or len(counts) > 1:
        call.refuse(
            f"repeats axis={axis} {repeats} times; expected one number and an axis from 1 to {call.rank - 1}."
        )
    factors = [counts[0] if i == dimension else 1 for i in range(1, call.rank - 1)]
    axes = [Transposed(n, n) for n in factors]
    graph_axes = call.graph.to_graph_order(axes)
    return geometric(call, axes, lambda x, strip: kernels.repeat(x, graph_axes, strip))


@rule(*operations("Tile"))
def tile(call: Call) -> int:
    """Add an image with its channels repeated one after the other."""
    given = call.layer.repeats
    repeats = _listed(given)
    repeats = [1] * (call.rank - len(repeats)) + repeats
    if len(repeats) > call.rank or any(n != 1 for n in repeats[:-1]):
        call.refuse(
            f"repeats the whole image, repeats={given}; strips can only repeat the channels. To enlarge an image, use "
            "UpSampling or keras.ops.pad."
        )
    return call.local(lambda x, w, strip: tf.tile(x[0], repeats), any_channels=True)


@rule(*operations("Roll"))
def roll(call: Call) -> int:
    """Add an image with its channels moved in a circle."""
    shift, axis = call.layer.shift, call.layer.axis
    axes = None if axis is None else {a % call.rank for a in _listed(axis)}
    if axes != {call.rank - 1}:
        call.refuse(
            f"moves rows to the other end of the image, axis={axis}; strips can only move channels, axis=-1. "
            "Take the rows with slices, x[:, a:], or move the data."
        )
    axis = [axis] if isinstance(axis, int) else list(axis)
    return call.local(
        lambda x, w, strip: tf.roll(x[0], shift, axis[0] if isinstance(shift, int) else axis),
        any_channels=True,
    )
