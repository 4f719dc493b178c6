"""Encoders of tiles and patches: images `[N, H, W, C]` from 0 to 255 to features `[N, d]`, or to feature maps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import keras
from keras import layers

from tfbig.models import pathology_encoders
from tfbig.models.mobilenet import mobilenetv2
from tfbig.models.pathology_encoders import PATHOLOGY_ENCODERS
from tfbig.models.resnet import resnet18, resnet18_flat, resnet26, resnet34, resnet50
from tfbig.models.scaling import scaled

Builder: TypeAlias = Callable[..., keras.Model]
"""Function from the shape of a tile, and options, to an encoder."""

RESNETS: dict[str, Builder] = {
    "resnet18": resnet18,
    "resnet34": resnet34,
    "resnet50": resnet50,
    "resnet18_gn": partial(resnet18, name="resnet18_gn", norm="group"),
    "resnet50_gn": partial(resnet50, name="resnet50_gn", norm="group"),
    "resnet18_flat": resnet18_flat,
    "resnet26": resnet26,
}
"""ResNets; `_gn` has GroupNormalization of 32 groups."""
FLAT = ("resnet18_flat",)
"""Networks whose features are all numbers of the last map, not their averages."""
TILE_CHANNELS = ("resnet26",)
"""Networks whose first convolution has the channels of the tile, as in the code of ABMIL-ACC; else it has three."""


def small(shape: Sequence[int | None], widths: Sequence[int] = (16, 32, 64)) -> keras.Model:
    """Build three stages of convolution, GroupNormalization, ReLU and pooling, then global max pooling.

    It has no BatchNormalization: where one bag makes a step, the statistics are those of that bag, so that the label
    can be read from them, while new bags are normalised by moving averages. With BatchNormalization this network
    learned its training bags only.

    Args:
        shape: `(H, W, C)` of a tile.
        widths: Channels of the stages.

    Returns:
        A plain `keras.Model` from `[N, H, W, C]` to `[N, widths[-1]]`.
    """
    trunk = small_trunk(shape, widths)
    return keras.Model(trunk.input, layers.GlobalMaxPooling2D()(trunk.output), name="small")


def small_trunk(shape: Sequence[int | None], widths: Sequence[int] = (16, 32, 64)) -> keras.Model:
    """Build `small` without its global pooling.

    Args:
        shape: `(H, W, C)` of a tile.
        widths: Channels of the stages.

    Returns:
        A plain `keras.Model` from `[N, H, W, C]` to `[N, H // 8, W // 8, widths[-1]]`, for three stages.
    """
    tile = keras.Input(shape)
    x = layers.Rescaling(1 / 255)(tile)
    for width in widths:
        x = layers.Conv2D(width, 3, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.GroupNormalization(8)(x))
        x = layers.MaxPooling2D(2)(x)
    return keras.Model(tile, x, name="small")


def strided(shape: Sequence[int | None]) -> keras.Model:
    """Build `strided_trunk` followed by global max pooling.

    Args:
        shape: `(H, W, C)` of a tile.

    Returns:
        A plain `keras.Model` from `[N, H, W, C]` to `[N, 128]`.
    """
    trunk = strided_trunk(shape)
    return keras.Model(trunk.input, layers.GlobalMaxPooling2D()(trunk.output), name="strided")


def strided_trunk(
    shape: Sequence[int | None], widths: Sequence[int] = (8, 16, 32, 64, 128)
) -> keras.Model:
    """Build five convolutions of stride 2 with BatchNormalization and ReLU, then 2 x 2 max pooling.

    The cheapest of these networks, for large images of few objects on two cores.

    Args:
        shape: `(H, W, C)` of a tile.
        widths: Channels of the convolutions.

    Returns:
        A plain `keras.Model` from `[N, H, W, C]` to `[N, H / 64, W / 64, widths[-1]]`, for five convolutions.
    """
    tile = keras.Input(shape)
    x = layers.Rescaling(1 / 255)(tile)
    for width in widths:
        x = layers.Conv2D(width, 3, 2, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization(momentum=0.9)(x))
    return keras.Model(tile, layers.MaxPooling2D(2)(x), name="strided")


def lenet(shape: Sequence[int]) -> keras.Model:
    """Build the network of Ilse et al. (2018) for digits of 28 x 28, with "valid" padding.

    Args:
        shape: `(H, W, C)` of a tile.

    Returns:
        A plain `keras.Model` from `[N, H, W, C]` to `[N, 500]`.
    """
    tile = keras.Input(shape)
    x = layers.Rescaling(1 / 255)(tile)
    for width in (20, 50):
        x = layers.MaxPooling2D(2)(layers.Conv2D(width, 5, activation="relu")(x))
    x = layers.Dense(500, activation="relu")(layers.Flatten()(x))
    return keras.Model(tile, x, name="lenet")


TRUNKS: dict[str, Builder] = {"small": small_trunk, "strided": strided_trunk}
"""Networks for any number of channels, which need no mean and standard deviation."""
NETWORKS: dict[str, Builder] = RESNETS | {"mobilenetv2": mobilenetv2}
"""Networks of three channels with an argument `pooling`, which `scaled` puts behind a normalisation."""


def without_norm(model: keras.Model) -> keras.Model:
    """Clone a model, with new weights, without its BatchNormalization layers (an option of ABMIL-ACC).

    Args:
        model: A functional model, possibly with models inside.

    Returns:
        A new `keras.Model` with inputs and outputs of the same shapes.
    """

    def clone(layer: keras.Layer) -> keras.Layer:
        if isinstance(layer, keras.Model):
            return without_norm(layer)
        return layer.__class__.from_config(layer.get_config())

    def call(layer: keras.Layer, x: Any, *arguments: Any, **options: Any) -> Any:
        if isinstance(layer, layers.BatchNormalization):
            return x
        return layer(x, *arguments, **options)

    return keras.models.clone_model(model, clone_function=clone, call_function=call)


def make(
    name: str,
    shape: Sequence[int | None],
    mean: float | Sequence[float] | None = None,
    std: float | Sequence[float] | None = None,
    norm: bool = True,
    latent: int | None = None,
    pooled: bool = True,
) -> keras.Model:
    """Build an encoder by name.

    Args:
        name: `small`, `strided`, `lenet`, one of `NETWORKS`, or one of `tfbig.models.pathology_encoders`.
        shape: `(H, W, C)` of a tile, or of a whole image if `pooled` is False.
        mean: Mean of the channels, for one of `NETWORKS`, see `tfbig.models.scaling`; by default 0, or that of an
            encoder of pathology.
        std: Standard deviation of the channels in the same way; by default 1, or that of an encoder of pathology.
        norm: False removes the BatchNormalization layers.
        latent: Numbers in a code, computed from the features by a Dense layer (or a 1 x 1 convolution if `pooled` is
            False); None for the features themselves.
        pooled: False leaves out the global pooling, so that the result is a feature map; `lenet` and encoders of
            pathology have no such form.

    Returns:
        A plain `keras.Model` from `[N, H, W, C]` to `[N, d]`, or to `[N, rows, columns, d]`.

    Raises:
        ValueError: The encoder has no feature map, or cannot read such tiles.
    """
    if name in PATHOLOGY_ENCODERS and not pooled:
        raise ValueError(
            f"pooled=False: '{name}' has no feature map; choose one of {', '.join((*TRUNKS, *NETWORKS))}."
        )
    builders: dict[str, Builder] = (
        {"small": small, "strided": strided, "lenet": lenet} if pooled else TRUNKS
    )
    if name in builders:
        encoder = builders[name](shape)
    elif name in PATHOLOGY_ENCODERS:
        encoder = pathology_encoders.build(name, shape, mean=mean, std=std)
    else:
        pooling = "flatten" if name in FLAT else "avg"
        options = {"include_top": False, "pooling": pooling if pooled else None}
        seen = tuple(shape) if name in TILE_CHANNELS else (*shape[:2], 3)
        scale = (0.0 if mean is None else mean, 1.0 if std is None else std)
        encoder = scaled(NETWORKS[name](seen, **options), shape, *scale)
    encoder = encoder if norm else without_norm(encoder)
    if latent is None:
        return encoder
    tile = keras.Input(shape)
    code = layers.Dense(latent, name="code") if pooled else layers.Conv2D(latent, 1, name="code")
    return keras.Model(tile, code(encoder(tile)), name=f"{name}_code")
