"""Nodes that several rules share: casts, activations, layers that are per pixel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import keras
import tensorflow as tf

from tfbig.geometry.windows import Fixed, Window
from tfbig.network import user_code
from tfbig.network.graph import Graph
from tfbig.network.rules import channel_shapes
from tfbig.network.rules.call import Call, Slot
from tfbig.network.rules.registry import apply
from tfbig.ops import autodiff
from tfbig.ops.activations import fastest

ACROSS_CHANNELS = {
    getattr(keras.activations, name) for name in ("softmax", "log_softmax", "sparsemax")
}
"""Activations that combine the channels of a pixel."""
POINTWISE = {
    f
    for name, f in vars(keras.activations).items()
    if callable(f) and f not in ACROSS_CHANNELS and name != "glu"
} | {tf.nn.relu, tf.nn.relu6, tf.nn.sigmoid, tf.tanh, tf.nn.swish, tf.nn.gelu, tf.nn.elu}
"""Elementwise activations."""


def cast(graph: Graph, value: int, dtype: str) -> int:
    """Add a cast of an image to another element type; return `value` if it has that type or is whole."""
    spec = graph.values[value]
    if spec.dtype == dtype or not spec.image:
        return value
    result = graph.local(
        f"{spec.name}/cast",
        lambda x, w, strip: tf.cast(x[0], dtype),
        [value],
        spec.channels,
        dtype,
        pixelwise=True,
        cheap=True,
        any_channels=True,
    )
    if value in graph.channel_shapes:
        graph.channel_shapes[result] = graph.channel_shapes[value]
    return result


def layer_inside(call: Call, layer: Any, value: int, shape: Sequence[int | None]) -> int:
    """Add a layer that the layer of a call has inside, on an image with some shape in the model."""
    graph, first, name = call.graph, len(call.graph.nodes), call.layer.name
    inner = replace(
        call,
        layer=layer,
        inputs=(value,),
        specs=(keras.KerasTensor(shape, graph.values[value].dtype),),
        outputs=(keras.KerasTensor(layer.compute_output_shape(tuple(shape)), layer.compute_dtype),),
        arguments=((Slot(0),), {}),
        kind=None,
    )
    (result,) = apply(inner)
    for position, node in enumerate(graph.nodes[first:], first):
        graph.nodes[position] = replace(node, name=f"{name}/{node.name}", layer=name)
    return result


def activation(call: Call, function: Any, value: int) -> int:
    """Add an activation as a separate node; return `value` for None and linear."""
    if function in (None, keras.activations.linear):
        return value
    if isinstance(function, keras.Layer):
        if not function.built:  # Keras builds it in its first call
            function.build(call.outputs[0].shape)
        return apply(call.for_activation(function, value))[0]
    name = getattr(function, "__name__", "activation")
    builtin = function in POINTWISE or function in ACROSS_CHANNELS
    pixel_by_pixel = builtin or user_code.is_per_pixel(
        function, [call.channels], call.graph.spatial, call.dtype
    )
    if function is keras.activations.glu or not pixel_by_pixel:
        call.refuse(
            f"has the activation '{name}', which is not computed pixel by pixel or changes the channels; "
            "make it a layer and add a rule for that with @tfbig.rule."
        )
    waiting, compute = autodiff.waiting_tensors(function) if builtin else 0, fastest(function)
    return call.local(
        lambda x, w, strip: compute(x[0]),
        inputs=[value],
        name=name,
        pixelwise=function in POINTWISE,
        any_channels=function in POINTWISE,
        cheap=not waiting,  # of several passes, of which the backward pass has two or three times as many
        waiting=waiting,
    )


def per_pixel(call: Call, output: int = 0, function: Any = None, **traits: Any) -> int:
    """Add a layer or operation that is per pixel, as a node that calls it.

    Args:
        call: The call; its images may have any number of channel axes.
        output: Position of the output to add.
        function: `x -> results`, computed instead of the layer.
        **traits: See `tfbig.network.graph.Local`.
    """
    variables, spec = (
        ([], call.outputs[output]) if function else (call.variables, call.outputs[output])
    )
    if not channel_shapes.is_plain(call):
        traits = traits | {"any_channels": False, "pixelwise": False}

    def run(x: list[tf.Tensor], w: list[tf.Tensor], strip: Any) -> tf.Tensor:
        x = channel_shapes.split(call, x)
        result = function(x) if function else call.run(x, zip(variables, w, strict=True))[0]
        return channel_shapes.joined(call, keras.tree.flatten(result)[output], spec)

    dtype = traits.pop("dtype", keras.backend.standardize_dtype(spec.dtype))
    if not tf.as_dtype(dtype).is_floating:
        traits = traits | {"stops_gradient": True}
    value = call.local(
        run,
        weights=variables,
        channels=prod(channel_shapes.of_spec(call, spec)),
        dtype=dtype,
        name=f"part_{output}" if len(call.outputs) > 1 else "",
        **traits,
    )
    return channel_shapes.record(call, value, spec)


def per_pixel_parts(call: Call, **traits: Any) -> list[int]:
    """Add a node for every output of an operation that is per pixel. Args: as for `per_pixel`."""
    return [per_pixel(call, i, **traits) for i in range(len(call.outputs))]


def geometric(call: Call, axes: Any, function: Any) -> int:
    """Add an image `function(x, strip)` that copies or mixes pixels; `axes` are in the order of the model."""
    return call.local(
        lambda x, w, strip: function(x[0], strip),
        axes,
        outside=None,
        cheap=True,
        operations=0,
        any_channels=True,
    )


def windows(call: Call, kernel: Sequence[int], dilation: Any = 1) -> Any:
    """Return the windows of a layer or operation with a kernel, strides and padding; strides of None are the kernel."""
    layer = call.layer
    strides = kernel if layer.strides is None else numbers(call, layer.strides)
    sizes = zip(kernel, strides, numbers(call, dilation), strict=True)
    axes = [Window(k, s, d, layer.padding) for k, s, d in sizes]
    if layer.padding == "causal":
        axes = [Window(w.kernel, w.stride, w.dilation, (w.span - 1, 0)) for w in axes]
    return tuple(axes)


def numbers(call: Call, given: Any) -> tuple[int, ...]:
    """Return one number per spatial axis; layers have them all, operations may have one for all axes."""
    each = (given,) if isinstance(given, int) else tuple(int(n) for n in given)
    return each * call.graph.spatial if len(each) == 1 else each


def of_fixed_size(call: Call, value: int, size: Sequence[int], name: str) -> int:
    """Add an image unchanged, whose rows, columns, ... in the model must be `size` when they are known."""
    spec = call.graph.values[value]
    return call.local(
        lambda x, w, strip: tf.identity(x[0]),
        [Fixed(n) for n in size],
        inputs=[value],
        outside=None,
        channels=spec.channels,
        dtype=spec.dtype,
        name=name,
        operations=0,
        cheap=True,
    )


def last_axis(call: Call, axis: Any) -> bool:
    """Return whether `axis` is the channel axis, or the last of several, alone or as the only one in a list."""
    axes = axis if isinstance(axis, (list, tuple)) else [axis]
    last = max(len(spec.shape) for spec in call.specs) - 1
    has_channels = () not in [call.graph.channel_shapes.get(v) for v in call.inputs]
    return len(axes) == 1 and axes[0] in (-1, last) and has_channels


def check_broadcast(call: Call) -> None:
    """Raise if a whole value or constant differs between the pixels of an image.

    Raises:
        UnsupportedLayerError: One has a spatial axis longer than 1.
    """
    flat = keras.tree.flatten(call.arguments)
    pairs = list(zip(call.specs, call.inputs, strict=True))
    shapes = [s.shape for s, i in pairs if not call.graph.values[i].image]
    shapes += [a.shape for a in flat if hasattr(a, "shape")]
    ranks = {len(s.shape) for s, i in pairs if call.graph.values[i].image}
    rank, leading = max(ranks), call.graph.spatial + 1
    if len(ranks) > 1:
        call.refuse(
            f"combines images of shapes {[tuple(s.shape) for s in call.specs]}, which Keras would align at their last "
            "axes; give them the same number of axes first, with keras.ops.expand_dims."
        )
    merges = isinstance(call.layer, keras.Layer)  # these add the axes that a whole value lacks
    for shape in shapes:
        aligned = tuple(shape)[:1] + (1,) * (rank - len(shape)) + tuple(shape)[1:]
        if not merges:
            aligned = (1,) * (rank - len(shape)) + tuple(shape)
        if len(aligned) > rank or any(n != 1 for n in aligned[1:leading]):
            call.refuse(
                f"combines an image with a tensor of shape {tuple(shape)}; expected one value per "
                f"channel, shape {(None, *[1] * call.graph.spatial, 'C')}."
            )
