"""Encoders of tiles and patches: `[N, H, W, C]` of numbers from 0 to 255 to features `[N, d]`, or to a map of them."""

import keras
import numpy as np
from keras import layers

from tfbig.models.resnet import resnet18, resnet34, resnet50

RESNETS = {"resnet18": resnet18, "resnet34": resnet34, "resnet50": resnet50}


def small(shape, widths=(16, 32, 64)):
    """Three stages of convolution, GroupNormalization, ReLU and pooling; then the largest over the tile.

    Not BatchNormalization: where one bag makes a step its statistics are those of that bag, from which the label can be
    read, and on new bags they are moving averages. With it this network learned its training bags alone.
    """
    trunk = small_trunk(shape, widths)
    return keras.Model(trunk.input, layers.GlobalMaxPooling2D()(trunk.output), name="small")


def small_trunk(shape, widths=(16, 32, 64)):
    """`small` before the largest is taken: `[N, H, W, C]` to `[N, H // 8, W // 8, 64]`."""
    tile = keras.Input(shape)
    x = layers.Rescaling(1 / 255)(tile)
    for width in widths:
        x = layers.Conv2D(width, 3, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.GroupNormalization(8)(x))
        x = layers.MaxPooling2D(2)(x)
    return keras.Model(tile, x, name="small")


def strided(shape):
    """`strided_trunk`, then the largest over the tile: 128 features."""
    trunk = strided_trunk(shape)
    return keras.Model(trunk.input, layers.GlobalMaxPooling2D()(trunk.output), name="strided")


def strided_trunk(shape, widths=(8, 16, 32, 64, 128)):
    """Five convolutions of stride 2 with BatchNormalization and ReLU, then the largest of 2 x 2.

    `[N, H, W, C]` to `[N, H / 64, W / 64, 128]`. The cheapest of these networks, for large images of few things on two
    cores.
    """
    tile = keras.Input(shape)
    x = layers.Rescaling(1 / 255)(tile)
    for width in widths:
        x = layers.Conv2D(width, 3, 2, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization(momentum=0.9)(x))
    return keras.Model(tile, layers.MaxPooling2D(2)(x), name="strided")


def lenet(shape):
    """That of Ilse et al. (2018) for digits of 28 x 28, "valid" padding: 500 features."""
    tile = keras.Input(shape)
    x = layers.Rescaling(1 / 255)(tile)
    for width in (20, 50):
        x = layers.MaxPooling2D(2)(layers.Conv2D(width, 5, activation="relu")(x))
    x = layers.Dense(500, activation="relu")(layers.Flatten()(x))
    return keras.Model(tile, x, name="lenet")


def scaled(net, shape, mean=0.0, std=1.0):
    """A network of three channels behind `(x / 255 - mean) / std`; a tile of one channel is repeated.

    Args:
        net: takes `[N, H, W, 3]`.
        shape: `(H, W, C)` of a tile, C 1 or 3.
        mean, std: a number, or one for each channel.
    """
    means, stds = (np.broadcast_to(n, 3).tolist() for n in (mean, std))
    tile = keras.Input(shape)
    x = layers.Concatenate()([tile] * 3) if shape[-1] == 1 else tile
    scale, shift = [1 / (255 * s) for s in stds], [-m / s for m, s in zip(means, stds, strict=True)]
    x = layers.Rescaling(scale, shift)(x)
    return keras.Model(tile, net(x), name=net.name)


def mobilenetv2(input_shape, include_top=False, pooling=None):
    """MobileNetV2 of Keras without its top, its moving averages as fast as torch's (0.9, not 0.999)."""
    net = keras.applications.MobileNetV2(
        input_shape, include_top=include_top, pooling=pooling, weights=None, name="mobilenetv2"
    )
    for layer in net.layers:
        if isinstance(layer, layers.BatchNormalization):
            layer.momentum = 0.9
    return net


TRUNKS = {"small": small_trunk, "strided": strided_trunk}
"""What takes tiles of any channels and needs no mean."""
NETWORKS = RESNETS | {"mobilenetv2": mobilenetv2}
"""What is scaled, of three channels, with `pooling`."""


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


def make(name, shape, mean=0.0, std=1.0, norm=True, latent=None, pooled=True):
    """An encoder by name.

    Args:
        name: `small`, `strided`, `lenet`, or one of `NETWORKS`.
        shape: `(H, W, C)` of a tile, or of a whole image where it is not pooled.
        mean, std: of the channels, for one of `NETWORKS`.
        norm: False takes its BatchNormalizations out.
        latent: numbers of a code that a Dense layer, or a convolution of 1 x 1, makes of the features; None for those.
        pooled: False leaves out what pools: a map of features, or of codes; `lenet` has none.
    """
    plain = {"small": small, "strided": strided, "lenet": lenet} if pooled else TRUNKS
    if name in plain:
        made = plain[name](shape)
    else:
        options = {"include_top": False, "pooling": "avg" if pooled else None}
        made = scaled(NETWORKS[name]((*shape[:2], 3), **options), shape, mean, std)
    made = made if norm else without_norm(made)
    if latent is None:
        return made
    tile = keras.Input(shape)
    code = layers.Dense(latent, name="code") if pooled else layers.Conv2D(latent, 1, name="code")
    return keras.Model(tile, code(made(tile)), name=f"{name}_code")
