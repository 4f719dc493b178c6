"""Networks for the time series of PatchGD (appendix H and its code): one convolution, then Dense layers."""

from __future__ import annotations

import keras
from keras import layers

KERNELS, KERNEL, RATE, HIDDEN = 64, 3, 0.2, 100


def encoder(chunk: int, channels: int) -> keras.Model:
    """Return a model from chunks to their features in order.

    Args:
        chunk: Number of samples in a chunk.
        channels: Number of signals.

    Returns:
        A plain `keras.Model` from `[B, chunk, channels]` to `[B, (chunk - 2) * 64]`.
    """
    series = keras.Input((chunk, channels))
    return keras.Model(series, layers.Flatten()(_features(series)), name="encoder")


def head(classes: int, chunks: int, latent: int) -> keras.Model:
    """Return a model from the codes of all chunks to logits, with a hidden layer of 100 units.

    Args:
        classes: Number of classes.
        chunks: Number of chunks of a series.
        latent: Numbers in a code.

    Returns:
        A plain `keras.Model` from `[N, chunks, latent]` to logits `[N, classes]`.
    """
    z = keras.Input((chunks, latent))
    return keras.Model(z, _classify(z, classes), name="head")


def baseline(length: int, channels: int, classes: int) -> keras.Model:
    """Return a model of whole series, with the same layers as `encoder` and `head`.

    Args:
        length: Number of samples in a series.
        channels: Number of signals.
        classes: Number of classes.

    Returns:
        A plain `keras.Model` from `[N, length, channels]` to logits `[N, classes]`.
    """
    series = keras.Input((length, channels))
    return keras.Model(series, _classify(_features(series), classes), name="baseline")


def _features(x: keras.KerasTensor) -> keras.KerasTensor:
    """Return the features `[N, length - 2, 64]` of series `[N, length, channels]`."""
    x = layers.Conv1D(KERNELS, KERNEL, activation="relu", name="conv")(x)
    return layers.Dropout(RATE)(x)


def _classify(x: keras.KerasTensor, classes: int) -> keras.KerasTensor:
    """Return the logits `[N, classes]` of features or codes `[N, ...]`."""
    x = layers.Dense(HIDDEN, activation="relu", name="hidden")(layers.Flatten()(x))
    return layers.Dense(classes, name="logits")(x)
