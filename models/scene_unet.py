"""A U-Net for satellite scenes of any number of bands, to classes or values of each pixel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
from keras import layers


def scene_unet(
    mean: Sequence[float],
    std: Sequence[float],
    outputs: int,
    *,
    width: int = 16,
    depth: int = 4,
    values: tuple[float, float] | None = None,
) -> keras.Model:
    """Build a U-Net after Ronneberger, Fischer, Brox (MICCAI 2015), with padding and BatchNormalization.

    Each level has two 3 x 3 convolutions with BatchNormalization and ReLU. Levels are joined by max pooling
    and by nearest upsampling with a concatenated skip connection.

    Args:
        mean: Mean of each band, subtracted by the first layer.
        std: Standard deviation of each band, divided by.
        outputs: Number of classes, or of values.
        width: Channels of the first level; each level below has twice as many.
        depth: Number of times that rows and columns are halved.
        values: Mean and deviation of the values that are predicted; None for classes.

    Returns:
        A plain `keras.Model` from `[N, H, W, bands]`, samples as stored, to `[N, H, W, outputs]`: probabilities of
        classes, or values. H and W are multiples of `2**depth`.
    """
    image = keras.Input((None, None, len(mean)), name="image")
    variance = [deviation**2 for deviation in std]
    x = layers.Normalization(mean=[*mean], variance=variance, name="normalization")(image)
    skips = []
    for level in range(depth):
        x = _two_convolutions(x, width << level, f"down{level}")
        skips.append(x)
        x = layers.MaxPooling2D(2, name=f"pool{level}")(x)
    x = _two_convolutions(x, width << depth, "bottom")
    for level in reversed(range(depth)):
        x = layers.UpSampling2D(2, name=f"enlarged{level}")(x)
        x = layers.Concatenate(name=f"joined{level}")([x, skips[level]])
        x = _two_convolutions(x, width << level, f"up{level}")
    activation = None if values else "softmax"
    x = layers.Conv2D(outputs, 1, activation=activation, dtype="float32", name="pixels")(x)
    if values:
        x = layers.Rescaling(values[1], values[0], dtype="float32", name="values")(x)
    return keras.Model(image, x, name="scene_unet")


def _two_convolutions(x: Any, channels: int, name: str) -> Any:
    for number in (1, 2):
        place = f"{name}_{number}"
        x = layers.Conv2D(channels, 3, padding="same", use_bias=False, name=place)(x)
        x = layers.BatchNormalization(name=f"{place}_norm")(x)
        x = layers.ReLU(name=f"{place}_relu")(x)
    return x
