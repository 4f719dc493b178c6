"""Rules that make tokens of the pixels of an image, add and take tokens before them, and give them positions.

See `tfbig.network.tokens`. All other layers on tokens run by their own rules, which see a series.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import keras
import tensorflow as tf

from tfbig.errors import UnsupportedLayerError
from tfbig.geometry.selection import Slice
from tfbig.geometry.windows import SAME, Axis, Interval, Window
from tfbig.network.graph import Graph, Reduce, Tokens
from tfbig.network.rules import constant_images, positions
from tfbig.network.rules.call import Call
from tfbig.network.rules.channels import axes_of
from tfbig.network.rules.nodes import of_fixed_size
from tfbig.network.rules.whole_values import on_whole_values
from tfbig.network.tokens import TokenGraph, flattened, tokens_of, unflattened
from tfbig.ops.kernels import Strip
from tfbig.system.keras_internals import operations

GET_ITEM, CONCATENATE = operations("GetItem Concatenate")
RESHAPING = keras.layers.Reshape, *operations("Reshape")
JOINING = keras.layers.Concatenate, CONCATENATE


def apply(call: Call) -> list[int]:
    """Add the nodes of a call with images among its inputs, whose pixels may be tokens.

    Tokens of fixed number become whole values for a layer that cannot run strip by strip on them.
    """
    if not isinstance(call.graph, TokenGraph):
        made = _made(call) if isinstance(call.layer, RESHAPING) else None
        return constant_images.apply(positions.as_images(call)) if made is None else [made]
    first = len(call.graph.nodes)
    try:
        return _on_tokens(call, call.graph)
    except UnsupportedLayerError:
        if not call.graph.kind.size:
            raise
        del call.graph.nodes[first:]
        return _on_whole_tokens(call, call.graph)


def _on_tokens(call: Call, graph: TokenGraph) -> list[int]:
    """Add the nodes of a call with tokens among its inputs."""
    if isinstance(call.layer, RESHAPING):
        image = _as_image(call, graph)
        if image is not None:
            return [image]
    if isinstance(call.layer, GET_ITEM):
        key = call.arguments[0][1]
        parts = list(key) if isinstance(key, (tuple, list)) else [key]
        parts = parts[:-1] if parts[-1] is Ellipsis else parts
        if Ellipsis not in parts and len(parts) > 1 and parts[1] != slice(None):
            return [_selected(call, graph, parts)]
    if isinstance(call.layer, JOINING) and axes_of(call, getattr(call.layer, "axis", -1)) == [1]:
        return [_joined(call, graph)]
    return constant_images.apply(positions.as_images(call))


# ------------------------------------------------------------------------------ to tokens and back


def _made(call: Call) -> int | None:
    """Add an image whose pixels are tokens in the model; None if a reshape makes something else."""
    graph, (before, after) = call.graph, (call.specs[0].shape, call.outputs[0].shape)
    size, channels = tuple(before[1 : 1 + graph.spatial]), tuple(after[2:])
    is_known = None not in size
    number = prod(size) if is_known else None  # type: ignore[arg-type]
    if graph.spatial < 2 or len(after) < 2 or after[1] != number:
        return None
    if not _has_channels(channels, graph, call.inputs[0]):
        return None
    known = tuple(int(n) for n in size if n is not None) if is_known else ()
    return _same_pixels(call, call.inputs[0], known, Tokens(0, known), channels)


def _has_channels(shape: Sequence[int | None], graph: Graph, value: int) -> bool:
    """Return whether axes of channels hold those of an image."""
    return None not in shape and prod(shape) == graph.values[value].channels  # type: ignore[arg-type]


def _same_pixels(
    call: Call,
    value: int,
    size: Sequence[int],
    kind: Tokens | None,
    channels: Sequence[int | None],
) -> int:
    """Add an image unchanged, of a size if that is known, as tokens or not, with some axes of channels."""
    graph = call.graph.images
    of_images = replace(call, graph=graph)
    if size:
        result = of_fixed_size(of_images, value, size, "pixels")
    else:
        spec = graph.values[value]
        result = of_images.local(
            lambda x, w, strip: tf.identity(x[0]),
            inputs=[value],
            channels=spec.channels,
            dtype=spec.dtype,
            name="pixels",
            any_channels=True,
        )
    if kind is not None:
        graph.tokens[result] = kind
    return _with_channels(graph, result, channels)


def _with_channels(graph: Graph, value: int, channels: Sequence[int | None] | None) -> int:
    """Record the axes of the channels of an image, None for one, and return it."""
    if channels is not None and len(channels) != 1:
        graph.channel_shapes[value] = tuple(int(n or 0) for n in channels)
    return value


def _as_image(call: Call, graph: TokenGraph) -> int | None:
    """Add the image `[N, rows, columns, C]` of tokens; None if the model reshapes them to something else."""
    after, spatial, kind = tuple(call.outputs[0].shape), graph.of.spatial, graph.kind
    size, channels = after[1 : 1 + spatial], after[1 + spatial :]
    if kind.prefix or len(size) < spatial or None in size:
        return None
    if not _has_channels(channels, graph, call.inputs[0]):
        return None
    if kind.size and kind.size != size:
        return None
    return _same_pixels(call, call.inputs[0], tuple(int(n or 0) for n in size), None, channels)


# ------------------------------------------------------------------------------ tokens before the pixels


def _selected(call: Call, graph: TokenGraph, parts: list[Any]) -> int:
    """Add `x[:, i]`, `x[:, :n]`, or `x[:, n:]` without tokens before the pixels."""
    batch, tokens, *channels = parts
    prefix = graph.kind.prefix
    if batch != slice(None) or any(part != slice(None) for part in channels):
        call.refuse("selects images or channels together with tokens; select one after the other.")
    if isinstance(tokens, int) and tokens >= 0:
        first = _leading(call, graph, tokens + 1)
        return call.whole(lambda x, w: x[0][:, tokens], [first], name="token")
    if isinstance(tokens, slice) and tokens.step in (None, 1):
        start, stop = tokens.start or 0, tokens.stop
        if stop is not None and 0 <= start < stop:
            first = _leading(call, graph, stop)
            return call.whole(lambda x, w: x[0][:, start:], [first], name="tokens")
        if stop is None and 0 <= start <= prefix:
            return _without(call, graph, start)
    return call.refuse(
        f"selects tokens {tokens!r} of {prefix} before the pixels and those of the pixels; expected one, the first "
        "few, or all but some of those before the pixels."
    )


def _leading(call: Call, graph: TokenGraph, number: int) -> int:
    """Add the first tokens of a call's input as a whole value `[N, number, C]`: those before the pixels, then pixels.

    Raises:
        UnsupportedLayerError: They include pixels after others of unknown place.
    """
    kind, value, name = graph.kind, call.inputs[0], call.layer.name
    shape = graph.channel_shapes.get(value)
    if not kind.prefix or number <= kind.prefix:
        return _in_model(call, _first(graph.of, name, value, number), shape)
    if not kind.size:
        call.refuse(
            f"selects {number} tokens, of which {kind.prefix} are before the pixels; select one kind alone, or give "
            "keras.Input the size of the images."
        )
    before = kind.rows * prod(kind.size[1:])
    first = _first(graph.of, name, value, before + number - kind.prefix)
    leading = call.whole(
        lambda x, w: tf.concat([x[0][:, : kind.prefix], x[0][:, before:]], 1),
        [first],
        name="leading",
    )
    return _in_model(call, leading, shape)


def _in_model(call: Call, value: int, shape: tuple[int, ...] | None) -> int:
    """Add whole tokens `[N, n, C]` with the axes of the channels in the model, if those are not one."""
    if shape is None:
        return value
    return call.whole(
        lambda x, w: tf.reshape(x[0], tf.concat([tf.shape(x[0])[:2], shape], 0)),
        [value],
        name="in_model",
    )


def _without(call: Call, graph: TokenGraph, number: int) -> int:
    """Add tokens without the first of those before the pixels."""
    value, kind = call.inputs[0], graph.kind
    spec = graph.values[value]
    rows: tuple[Axis, ...] = (Slice(kind.rows, None, 1), *[SAME] * (graph.of.spatial - 1))
    pixels = graph.of.local(
        f"{call.layer.name}/pixels",
        lambda x, w, strip: tf.identity(x[0]),
        [value],
        spec.channels,
        spec.dtype or "float32",
        [rows],
        cheap=True,
        any_channels=True,
    )
    graph.of.tokens[pixels] = Tokens(0, kind.size)
    _with_channels(graph, pixels, graph.channel_shapes.get(value))
    if number == kind.prefix:
        return pixels
    first = _first(graph.of, call.layer.name, value, kind.prefix)
    rest = call.whole(lambda x, w: x[0][:, number:], [first], name="rest")
    return _with_prefix(call, [rest], kind.prefix - number, pixels, Tokens(0, kind.size))


def _first(graph: Graph, name: str, value: int, number: int) -> int:
    """Add the first tokens as a whole value `[N, number, C]`."""
    op = FirstTokens(number, tf.as_dtype(graph.values[value].dtype))
    total = graph.reduce(f"{name}/first", op, [value])
    return graph.whole(f"{name}/of_first", lambda x, w: x[0][0], [total])


class FirstTokens(Reduce):
    """The first tokens of an image, in the order of its pixels, `[N, number, C]`.

    Args:
        number: Number of tokens.
        dtype: Element type of the image.
    """

    any_channels = True

    def __init__(self, number: int, dtype: tf.DType) -> None:
        self.number = number
        self.dtype = dtype

    def init(self, batch: Any, channels: Sequence[Any]) -> tuple[tf.Tensor]:
        """Return zeros."""
        return (tf.zeros([batch, self.number, channels[0]], self.dtype),)

    def _part(self, x: tf.Tensor, strip: Strip) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return the first of the tokens that a strip has, their number, and those that the strip has besides."""
        start, count = tokens_of(strip, x).start, tf.reduce_prod(tf.shape(x)[1:-1])
        taken = tf.clip_by_value(self.number - start, 0, count)
        return tf.minimum(start, self.number), taken, count - taken

    def partial(self, inputs: list[tf.Tensor], strip: Any) -> tuple[tf.Tensor]:
        """Return the tokens of a strip, with zeros for the others."""
        start, taken, _ = self._part(inputs[0], strip)
        found = flattened(inputs[0])[:, :taken]
        around = [[0, 0], [start, self.number - start - taken], [0, 0]]
        return (tf.ensure_shape(tf.pad(found, around), [None, self.number, None]),)

    def pullback(
        self, inputs: list[tf.Tensor], strip: Any, result: Any, cotangent: Any
    ) -> list[tf.Tensor]:
        """Return the gradient of the image."""
        start, taken, rest = self._part(inputs[0], strip)
        gradient = tf.pad(cotangent[0][:, start : start + taken], [[0, 0], [0, rest], [0, 0]])
        return [unflattened(gradient, inputs[0])]


def _joined(call: Call, graph: TokenGraph) -> int:
    """Add tokens with whole values `[N, n, C]` before them."""
    *before, last = call.inputs
    if not before:
        return last
    are_whole = [not graph.values[v].image for v in before]
    numbers = [spec.shape[1] for spec in call.specs[:-1]]
    if not all(are_whole) or not graph.values[last].image or None in numbers:
        call.refuse(
            "joins tokens of images; expected a class token or other tokens [N, n, C] of known number, then those of "
            "one image."
        )
    value, kind = last, graph.kind
    if kind.prefix:
        before.append(_first(graph.of, call.layer.name, value, kind.prefix))
        numbers.append(kind.prefix)
        without = replace(call, inputs=(last,), specs=call.specs[-1:])
        value = _without(without, graph, kind.prefix)
    return _with_prefix(call, before, sum(numbers), value, Tokens(0, kind.size))


@dataclass(frozen=True)
class AtLeast:
    """Axis of unknown length that has to hold some tokens.

    Args:
        size: Least length.
    """

    size: int

    def extent(self, size: int) -> int:
        """Return the length of the input.

        Raises:
            ValueError: It is too short.
        """
        if size < self.size:
            raise ValueError(
                f"an image of patches is {size} wide, but holds {self.size} further tokens, such as a class token, in "
                "one row; use a wider image, or give keras.Input the size of the images."
            )
        return size

    def needs(self, rows: Interval, size: int) -> Interval:
        """Return the input interval that the output interval `rows` needs."""
        return rows


def _with_prefix(call: Call, wholes: Sequence[int], number: int, value: int, kind: Tokens) -> int:
    """Add tokens with further ones before those of the pixels.

    Args:
        call: The call.
        wholes: The further tokens, `[N, n, C]` each; N may be 1.
        number: Their number.
        value: Tokens of pixels.
        kind: What `value` is.
    """
    graph, spec = call.graph.images, call.graph.values[value]
    after = Tokens(number, kind.size)

    def run(x: list[tf.Tensor], w: Any, strip: Strip) -> tf.Tensor:
        pixels, *tokens = x
        shape = tf.shape(pixels)
        tokens = [tf.reshape(t, tf.concat([tf.shape(t)[:2], [spec.channels]], 0)) for t in tokens]
        tokens = [tf.broadcast_to(t, tf.concat([shape[:1], tf.shape(t)[1:]], 0)) for t in tokens]
        width = tf.reduce_prod(shape[2:-1])
        first = tf.pad(
            tf.concat([tf.cast(t, pixels.dtype) for t in tokens], 1),
            [[0, 0], [0, after.rows * width - number], [0, 0]],
        )
        rows = tf.reshape(first, tf.concat([shape[:1], [after.rows], shape[2:]], 0))
        here = [tf.clip_by_value(n, 0, after.rows) for n in (strip.start, strip.stop)]
        return tf.concat([rows[:, here[0] : here[1]], pixels], 1)

    columns: list[Axis] = [SAME] * (graph.spatial - 1)
    if not kind.size:
        columns[-1] = AtLeast(number)
    rows: tuple[Axis, ...] = (Window(padding=(after.rows, 0)), *columns)
    result = graph.local(
        f"{call.layer.name}/with_tokens",
        run,
        [value, *wholes],
        spec.channels,
        spec.dtype or "float32",
        [rows, *[None] * len(wholes)],
        cheap=True,
        tiles=False,
        uniform=False,
    )
    graph.tokens[result] = after
    return _with_channels(graph, result, graph.channel_shapes.get(value))


# ------------------------------------------------------------------------------ whole tokens


def _on_whole_tokens(call: Call, graph: TokenGraph) -> list[int]:
    """Make tokens of fixed number whole values, and run the layer on those."""
    values = [whole_tokens(graph.of, v) if graph.values[v].image else v for v in call.inputs]
    return on_whole_values(replace(call, graph=graph.of, inputs=tuple(values)))


def whole_tokens(graph: Graph, value: int) -> int:
    """Add tokens of fixed number as a whole value, in the shape of the model."""
    kind, shape, name = (
        graph.tokens[value],
        graph.channel_shapes.get(value),
        graph.values[value].name,
    )
    before = kind.rows * prod(kind.size[1:])
    first = _first(graph, name, value, before + prod(kind.size))

    def in_model(x: list[tf.Tensor], w: Any) -> tf.Tensor:
        tokens = tf.concat([x[0][:, : kind.prefix], x[0][:, before:]], 1)
        return tokens if shape is None else tf.reshape(tokens, [-1, tokens.shape[1], *shape])

    return graph.whole(f"{name}/whole", in_model, [first])


def as_output(graph: Graph, value: int) -> int:
    """Return an output of a model: tokens as a whole value.

    Raises:
        UnsupportedLayerError: Their number is known only when the network runs.
    """
    kind = graph.tokens.get(value)
    if kind is None:
        return value
    if not kind.size:
        raise UnsupportedLayerError(
            f"'{graph.values[value].name}': is an output of tokens, whose number is known only when the network runs; "
            "give keras.Input the size of the images, or reshape the tokens to an image."
        )
    return whole_tokens(graph, value)
