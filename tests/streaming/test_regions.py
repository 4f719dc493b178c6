"""Rectangles that streamed models predict alone."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tfbig
from tfbig.streaming.regions import region, step


def integers(model: keras.Model) -> keras.Model:
    rng = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(rng.integers(-2, 3, weight.shape))
    return model


def test_parts_equal_the_whole() -> None:
    image = keras.Input((None, None, 2))
    down = layers.Conv2D(3, 3, padding="same")(layers.MaxPooling2D(2)(image))
    both = layers.Concatenate()([layers.UpSampling2D(2)(down), image])
    plain = integers(keras.Model(image, layers.Conv2D(2, 3, padding="same")(both)))
    big = tfbig.stream(plain, tfbig.Budget(device="30KB"))
    assert step(big) == 2
    pixels = np.random.default_rng(1).integers(0, 5, (1, 64, 48, 2)).astype("float32")
    whole = np.asarray(plain(pixels))
    rows, columns = region(big, (64, 48), (20, 37), (30, 48)) or ((0, 0), (0, 0))
    assert rows[0] > 0
    alone = np.asarray(big(pixels[:, slice(*rows), slice(*columns)]))
    part = alone[:, 20 - rows[0] : 37 - rows[0], 30 - columns[0] : 48 - columns[0]]
    np.testing.assert_array_equal(part, whole[:, 20:37, 30:48])


@pytest.mark.parametrize("unsupported", [False, True])
def test_models_without_regions(unsupported: bool) -> None:
    image = keras.Input((None, None, 4))
    x = layers.GroupNormalization(2)(image)
    if unsupported:
        x = layers.Lambda(tf.abs, output_shape=lambda s: s)(
            layers.Conv2D(4, 3, padding="same")(image)
        )
    big = tfbig.stream(keras.Model(image, x), unsupported="device")
    assert region(big, (32, 32), (0, 8), (0, 8)) is None
    assert step(big) is None
