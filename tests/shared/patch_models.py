"""Small encoders, heads and gradients for tests of PatchGD."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from tfbig.patchgd import PatchGD

CONVS = {1: layers.Conv1D, 2: layers.Conv2D, 3: layers.Conv3D}
POOLS = {
    1: layers.GlobalAveragePooling1D,
    2: layers.GlobalAveragePooling2D,
    3: layers.GlobalAveragePooling3D,
}
LABELS = np.array([0, 2, 1, 1, 0, 2])


def encoder(axes: int = 2, norm: bool = False, rate: float = 0.0) -> keras.Model:
    """Return an encoder of patches of any size to codes of 3 numbers."""
    keras.utils.set_random_seed(3)
    patch = keras.Input((*[None] * axes, 2))
    x = CONVS[axes](4, 2)(patch)
    x = layers.BatchNormalization(momentum=0.8)(x) if norm else x
    x = layers.Dropout(rate, seed=1)(ops.tanh(x))
    return keras.Model(patch, layers.Dense(3)(POOLS[axes]()(x)), name="encoder")


def head(axes: int = 2, norm: bool = False) -> keras.Model:
    """Return a head over Z of any size."""
    keras.utils.set_random_seed(4)
    z = keras.Input((*[None] * axes, 3))
    x = CONVS[axes](4, 3, padding="same")(z)
    x = layers.BatchNormalization(momentum=0.7)(x) if norm else x
    return keras.Model(z, layers.Dense(3)(POOLS[axes]()(ops.tanh(x))), name="head")


def maps(patch: Any) -> keras.Model:
    """Return an encoder to maps of codes, whose stride is its kernel, so that it never reads beyond a patch."""
    keras.utils.set_random_seed(3)
    x = image = keras.Input((*patch, 2))
    for width in (4, 3):
        x = ops.tanh(CONVS[len(patch)](width, 2, 2)(x))
    return keras.Model(image, x, name="maps")


def entropy() -> keras.Loss:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def images(*size: int, count: int = 6, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, *size, 2)).astype(keras.config.floatx())


class Recorder(keras.optimizers.SGD):
    """SGD that records its gradients, in the order of `PatchGD.trainable_variables`."""

    def apply_gradients(self, pairs: Any, **options: Any) -> Any:
        pairs = list(pairs)
        self.gradients = [g for g, _ in pairs]
        return super().apply_gradients(pairs, **options)


def exact_gradients(model: PatchGD, x: Any, y: Any) -> list[tf.Tensor]:
    """Return the gradients of the plain model, in the order of the model's variables."""
    twin = model.twin
    with tf.GradientTape() as tape:
        loss = entropy()(y, twin(x, training=True))
    return tape.gradient(loss, [v._value for v in model.trainable_variables])


def applied_gradients(model: PatchGD, x: Any, y: Any) -> list[tf.Tensor]:
    """Return the gradients that the optimizer gets in one step with learning rate 0."""
    model.compile(Recorder(0.0), entropy(), run_eagerly=True)
    model.train_on_batch(x, y)
    return model.optimizer.gradients


class AttentionHead(layers.Layer):
    """Head that pools by attention."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.gate, self.out = layers.Dense(1), layers.Dense(3)

    def build(self, shape: Any) -> None:
        self.gate.build((None, None, shape[-1]))
        self.out.build((None, shape[-1]))

    def attention(self, z: Any) -> Any:
        flat = ops.reshape(z, (ops.shape(z)[0], -1, z.shape[-1]))
        return ops.softmax(self.gate(flat)[..., 0], axis=1)

    def call(self, z: Any) -> Any:
        flat = ops.reshape(z, (ops.shape(z)[0], -1, z.shape[-1]))
        return self.out(ops.sum(self.attention(z)[..., None] * flat, axis=1))

    def compute_output_shape(self, shape: Any) -> Any:
        return (shape[0], 3)
