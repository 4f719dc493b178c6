"""The scale of pixels that a network expects, put before it."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import numpy as np
from keras import layers


def scaled(
    net: keras.Model,
    shape: Sequence[int | None],
    mean: float | Sequence[float] = 0.0,
    std: float | Sequence[float] = 1.0,
) -> keras.Model:
    """Put a network behind `(x / 255 - mean) / std`; a tile of one channel is repeated for a network of three.

    Args:
        net: Keras model that expects `[N, H, W, 3]`, or `[N, H, W, 1]`.
        shape: `(H, W, C)` of a tile, with C 1 or 3.
        mean: Mean of the channels divided by 255, one number or one per channel.
        std: Standard deviation of the channels divided by 255, one number or one per channel.

    Returns:
        A plain `keras.Model` from values 0 to 255, `[N, H, W, C]`, to what `net` returns.
    """
    channels = net.input_shape[-1]
    means, stds = (np.broadcast_to(n, channels).tolist() for n in (mean, std))
    tile = keras.Input(shape)
    x = layers.Concatenate()([tile] * channels) if shape[-1] == 1 < channels else tile
    scale, shift = [1 / (255 * s) for s in stds], [-m / s for m, s in zip(means, stds, strict=True)]
    x = layers.Rescaling(scale, shift)(x)
    return keras.Model(tile, net(x), name=net.name)
