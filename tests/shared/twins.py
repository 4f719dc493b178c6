"""Comparison of streamed and plain models: outputs, gradients, and all variables after a call."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from exactness import FLOAT64
from keras.src.random.seed_generator import global_seed_generator

import tfbig

ROUNDING = 1e-3
"""Tensors smaller than this share of the largest gradient are compared relative to that share: a gradient that is zero
in exact arithmetic, such as that of a shift before another BatchNormalization, is the rounding of larger terms."""


def images(model: keras.Model, batch: int, *size: int, seed: int = 0) -> Any:
    """Return normal random images, and vectors, for the inputs of a model."""
    random = np.random.default_rng(seed)
    rank = max(len(t.shape) for t in model.inputs)
    values = [
        tf.constant(
            random.normal(size=(batch, *(size if len(t.shape) == rank else ()), t.shape[-1])),
            t.dtype,
        )
        for t in model.inputs
    ]
    return values if len(values) > 1 else values[0]


def unlike_at_start(model: keras.Model, seed: int = 0) -> None:
    """Assign random scales, shifts and moving statistics, so that none is trivially zero or one."""
    random = np.random.default_rng(seed)
    for variable in model.variables:
        shape = tuple(variable.shape)
        if any(name in variable.path for name in ("gamma", "layer_scale", "variance")):
            variable.assign(random.uniform(0.6, 1.4, shape))
        elif any(name in variable.path for name in ("beta", "bias", "moving_mean")):
            variable.assign(0.1 * random.normal(size=shape))


def step(run: Any, model: keras.Model, x: Any, training: bool) -> dict[str, dict[str, Any]]:
    """Return outputs, gradients of their weighted sum, and all variables after a call; then restore the variables.

    The plain model runs eagerly, as its trace would take longer than one step.
    """
    state = [*model.variables, global_seed_generator().state]
    before = [v.numpy() for v in state]

    x = tf.nest.map_structure(tf.convert_to_tensor, x)

    def differentiate(x: Any) -> Any:
        inputs, variables = tf.nest.flatten(x), [v._value for v in model.trainable_variables]
        with tf.GradientTape() as tape:
            tape.watch(x)
            outputs = tf.nest.flatten(run(x, training=training))
            total = tf.add_n([weighted_sum(y) for y in outputs])
        sources = [*inputs, *variables]
        gradients = tape.gradient(total, sources, unconnected_gradients="zero")
        return outputs, [tf.convert_to_tensor(g) for g in gradients]  # an Embedding has slices

    traced = differentiate if run is model else tf.function(differentiate, autograph=False)
    outputs, computed = traced(x)
    changed = [v.numpy() for v in state]
    for variable, value in zip(state, before, strict=True):
        variable.assign(value)
    names = [f"input {i}" for i in range(len(tf.nest.flatten(x)))]
    names += [v.path for v in model.trainable_variables]
    return {
        "outputs": {str(i): y for i, y in enumerate(outputs)},
        "gradients": {f"{i} {n}": g for i, (n, g) in enumerate(zip(names, computed, strict=True))},
        "variables": {
            f"{i} {v.path}": c for i, (v, c) in enumerate(zip(state, changed, strict=True))
        },
    }


def weighted_sum(y: tf.Tensor) -> tf.Tensor:
    places = tf.reshape(tf.range(tf.size(y)), tf.shape(y))
    return tf.reduce_sum(tf.cast(y, tf.float64) * tf.sin(3.7 * tf.cast(places, tf.float64)))


def assert_close(actual: dict[str, Any], expected: dict[str, Any], rtol: float = FLOAT64) -> None:
    for what, tensors in expected.items():
        largest = max(float(np.abs(t).max(initial=0)) for t in tensors.values())
        for name, tensor in tensors.items():
            a, e = np.asarray(actual[what][name]), np.asarray(tensor)
            assert (a.shape, a.dtype) == (e.shape, e.dtype), f"{what} of {name}"
            scale = max(float(np.abs(e).max(initial=0)), ROUNDING * largest)
            error = float(np.abs(a - e).max(initial=0))
            assert error <= rtol * scale, f"{what} of {name}: differs by {error:.1e} of {scale:.1e}"


def assert_streams(model: keras.Model, x: Any, strip_rows: int | None, training: bool) -> None:
    """Assert that a streamed model computes the same as the plain one."""
    expected = step(model, model, x, training)
    big = tfbig.stream(model, strip_rows=strip_rows)
    assert_close(step(big, model, x, training), expected)


def normed(x: keras.KerasTensor, filters: int, kernel: int, strides: int = 1) -> keras.KerasTensor:
    x = keras.layers.Conv2D(filters, kernel, strides, padding="same", use_bias=False)(x)
    return keras.layers.ReLU()(keras.layers.BatchNormalization()(x))


Blocks = tuple[tuple[int, int], ...]
BLOCKS: Blocks = ((8, 1), (8, 1), (8, 1), (12, 2), (12, 1))
"""Filters and stride of each block of `residual`."""


def residual(blocks: Blocks = BLOCKS) -> keras.Model:
    """Return a network of bottleneck blocks with BatchNorm and gates, by default in two stages."""
    keras.utils.set_random_seed(1)
    start = keras.Input((None, None, 3))
    x = normed(start, 8, 3, 2)
    for filters, strides in blocks:
        y = normed(normed(x, filters, 1, strides), filters, 3)
        gate = keras.layers.Dense(filters, "sigmoid")(
            keras.layers.GlobalAveragePooling2D(keepdims=True)(y)
        )
        y = keras.layers.Multiply()([y, gate])
        short = x if strides == 1 else keras.layers.Conv2D(filters, 1, strides)(x)
        x = keras.layers.ReLU()(keras.layers.Add()([y, short]))
    return keras.Model(start, keras.layers.Dense(2)(keras.layers.GlobalAveragePooling2D()(x)))


def learn(model: keras.Model, twin: keras.Model, x: tf.Tensor) -> list[tf.Tensor]:
    """Return output, gradients of the image and the weights, and the statistics after one call."""
    before = twin.get_weights()
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = model(x, training=True)
        loss = tf.reduce_sum(tf.sin(y))
    grads = tape.gradient(loss, [x, *(v._value for v in twin.trainable_variables)])
    statistics = [tf.constant(v.numpy()) for v in twin.non_trainable_variables]
    twin.set_weights(before)
    return [y, *grads, *statistics]
