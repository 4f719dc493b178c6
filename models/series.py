"""Networks of PatchGD's time series (appendix H and its code): one convolution, then Dense layers."""

import keras
from keras import layers

KERNELS, KERNEL, RATE, HIDDEN = 64, 3, 0.2, 100


def encoder(chunk, channels):
    """A chunk `[B, chunk, channels]` to its features in order, `[B, (chunk - 2) * 64]`."""
    series = keras.Input((chunk, channels))
    return keras.Model(series, layers.Flatten()(_features(series)), name="encoder")


def head(classes, chunks, latent):
    """All codes `[N, chunks, latent]` to logits, by a hidden layer of 100."""
    z = keras.Input((chunks, latent))
    return keras.Model(z, _classified(z, classes), name="head")


def baseline(length, channels, classes):
    """The whole series `[N, length, channels]` at once."""
    series = keras.Input((length, channels))
    return keras.Model(series, _classified(_features(series), classes), name="baseline")


def _features(x):
    x = layers.Conv1D(KERNELS, KERNEL, activation="relu", name="conv")(x)
    return layers.Dropout(RATE)(x)


def _classified(x, classes):
    x = layers.Dense(HIDDEN, activation="relu", name="hidden")(layers.Flatten()(x))
    return layers.Dense(classes, name="logits")(x)
