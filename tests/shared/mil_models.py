"""A small encoder, bags, and training of a MIL model next to its plain twin."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from exactness import FLOAT64, assert_same
from keras import layers

from tfbig import mil
from tfbig.sources import ArrayBag

SIDE = 9


def entropy() -> keras.Loss:
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def encoder(norm: bool = True, rate: float = 0.0) -> keras.Model:
    """Return an encoder of tiles of any size to 6 features, with two BatchNormalizations."""
    keras.utils.set_random_seed(3)
    tile = keras.Input((None, None, 3))
    x = layers.Conv2D(4, 3)(layers.Rescaling(1 / 255)(tile))
    x = layers.ReLU()(layers.BatchNormalization(momentum=0.8)(x) if norm else x)
    x = layers.Conv2D(6, 3, strides=2)(layers.Dropout(rate, seed=1)(x))
    x = layers.BatchNormalization()(x) if norm else x
    return keras.Model(tile, layers.GlobalAveragePooling2D()(layers.ReLU()(x)))


def small_encoder() -> keras.Model:
    """Return an encoder with one BatchNormalization, which is traced faster."""
    keras.utils.set_random_seed(3)
    tile = keras.Input((None, None, 3))
    x = layers.Conv2D(6, 3, strides=2)(layers.Rescaling(1 / 255)(tile))
    x = layers.ReLU()(layers.BatchNormalization(momentum=0.8)(x))
    return keras.Model(tile, layers.GlobalAveragePooling2D()(x))


def bags(sizes: Any = (7, 12, 4, 7), seed: int = 0) -> list[ArrayBag]:
    """Return bags of noise tiles `[n, 9, 9, 3]`."""
    rng = np.random.default_rng(seed)
    return [ArrayBag(rng.integers(0, 256, (n, SIDE, SIDE, 3), np.uint8)) for n in sizes]


LABELS = np.array([0, 1, 1, 0])


def both(aggregator: Any, optimizer: Any, build: Any = encoder, **options: Any) -> list[Any]:
    """Return the streamed model and the plain one, with equal weights."""
    options.setdefault("instances_at_once", 3)
    models = []
    for plain in (False, True):
        keras.utils.set_random_seed(5)
        model = mil.MIL(
            build(),
            aggregator(),
            instance_shape=(SIDE, SIDE, 3),
            **options,
        )
        models.append(model.twin if plain else model)
        models[-1].compile(optimizer(), entropy(), metrics=["accuracy"], run_eagerly=plain)
    models[1].set_weights(models[0].get_weights())
    return models


def train(models: Any, epochs: int = 3, **options: Any) -> list[Any]:
    """Return the histories of both; the plain model gets the bags as tensors."""
    logs = []
    for model, dense in zip(models, (False, True), strict=True):
        data = mil.dataset(bags(), LABELS, seed=4, dense=dense, **options)
        if dense:
            data = data.map(lambda x, y: (tf.cast(x, keras.config.floatx()), y))
        logs.append(model.fit(data, epochs=epochs, shuffle=False, verbose=0).history)
    return logs


def check_training(aggregator: Any, loss: Any, weights: Any = None) -> None:
    """Check that an encoder and this aggregator are trained as by plain Keras on whole bags, in float64."""
    models = []
    for plain in (False, True):
        keras.utils.set_random_seed(5)
        model = mil.MIL(small_encoder(), aggregator(), 3, instance_shape=(SIDE, SIDE, 3))
        models.append(model.twin if plain else model)
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        models[-1].compile(optimizer, loss, loss_weights=weights, run_eagerly=plain)
    models[1].set_weights(models[0].get_weights())
    before = [w.numpy() for w in models[0].encoder.trainable_variables]
    for bag, label in zip(bags((7, 2, 4)), LABELS[:3], strict=True):
        x, y = bag.read(0, bag.shape[0])[None].astype("float64"), label[None]
        streamed = models[0].train_on_batch(tf.constant([bag.handle]), y)
        labels = dict.fromkeys(loss, y) if isinstance(loss, dict) else y
        assert_same(streamed, models[1].train_on_batch(x, labels), FLOAT64)
    assert_same(models[0].get_weights(), models[1].get_weights(), FLOAT64)
    after = models[0].encoder.trainable_variables
    assert all((w.numpy() != b).any() for w, b in zip(after, before, strict=True))
