"""Small models as a streamed and a plain Keras model with equal weights, and data for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from exactness import FLOAT64, assert_same
from keras import layers

import tfbig


def body(inputs: Any) -> Any:
    x = layers.Conv2D(4, 3, padding="same", name="first")(inputs)
    return layers.ReLU()(layers.BatchNormalization(momentum=0.8, name="norm")(x))


def segmenter(filters: int = 1, activation: str | None = "sigmoid") -> keras.Model:
    inputs = keras.Input((None, None, 2), name="image")
    head = layers.Conv2D(filters, 3, padding="same", activation=activation, name="head")
    return keras.Model(inputs, head(body(inputs)))


def classifier() -> keras.Model:
    inputs = keras.Input((None, None, 2), name="image")
    x = layers.GlobalAveragePooling2D()(body(inputs))
    return keras.Model(inputs, layers.Dense(3, activation="softmax", name="classes")(x))


def linear_classifier() -> keras.Model:
    inputs = keras.Input((None, None, 2))
    x = layers.BatchNormalization(momentum=0.8)(layers.Conv2D(4, 3, strides=2)(inputs))
    return keras.Model(inputs, layers.Dense(3)(layers.GlobalAveragePooling2D()(x)))


def sequential() -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((None, None, 2)),
            layers.Conv2D(3, 3, padding="same"),
            keras.Sequential([layers.BatchNormalization(), layers.ReLU()]),
            layers.Conv2D(1, 3, padding="same"),
        ]
    )


def two_maps() -> keras.Model:
    """Return a model with a list of outputs of different sizes and channels."""
    inputs = keras.Input((None, None, 2), name="image")
    x = body(inputs)
    return keras.Model(
        inputs,
        [layers.Conv2D(2, 1, name="wide")(x), layers.Conv2D(1, 2, strides=2, name="small")(x)],
    )


def named_maps() -> keras.Model:
    """Return `two_maps` with a dict of outputs, whose keys are not in the order of creation."""
    inputs = keras.Input((None, None, 2), name="image")
    x = body(inputs)
    wide, small = layers.Conv2D(2, 1, name="wide")(x), layers.Conv2D(1, 2, 2, name="small")(x)
    return keras.Model(inputs, {"wide": wide, "small": small})


def map_and_vector() -> keras.Model:
    inputs = keras.Input((None, None, 2), name="image")
    x = body(inputs)
    vector = layers.Dense(3, activation="softmax", name="classes")(layers.GlobalMaxPooling2D()(x))
    return keras.Model(inputs, [layers.Conv2D(1, 1, name="map")(x), vector])


def both(build: Callable[..., keras.Model], *arguments: Any) -> tuple[Any, Any]:
    """Return a streamed model with strips of two rows, and a separate plain model with equal weights."""
    model, twin = build(*arguments), build(*arguments)
    twin.set_weights(model.get_weights())
    return tfbig.stream(model, strip_rows=2), twin


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def classes(*shape: int, count: int = 3) -> np.ndarray:
    return np.random.default_rng(1).integers(0, count, shape).astype("int32")


def images(n: int) -> np.ndarray:
    return numbers(n, 7, 6, 2)


def data(build: Callable[..., keras.Model], n: int) -> tuple[np.ndarray, Any]:
    """Return images and targets for a model."""
    targets = {
        segmenter: lambda: classes(n, 7, 6, 1, count=2).astype("float64"),
        classifier: lambda: classes(n),
        two_maps: lambda: [numbers(n, 7, 6, 2), numbers(n, 3, 3, 1)],
        named_maps: lambda: {"wide": numbers(n, 7, 6, 2), "small": numbers(n, 3, 3, 1)},
        map_and_vector: lambda: [numbers(n, 7, 6, 1), classes(n)],
    }
    return images(n), targets[build]()


def photographs(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return uint8 images and masks."""
    random = np.random.default_rng(9)
    images = random.integers(0, 256, (count, 11, 9, 2), np.uint8)
    return images, random.integers(0, 2, (count, 11, 9, 1), np.uint8)


def scaled(filters: int = 1) -> keras.Model:
    """Return a model that rescales uint8 images itself."""
    inner = segmenter(filters)
    inputs = keras.Input((None, None, 2), dtype="uint8")
    return keras.Model(inputs, inner(layers.Rescaling(1 / 255)(inputs)))


def slow(*values: Any) -> Any:
    """Mark a parametrised case as slow: other cases of its kind are fast."""
    return pytest.param(*values, marks=pytest.mark.slow)


LOSS = {segmenter: "binary_crossentropy", classifier: "sparse_categorical_crossentropy"}


def same_logs(pair: tuple[Any, Any], run: Callable[[Any], Any], rtol: float = FLOAT64) -> None:
    """Run both models, and compare their logs and their weights afterwards."""
    streamed, plain = (run(model) for model in pair)
    assert list(streamed) == list(plain)
    values = ([np.float64(v) for v in logs.values()] for logs in (streamed, plain))
    assert_same(*values, rtol)
    assert_same(pair[0].get_weights(), pair[1].get_weights(), rtol)
