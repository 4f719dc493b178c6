"""Nodes that several rules share: casts, activations, layers that treat every pixel alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfbig.geometry.windows import Window
from tfbig.network import user_code
from tfbig.network.graph import Graph
from tfbig.network.rules.call import Call
from tfbig.network.rules.registry import apply

ACROSS = {getattr(keras.activations, name) for name in ("softmax", "log_softmax", "sparsemax")}
"""Activations that look at all channels of a pixel."""
POINTWISE = {
    f
    for name, f in vars(keras.activations).items()
    if callable(f) and f not in ACROSS and name != "glu"
} | {tf.nn.relu, tf.nn.relu6, tf.nn.sigmoid, tf.tanh, tf.nn.swish, tf.nn.gelu, tf.nn.elu}
"""Functions that treat every number alone."""


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


def activation(call: Call, function: Any, value: int) -> int:
    """An activation as a node of its own; nothing for None and linear."""
    if function in (None, keras.activations.linear):
        return value
    if isinstance(function, keras.Layer):
        if not function.built:  # Keras builds it when numbers first pass through
            function.build(call.outputs[0].shape)
        return apply(call.inner(function, value))[0]
    name = getattr(function, "__name__", "activation")
    known = function in POINTWISE or function in ACROSS
    alone = known or user_code.per_pixel(function, [call.channels], call.graph.spatial, call.dtype)
    if function is keras.activations.glu or not alone:
        call.refuse(
            f"has the activation '{name}', which does not treat every pixel alone or changes the channels; "
            "make it a layer, and teach that to the engine with @tfbig.rule."
        )
    return call.local(
        lambda x, w, strip: function(x[0]),
        inputs=[value],
        name=name,
        pixelwise=function in POINTWISE,
    )


def per_pixel(call: Call, **traits: Any) -> int:
    """A layer or operation whose own call treats every pixel alone."""
    variables = call.variables

    def run(x: list[tf.Tensor], w: list[tf.Tensor], strip: Any) -> tf.Tensor:
        return call.run(x, zip(variables, w, strict=True))[0]

    return call.local(run, weights=variables, **traits)


def windows(call: Call, kernel: Sequence[int], dilation: Sequence[int] | None = None) -> Any:
    """The windows of a layer with a kernel, strides and padding."""
    layer = call.layer
    dilation = dilation or [1] * len(kernel)
    found = zip(kernel, layer.strides, dilation, strict=True)
    made = [Window(k, s, d, layer.padding) for k, s, d in found]
    if layer.padding == "causal":
        made = [Window(w.kernel, w.stride, w.dilation, (w.span - 1, 0)) for w in made]
    return tuple(made)


def last_axis(call: Call, axis: Any) -> bool:
    """Whether an axis, or each of several, is that of the channels."""
    axes = axis if isinstance(axis, (list, tuple)) else [axis]
    last = max(len(spec.shape) for spec in call.specs) - 1
    return len(axes) == 1 and axes[0] in (-1, last)


def check_broadcast(call: Call) -> None:
    """Refuses small values and constants that would meet an image place by place.

    Raises:
        UnsupportedLayerError: one has more than one place along a spatial axis.
    """
    flat = keras.tree.flatten(call.arguments)
    shapes = [
        s.shape
        for s, i in zip(call.specs, call.inputs, strict=True)
        if not call.graph.values[i].image
    ]
    shapes += [a.shape for a in flat if hasattr(a, "shape")]
    merges = isinstance(call.layer, keras.Layer)  # these add the axes that a small value lacks
    for shape in shapes:
        places = tuple(shape)[1:-1] if merges or len(shape) == call.rank else tuple(shape)[:-1]
        if any(n != 1 for n in places):
            call.refuse(
                f"combines an image with a tensor of shape {tuple(shape)}; strips need one number per "
                f"channel, shape {(None, *[1] * call.graph.spatial, 'C')}."
            )
