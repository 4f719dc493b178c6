"""Rules for the convolutions of keras.ops, whose kernel is a variable, a constant or a whole value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import keras
import tensorflow as tf

from tfbig.geometry.windows import Transposed, Window
from tfbig.network.rules.call import Call, Slot
from tfbig.network.rules.nodes import numbers, windows
from tfbig.network.rules.registry import rule
from tfbig.ops import kernels
from tfbig.system.keras_internals import operations


@dataclass(frozen=True)
class Operand:
    """A kernel among the arguments of an operation.

    Args:
        shape: Its shape.
        take: `(x, w) -> tensor`, given the inputs and weights of a node.
        weights: The variable, if it is one.
        inputs: The whole value, if it is one.
    """

    shape: tuple[int, ...]
    take: Callable[[list[Any], list[Any]], Any]
    weights: tuple[Any, ...] = ()
    inputs: tuple[int, ...] = ()


def _operand(call: Call, name: str, position: int) -> Operand:
    """Return an argument by its position, or by its name."""
    args, kwargs = call.arguments
    given = args[position] if position < len(args) else kwargs[name]
    if isinstance(given, Slot):
        value, spec = call.inputs[given.position], call.specs[given.position]
        if call.graph.values[value].image or None in spec.shape:
            call.refuse(
                f"has a {name} of shape {tuple(spec.shape)} that depends on an image; expected a kernel of known shape."
            )
        return Operand(tuple(spec.shape), lambda x, w: x[1], inputs=(value,))
    if isinstance(given, keras.Variable):
        return Operand(tuple(given.shape), lambda x, w: w[0], weights=(given,))
    constant = keras.ops.convert_to_numpy(given)
    return Operand(constant.shape, lambda x, w: tf.constant(constant, x[0].dtype))


def _image(call: Call, kernel: Operand) -> int:
    """Return the image that an operation convolves."""
    image = call.inputs[0]
    if not call.graph.values[image].image:
        call.refuse(
            "convolves a whole value with an image; expected the image first, and then the kernel."
        )
    return image


def _convolved(
    call: Call,
    kernel: Operand,
    axes: Sequence[Any],
    function: Callable[[tf.Tensor, tf.Tensor, Any], tf.Tensor],
    image: int,
    multiplications: int,
    channels: int | None = None,
    name: str = "",
    around: bool = False,
) -> int:
    """Add an image `function(x, kernel, strip)`; its axes and kernel are in the order of the graph."""

    def run(x: list[Any], w: list[Any], strip: Any) -> tf.Tensor:
        weight = tf.ensure_shape(tf.cast(kernel.take(x, w), x[0].dtype), kernel.shape)
        return function(x[0], call.kernel(weight), strip)

    return call.local(
        run,
        axes,
        kernel.weights,
        inputs=[image, *kernel.inputs],
        outside=None,
        channels=channels,
        name=name,
        operations=2 * multiplications,
        around=around,
    )


@rule(*operations("Conv"))
def convolution(call: Call) -> int:
    """Add a convolution; keras.ops.conv has no groups on Keras tensors."""
    kernel = _operand(call, "kernel", 1)
    image = _image(call, kernel)
    model_axes = windows(call, kernel.shape[:-2], call.layer.dilation_rate)
    axes = call.graph.to_graph_order(model_axes)
    return _convolved(
        call,
        kernel,
        model_axes,
        lambda x, weight, strip: kernels.convolution(x, weight, axes, 1, strip),
        image,
        prod(kernel.shape),
        around=kernels.accepts_more(axes),
    )


@rule(*operations("ExtractPatches"))
def extract_patches(call: Call) -> int:
    """Add patches of an image, whose pixels become channels."""
    layer = call.layer
    if len(layer.size) != call.graph.spatial:
        call.refuse(
            f"extracts patches of size {layer.size} from images with {call.graph.spatial} spatial axes; expected one "
            "number for each."
        )
    axes = windows(call, layer.size, layer.dilation_rate)
    sizes, strides, rates = (
        (1, *(getattr(a, n) for a in axes), 1) for n in ("kernel", "stride", "dilation")
    )

    def run(x: list[tf.Tensor], w: Any, strip: Any) -> tf.Tensor:
        if len(axes) == 3:
            return tf.extract_volume_patches(x[0], sizes, strides, "VALID")
        return tf.image.extract_patches(x[0], sizes, strides, rates, "VALID")

    return call.local(run, axes, operations=0)


@rule(*operations("DepthwiseConv"))
def depthwise(call: Call) -> int:
    """Add a depthwise convolution."""
    kernel = _operand(call, "kernel", 1)
    return _depthwise(call, kernel, _image(call, kernel))


def _depthwise(call: Call, kernel: Operand, image: int, name: str = "") -> int:
    model_axes = windows(call, kernel.shape[:-2], call.layer.dilation_rate)
    axes = call.graph.to_graph_order(model_axes)
    return _convolved(
        call,
        kernel,
        model_axes,
        lambda x, weight, strip: kernels.depthwise_convolution(x, weight, axes, strip),
        image,
        prod(kernel.shape),
        kernel.shape[-2] * kernel.shape[-1],
        name,
        kernels.accepts_more(axes),
    )


@rule(*operations("SeparableConv"))
def separable(call: Call) -> int:
    """Add a depthwise convolution and a pointwise one."""
    deep = _operand(call, "depthwise_kernel", 1)
    flat = _operand(call, "pointwise_kernel", 2)
    middle = _depthwise(call, deep, _image(call, deep), "depthwise")
    point = (Window(),) * call.graph.spatial
    return _convolved(
        call,
        flat,
        point,
        lambda x, weight, strip: kernels.convolution(x, weight, point, 1, strip),
        middle,
        prod(flat.shape),
    )


@rule(*operations("ConvTranspose"))
def transposed(call: Call) -> int:
    """Add a transposed convolution."""
    kernel, layer = _operand(call, "kernel", 1), call.layer
    extra = layer.output_padding
    extra = [None] * call.graph.spatial if extra is None else numbers(call, extra)
    sizes = (kernel.shape[:-2], numbers(call, layer.strides), numbers(call, layer.dilation_rate))
    model_axes = tuple(
        Transposed(k, s, d, layer.padding, p) for k, s, d, p in zip(*sizes, extra, strict=True)
    )
    axes = call.graph.to_graph_order(model_axes)
    return _convolved(
        call,
        kernel,
        model_axes,
        lambda x, weight, strip: kernels.transposed_convolution(x, weight, axes, strip),
        _image(call, kernel),
        prod(kernel.shape) // prod(a.stride for a in axes),
    )
