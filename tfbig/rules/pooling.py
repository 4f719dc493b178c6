"""Pooling over windows and over whole images."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfbig import kernels, moments
from tfbig.graph import Graph, Reduce
from tfbig.rules.nodes import cast, channels_last, images_only, windows
from tfbig.rules.registry import Rule, rule

layers = keras.layers


def _pooling(function: Any) -> Rule:
    def apply(layer: Any, graph: Graph, inputs: list[int], training: bool) -> int:
        channels_last(layer)
        images_only(layer, graph, inputs)
        axes = windows(layer, layer.pool_size)
        value = cast(graph, inputs[0], layer.compute_dtype)
        known = graph.values[value]
        return graph.local(
            layer.name,
            lambda x, w, strip: function(x[0], axes, strip),
            [value],
            known.channels,
            layer.compute_dtype,
            [axes],
            operations=axes[0].kernel * axes[1].kernel * known.channels,
        )

    return apply


rule(layers.MaxPooling2D)(_pooling(kernels.max_pool))


rule(layers.AveragePooling2D)(_pooling(kernels.average_pool))


def _global(layer: Any, graph: Graph, inputs: list[int], op: Reduce) -> int:
    channels_last(layer)
    value = cast(graph, inputs[0], layer.compute_dtype)
    result = graph.reduce(f"{layer.name}/reduce", op, [value])
    shape = (lambda y: y[:, None, None, :]) if layer.keepdims else (lambda y: y)
    return graph.whole(layer.name, lambda x, w: shape(x[0][0]), [result])


@rule(layers.GlobalAveragePooling2D)
def global_average(layer: Any, graph: Graph, inputs: list[int], training: bool) -> int:
    images_only(layer, graph, inputs)
    dtype = tf.as_dtype(layer.compute_dtype)
    wide, channels = moments.wide(dtype), graph.values[inputs[0]].channels

    def share(pixels: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.cast(pixels, tf.float64), wide)

    def pullback(x: list[Any], w: Any, strip: Any, result: Any, cotangent: Any) -> list[Any]:
        each = (tf.cast(cotangent[0], wide) / share(result[1]))[:, None, None, :]
        return [tf.cast(tf.broadcast_to(each, tf.shape(x[0])), x[0].dtype)]

    op = Reduce(
        lambda batch: (tf.zeros([batch, channels], wide),),
        lambda x, w, strip: (tf.reduce_sum(tf.cast(x[0], wide), [1, 2]),),
        lambda a, b: (a[0] + b[0],),
        lambda a, pixels: (tf.cast(a[0] / share(pixels), dtype), pixels),
        pullback,
        operations=channels,
    )
    return _global(layer, graph, inputs, op)


@rule(layers.GlobalMaxPooling2D)
def global_maximum(layer: Any, graph: Graph, inputs: list[int], training: bool) -> int:
    """Maximum and how many pixels attain it: the gradient is shared among them, as in TensorFlow."""
    images_only(layer, graph, inputs)
    dtype = tf.as_dtype(layer.compute_dtype)
    channels = graph.values[inputs[0]].channels

    def ties(x: tf.Tensor, top: tf.Tensor) -> tf.Tensor:
        return tf.equal(x, top[:, None, None, :])  # `==` would lose the shape

    def partial(x: list[Any], w: Any, strip: Any) -> tuple[Any, Any]:
        top = tf.reduce_max(x[0], [1, 2])
        return top, tf.reduce_sum(tf.cast(ties(x[0], top), tf.int64), [1, 2])

    def merge(a: Any, b: Any) -> tuple[Any, Any]:
        top = tf.maximum(a[0], b[0])
        first, second = (tf.where(tf.equal(p[0], top), p[1], 0) for p in (a, b))
        return top, first + second

    def pullback(x: list[Any], w: Any, strip: Any, result: Any, cotangent: Any) -> list[Any]:
        chosen = tf.cast(ties(x[0], result[0]), dtype)
        counts, gradient = (t[:, None, None, :] for t in (result[1], cotangent[0]))
        return [chosen / tf.cast(counts, dtype) * gradient]  # rounded as in TensorFlow

    op = Reduce(
        lambda batch: (
            tf.fill([batch, channels], dtype.min),
            tf.zeros([batch, channels], tf.int64),
        ),
        partial,
        merge,
        lambda a, pixels: tuple(a),
        pullback,
        operations=channels,
    )
    return _global(layer, graph, inputs, op)
