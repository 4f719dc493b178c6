"""Images whose channels have several axes in the model, or none, and that the graph stores with one.

`[N, H, W, g, c]`, as a channel shuffle makes it, is the image `[N, H, W, g * c]` of the graph, and `[N, H, W]`, as an
argmax over the channels makes it, is `[N, H, W, 1]`. `Graph.channel_shapes` holds the axes, and a rule marked by
`any_channel_shape` computes with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeVar

import tensorflow as tf

from tfbig.network.graph import Graph
from tfbig.network.rules.call import Call

Function = TypeVar("Function", bound=Callable[..., Any])
_MARKED: set[Callable[..., Any]] = set()


def any_channel_shape(rule: Function) -> Function:
    """Mark a rule that accepts images with any number of channel axes, and return it."""
    _MARKED.add(rule)
    return rule


def accepts_any(rule: Callable[..., Any]) -> bool:
    """Return whether a rule is marked by `any_channel_shape`."""
    return rule in _MARKED


def shaped(graph: Graph, values: Sequence[int]) -> bool:
    """Return whether one of the values is an image without exactly one channel axis."""
    return any(v in graph.channel_shapes for v in values)


def of_spec(call: Call, spec: Any) -> tuple[int, ...]:
    """Return the lengths of the channel axes of a tensor `[N, rows, ..., channels]`, given its Keras tensor.

    Raises:
        UnsupportedLayerError: One of them is unknown, or the tensor has fewer axes than an image.
    """
    leading = call.graph.spatial + 1
    shape = tuple(spec.shape[leading:])
    if len(spec.shape) < leading or None in shape:
        call.refuse(
            f"has a tensor of shape {tuple(spec.shape)}; expected [N, rows, ...] with {call.graph.spatial} spatial "
            "axes and channels of known number."
        )
    return tuple(int(n) for n in shape)


def is_plain(call: Call) -> bool:
    """Return whether all images among the inputs and outputs of a call have exactly one channel axis."""
    return not shaped(call.graph, call.inputs) and all(
        len(spec.shape) == call.rank for spec in call.outputs
    )


def record(call: Call, value: int, spec: Any) -> int:
    """Record the channel axes of an image that the graph stores with one, and return it."""
    if len(spec.shape) != call.rank:
        call.graph.channel_shapes[value] = of_spec(call, spec)
    return value


def split(call: Call, x: Sequence[Any]) -> list[Any]:
    """Return the tensors of the inputs with the channel axes of the model."""
    shapes = call.graph.channel_shapes
    return [
        _reshaped(t, shapes[v]) if v in shapes else t
        for t, v in zip(x[: len(call.inputs)], call.inputs, strict=True)
    ]


def _reshaped(t: tf.Tensor, shape: tuple[int, ...]) -> tf.Tensor:
    result = tf.reshape(t, tf.concat([tf.shape(t)[:-1], tf.constant(shape, tf.int32)], 0))
    return tf.ensure_shape(result, [*t.shape[:-1], *shape])


def joined(call: Call, t: tf.Tensor, spec: Any) -> tf.Tensor:
    """Return a tensor of the model as the graph stores it, with one channel axis."""
    leading = call.graph.spatial + 1
    if len(spec.shape) == call.rank:
        return t
    channels = prod(of_spec(call, spec))
    result = tf.reshape(t, tf.concat([tf.shape(t)[:leading], [channels]], 0))
    return tf.ensure_shape(result, [*t.shape[:leading], channels])
