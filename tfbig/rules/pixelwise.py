"""Layers without a window: activations, rescaling, dropout, merging."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfbig import random
from tfbig.errors import UnsupportedLayerError
from tfbig.graph import Graph
from tfbig.rules.nodes import _twin_call, activation, cast, images_only, per_pixel
from tfbig.rules.registry import rule

layers = keras.layers


@rule(layers.Activation, layers.ReLU, layers.LeakyReLU, layers.ELU, layers.Softmax)
def pixelwise_activation(layer: Any, graph: Graph, inputs: list[int], training: bool) -> int:
    if not graph.values[inputs[0]].image:
        return graph.whole(layer.name, lambda x, w: _twin_call(layer)(x[0]), inputs)
    if getattr(layer, "axis", -1) not in (-1, 3):
        raise UnsupportedLayerError(
            f"layer '{layer.name}': softmax over axis={layer.axis} needs the whole image; use axis=-1."
        )
    function = layer.activation if isinstance(layer, layers.Activation) else _twin_call(layer)
    value = cast(graph, inputs[0], layer.compute_dtype)
    across = isinstance(layer, layers.Softmax)
    if not across:
        return activation(graph, layer.name, function, value)
    return per_pixel(layer, graph, inputs)


@rule(layers.Rescaling)
def rescaling(layer: Any, graph: Graph, inputs: list[int], training: bool) -> int:
    scalar = all(isinstance(v, (int, float)) for v in (layer.scale, layer.offset))
    return per_pixel(layer, graph, inputs, pixelwise=scalar)


@rule(layers.Dropout)
def dropout(layer: Any, graph: Graph, inputs: list[int], training: bool) -> int:
    if not training or layer.rate == 0:
        return cast(graph, inputs[0], layer.compute_dtype)
    seed = graph.input(f"{layer.name}/seed", False)
    graph.seeds.append((seed, layer.seed_generator))
    if not graph.values[inputs[0]].image:
        return graph.whole(
            layer.name, lambda x, w: random.dropout_whole(x[0], layer.rate, x[1]), [inputs[0], seed]
        )
    if layer.noise_shape is not None and any(n == 1 for n in layer.noise_shape):
        raise UnsupportedLayerError(
            f"layer '{layer.name}': Dropout with noise_shape={layer.noise_shape} cannot run strip by strip; "
            "use noise_shape=None."
        )
    value = cast(graph, inputs[0], layer.compute_dtype)
    return graph.local(
        layer.name,
        lambda x, w, strip: random.dropout(x[0], layer.rate, x[1], strip.start),
        [value, seed],
        graph.values[value].channels,
        layer.compute_dtype,
        cheap=True,
    )


@rule(layers.Add, layers.Subtract, layers.Multiply, layers.Average, layers.Maximum, layers.Minimum)
def merge(layer: Any, graph: Graph, inputs: list[int], training: bool) -> int:
    if not any(graph.values[i].image for i in inputs):
        return graph.whole(layer.name, lambda x, w: layer._merge_function(x), inputs)
    inputs = [cast(graph, i, layer.compute_dtype) for i in inputs]
    channels = max(graph.values[i].channels for i in inputs)
    return graph.local(
        layer.name,
        lambda x, w, strip: layer._merge_function(list(x)),
        inputs,
        channels,
        layer.compute_dtype,
        cheap=True,
        operations=channels * (len(inputs) - 1),
    )


@rule(layers.Concatenate)
def concatenate(layer: Any, graph: Graph, inputs: list[int], training: bool) -> int:
    if not any(graph.values[i].image for i in inputs):
        return graph.whole(layer.name, lambda x, w: tf.concat(x, layer.axis), inputs)
    images_only(layer, graph, inputs)
    if layer.axis not in (-1, 3):
        raise UnsupportedLayerError(
            f"layer '{layer.name}': Concatenate runs strip by strip over the channels, axis=-1; "
            f"received axis={layer.axis}."
        )
    inputs = [cast(graph, i, layer.compute_dtype) for i in inputs]
    return graph.local(
        layer.name,
        lambda x, w, strip: tf.concat(x, -1),
        inputs,
        sum(graph.values[i].channels for i in inputs),
        layer.compute_dtype,
        cheap=True,
    )


@rule(layers.Identity, layers.InputLayer)
def identity(layer: Any, graph: Graph, inputs: list[int], training: bool) -> int:
    return cast(graph, inputs[0], layer.compute_dtype)
