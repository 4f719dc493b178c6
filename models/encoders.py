"""Encoders of instances: a tile `[N, H, W, C]` of numbers from 0 to 255 to features `[N, d]`."""

import keras
import numpy as np
from keras import layers

from models.resnet import resnet18, resnet34, resnet50

RESNETS = {"resnet18": resnet18, "resnet34": resnet34, "resnet50": resnet50}


def small(shape, widths=(16, 32, 64)):
    """Three stages of convolution, GroupNormalization, ReLU and pooling; then the largest over the tile.

    Not BatchNormalization: where one bag makes a step its statistics are those of that bag, from which the label can be
    read, and on new bags they are moving averages. With it this network learned its training bags alone.
    """
    tile = keras.Input(shape)
    x = layers.Rescaling(1 / 255)(tile)
    for width in widths:
        x = layers.Conv2D(width, 3, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.GroupNormalization(8)(x))
        x = layers.MaxPooling2D(2)(x)
    return keras.Model(tile, layers.GlobalMaxPooling2D()(x), name="small")


def lenet(shape):
    """That of Ilse et al. (2018) for digits of 28 x 28, "valid" padding: 500 features."""
    tile = keras.Input(shape)
    x = layers.Rescaling(1 / 255)(tile)
    for width in (20, 50):
        x = layers.MaxPooling2D(2)(layers.Conv2D(width, 5, activation="relu")(x))
    x = layers.Dense(500, activation="relu")(layers.Flatten()(x))
    return keras.Model(tile, x, name="lenet")


def resnet(name, shape, mean=0.0, std=1.0):
    """A ResNet without its top, behind `(x / 255 - mean) / std`; a tile of one channel is repeated.

    Args:
        name: `resnet18`, `resnet34` or `resnet50`.
        shape: `(H, W, C)` of a tile, C 1 or 3.
        mean, std: a number, or one for each channel.
    """
    net = RESNETS[name]((*shape[:2], 3), include_top=False, pooling="avg")
    means, stds = (np.broadcast_to(n, 3).tolist() for n in (mean, std))
    tile = keras.Input(shape)
    x = layers.Concatenate()([tile] * 3) if shape[-1] == 1 else tile
    scale, shift = [1 / (255 * s) for s in stds], [-m / s for m, s in zip(means, stds, strict=True)]
    x = layers.Rescaling(scale, shift)(x)
    return keras.Model(tile, net(x), name=name)


def without_norm(model):
    """The same model, with new weights, without its BatchNormalizations (an option of ABMIL-ACC)."""

    def copied(layer):
        if isinstance(layer, keras.Model):
            return without_norm(layer)
        return layer.__class__.from_config(layer.get_config())

    def called(layer, x, *arguments, **options):
        if isinstance(layer, layers.BatchNormalization):
            return x
        return layer(x, *arguments, **options)

    return keras.models.clone_model(model, clone_function=copied, call_function=called)


def make(name, shape, mean=0.0, std=1.0, norm=True):
    """An encoder by name: `small`, `lenet`, or a ResNet; `norm=False`: without its BatchNormalizations."""
    plain = {"small": small, "lenet": lenet}
    made = plain[name](shape) if name in plain else resnet(name, shape, mean, std)
    return made if norm else without_norm(made)
