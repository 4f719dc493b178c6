"""Small networks for scenes whose sums are exact."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
from keras import layers


def whole_weights(model: keras.Model) -> keras.Model:
    """Give a model small whole numbers as weights."""
    rng = np.random.default_rng(3)
    for weight in model.weights:
        weight.assign(rng.choice([-1, 0, 0, 1], weight.shape))
    return model


def small_unet(path: Path, bands: int, outputs: int) -> keras.Model:
    """Write and return a U-Net of two levels with whole weights."""
    image = keras.Input((None, None, bands))
    skip = layers.Conv2D(3, 3, padding="same", activation="relu")(image)
    low = layers.Conv2D(4, 3, padding="same", activation="relu")(layers.MaxPooling2D(2)(skip))
    both = layers.Concatenate()([layers.UpSampling2D(2)(low), skip])
    x = layers.Conv2D(outputs, 3, padding="same")(both)
    model = whole_weights(keras.Model(image, x))
    model.save(path)
    return model


def globally_normalised(path: Path, bands: int, outputs: int) -> keras.Model:
    """Write and return a network that needs statistics of the whole image."""
    image = keras.Input((None, None, bands))
    x = layers.GroupNormalization(1)(image)
    model = keras.Model(image, layers.Conv2D(outputs, 3, padding="same")(x))
    model.save(path)
    return model
