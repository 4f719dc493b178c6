"""Rules for layers without a window: activations, rescaling, merging."""

from __future__ import annotations

from typing import Any

import keras

from tfbig.network.rules.call import Call
from tfbig.network.rules.channel_shapes import any_channel_shape
from tfbig.network.rules.nodes import activation, check_broadcast, last_axis, per_pixel
from tfbig.network.rules.registry import rule
from tfbig.system.keras_internals import CustomScaleLayer, LayerScale

layers = keras.layers


@rule(layers.ReLU, layers.LeakyReLU, layers.ELU)
@any_channel_shape
def pointwise(call: Call) -> int:
    """Add an elementwise activation."""
    return per_pixel(call, pixelwise=True, any_channels=True)


@rule(layers.Activation)
def any_activation(call: Call) -> int:
    """Add the activation of an `Activation` layer."""
    return activation(call, call.layer.activation, call.inputs[0])


@rule(layers.Softmax)
@any_channel_shape
def softmax(call: Call) -> int:
    """Add a softmax over the channels."""
    if not last_axis(call, call.layer.axis):
        call.refuse(f"over axis={call.layer.axis} needs the whole image; use axis=-1.")
    check_broadcast(call)
    return per_pixel(call)


@rule(layers.PReLU)
def parametric_relu(call: Call) -> int:
    """Add a PReLU with slopes per channel."""
    if any(n != 1 for n in call.layer.alpha.shape[:-1]):
        axes = list(range(1, call.rank - 1))
        call.refuse(f"has a slope for every pixel; use shared_axes={axes}.")
    return per_pixel(call)


@rule(LayerScale)
def layer_scale(call: Call) -> int:
    """Add a scale per channel."""
    return per_pixel(call)


@rule(layers.Rescaling)
def rescaling(call: Call) -> int:
    """Add a scale and an offset."""
    scalar = all(isinstance(v, (int, float)) for v in (call.layer.scale, call.layer.offset))
    return per_pixel(call, pixelwise=scalar)


@rule(
    layers.Add,
    layers.Subtract,
    layers.Multiply,
    layers.Average,
    layers.Maximum,
    layers.Minimum,
    CustomScaleLayer,
)
@any_channel_shape
def merge(call: Call) -> int:
    """Add an elementwise function of several images."""
    check_broadcast(call)
    operations = call.channels * (len(call.inputs) - 1)
    return per_pixel(call, operations=operations, any_channels=True)


@rule(layers.Identity)
@any_channel_shape
def identity(call: Call) -> Any:
    """Return the inputs."""
    return list(call.inputs)
