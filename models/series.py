"""Networks for the time series of PatchGD (appendix H and its code): one convolution, then Dense layers."""

import keras
from keras import layers

KERNELS, KERNEL, RATE, HIDDEN = 64, 3, 0.2, 100


def encoder(chunk, channels):
    """Return a model from a chunk `[B, chunk, channels]` to its features in order, `[B, (chunk - 2) * 64]`.

    Args:
        chunk: Number of samples in a chunk.
        channels: Number of signals.

    Returns:
        A plain `keras.Model`.
    """
    series = keras.Input((chunk, channels))
    return keras.Model(series, layers.Flatten()(_features(series)), name="encoder")


def head(classes, chunks, latent):
    """Return a model from the codes of all chunks `[N, chunks, latent]` to logits, with a hidden layer of 100 units.

    Args:
        classes: Number of classes.
        chunks: Number of chunks of a series.
        latent: Numbers in a code.

    Returns:
        A plain `keras.Model`.
    """
    z = keras.Input((chunks, latent))
    return keras.Model(z, _classify(z, classes), name="head")


def baseline(length, channels, classes):
    """Return a model of whole series `[N, length, channels]`, with the same layers as `encoder` and `head`.

    Args:
        length: Number of samples in a series.
        channels: Number of signals.
        classes: Number of classes.

    Returns:
        A plain `keras.Model`.
    """
    series = keras.Input((length, channels))
    return keras.Model(series, _classify(_features(series), classes), name="baseline")


def _features(x):
    x = layers.Conv1D(KERNELS, KERNEL, activation="relu", name="conv")(x)
    return layers.Dropout(RATE)(x)


def _classify(x, classes):
    x = layers.Dense(HIDDEN, activation="relu", name="hidden")(layers.Flatten()(x))
    return layers.Dense(classes, name="logits")(x)
