"""Networks for the time series of PatchGD: one convolution, then one linear layer (appendix H) or two (its code)."""

from __future__ import annotations

import keras
from keras import layers

KERNELS, KERNEL, RATE, HIDDEN = 64, 3, 0.2, 100


def encoder(chunk: int, channels: int, rate: float = RATE) -> keras.Model:
    """Build a model from chunks to their features in order.

    Args:
        chunk: Number of samples in a chunk.
        channels: Number of signals.
        rate: Dropout rate; 0.2 in the code, none in the paper.

    Returns:
        A plain `keras.Model` from `[B, chunk, channels]` to `[B, (chunk - 2) * 64]`.
    """
    series = keras.Input((chunk, channels))
    return keras.Model(series, layers.Flatten()(_features(series, rate)), name="encoder")


def head(classes: int, chunks: int, latent: int, hidden: int | None = HIDDEN) -> keras.Model:
    """Build a model from the codes of all chunks to logits.

    Args:
        classes: Number of classes.
        chunks: Number of chunks of a series.
        latent: Numbers in a code.
        hidden: Units of a hidden layer, as in the code; None for a linear layer alone, as in the paper.

    Returns:
        A plain `keras.Model` from `[N, chunks, latent]` to logits `[N, classes]`.
    """
    z = keras.Input((chunks, latent))
    return keras.Model(z, _classify(z, classes, hidden), name="head")


def baseline(
    length: int, channels: int, classes: int, rate: float = RATE, hidden: int | None = HIDDEN
) -> keras.Model:
    """Build a model of whole series, with the same layers as `encoder` and `head`.

    Args:
        length: Number of samples in a series.
        channels: Number of signals.
        classes: Number of classes.
        rate: See `encoder`.
        hidden: See `head`.

    Returns:
        A plain `keras.Model` from `[N, length, channels]` to logits `[N, classes]`.
    """
    series = keras.Input((length, channels))
    logits = _classify(_features(series, rate), classes, hidden)
    return keras.Model(series, logits, name="baseline")


def _features(x: keras.KerasTensor, rate: float) -> keras.KerasTensor:
    """The features `[N, length - 2, 64]` of series `[N, length, channels]`."""
    x = layers.Conv1D(KERNELS, KERNEL, activation="relu", name="conv")(x)
    return layers.Dropout(rate)(x) if rate else x


def _classify(x: keras.KerasTensor, classes: int, hidden: int | None) -> keras.KerasTensor:
    """The logits `[N, classes]` of features or codes `[N, ...]`."""
    x = layers.Flatten()(x)
    if hidden is not None:
        x = layers.Dense(hidden, activation="relu", name="hidden")(x)
    return layers.Dense(classes, name="logits")(x)
