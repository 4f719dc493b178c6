"""A U-Net with BatchNormalization for images of any number of channels: satellite scenes, pictures of cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
from keras import layers


def unet(
    mean: Sequence[float],
    std: Sequence[float],
    outputs: int,
    activation: str | None = "softmax",
    *,
    filters: int = 16,
    depth: int = 4,
    values: tuple[float, float] | None = None,
    name: str = "unet",
) -> keras.Model:
    """Build a U-Net after Ronneberger, Fischer, Brox (MICCAI 2015), with padding "same" and BatchNormalization.

    Each level has two 3 x 3 convolutions with BatchNormalization and ReLU. Levels are joined by max pooling
    and by nearest upsampling with a concatenated skip connection.

    Args:
        mean: Mean of each channel, subtracted by the first layer.
        std: Standard deviation of each channel, divided by.
        outputs: Channels of the output: classes, maps or values.
        activation: Activation of the output in float32: "softmax" or "sigmoid"; None for values.
        filters: Channels of the first level; each level below has twice as many.
        depth: Number of times that rows and columns are halved.
        values: Mean and deviation of the values that are predicted, by which the output is scaled.
        name: Name of the model.

    Returns:
        A plain `keras.Model` from `[N, H, W, C]`, samples as stored, to `[N, H, W, outputs]`. H and W are multiples of
        `2**depth`.
    """
    image = keras.Input((None, None, len(mean)), name="image")
    variance = [deviation**2 for deviation in std]
    x = layers.Normalization(mean=[*mean], variance=variance, name="normalization")(image)
    skips = []
    for level in range(depth):
        x = _two_convolutions(x, filters << level, f"down{level}")
        skips.append(x)
        x = layers.MaxPooling2D(2, name=f"pool{level}")(x)
    x = _two_convolutions(x, filters << depth, "bottom")
    for level in reversed(range(depth)):
        x = layers.UpSampling2D(2, name=f"enlarged{level}")(x)
        x = layers.Concatenate(name=f"joined{level}")([x, skips[level]])
        x = _two_convolutions(x, filters << level, f"up{level}")
    x = layers.Conv2D(outputs, 1, activation=activation, dtype="float32", name="pixels")(x)
    if values:
        x = layers.Rescaling(values[1], values[0], dtype="float32", name="values")(x)
    return keras.Model(image, x, name=name)


def _two_convolutions(x: Any, channels: int, name: str) -> Any:
    for number in (1, 2):
        place = f"{name}_{number}"
        x = layers.Conv2D(channels, 3, padding="same", use_bias=False, name=place)(x)
        x = layers.BatchNormalization(momentum=0.9, name=f"{place}_norm")(x)
        x = layers.ReLU(name=f"{place}_relu")(x)
    return x
