"""A U-Net with BatchNormalization, for pictures of cells and other masks of fine structures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras


def unet(
    input_shape: Sequence[int | None] = (None, None, 3),
    outputs: int = 2,
    filters: int = 16,
    depth: int = 3,
    name: str = "unet",
) -> keras.Model:
    """Build a U-Net: Ronneberger et al., "U-Net" (MICCAI 2015), with padding "same" and BatchNormalization.

    Each level has two convolutions of 3 x 3. Max pooling halves rows and columns, and nearest neighbours double them.

    Args:
        input_shape: `(H, W, C)`, multiples of `2**depth` or None.
        outputs: Channels of the output.
        filters: Channels of the first level; each further level has twice as many.
        depth: Number of times that rows and columns are halved.
        name: Name of the model.

    Returns:
        A plain `keras.Model` from `[N, H, W, C]`, 0 to 255, to `[N, H, W, outputs]`, 0 to 1 by a sigmoid in float32.
    """
    image = keras.Input(input_shape, name="image")
    x = keras.layers.Rescaling(1 / 255)(image)  # [N, H, W, C], 0..1
    skipped = []
    for level in range(depth):
        x = _convolved(x, filters * 2**level)
        skipped.append(x)
        x = keras.layers.MaxPooling2D(2)(x)  # [N, H/2, W/2, f]
    x = _convolved(x, filters * 2**depth)
    for level in reversed(range(depth)):
        x = keras.layers.UpSampling2D(2)(x)
        x = keras.layers.Concatenate()([x, skipped[level]])
        x = _convolved(x, filters * 2**level)
    x = keras.layers.Conv2D(outputs, 1, name="logits")(x)
    return keras.Model(image, keras.layers.Activation("sigmoid", dtype="float32")(x), name=name)


def _convolved(x: Any, filters: int) -> Any:
    """Return two convolutions, each with BatchNormalization and ReLU."""
    for _ in range(2):
        x = keras.layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
        x = keras.layers.BatchNormalization(momentum=0.9)(x)
        x = keras.layers.ReLU()(x)
    return x
