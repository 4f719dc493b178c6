"""Whatever a budget makes of a model, it computes the same."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf
from conftest import assert_same

import tfbig

layers = keras.layers
FLOAT64 = 1e-10


def normed(x: keras.KerasTensor, filters: int, kernel: int, strides: int = 1) -> keras.KerasTensor:
    x = layers.Conv2D(filters, kernel, strides, padding="same", use_bias=False)(x)
    return layers.ReLU()(layers.BatchNormalization()(x))


def residual() -> keras.Model:
    """Two stages of bottleneck blocks with BatchNorm and gates."""
    keras.utils.set_random_seed(1)
    start = keras.Input((None, None, 3))
    x = normed(start, 8, 3, 2)
    for filters, strides in ((8, 1), (8, 1), (8, 1), (12, 2), (12, 1)):
        y = normed(normed(x, filters, 1, strides), filters, 3)
        gate = layers.Dense(filters, "sigmoid")(layers.GlobalAveragePooling2D(keepdims=True)(y))
        y = layers.Multiply()([y, gate])
        short = x if strides == 1 else layers.Conv2D(filters, 1, strides)(x)
        x = layers.ReLU()(layers.Add()([y, short]))
    return keras.Model(start, layers.Dense(2)(layers.GlobalAveragePooling2D()(x)))


def learn(model: keras.Model, twin: keras.Model, x: tf.Tensor) -> list[tf.Tensor]:
    """Output, gradients of the image and of the weights, and the statistics after one call."""
    before = twin.get_weights()
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = model(x, training=True)
        loss = tf.reduce_sum(tf.sin(y))
    found = tape.gradient(loss, [x, *(v._value for v in twin.trainable_variables)])
    statistics = [tf.constant(v.numpy()) for v in twin.non_trainable_variables]
    twin.set_weights(before)
    return [y, *found, *statistics]


@pytest.mark.parametrize("share", [0.85, 0.72])
def test_what_is_made_again_is_the_same(float64: None, share: float) -> None:
    """Segments are replayed to keep less; outputs, gradients and statistics are those of the plain model."""
    twin = residual()
    x = tf.random.stateless_normal((2, 61, 47, 3), (1, 2), dtype=tf.float64)
    device = 800_000
    free = tfbig.stream(twin, tfbig.Budget(device=device)).plan(x.shape)
    assert not free.layout.replays
    host = int(share * free.host_bytes)
    big = tfbig.stream(twin, tfbig.Budget(device=device, host=host))
    plan = big.plan(x.shape)
    assert plan.layout.replays
    assert plan.host_bytes <= host
    assert_same(learn(big, twin, x), learn(twin, twin, x), FLOAT64)
