"""Small networks that have, together, every kind of layer with a window or statistics."""

from __future__ import annotations

import keras
from keras import layers


def windows() -> keras.Model:
    """Return convolutions of all kinds, with padding, strides, dilation and groups."""
    x = start = keras.Input((None, None, 4))
    x = layers.Conv2D(4, 5, strides=3, padding="same", groups=2)(x)
    x = layers.Conv2D(6, 3, dilation_rate=2, padding="same", activation="relu")(x)
    x = layers.DepthwiseConv2D(3, strides=2, padding="same")(x)
    x = layers.SeparableConv2D(5, (1, 3))(x)
    x = layers.Conv2DTranspose(3, 3, strides=2, padding="same")(x)
    x = layers.Conv2DTranspose(3, (2, 5), strides=(1, 3))(x)
    return keras.Model(start, layers.Conv2D(2, 4, padding="same")(x))


def resampling() -> keras.Model:
    """Return pooling with ties and padding, upsampling, padding and cropping."""
    x = start = keras.Input((None, None, 3))
    x = layers.MaxPooling2D(3, strides=2, padding="same")(x)
    x = layers.ZeroPadding2D(((1, 2), (3, 1)))(x)
    x = layers.AveragePooling2D(3, strides=1, padding="same")(x)
    x = layers.UpSampling2D((2, 3))(x)
    x = layers.Cropping2D(((0, 1), (2, 1)))(x)
    x = layers.UpSampling2D(2)(layers.MaxPooling2D()(x))
    return keras.Model(start, layers.Conv2D(2, 3)(x))


def normalisations() -> keras.Model:
    """Return statistics of the image, of groups and of pixels, a squeeze-and-excite block and a residual."""
    x = start = keras.Input((None, None, 4))
    x = layers.BatchNormalization()(layers.Conv2D(4, 3, padding="same")(x))
    x = layers.GroupNormalization(2)(x)
    weights = layers.Dense(4, activation="sigmoid")(layers.GlobalAveragePooling2D(keepdims=True)(x))
    x = layers.Add()([layers.Multiply()([x, weights]), x])
    x = layers.LayerNormalization()(layers.Conv2D(6, 3, strides=2, padding="same")(x))
    x = layers.Concatenate()([layers.GlobalMaxPooling2D()(x), layers.GlobalAveragePooling2D()(x)])
    return keras.Model(start, layers.Dense(2)(x))


def statistics() -> keras.Model:
    """Return statistics of the image and of groups, and pooling of it."""
    x = start = keras.Input((None, None, 4))
    x = layers.BatchNormalization()(layers.Conv2D(4, 3, padding="same")(x))
    x = layers.GroupNormalization(2)(layers.Conv2D(6, 3, strides=2, padding="same")(x))
    x = layers.Concatenate()([layers.GlobalMaxPooling2D()(x), layers.GlobalAveragePooling2D()(x)])
    return keras.Model(start, layers.Dense(2)(x))


def decoder() -> keras.Model:
    """Return a small U-Net with the strided layers that run in space-to-depth layout."""
    start = keras.Input((None, None, 1))
    skip = layers.Conv2D(4, 8, strides=8, padding="same", activation="relu")(start)
    x = layers.BatchNormalization()(layers.Conv2D(6, 3, strides=2, padding="same")(skip))
    x = layers.Concatenate()([layers.UpSampling2D(2)(x), skip])
    x = layers.Conv2DTranspose(1, 8, strides=8, padding="same")(x)
    return keras.Model(start, x)


def volume() -> keras.Model:
    x = start = keras.Input((None, None, None, 2))
    x = layers.BatchNormalization()(layers.Conv3D(4, 3, padding="same")(x))
    skip = layers.ReLU()(x)
    x = layers.Conv3D(4, 3, strides=2, padding="same")(layers.Conv3D(4, 2, strides=2)(skip))
    x = layers.Conv3DTranspose(4, 2, strides=2)(layers.UpSampling3D(2)(x))
    return keras.Model(start, layers.Conv3D(2, 1)(layers.Concatenate()([x, skip])))


def signal() -> keras.Model:
    """Return a network for signals, with pooling, upsampling and statistics."""
    x = start = keras.Input((None, 2))
    skip = layers.ReLU()(layers.BatchNormalization()(layers.Conv1D(4, 5, padding="same")(x)))
    x = layers.Conv1D(4, 3, strides=2, padding="same")(skip)
    x = layers.Conv1DTranspose(4, 2, strides=2)(layers.GroupNormalization(2)(x))
    return keras.Model(start, layers.Conv1D(2, 3)(layers.Concatenate()([x, skip])))
