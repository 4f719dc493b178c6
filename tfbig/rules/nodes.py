"""Nodes and checks that several rules share: casts, activations, layers that treat every pixel alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfbig.errors import UnsupportedLayerError
from tfbig.geometry import Window
from tfbig.graph import Graph

layers = keras.layers


def channels_last(layer: Any) -> None:
    """Refuses channels-first layers."""
    if getattr(layer, "data_format", "channels_last") != "channels_last":
        raise UnsupportedLayerError(
            f"layer '{layer.name}' has data_format='channels_first'; strips need 'channels_last'. "
            "Build the model with data_format='channels_last'."
        )


def images_only(layer: Any, graph: Graph, inputs: Sequence[int]) -> None:
    for i in inputs:
        if not graph.values[i].image:
            raise UnsupportedLayerError(
                f"layer '{layer.name}' ({type(layer).__name__}) works on images, but its input "
                f"'{graph.values[i].name}' is not an image [N, H, W, C]."
            )


def pairs(*arguments: Sequence[Any] | Any) -> Any:
    """Row and column items of several two-item arguments."""
    return zip(*((a, a) if isinstance(a, (int, str)) else a for a in arguments), strict=True)


def cast(graph: Graph, value: int, dtype: str) -> int:
    """The value in another element type; itself where it has that type or is whole."""
    known = graph.values[value]
    if known.dtype == dtype or not known.image:
        return value
    return graph.local(
        f"{known.name}/cast",
        lambda x, w, strip: tf.cast(x[0], dtype),
        [value],
        known.channels,
        dtype,
        pixelwise=True,
        cheap=True,
    )


def activation(graph: Graph, name: str, function: Any, value: int) -> int:
    """An activation function as a node of its own; nothing for None and linear."""
    if function in (None, keras.activations.linear):
        return value
    known = graph.values[value]
    across = function in (keras.activations.softmax, keras.activations.log_softmax)
    return graph.local(
        f"{name}/{getattr(function, '__name__', 'activation')}",
        lambda x, w, strip: function(x[0]),
        [value],
        known.channels,
        known.dtype or "float32",
        pixelwise=not across,
        cheap=True,
    )


def windows(layer: Any, kernel: Sequence[int], dilation: Any = 1) -> tuple[Window, Window]:
    a, b = (
        Window(k, s, d, layer.padding)
        for k, s, d in pairs(tuple(kernel), tuple(layer.strides), dilation)
    )
    return a, b


def call(layer: Any, inputs: Any, variables: Sequence[Any], weights: Sequence[tf.Tensor]) -> Any:
    """The layer's own `call` with other values for its variables, without training behaviour."""
    with keras.StatelessScope(state_mapping=list(zip(variables, weights, strict=True))):
        return _twin_call(layer)(inputs)


def _twin_call(layer: Any) -> Any:
    """`call` on a strip; that of a Big layer would cut the strip into strips again."""
    return getattr(layer, "twin_call", layer.call)


def per_pixel(layer: Any, graph: Graph, inputs: list[int], **traits: Any) -> int:
    """A layer whose `call` treats every pixel alone."""
    images_only(layer, graph, inputs)
    variables = list(layer.variables)
    value = cast(graph, inputs[0], layer.compute_dtype)
    return graph.local(
        layer.name,
        lambda x, w, strip: call(layer, x[0], variables, w),
        [value],
        graph.values[value].channels,
        layer.compute_dtype,
        weights=variables,
        cheap=True,
        **traits,
    )
