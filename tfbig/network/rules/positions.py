"""Whole values and constants with a vector for each pixel, such as positions, as images that strips can cut.

Learned positions `[1, rows, columns, C]`, tables of sines `[rows, columns, 1, C]` for heads, or an embedding of the
columns `[1, 1, columns, C]` are added to images, or multiplied with them. As images, they are cut into strips too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import keras
import tensorflow as tf

from tfbig.geometry.windows import SAME, Axis, Fixed
from tfbig.network.rules.call import Call, Slot
from tfbig.network.rules.constant_images import COMBINING
from tfbig.network.rules.multi_head_attention import ATTENDING
from tfbig.network.tokens import TokenGraph
from tfbig.ops.kernels import Strip

Shape = tuple[int | None, ...]


def as_images(call: Call) -> Call:
    """Return a call in which whole values and constants with a vector for each pixel are images.

    Those are combined with images of known size, or have the size themselves; of tokens, the number has to be known.
    """
    size = _size(call)
    if size is None:
        return call
    call = _with_constants(call, lambda shape: _aligned(call, shape, size) is not None)
    graph = call.graph
    image = next(v for v in call.inputs if graph.values[v].image)
    inputs, specs = list(call.inputs), list(call.specs)
    for p, (value, spec) in enumerate(zip(call.inputs, call.specs, strict=True)):
        shape = _aligned(call, tuple(spec.shape), size)
        if shape is None or graph.values[value].image or value in graph.constant_sizes:
            continue
        inputs[p] = _spread(call, value, image, shape, spec.dtype, p)
        pixels = [b if a is None else a for a, b in zip(size, shape[1:], strict=False)]
        channels = shape[1 + graph.spatial :]
        specs[p] = keras.KerasTensor((None, *pixels, *channels), spec.dtype)
        if len(channels) != 1:
            graph.channel_shapes[inputs[p]] = tuple(int(n or 0) for n in channels)
    return replace(call, inputs=tuple(inputs), specs=tuple(specs))


def _size(call: Call) -> Shape | None:
    """Return the rows, columns, ... of the images of a call, None for those unknown; None if they have no positions."""
    graph, spatial = call.graph, call.graph.spatial
    if not isinstance(call.layer, (*COMBINING, *ATTENDING)):
        return None
    if isinstance(graph, TokenGraph):
        return (graph.kind.prefix + prod(graph.kind.size),) if graph.kind.size else None
    if isinstance(call.layer, ATTENDING):
        return None
    known = [
        tuple(spec.shape[1 : 1 + spatial])
        for spec, value in zip(call.specs, call.inputs, strict=True)
        if graph.values[value].image
    ]
    return tuple(
        next((n for n in lengths if n is not None), None) for lengths in zip(*known, strict=True)
    )


def _aligned(call: Call, shape: Shape, size: Shape) -> Shape | None:
    """Return the shape of a value with the axes of the images of a call; None if it has no vector for each pixel."""
    ranks = [
        len(spec.shape)
        for spec, value in zip(call.specs, call.inputs, strict=True)
        if call.graph.values[value].image
    ]
    missing = max(ranks) - len(shape)
    merges = isinstance(call.layer, keras.Layer)  # these put axes that a value lacks elsewhere
    if missing < 0 or not shape or (missing and merges and not isinstance(call.layer, ATTENDING)):
        return None
    aligned = (1,) * missing + tuple(shape)
    along = aligned[1 : 1 + len(size)]
    fits = all(
        n == 1 or (n is not None and of in (None, n)) for n, of in zip(along, size, strict=True)
    )
    is_one = all(n == 1 for n in along)
    return aligned if fits and not is_one and None not in aligned[1:] else None


def _with_constants(call: Call, chosen: Callable[[Shape], bool]) -> Call:
    """Return a call in which the constants and variables of chosen shapes among its arguments are whole values."""
    inputs, specs = list(call.inputs), list(call.specs)

    def as_input(argument: Any) -> Any:
        if isinstance(argument, Slot) or not chosen(tuple(getattr(argument, "shape", ()))):
            return argument
        dtype = keras.backend.standardize_dtype(argument.dtype)
        if isinstance(argument, keras.Variable):
            value = call.whole(lambda x, w: tf.convert_to_tensor(w[0]), (), [argument])
        else:
            value = call.whole(lambda x, w: tf.convert_to_tensor(argument, dtype), ())
        inputs.append(value)
        specs.append(keras.KerasTensor(argument.shape, dtype))
        return Slot(len(inputs) - 1)

    arguments = keras.tree.map_structure(as_input, call.arguments)
    return replace(call, inputs=tuple(inputs), specs=tuple(specs), arguments=arguments)


def _spread(call: Call, value: int, image: int, shape: Shape, dtype: str, position: int) -> int:
    """Add a whole value `[N or 1, rows or 1, ..., channels]` as an image with the pixels of another one."""
    graph, spatial = call.graph, call.graph.spatial
    sizes, channels = shape[1 : 1 + spatial], prod(n or 1 for n in shape[1 + spatial :])
    along = graph.to_graph_order(sizes)
    axes: tuple[Axis, ...] = tuple(SAME if n == 1 else Fixed(int(n or 0)) for n in along)

    def run(x: list[tf.Tensor], w: Any, strip: Strip) -> tf.Tensor:
        like, whole = x
        whole = tf.transpose(tf.reshape(whole, [-1, *sizes, channels]), graph.permutation)
        if isinstance(graph, TokenGraph):
            whole = graph.in_rows(whole)
        cut = [
            slice(None) if n == 1 else slice(place.start, place.stop)
            for n, place in zip(along, strip.axes, strict=False)
        ]
        pixels = tf.concat([tf.shape(like)[:-1], [channels]], 0)
        result = tf.broadcast_to(whole[(slice(None), *cut)], pixels)
        return tf.ensure_shape(result, [*like.shape[:-1], channels])

    return graph.local(
        f"{call.layer.name}/positions_{position}",
        run,
        [image, value],
        channels,
        keras.backend.standardize_dtype(dtype),
        None if isinstance(graph, TokenGraph) else [axes, None],
        cheap=True,
        uniform=False,
    )
