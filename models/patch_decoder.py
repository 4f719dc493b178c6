"""Decoder from codes of patches to patches of a mask, for PatchGD.

Gupta et al., "Patch gradient descent: training neural networks on very large images", appendix E, says that a decoder
makes the mask from the latent grid alone, without shortcuts from the encoder, and leaves its layers open.
"""

from __future__ import annotations

from collections.abc import Sequence

import keras
from keras import layers

GROUPS = 8
"""Groups of GroupNormalization, and the smallest number of channels."""


def patch_decoder(window: Sequence[int], doublings: int, width: int = 64) -> keras.Model:
    """Build stages of nearest upsampling by 2, 3 x 3 convolution, GroupNormalization and ReLU, then a sigmoid.

    Args:
        window: `(rows, columns, d)` of the codes that are decoded together.
        doublings: Number of stages; the mask has `2**doublings` times the rows and columns of the window.
        width: Channels of the first stage, rounded down to a multiple of 8; each stage has half as many, 8 or more.

    Returns:
        A plain `keras.Model` from `[B, rows, columns, d]` to probabilities `[B, rows', columns', 1]`.
    """
    z = keras.Input(tuple(window), name="window")
    x = z
    for stage in range(doublings):
        channels = max(width // 2**stage, GROUPS) // GROUPS * GROUPS
        x = layers.Conv2D(channels, 3, padding="same", use_bias=False)(layers.UpSampling2D(2)(x))
        x = layers.ReLU()(layers.GroupNormalization(GROUPS)(x))
    return keras.Model(z, layers.Conv2D(1, 1, activation="sigmoid", name="mask")(x), name="decoder")
