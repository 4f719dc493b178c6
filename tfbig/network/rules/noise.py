"""Dropout and noise: by seed and place, whatever the strips, and made again in the backward sweep."""

from __future__ import annotations

from math import sqrt
from typing import Any

import keras
import tensorflow as tf
from keras.src.applications.convnext import StochasticDepth
from keras.src.random.seed_generator import global_seed_generator

from tfbig.network.rules.call import Call
from tfbig.network.rules.registry import rule
from tfbig.network.rules.small import seed, seed_state
from tfbig.ops import counter_random

layers = keras.layers
SPATIAL = (layers.SpatialDropout1D, layers.SpatialDropout2D, layers.SpatialDropout3D)


@rule(layers.Dropout, *SPATIAL)
def dropout(call: Call) -> int:
    layer = call.layer
    if not call.training or layer.rate == 0:
        return call.inputs[0]
    noise = getattr(layer, "noise_shape", None) or (None,) * call.rank
    places = [1] if isinstance(layer, SPATIAL) else noise[1:-1]
    if all(n == 1 for n in places):
        return _per_image(call, layer.seed_generator)
    if any(n is not None for n in noise[:-1]):
        call.refuse(
            f"with noise_shape={noise} draws numbers for whole rows or columns, which cannot run strip by "
            "strip; use noise_shape=None, or 1 for every spatial axis."
        )
    rate, alike = layer.rate, noise[-1] == 1
    return _per_place(
        call,
        lambda x, key, row: counter_random.dropout(x, rate, key, row, alike),
        layer.seed_generator,
    )


@rule(layers.GaussianNoise)
def gaussian_noise(call: Call) -> int:
    scale = call.layer.stddev
    if not call.training or scale == 0:
        return call.inputs[0]

    def add(x: tf.Tensor, key: tf.Tensor, row: tf.Tensor) -> tf.Tensor:
        return x + scale * tf.cast(counter_random.normal_rows(tf.shape(x), key, row), x.dtype)

    return _per_place(call, add, call.layer.seed_generator)


@rule(layers.GaussianDropout)
def gaussian_dropout(call: Call) -> int:
    rate = call.layer.rate
    if not call.training or rate == 0:
        return call.inputs[0]
    scale = sqrt(rate / (1 - rate))

    def multiply(x: tf.Tensor, key: tf.Tensor, row: tf.Tensor) -> tf.Tensor:
        return x * (1 + scale * tf.cast(counter_random.normal_rows(tf.shape(x), key, row), x.dtype))

    return _per_place(call, multiply, call.layer.seed_generator)


@rule(StochasticDepth)
def stochastic_depth(call: Call) -> int:
    return _per_image(call, Global()) if call.training else call.inputs[0]


class Global:
    """What a layer without a generator of its own draws from."""

    @property
    def state(self) -> Any:
        return global_seed_generator().state

    def next(self) -> Any:
        return global_seed_generator().next(ordered=False)


def _per_place(call: Call, function: Any, generator: Any) -> int:
    """`function(x, seed, first row)` on every strip."""
    return call.local(
        lambda x, w, strip: function(x[0], x[1], strip.start),
        inputs=[*call.inputs, seed(call, generator)],
    )


def _per_image(call: Call, generator: Any) -> int:
    """Factors that all pixels of an image share: those that the layer itself gives for one pixel of ones."""

    def run(x: list[tf.Tensor], w: Any, strip: Any) -> tf.Tensor:
        pixel = [tf.shape(x[0])[0], *[1] * call.graph.spatial, call.channels]
        ones = tf.ones(pixel, x[0].dtype)
        return x[0] * call.run([ones], seed_state([generator], x[1:]))[0]

    return call.local(run, inputs=[*call.inputs, seed(call, generator)])
