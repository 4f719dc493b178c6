"""Models that receive bags by handle equal plain models that receive the arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from bag_samples import SHAPE, every_bag, tiles
from exactness import FLOAT64, assert_same
from keras import layers

import tfbig
from tfbig import SourceError
from tfbig.sources import ArrayBag


def bag_model() -> keras.Model:
    tile = keras.Input((None, None, 3))
    x = layers.BatchNormalization()(layers.Conv2D(4, 3)(layers.Rescaling(1 / 255)(tile)))
    encoder = keras.Model(tile, layers.GlobalAveragePooling2D()(x))
    bag = keras.Input((None, *SHAPE[1:]))
    pooled = layers.GlobalMaxPooling1D()(tfbig.layers.Instances(encoder)(bag))
    return keras.Model(bag, layers.Dense(2)(pooled))


@pytest.fixture(scope="module")
def models() -> Iterator[tuple[keras.Model, Any]]:
    """A model of float64 and the streamed model with its weights, traced once for all bags."""
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    model = bag_model()
    yield model, tfbig.stream(model, strip_rows=2)
    keras.config.set_floatx("float32")


@every_bag
def test_prediction(
    make: Callable[..., Any], tmp_path: Path, models: tuple[keras.Model, Any], float64: None
) -> None:
    (model, big), bag = models, make(tmp_path)
    handles = tf.constant([bag.handle, bag.handle])
    assert_same(big(handles), model(np.stack([tiles()] * 2).astype(float)), FLOAT64)
    sampled = bag.sample(4, seed=2)
    expected = model(sampled.read(0, 4)[None].astype(float))
    assert_same(big(tf.constant([bag.drawn_handle(4, 2)])), expected, FLOAT64)
    bag.release()


@pytest.mark.slow
def test_training(float64: None) -> None:
    models = [bag_model() for _ in range(2)]
    models[1].set_weights(models[0].get_weights())
    big = tfbig.stream(models[0], tfbig.Budget(device="100kB", host="1GB"))
    bags = [ArrayBag(tiles((n, *SHAPE[1:]))) for n in (4, 9, 6, 9)]
    y = np.array([0, 1, 1, 0])
    for model in (big, models[1]):
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1), loss)
    data = tf.data.Dataset.from_tensor_slices(([b.handle for b in bags], y)).batch(1)
    big.fit(data, epochs=2, shuffle=False, verbose=0)
    for _ in range(2):
        for bag, label in zip(bags, y, strict=True):
            models[1].train_on_batch(bag.read(0, bag.shape[0])[None].astype(float), label[None])
    assert_same(models[0].get_weights(), models[1].get_weights(), FLOAT64)
    for bag in bags:
        bag.release()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: [tfbig.open(np.ones((9, 5, 3), np.uint8))],
            SourceError,
            r"is \(9, 5, 3\), expected \(None, 5, 4, 3\)",
        ),
        (lambda: [ArrayBag(tiles((3, 6, 4, 3)))], SourceError, r"bag array is \(3, 6, 4, 3\)"),
        (
            lambda: [ArrayBag(tiles(SHAPE).astype("float32"))],
            SourceError,
            "has dtype float32; expected uint8",
        ),
        (
            lambda: [ArrayBag(tiles()), ArrayBag(tiles((4, 5, 4, 3)))],
            ValueError,
            "the bags of a batch have different shapes",
        ),
    ],
)
def test_unsuitable_bags(make: Callable[..., Any], error: type, message: str) -> None:
    sources = make()
    with pytest.raises(error, match=message):
        tfbig.stream(bag_model(), strip_rows=2)(tf.constant([s.handle for s in sources]))
    for source in sources:
        source.release()
