"""Rules for convolutions of every kind, and for Dense over the channels."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import keras
import tensorflow as tf

from tfbig.geometry.windows import Transposed, Window
from tfbig.network import phase_layout
from tfbig.network.rules.call import Call
from tfbig.network.rules.nodes import activation, windows
from tfbig.network.rules.registry import rule
from tfbig.ops import kernels
from tfbig.system import keras_internals

layers = keras.layers


def _linear(
    call: Call,
    function: Any,
    windows: Any,
    kernel: Any,
    multiplications: int | None = None,
    inputs: Any = None,
    im2col: int = 0,
    phase: Any = None,
    name: str = "convolution",
    low_rank: Sequence[Any] = (),
    **traits: Any,
) -> int:
    """Add a linear layer with its bias and activation; with `windows` None it is per pixel.

    `low_rank` holds the two factors of a change of the kernel by LoRA. Further traits are those of `function`, see
    `tfbig.network.graph.Local`.
    """
    layer = call.layer
    if getattr(layer, "quantization_mode", None):
        call.refuse(
            "has quantised weights, which cannot run strip by strip. Use the plain model, or build it without."
        )
    bias = [layer.bias] if layer.use_bias else []

    def run(x: list[tf.Tensor], w: list[tf.Tensor], strip: Any) -> tf.Tensor:
        weight = tf.cast(w[0], x[0].dtype)
        y = function(x[0], weight if windows is None else call.kernel(weight), strip)
        return kernels.add_bias(y, tf.cast(w[-1], y.dtype)) if bias else y

    value = call.local(
        run,
        windows,
        [kernel, *low_rank, *bias],
        inputs=inputs,
        outside=None,
        name=name,
        cheap=False,
        operations=2 * (_size(kernel) if multiplications is None else multiplications),
        im2col=im2col,
        phase=None if low_rank else phase,
        any_channels=traits.pop("any_channels", False) and not low_rank,
        prepare=(lambda x, w: with_lora(layer, *w)) if low_rank else None,
        **traits,
    )
    return activation(call, layer.activation, value)


def with_lora(
    layer: Any, kernel: tf.Tensor, a: tf.Tensor, b: tf.Tensor, *bias: tf.Tensor
) -> tuple[tf.Tensor, ...]:
    """Return `kernel + lora_alpha / lora_rank * a @ b`, and the bias, in the element types that Keras computes in.

    The factors are float32 in every policy; a layer in mixed precision casts them first.
    """
    if layer.autocast and layer.compute_dtype != layer.variable_dtype:
        kernel, a, b = (tf.cast(t, layer.compute_dtype) for t in (kernel, a, b))
    product = layer.lora_alpha / layer.lora_rank * keras.ops.matmul(a, b)
    return tf.cast(keras.ops.add(kernel, product), layer.compute_dtype), *bias


def _size(kernel: Any) -> int:
    """Return the number of elements of a kernel."""
    return prod(int(n) for n in kernel.shape)


@rule(layers.Conv1D, layers.Conv2D, layers.Conv3D)
def convolution(call: Call) -> int:
    """Add a convolution, with groups if the layer has them."""
    layer = call.layer
    model_axes = windows(call, layer.kernel_size, layer.dilation_rate)
    axes = call.graph.to_graph_order(model_axes)
    planar = layer.groups == 1 and _planar(call)
    kernel, *low_rank = keras_internals.kernel_and_lora(layer)
    return _linear(
        call,
        lambda x, kernel, strip: kernels.convolution(x, kernel, axes, layer.groups, strip),
        model_axes,
        kernel,
        im2col=_size(kernel) // int(kernel.shape[-1]),
        phase=phase_layout.strided(kernel, model_axes, layer.use_bias) if planar else None,
        any_channels=layer.groups == 1,
        around=kernels.accepts_more(axes),
        compiled=layer.groups > 1,
        low_rank=low_rank,
    )


def _planar(call: Call) -> bool:
    """Return whether the space-to-depth layout exists: for two axes in the order of the model."""
    return call.graph.spatial == 2 and call.graph.order is None


@rule(layers.DepthwiseConv1D, layers.DepthwiseConv2D)
def depthwise(call: Call) -> int:
    """Add a depthwise convolution."""
    layer = call.layer
    model_axes = windows(call, layer.kernel_size, layer.dilation_rate)
    axes = call.graph.to_graph_order(model_axes)
    return _linear(
        call,
        lambda x, kernel, strip: kernels.depthwise_convolution(x, kernel, axes, strip),
        model_axes,
        layer.kernel,
        around=kernels.accepts_more(axes),
        any_channels=True,
    )


@rule(layers.SeparableConv1D, layers.SeparableConv2D)
def separable(call: Call) -> int:
    """Add a depthwise convolution and a pointwise one."""
    layer = call.layer
    model_axes = windows(call, layer.kernel_size, layer.dilation_rate)
    axes = call.graph.to_graph_order(model_axes)
    deep = layer.depthwise_kernel
    middle = call.local(
        lambda x, w, strip: kernels.depthwise_convolution(
            x[0], call.kernel(tf.cast(w[0], x[0].dtype)), axes, strip
        ),
        model_axes,
        [deep],
        outside=None,
        channels=int(deep.shape[-2] * deep.shape[-1]),
        name="depthwise",
        operations=2 * _size(deep),
        around=kernels.accepts_more(axes),
    )
    point = (Window(),) * len(axes)
    return _linear(
        call,
        lambda x, kernel, strip: kernels.convolution(x, kernel, point, 1, strip),
        point,
        layer.pointwise_kernel,
        inputs=[middle],
        im2col=int(deep.shape[-2] * deep.shape[-1]),
    )


@rule(layers.Conv1DTranspose, layers.Conv2DTranspose, layers.Conv3DTranspose)
def transposed(call: Call) -> int:
    """Add a transposed convolution."""
    layer = call.layer
    sizes = layer.kernel_size, layer.strides, layer.dilation_rate
    extra = layer.output_padding
    extra = [extra] * len(layer.strides) if extra is None or isinstance(extra, int) else extra
    model_axes: Any = tuple(
        Transposed(k, s, d, layer.padding, p) for k, s, d, p in zip(*sizes, extra, strict=True)
    )
    axes = call.graph.to_graph_order(model_axes)
    multiplications = _size(layer.kernel) // prod(a.stride for a in axes)
    return _linear(
        call,
        lambda x, kernel, strip: kernels.transposed_convolution(x, kernel, axes, strip),
        model_axes,
        layer.kernel,
        multiplications,
        im2col=multiplications // int(layer.kernel.shape[-1]),
        phase=phase_layout.transposed(layer.kernel, model_axes, layer.use_bias)
        if _planar(call)
        else None,
    )


@rule(layers.Dense)
def dense(call: Call) -> int:
    """Add a matrix product over the channels of each pixel."""

    def product(x: tf.Tensor, kernel: tf.Tensor, strip: Any) -> tf.Tensor:
        y = tf.matmul(tf.reshape(x, [-1, kernel.shape[0]]), kernel)
        y = tf.reshape(y, tf.concat([tf.shape(x)[:-1], [kernel.shape[1]]], 0))
        return tf.ensure_shape(y, [*x.shape[:-1], kernel.shape[1]])

    kernel, *low_rank = keras_internals.kernel_and_lora(call.layer)
    return _linear(call, product, None, kernel, name="product", low_rank=low_rank)
