"""Convolutions of every kind, and Dense over the channels."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfbig import kernels, phase
from tfbig.geometry import Transposed, Window
from tfbig.graph import Graph
from tfbig.rules.nodes import activation, cast, channels_last, images_only, pairs, windows
from tfbig.rules.registry import rule

layers = keras.layers


def _linear(
    layer: Any,
    graph: Graph,
    value: int,
    function: Any,
    axes: Any,
    channels: int,
    kernel: Any,
    work: int,
    phased: Any = None,
) -> int:
    """A convolution of any kind with its bias and activation."""
    bias = [layer.bias] if layer.use_bias else []

    def run(x: list[tf.Tensor], w: list[tf.Tensor], strip: kernels.Strip) -> tf.Tensor:
        y = function(x[0], tf.cast(w[0], x[0].dtype), strip)
        return tf.nn.bias_add(y, tf.cast(w[1], y.dtype)) if bias else y

    dtype = layer.compute_dtype
    value = graph.local(
        f"{layer.name}/convolution",
        run,
        [cast(graph, value, dtype)],
        channels,
        dtype,
        [axes],
        [kernel, *bias],
        operations=2 * work,
        phase=phased,
    )
    return activation(graph, layer.name, layer.activation, value)


def count(kernel: Any) -> int:
    count = 1
    for n in kernel.shape:
        count *= int(n)
    return count


@rule(layers.Conv2D)
def convolution(layer: Any, graph: Graph, inputs: list[int], training: bool) -> int:
    channels_last(layer)
    images_only(layer, graph, inputs)
    axes = windows(layer, layer.kernel_size, tuple(layer.dilation_rate))

    def run(x: tf.Tensor, kernel: tf.Tensor, strip: kernels.Strip) -> tf.Tensor:
        return kernels.convolution(x, kernel, axes, layer.groups, strip)

    work = count(layer.kernel)
    phased = phase.strided(layer.kernel, axes, layer.use_bias) if layer.groups == 1 else None
    return _linear(layer, graph, inputs[0], run, axes, layer.filters, layer.kernel, work, phased)


@rule(layers.DepthwiseConv2D)
def depthwise(layer: Any, graph: Graph, inputs: list[int], training: bool) -> int:
    channels_last(layer)
    images_only(layer, graph, inputs)
    axes = windows(layer, layer.kernel_size, tuple(layer.dilation_rate))

    def run(x: tf.Tensor, kernel: tf.Tensor, strip: kernels.Strip) -> tf.Tensor:
        return kernels.depthwise_convolution(x, kernel, axes, strip)

    channels = graph.values[inputs[0]].channels * layer.depth_multiplier
    return _linear(layer, graph, inputs[0], run, axes, channels, layer.kernel, count(layer.kernel))


@rule(layers.SeparableConv2D)
def separable(layer: Any, graph: Graph, inputs: list[int], training: bool) -> int:
    channels_last(layer)
    images_only(layer, graph, inputs)
    axes = windows(layer, layer.kernel_size, tuple(layer.dilation_rate))
    deep = layer.depthwise_kernel
    middle = graph.local(
        f"{layer.name}/depthwise",
        lambda x, w, strip: kernels.depthwise_convolution(
            x[0], tf.cast(w[0], x[0].dtype), axes, strip
        ),
        [cast(graph, inputs[0], layer.compute_dtype)],
        int(deep.shape[2] * deep.shape[3]),
        layer.compute_dtype,
        [axes],
        [deep],
        operations=2 * count(deep),
    )
    point = (Window(), Window())

    def run(x: tf.Tensor, kernel: tf.Tensor, strip: kernels.Strip) -> tf.Tensor:
        return kernels.convolution(x, kernel, point, 1, strip)

    kernel = layer.pointwise_kernel
    return _linear(layer, graph, middle, run, point, layer.filters, kernel, count(kernel))


@rule(layers.Conv2DTranspose)
def transposed(layer: Any, graph: Graph, inputs: list[int], training: bool) -> int:
    channels_last(layer)
    images_only(layer, graph, inputs)
    axes: Any = tuple(
        Transposed(k, s, d, layer.padding, p)
        for k, s, d, p in pairs(
            tuple(layer.kernel_size),
            tuple(layer.strides),
            tuple(layer.dilation_rate),
            (None, None) if layer.output_padding is None else layer.output_padding,
        )
    )

    def run(x: tf.Tensor, kernel: tf.Tensor, strip: kernels.Strip) -> tf.Tensor:
        return kernels.transposed_convolution(x, kernel, axes, strip)

    work = count(layer.kernel) // (axes[0].stride * axes[1].stride)
    phased = phase.transposed(layer.kernel, axes, layer.use_bias)
    return _linear(layer, graph, inputs[0], run, axes, layer.filters, layer.kernel, work, phased)


@rule(layers.Dense)
def dense(layer: Any, graph: Graph, inputs: list[int], training: bool) -> int:
    weights = [layer.kernel] + ([layer.bias] if layer.use_bias else [])

    def run(x: list[tf.Tensor], w: list[tf.Tensor], strip: Any = None) -> tf.Tensor:
        a = tf.cast(x[0], layer.compute_dtype)
        y = tf.matmul(tf.reshape(a, [-1, w[0].shape[0]]), tf.cast(w[0], a.dtype))
        y = tf.reshape(y, tf.concat([tf.shape(a)[:-1], [layer.units]], 0))
        y.set_shape([*a.shape[:-1], layer.units])
        return y + tf.cast(w[1], a.dtype) if layer.use_bias else y

    if graph.values[inputs[0]].image:
        value = cast(graph, inputs[0], layer.compute_dtype)
        value = graph.local(
            f"{layer.name}/product",
            run,
            [value],
            layer.units,
            layer.compute_dtype,
            weights=weights,
            operations=2 * count(layer.kernel),
        )
        return activation(graph, layer.name, layer.activation, value)
    value = graph.whole(f"{layer.name}/product", run, inputs, weights)
    if layer.activation in (None, keras.activations.linear):
        return value
    return graph.whole(f"{layer.name}/activation", lambda x, w: layer.activation(x[0]), [value])
