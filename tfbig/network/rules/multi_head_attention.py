"""Rules for attention between pixels: each query reads the keys and values of the whole image, or of a window of it.

Queries, keys and values are images `[N, rows, ..., heads * size]`. A strip of queries reads the stored keys and values,
block by block (`tfbig.ops.blockwise_attention`), so that no matrix of all pairs of pixels exists.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfbig.geometry.windows import SAME, Axis, Everything, Window
from tfbig.network.graph import BLOCK_SCORES, Graph
from tfbig.network.rules.call import Call, Slot
from tfbig.network.rules.channel_shapes import any_channel_shape
from tfbig.network.rules.nodes import cast, layer_inside
from tfbig.network.rules.registry import rule
from tfbig.network.rules.whole_values import add_seed
from tfbig.network.tokens import TokenGraph
from tfbig.ops import counter_random
from tfbig.ops.blockwise_attention import Pairs, blockwise_attention
from tfbig.ops.kernels import Strip
from tfbig.system import keras_internals
from tfbig.system.keras_internals import operations

layers = keras.layers

ATTENDING = layers.MultiHeadAttention, layers.GroupQueryAttention
"""Layers whose arguments may be masks of each pair of tokens."""

LEAST_BLOCK = 16
"""Least number of queries, and of keys, of a block."""


@dataclass(frozen=True)
class Attention:
    """Attention between the pixels of images.

    Args:
        heads: Number of heads of the queries.
        shared: Number of consecutive heads that share keys and values.
        scale: Factor of the scores.
        attended: Spatial axes of the graph that queries attend along, from 0; along the others, to their own position.
        causal: Whether a query attends to no key after its own position; along one axis only.
        window: Most distance to a key plus one, along one axis; None attends to all.
        rate: Rate of the dropout of pairs.
    """

    heads: int
    shared: int
    scale: float
    attended: tuple[int, ...]
    causal: bool = False
    window: int | None = None
    rate: float = 0.0

    def axes(self, spatial: int) -> tuple[Axis, ...]:
        """Return the axes of keys and values."""
        if self.window is None:
            full: Axis = Everything(self.causal)
        else:
            most = self.window - 1
            full = Window(
                1 + most * (1 if self.causal else 2), padding=(most, 0 if self.causal else most)
            )
        return tuple(full if axis in self.attended else SAME for axis in range(spatial))

    def run(
        self,
        x: Sequence[tf.Tensor],
        masks: Sequence[tuple[tf.Tensor, bool]],
        unused: tuple[Any, Any] | None,
        seed: Any,
        strip: Strip,
    ) -> tf.Tensor:
        """Return the values that the queries of a strip attend to.

        Args:
            x: Queries, keys and values.
            masks: Whether queries attend to keys, `[N, heads, T, S]` each, or with axes of length 1; and whether it
                has the queries of the strip only.
            unused: First and number of the keys that are no pixels, to which no query attends; None without any.
            seed: Two integers, the seed of the dropout.
            strip: Position of the queries.
        """
        groups = self.heads // self.shared
        q, k, v = (self._split(t, n) for t, n in zip(x, (self.heads, groups, groups), strict=True))
        k, v = (tf.repeat(t, self.shared, axis=1) if self.shared > 1 else t for t in (k, v))
        is_masked = self.causal or self.window is not None or masks or unused is not None
        mask = partial(self._mask, masks, unused, strip, tf.shape(q)[0]) if is_masked else None
        factors = partial(self._factors, seed, strip, tf.shape(x[0])) if self.rate else None
        each = tf.sqrt(BLOCK_SCORES / tf.cast(tf.shape(q)[0] * self.heads, tf.float32))
        block = tf.maximum(tf.cast(each, tf.int32), LEAST_BLOCK)
        return self._joined(
            blockwise_attention(q, k, v, block, self.scale, Pairs(mask, factors)), x[0]
        )

    def _order(self, spatial: int) -> tuple[int, ...]:
        """Return the axes of `[N, rows, ..., heads, size]`: those of the batch, heads, those of the tokens, size."""
        return (0, *self._others(spatial), spatial + 1, *self._tokens, spatial + 2)

    @property
    def _tokens(self) -> list[int]:
        """Axes of an image that queries attend along."""
        return [axis + 1 for axis in self.attended]

    def _others(self, spatial: int) -> list[int]:
        """Spatial axes of an image that queries do not attend along."""
        return [axis + 1 for axis in range(spatial) if axis not in self.attended]

    def _split(self, x: tf.Tensor, heads: int) -> tf.Tensor:
        """Return an image as `[batch, heads, tokens, size]`."""
        spatial, size, shape = x.shape.rank - 2, x.shape[-1] // heads, tf.shape(x)
        x = tf.reshape(x, tf.concat([shape[:-1], [heads, size]], 0))
        x = tf.transpose(x, self._order(spatial))
        batch, tokens = (
            tf.reduce_prod(tf.gather(shape, axes))
            for axes in ([0, *self._others(spatial)], self._tokens)
        )
        x = tf.reshape(x, tf.stack([batch, heads, tokens, size]))
        return tf.ensure_shape(x, [None, heads, None, size])

    def _joined(self, y: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
        """Return `[batch, heads, tokens, size]` as an image with the pixels of another."""
        size, order = y.shape[-1], self._order(like.shape.rank - 2)
        pixels = tf.shape(like)[:-1]
        y = tf.reshape(y, tf.gather(tf.concat([pixels, [self.heads, size]], 0), order))
        y = tf.transpose(y, [order.index(axis) for axis in range(len(order))])
        y = tf.reshape(y, tf.concat([pixels, [self.heads * size]], 0))
        return tf.ensure_shape(y, [*like.shape[:-1], self.heads * size])

    def _mask(
        self,
        masks: Sequence[tuple[tf.Tensor, bool]],
        unused: tuple[Any, Any] | None,
        strip: Strip,
        batch: tf.Tensor,
        rows: tf.Tensor,
        columns: tf.Tensor,
    ) -> tf.Tensor:
        """Return whether queries attend to keys, given the images of a batch and positions among those of a strip."""
        along, of_strip = strip.along(self.attended[0]), rows
        if along is not None:
            rows, columns = rows + along.start, columns + along.inputs[1].start
        kept = tf.ones([1, tf.size(rows), tf.size(columns)], tf.bool)
        if unused is not None:
            first, number = unused
            kept &= (columns < first) | (columns >= first + number)
        if self.causal:
            kept &= rows[:, None] >= columns
        if self.window is not None:
            kept &= tf.abs(rows[:, None] - columns) < self.window
        for mask, is_strip in masks:
            part = _taken(_taken(mask, of_strip if is_strip else rows, 2), columns, 3)
            kept = _each_head(part, self.heads, batch) & kept
        return kept

    def _factors(
        self, seed: tf.Tensor, strip: Strip, shape: tf.Tensor, rows: tf.Tensor, columns: tf.Tensor
    ) -> tf.Tensor:
        """Return factors of dropout, which depend on the seed and the positions of query and key only."""
        spatial = shape.shape[0] - 2
        along = strip.along(self.attended[0])
        columns = columns if along is None else columns + along.inputs[1].start
        firsts = [
            0,
            *(0 if (a := strip.along(axis)) is None else a.start for axis in range(spatial)),
        ]
        batch = [0, *self._others(spatial)]
        heads = tf.range(tf.reduce_prod(tf.gather(shape, batch)) * self.heads)
        of_batch = _coordinates(heads // self.heads, [shape[axis] for axis in batch])
        of_rows = _coordinates(rows, [shape[axis] for axis in self._tokens])
        numbers = counter_random.uniform_at(
            seed,
            (heads % self.heads)[:, None, None],
            *((n + firsts[axis])[:, None, None] for n, axis in zip(of_batch, batch, strict=True)),
            *((n + firsts[axis])[:, None] for n, axis in zip(of_rows, self._tokens, strict=True)),
            columns,
        )
        return tf.cast(numbers >= self.rate, tf.float32) / (1 - self.rate)


def _coordinates(positions: tf.Tensor, sizes: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return the coordinates of positions in an array of some size, whose last axis changes fastest."""
    found = []
    for size in reversed(sizes):
        found.append(positions % size)
        positions = positions // size
    return found[::-1]


def _each_head(mask: tf.Tensor, heads: int, batch: tf.Tensor) -> tf.Tensor:
    """Return a mask `[N, heads, r, c]`, or with axes of length 1, as `[N * heads, r, c]`."""
    shape = tf.shape(mask)
    whole = tf.broadcast_to(mask, tf.concat([[batch, heads], shape[2:]], 0))
    return tf.reshape(whole, tf.concat([[batch * heads], shape[2:]], 0))


def _taken(mask: tf.Tensor, positions: tf.Tensor, axis: int) -> tf.Tensor:
    """Return the entries of a mask at some positions; of an axis of length 1, the only one."""
    return mask if mask.shape[axis] == 1 else tf.gather(mask, positions, axis=axis)


@rule(*ATTENDING)
def multi_head_attention(call: Call) -> int:
    """Add the projections of queries, keys and values, the attention, and the projection of its result."""
    args, kwargs = call.arguments
    given = inspect.signature(call.layer.call).bind(*args, **kwargs).arguments
    if given.get("return_attention_scores"):
        call.refuse(
            "returns its scores, one for each pair of pixels; use return_attention_scores=False."
        )
    parts = keras_internals.attention_parts(call.layer)
    slots = given["query"], given.get("key") or given["value"], given["value"]
    images = [image_of(call, slot) for slot in slots]
    q, k, v = (
        layer_inside(call, dense, *image) for dense, image in zip(parts.inputs, images, strict=True)
    )
    heads, size = call.graph.channel_shapes[q]
    attention = Attention(
        heads,
        heads // call.graph.channel_shapes[k][0],
        _rounded(size**-0.5),
        _attended(call, parts.axes),
        bool(given.get("use_causal_mask")),
        parts.window,
        parts.rate if call.training else 0.0,
    )
    if isinstance(call.layer, layers.MultiHeadAttention):
        given.pop("query_mask", None)  # Keras 3.15 takes the mask that the query itself has
    masks = [mask_of(call, given[n], n) for n in EXPANDED if given.get(n) is not None]
    result = attend(call, attention, (q, k, v), masks, parts.generator)
    _with_heads(call, result, (heads, call.graph.channel_shapes[v][1]))
    if parts.gate is not None:
        gate = layer_inside(call, parts.gate, *images[0])
        result = _with_heads(
            call,
            call.local(
                lambda x, w, strip: x[0] * x[1],
                inputs=[result, gate],
                channels=call.graph.values[result].channels,
                name="gated",
            ),
            call.graph.channel_shapes[result],
        )
    return layer_inside(
        call, parts.output, result, (*call.specs[0].shape[:-1], *call.graph.channel_shapes[result])
    )


@rule(*operations("DotProductAttention"))
@any_channel_shape
def dot_product_attention(call: Call) -> int:
    """Add an attention of queries, keys and values `[N, tokens, heads, size]`."""
    layer, args = call.layer, dict(zip(NAMES, call.arguments[0], strict=False))
    given = args | call.arguments[1]
    if given.get("bias") is not None:
        call.refuse(
            "adds a bias to its scores, one for each pair of pixels; leave it out, or make it a product of further "
            "channels of queries and keys, as one by rows and columns is (docs/guides/attention.md)."
        )
    if not isinstance(given.get("scale"), (int, float, type(None))):
        call.refuse("has a scale that is a tensor; multiply the queries by it, and use scale=1.0.")
    images = [image_of(call, given[name])[0] for name in ("query", "key", "value")]
    shapes = [call.graph.channel_shapes.get(v, ()) for v in images]
    if any(len(shape) != 2 for shape in shapes):
        call.refuse(
            f"has inputs of shapes {[tuple(spec.shape) for spec in call.specs]}; expected [N, tokens, heads, size]."
        )
    (heads, size), (groups, _), _ = shapes
    attention = Attention(
        heads,
        heads // groups,
        _rounded(size**-0.5 if given.get("scale") is None else given["scale"]),
        tuple(range(call.graph.spatial)),
        bool(layer.is_causal),
    )
    masks = [] if given.get("mask") is None else [mask_of(call, given["mask"], "mask")]
    widest = keras.backend.result_type(*(call.graph.values[v].dtype for v in images))
    images = [cast(call.graph, v, widest) for v in images]
    result = attend(call, attention, images, masks)
    return _with_heads(call, result, (heads, shapes[2][1]))


def _rounded(scale: float) -> float:
    """Return a scale as Keras does: rounded to float32, whatever it computes in."""
    return float(np.float32(scale))


class Mask(NamedTuple):
    """A mask among the arguments of a call.

    Args:
        value: Its value in the graph; None if it is a constant.
        constant: The constant.
        expand: Index that makes it `[N, heads, T, S]`, or with axes of length 1.
    """

    value: int | None
    constant: Any
    expand: Any

    def given(self, values: Mapping[int, tf.Tensor], graph: Graph) -> tuple[tf.Tensor, bool]:
        """Return the mask, and whether it has the queries of a strip only, given the inputs of the node."""
        mask = self.constant if self.value is None else values[self.value]
        is_strip = self.value is not None and graph.values[self.value].image
        return tf.cast(mask, tf.bool)[self.expand], is_strip


NAMES = ("query", "key", "value", "bias", "mask", "scale")
"""Arguments of `keras.ops.dot_product_attention`, in order."""

ALL = slice(None)
EXPANDED = {
    "query_mask": (ALL, None, ALL, None),
    "key_mask": (ALL, None, None, ALL),
    "value_mask": (ALL, None, None, ALL),
    "attention_mask": (ALL, None, ALL, ALL),
    "mask": (ALL, ALL, ALL, ALL),
}
"""For each argument that is a mask, the index that makes it `[N, heads, T, S]`."""


def mask_of(call: Call, argument: Any, name: str) -> Mask:
    """Return a mask among the arguments of a call."""
    expand = EXPANDED[name]
    value = call.inputs[argument.position] if isinstance(argument, Slot) else None
    shape = tuple(argument.shape if value is None else call.specs[argument.position].shape)
    if isinstance(call.graph, TokenGraph) and call.graph.kind.prefix:
        call.refuse(f"has {name} for tokens of pixels and others before them; expected no mask.")
    if call.graph.spatial > 1 or len(shape) != expand.count(ALL):
        call.refuse(
            f"has {name} of shape {shape}, for images with {call.graph.spatial} spatial axes; expected "
            f"{expand.count(ALL)} axes and a series [N, tokens, C]."
        )
    return Mask(value, None if value is not None else tf.constant(argument), expand)


def image_of(call: Call, slot: Any) -> tuple[int, tuple[int | None, ...]]:
    """Return the value of an argument and its shape.

    Raises:
        UnsupportedLayerError: It is no image.
    """
    value = call.inputs[slot.position] if isinstance(slot, Slot) else None
    if value is None or not call.graph.values[value].image:
        call.refuse("has a query, key or value that is no image; expected images for all three.")
    return value, tuple(call.specs[slot.position].shape)


def _attended(call: Call, model_axes: Sequence[int]) -> tuple[int, ...]:
    """Return the spatial axes of the graph that queries attend along, given axes of `[N, rows, ..., C]`."""
    if 0 in model_axes:
        call.refuse(f"attends to other images of the batch, attention_axes={tuple(model_axes)}.")
    model = [axis + 1 in model_axes for axis in range(call.graph.spatial)]
    along = call.graph.to_graph_order(model)
    return tuple(axis for axis, is_attended in enumerate(along) if is_attended)


def _with_heads(call: Call, value: int, heads: tuple[int, ...]) -> int:
    """Record the heads of an image, and return it."""
    call.graph.channel_shapes[value] = heads
    return value


def attend(
    call: Call,
    attention: Attention,
    images: Sequence[int],
    masks: Sequence[Mask],
    generator: Any = None,
) -> int:
    """Add an attention of queries, keys and values, and return its value `[N, rows, ..., heads * size]`."""
    graph, spatial = call.graph, call.graph.spatial
    prefix, sizes = _unused(graph, images[1])
    if (attention.causal or attention.window) and len(attention.attended) != 1:
        call.refuse("masks by position along several axes; expected attention along one axis.")
    seeds = [add_seed(call, generator)] if attention.rate else []
    of_masks = [mask.value for mask in masks if mask.value is not None]
    size = graph.values[images[2]].channels * attention.shared // attention.heads
    same: tuple[Axis, ...] = (SAME,) * spatial
    others = (*of_masks, *seeds, *sizes)

    def run(x: list[tf.Tensor], w: Any, strip: Strip) -> tf.Tensor:
        values = dict(zip(others, x[3:], strict=True))
        found = [mask.given(values, graph) for mask in masks]
        unused = None
        if sizes:
            width = tf.reduce_prod(values[sizes[0]][1:])
            unused = prefix, -prefix % width
        return attention.run(x[:3], found, unused, values[seeds[0]] if seeds else None, strip)

    axes: list[tuple[Axis, ...] | None] = [same, *[attention.axes(spatial)] * 2]
    axes += [same if graph.values[v].image else None for v in others]
    per_pair = 4 * attention.heads * size
    near = attention.window or 0
    return graph.local(
        f"{call.layer.name}/attend",
        run,
        [*images, *others],
        attention.heads * size,
        graph.values[images[0]].dtype or "float32",
        axes,
        operations=per_pair * near * (1 if attention.causal else 2),
        pair_operations=0 if near else per_pair,
        heads=attention.heads,
        uniform=False,
    )


def _unused(graph: Graph, keys: int) -> tuple[int, list[int]]:
    """Return the number of tokens before those of the pixels, and the size of the image that holds them all.

    Between both there are zeros up to a whole row, see `tfbig.network.graph.Tokens`. Without such tokens no size is
    returned.
    """
    if not isinstance(graph, TokenGraph) or not graph.kind.prefix:
        return 0, []
    return graph.kind.prefix, [graph.of.size(keys)]
