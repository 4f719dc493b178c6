"""Rules for layers that wrap another layer: SpectralNormalization, TimeDistributed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import keras
import tensorflow as tf

from tfbig.network.rules.call import Call, Slot
from tfbig.network.rules.nodes import cast
from tfbig.network.rules.registry import apply, rule
from tfbig.system import keras_internals, traces

layers = keras.layers

OF_PIXELS = (
    *(layers.Activation, layers.Dense, layers.ELU, layers.LayerNormalization, layers.LeakyReLU),
    *(
        layers.ReLU,
        layers.Rescaling,
        layers.RMSNormalization,
        layers.Softmax,
        layers.UnitNormalization,
    ),
)
"""Layers that compute each pixel from the same pixel, so that it is all the same whether they get one row or all."""


def _of_inner(call: Call, **changes: Any) -> Call:
    """Return the call of the wrapped layer on the same images."""
    arguments: Any = ((Slot(0),), {})
    return replace(call, layer=call.layer.layer, kind=None, arguments=arguments, **changes)


@rule(layers.SpectralNormalization)
def spectral_normalization(call: Call) -> int:
    """Add the wrapped layer; in training with the kernel divided by its largest singular value.

    As in Keras, that kernel takes the place of the variable, so the gradient of the variable is that of the kernel.
    """
    layer = call.layer
    if not call.training:
        return cast(call.graph, apply(_of_inner(call))[0], call.dtype)
    kernel, vector = layer.kernel, layer.vector_u
    earlier = [value for variable, value, _ in call.graph.updates if variable is kernel]

    def run(x: list[Any], w: list[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        old = x[0] if earlier else w
        with keras_internals.without_autocast(), keras.StatelessScope() as scope:
            scope.state_mapping.update({id(kernel): old[0], id(vector): old[1]})
            u, normalised = keras.ops.cond(
                keras.ops.all(keras.ops.equal(old[0], 0)),
                lambda: (old[1], old[0]),
                layer.normalized_weights,
            )
        return _in_place_of(old[0], tf.stop_gradient(normalised)), tf.stop_gradient(u)

    changed = call.whole(run, earlier[-1:], () if earlier else (kernel, vector), "normalised")
    for position, variable in enumerate((kernel, vector)):
        call.graph.updates[:] = [u for u in call.graph.updates if u[0] is not variable]
        call.graph.updates.append((variable, changed, _item(position)))
    value = call.whole(lambda x, w: x[0][0], [changed], name="kernel")
    inner = _of_inner(call, substitutes=((kernel, value), *call.substitutes))
    return cast(call.graph, apply(inner)[0], call.dtype)


def _item(position: int) -> Callable[..., Any]:
    return lambda old, new: tf.cast(new[position], old.dtype)


@traces.custom_gradient
def _in_place_of(kernel: tf.Tensor, normalised: tf.Tensor) -> Any:
    """Return the second tensor, with the gradient of the first."""
    return tf.identity(normalised), lambda dy: (dy, tf.zeros_like(dy))


@rule(layers.TimeDistributed)
def time_distributed(call: Call) -> int:
    """Add the wrapped layer, which computes each pixel by itself."""
    inner = call.layer.layer
    if not isinstance(inner, OF_PIXELS):
        call.refuse(
            f"wraps '{inner.name}' ({type(inner).__name__}); strips run it over layers of single pixels only, such as "
            "Dense. Use the layer for one more axis, with size 1 along the first: "
            "Conv3D(8, (1, 3, 3)) for TimeDistributed(Conv2D(8, 3))."
        )
    return apply(_of_inner(call))[0]
