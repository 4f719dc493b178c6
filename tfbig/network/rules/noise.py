"""Rules for dropout and noise, which depend on seed and position, so that strips and the backward can repeat them."""

from __future__ import annotations

from math import sqrt
from typing import Any

import keras
import tensorflow as tf

from tfbig.network.batches import Draw
from tfbig.network.rules.call import Call
from tfbig.network.rules.registry import rule
from tfbig.network.rules.whole_values import add_seed, seed_state
from tfbig.ops import counter_random
from tfbig.system.keras_internals import StochasticDepth, global_seed_generator

layers = keras.layers
SPATIAL = (layers.SpatialDropout1D, layers.SpatialDropout2D, layers.SpatialDropout3D)


@rule(layers.Dropout, *SPATIAL)
def dropout(call: Call) -> int:
    """Add dropout, per element, pixel or image."""
    layer = call.layer
    if not call.training or layer.rate == 0:
        return call.inputs[0]
    noise = _noise_shape(call)
    if _is_per_image(noise):
        return _per_image(call, layer.seed_generator)
    rate, shared = layer.rate, noise[-1] == 1
    return _per_position(
        call,
        lambda x, key, *where: counter_random.dropout(x, rate, key, where[0], shared, where[1]),
        layer.seed_generator,
    )


def _noise_shape(call: Call) -> tuple[Any, ...]:
    """Return the axes that share their random numbers, with 1, and those that do not, with None.

    Raises:
        UnsupportedLayerError: Some of the spatial axes share them, but not all.
    """
    noise = getattr(call.layer, "noise_shape", None) or (None,) * call.rank
    noise = (None, 1, None) if isinstance(call.layer, SPATIAL) else tuple(noise)
    if not _is_per_image(noise) and any(n is not None for n in noise[:-1]):
        call.refuse(
            f"with noise_shape={noise} draws one number for whole rows or columns, which cannot run strip by "
            "strip; use noise_shape=None, or 1 for every spatial axis."
        )
    return noise


def _is_per_image(noise: tuple[Any, ...]) -> bool:
    return all(n == 1 for n in noise[1:-1])


@rule(layers.AlphaDropout)
def alpha_dropout(call: Call) -> int:
    """Add dropout that keeps mean and variance of activations by SELU, per element, pixel or image."""
    layer, rate = call.layer, call.layer.rate
    if not call.training or rate == 0:
        return call.inputs[0]
    noise = _noise_shape(call)
    dropped = -1.6732632423543772848170429916717 * 1.0507009873554804934193349852946
    scale = ((1 - rate) * (1 + rate * dropped**2)) ** -0.5  # as in Keras
    shift = -scale * dropped * rate

    def mixed(x: tf.Tensor, kept: tf.Tensor) -> tf.Tensor:
        kept = tf.cast(kept, x.dtype)
        return scale * (x * kept + dropped * (1 - kept)) + shift

    if _is_per_image(noise):
        middle = scale * (1 + dropped) / 2 + shift  # between the results of 1, kept and dropped
        return _per_image(call, layer.seed_generator, lambda x, ones: mixed(x, ones > middle))
    shared = noise[-1] == 1

    def drop(x: tf.Tensor, key: tf.Tensor, *where: Any) -> tf.Tensor:
        ones = tf.ones_like(x)
        return mixed(x, counter_random.dropout(ones, rate, key, where[0], shared, where[1]) > 0)

    return _per_position(call, drop, layer.seed_generator)


@rule(layers.GaussianNoise)
def gaussian_noise(call: Call) -> int:
    """Add normal noise to every element."""
    scale = call.layer.stddev
    if not call.training or scale == 0:
        return call.inputs[0]

    def add(x: tf.Tensor, key: tf.Tensor, *where: Any) -> tf.Tensor:
        return x + scale * _normal(x, key, *where)

    return _per_position(call, add, call.layer.seed_generator)


@rule(layers.GaussianDropout)
def gaussian_dropout(call: Call) -> int:
    """Add multiplicative normal noise for every element."""
    rate = call.layer.rate
    if not call.training or rate == 0:
        return call.inputs[0]
    scale = sqrt(rate / (1 - rate))

    def multiply(x: tf.Tensor, key: tf.Tensor, *where: Any) -> tf.Tensor:
        return x * (1 + scale * _normal(x, key, *where))

    return _per_position(call, multiply, call.layer.seed_generator)


@rule(StochasticDepth)
def stochastic_depth(call: Call) -> int:
    """Add stochastic depth, a factor per image."""
    return _per_image(call, GlobalGenerator()) if call.training else call.inputs[0]


@rule(Draw)
def drawn(call: Call) -> int:
    """Add random numbers that a layer draws for each image, `[N, 1, ..., C]`."""
    draw = call.layer
    if any(n != 1 for n in draw.lengths[1:-1]):
        call.refuse(
            f"draws random numbers of shape {draw.lengths}; strips expected one for each image or channel, shape "
            "(N, 1, ..., 1 or C). For pixels, use keras.layers.Dropout or GaussianNoise."
        )
    generator = draw.seed if isinstance(draw.seed, keras.random.SeedGenerator) else None
    if draw.seed is None:
        call.refuse(
            "draws random numbers from Keras' global generator, which strips cannot repeat; "
            "create a keras.random.SeedGenerator in the layer."
        )

    def run(x: list[Any], w: Any) -> Any:
        batch, *seeds = x
        with keras.StatelessScope(seed_state([generator], seeds) if seeds else None):
            return draw.of_batch(batch)

    seeds = [] if generator is None else [add_seed(call, generator)]
    return call.whole(run, [call.graph.batch(), *seeds])


class GlobalGenerator:
    """Keras' global seed generator, for layers without their own."""

    @property
    def state(self) -> Any:
        """Variable with the state of the generator."""
        return global_seed_generator().state

    def next(self) -> Any:
        """Return a new seed."""
        return global_seed_generator().next(ordered=False)


def _normal(x: tf.Tensor, key: tf.Tensor, *where: Any) -> tf.Tensor:
    """Return normally distributed numbers in the shape of a strip."""
    return tf.cast(counter_random.normal_rows(tf.shape(x), key, *where), x.dtype)


def _per_position(call: Call, function: Any, generator: Any) -> int:
    """Add a node that runs `function(x, seed, first row, first columns)` on every strip."""
    return call.local(
        lambda x, w, strip: function(
            x[0], x[1], strip.start, [(a.start, a.extent) for a in strip.others]
        ),
        inputs=[*call.inputs, add_seed(call, generator)],
        uniform=False,
        any_channels=True,
    )


def _per_image(call: Call, generator: Any, combine: Any = lambda x, factors: x * factors) -> int:
    """Add factors that all pixels of an image share: the layer itself computes them for one pixel of ones.

    `combine` computes the result from the image and these factors.
    """

    def run(x: list[tf.Tensor], w: Any, strip: Any) -> tf.Tensor:
        shape = tf.shape(x[0])
        pixel = [shape[0], *[1] * call.graph.spatial, shape[-1]]
        ones = tf.ones(pixel, x[0].dtype)
        return combine(x[0], call.run([ones], seed_state([generator], x[1:]))[0])

    inputs = [*call.inputs, add_seed(call, generator)]
    return call.local(run, inputs=inputs, any_channels=True, draws=True)
