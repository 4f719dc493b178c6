"""Heads over the latent grid Z of PatchGD, and plain baselines with the same heads.

Gupta et al., "Patch gradient descent: training neural networks on very large images", appendix D, and its code.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from tfbig.models import encoders
from tfbig.models.pooling import ABMIL, PACKAGE, Array, Shape
from tfbig.models.self_attention import SelfAttentionMIL
from tfbig.system.parts import WithParts

BLOCKS = {"published": (1, 3), "smaller": (0, 3), "larger": (1, 4)}
"""Number of convolutions of stride 1 and of stride 2 in each convolutional head."""
LATENT = 256


def conv_head(
    classes: int,
    cells: tuple[int, int] | None = None,
    latent: int = LATENT,
    kind: str = "published",
    width: int = 256,
    rate: float = 0.2,
) -> keras.Model:
    """Build the convolutional head of the PatchGD paper over Z `[N, rows, columns, latent]`.

    3 x 3 convolutions with ReLU, BatchNormalization and SpatialDropout2D, first with stride 1 and then with stride 2,
    each padded by one pixel on all sides as in torch; then a Dense layer on everything that is left. The authors'
    "smaller" and "larger" heads have one convolution less and one more; their variants with fewer and more features
    have `width` 128 and 512. Gupta et al., "Patch gradient descent: training neural networks on very large images",
    appendix D.

    Args:
        classes: Number of classes.
        cells: `(rows, columns)` of Z; None for images of any size, whose remaining cells are averaged instead.
        latent: Numbers in a code.
        kind: One of "published", "smaller" and "larger".
        width: Channels of the convolutions.
        rate: Dropout rate.

    Returns:
        A plain `keras.Model` from `[N, rows, columns, latent]` to logits `[N, classes]`.

    Raises:
        KeyError: `kind` is not one of the three.

    Example:
        >>> head = tfbig.patchgd.conv_head(classes=6, latent=8, width=4)
        >>> head(np.zeros((2, 9, 5, 8), "float32")).shape  # codes of 9 x 5 patches, two images
        TensorShape([2, 6])
    """
    same, halving = BLOCKS[kind]
    z = keras.Input((*(cells or (None, None)), latent), name="z")
    x = z
    for stride in (1,) * same + (2,) * halving:
        x = layers.ZeroPadding2D(1)(x)
        x = layers.Conv2D(width, 3, stride, activation="relu")(x)
        x = layers.BatchNormalization(momentum=0.9, epsilon=1e-5)(x)
        x = layers.SpatialDropout2D(rate)(x)
    x = layers.GlobalAveragePooling2D()(x) if cells is None else layers.Flatten()(x)
    return keras.Model(z, layers.Dense(classes, name="logits")(x), name=f"{kind}_head")


@keras.saving.register_keras_serializable(PACKAGE)
class BagHead(WithParts, layers.Layer):
    """Head that treats Z `[N, *cells, d]` as a bag of codes for an aggregator of MIL, such as `ABMIL`.

    With `positions` it adds sines and cosines of the position of each patch to its code, as in Vaswani et al.,
    "Attention is all you need" (NIPS 2017), with an equal share of the channels for each axis. Without positions the
    aggregator cannot tell where a patch is.

    Args:
        aggregator: Layer from a bag `[N, n, d]` to logits, with the methods `attention` and `scores`.
        positions: Whether to add the position of a patch to its code.
        **options: Options of `keras.layers.Layer`, such as `name` and `dtype`.

    Returns:
        Logits `[N, classes]` of Z `[N, *cells, d]`.

    Raises:
        AttributeError: `attention` or `scores` is called, and the aggregator has no such method.

    Example:
        >>> head = tfbig.patchgd.BagHead(tfbig.mil.ABMIL(classes=3, hidden=4))
        >>> z = np.random.default_rng(0).normal(size=(1, 2, 2, 8)).astype("float32")
        >>> head(z).shape
        TensorShape([1, 3])
        >>> head.attention(z).shape  # of 2 x 2 patches
        TensorShape([1, 4])
    """

    PARTS = ("aggregator",)

    def __init__(self, aggregator: keras.Layer, positions: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.aggregator, self.positions = aggregator, positions

    def build(self, shape: Sequence[int | None]) -> None:
        """Build the aggregator for Z `[N, *cells, d]`."""
        if not self.aggregator.built:  # it is already built when a saved model is loaded
            self.aggregator.build((shape[0], None, shape[-1]))
        super().build(shape)

    def call(self, z: tf.Tensor) -> tf.Tensor:
        """Compute the logits `[N, classes]` of Z `[N, *cells, d]`."""
        return self.aggregator(self._bag(z))

    def attention(self, z: Array) -> tf.Tensor:
        """The weight of each patch.

        Args:
            z: Z, `[N, *cells, d]`.

        Returns:
            Weights `[N, n]`, n the number of cells.
        """
        return self.aggregator.attention(self._bag(z))

    def scores(self, z: Array) -> tf.Tensor:
        """Compute the logits of each patch.

        Args:
            z: Z, `[N, *cells, d]`.

        Returns:
            Logits `[N, n, classes]`, n the number of cells.
        """
        return self.aggregator.scores(self._bag(z))

    def _bag(self, z: Array) -> tf.Tensor:
        """The codes `[N, n, d]` of Z `[N, *cells, d]`, with their positions if these are asked for."""
        if self.positions:
            z = z + ops.cast(positions(ops.shape(z)[1:-1], z.shape[-1]), z.dtype)
        return ops.reshape(z, (ops.shape(z)[0], -1, z.shape[-1]))

    def compute_output_shape(self, shape: Shape) -> Shape:
        """The shape `[N, classes]` of the logits of Z `[N, *cells, d]`."""
        logits: Shape = self.aggregator.compute_output_shape((shape[0], None, shape[-1]))
        return logits

    def get_config(self) -> dict[str, Any]:
        """The arguments of the layer."""
        config: dict[str, Any] = super().get_config()
        return config | {"positions": self.positions} | self.parts_config()


def transformer_head(classes: int, width: int = LATENT, heads: int = 8, depth: int = 2) -> BagHead:
    """Build a transformer head over Z: positions, blocks of attention and MLP, and a class token.

    The third of the directions that the PatchGD paper proposes (appendix B). Attention is exact and computed in blocks,
    so Z may have tens of thousands of patches.

    Args:
        classes: Number of classes.
        width: Width of a token.
        heads: Number of attention heads; must divide `width`.
        depth: Number of blocks.

    Returns:
        A `BagHead` from Z `[N, *cells, d]` to logits `[N, classes]`.

    Raises:
        ValueError: `heads` does not divide `width`, or `depth` is below 1.

    Example:
        >>> head = tfbig.patchgd.transformer_head(classes=3, width=8, heads=2, depth=1)
        >>> head(np.zeros((1, 2, 2, 6), "float32")).shape  # codes of 2 x 2 patches
        TensorShape([1, 3])
    """
    aggregator = SelfAttentionMIL(classes, width, heads, depth, mlp=4, name="transformer")
    return BagHead(aggregator, positions=True, name="transformer_head")


def make_head(
    kind: str,
    classes: int,
    cells: tuple[int, int] | None = None,
    latent: int = LATENT,
    width: int = 256,
) -> keras.Layer:
    """Build a head by name.

    Args:
        kind: One of `tfbig.choices.HEADS`.
        classes: Number of classes.
        cells: `(rows, columns)` of Z, or None for any size, as in `conv_head`.
        latent: Numbers in a code.
        width: Channels of the convolutions, or the width of a transformer.

    Returns:
        A Keras layer or model from Z `[N, rows, columns, latent]` to logits `[N, classes]`.
    """
    if kind == "transformer":
        return transformer_head(classes, width)
    if kind == "linear":
        z = keras.Input((*(cells or (None, None)), latent), name="z")
        x = layers.GlobalAveragePooling2D()(z)
        return keras.Model(z, layers.Dense(classes, name="logits")(x), name="linear_head")
    if kind == "abmil":
        return BagHead(ABMIL(classes, name="abmil"), name="abmil_head")
    return conv_head(classes, cells, latent, kind, width)


def baseline(
    name: str,
    image_shape: Sequence[int | None],
    classes: int,
    kind: str = "published",
    latent: int = LATENT,
    width: int = 256,
    **options: Any,
) -> keras.Model:
    """Build a plain network of whole images with the same head as PatchGD, to compare the training methods alone.

    A 1 x 1 convolution turns the features of the trunk into `latent` channels, which take the place of Z. With the head
    "linear" there is no such convolution: the network ends as it does without PatchGD, in average pooling and a Dense
    layer.

    Args:
        name: Name of the trunk, see `tfbig.models.encoders.make`.
        image_shape: `(H, W, C)`, or `(None, None, C)`.
        classes: Number of classes.
        kind: Name of the head, see `make_head`.
        latent: Channels after the trunk.
        width: Width of the head, see `make_head`.
        **options: `mean` and `std` of the channels.

    Returns:
        A plain `keras.Model` from images `[N, H, W, C]` to logits `[N, classes]`.
    """
    if kind == "linear":
        trunk = encoders.make(name, image_shape, pooled=False, **options)
        image = keras.Input(image_shape)
        z = trunk(image)
    else:
        trunk = encoders.make(name, image_shape, latent=latent, pooled=False, **options)
        image, z = trunk.input, trunk.output
    cells = None if None in z.shape[1:3] else tuple(z.shape[1:3])
    head = make_head(kind, classes, cells, z.shape[-1], width)
    return keras.Model(image, head(z), name=f"plain_{name}")


def positions(cells: Sequence[int | tf.Tensor], width: int) -> tf.Tensor:
    """Encode positions as sines and cosines.

    Each axis gets an equal, even number p of channels: channels `2i` and `2i + 1` of an axis hold `sin` and `cos` of
    `position / 10000**(2i / p)`. Channels that are left over are 0.

    Args:
        cells: Number of cells along each axis.
        width: Number of channels.

    Returns:
        A tensor `[*cells, width]`, float32.
    """
    axes = len(cells)
    part = width // (2 * axes) * 2
    rates = np.float32(10000.0) ** (-np.arange(0, part, 2, dtype="float32") / part)
    encodings = []
    for axis, count in enumerate(cells):
        angle = ops.cast(ops.arange(count), "float32")[:, None] * rates
        encoding = ops.reshape(ops.stack([ops.sin(angle), ops.cos(angle)], -1), (count, part))
        shape = [1] * axes + [part]
        shape[axis] = count
        encodings.append(ops.broadcast_to(ops.reshape(encoding, shape), (*cells, part)))
    padding = ops.zeros((*cells, width - axes * part), "float32")
    return ops.concatenate([*encodings, padding], axis=-1)
