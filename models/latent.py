"""Heads over the latent grid of PatchGD, and plain baselines with the same heads.

Gupta et al., "Patch gradient descent: training neural networks on very large images", appendix D, and its code.
"""

import keras
import numpy as np
from keras import layers, ops

from tfbig.models import encoders
from tfbig.models.pooling import ABMIL, PACKAGE
from tfbig.models.self_attention import SelfAttentionMIL

BLOCKS = {"published": (1, 3), "smaller": (0, 3), "larger": (1, 4)}
"""Convolutions of stride 1 and of stride 2."""
HEADS = (*BLOCKS, "abmil", "transformer")
LATENT = 256


def conv_head(classes, cells=None, latent=LATENT, kind="published", width=256, rate=0.2):
    """The head of the paper over Z `[N, rows, columns, latent]`.

    Convolutions of 3 x 3 with ReLU, BatchNormalization and dropout of whole channels, first of stride 1 and then of
    stride 2, torch's padding of one pixel on all sides; then a Dense layer of all that is left. The authors' "smaller"
    and "larger" have a convolution less and more; their variants with fewer and more features are `width` 128 and 512.

    Args:
        classes: logits.
        cells: `(rows, columns)` of Z; where it is None, for images of any size, the mean of what is left is classified.
        latent: numbers of a code.
        kind: one of "published", "smaller", "larger".
        width: channels of the convolutions.
        rate: of the dropout.
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
class BagHead(layers.Layer):
    """Z `[N, *cells, d]` as a bag of codes for an aggregator of MIL, such as `ABMIL`.

    Args:
        aggregator: Layer from a bag `[N, n, d]` to logits, with `attention` and `scores`.
        positions: Whether sines and cosines of the place are added to each code, as in Vaswani et al. (2017), an equal
            part of the code for each axis; without them the aggregator cannot tell where a patch is.
    """

    def __init__(self, aggregator, positions=False, **options):
        super().__init__(**options)
        self.aggregator, self.positions = aggregator, positions

    def build(self, shape):
        if not self.aggregator.built:  # it is, where a file is read
            self.aggregator.build((shape[0], None, shape[-1]))
        super().build(shape)

    def call(self, z):
        return self.aggregator(self._bag(z))

    def attention(self, z):
        """How much each patch counts, `[N, n]`."""
        return self.aggregator.attention(self._bag(z))

    def scores(self, z):
        """Logits of every patch, `[N, n, classes]`."""
        return self.aggregator.scores(self._bag(z))

    def _bag(self, z):
        z = (
            z + ops.cast(positions(ops.shape(z)[1:-1], z.shape[-1]), z.dtype)
            if self.positions
            else z
        )
        return ops.reshape(z, (ops.shape(z)[0], -1, z.shape[-1]))

    def compute_output_shape(self, shape):
        return self.aggregator.compute_output_shape((shape[0], None, shape[-1]))

    def get_config(self):
        aggregator = keras.saving.serialize_keras_object(self.aggregator)
        return super().get_config() | {"aggregator": aggregator, "positions": self.positions}

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        aggregator = keras.saving.deserialize_keras_object(config.pop("aggregator"))
        return cls(aggregator, **config)


def transformer_head(classes, width=LATENT, heads=8, depth=2):
    """A transformer over Z, the authors' third direction (appendix B): places, blocks of attention and MLP, a token.

    The attention is exact and in blocks, so Z may have tens of thousands of patches.

    Args:
        classes: logits.
        width: of a token.
        heads: of the attention; they divide the width.
        depth: blocks.
    """
    inside = SelfAttentionMIL(classes, width, heads, depth, mlp=4, name="transformer")
    return BagHead(inside, positions=True, name="transformer_head")


def make_head(kind, classes, cells=None, latent=LATENT, width=256):
    """A head by name, one of `HEADS`. Args: as in `conv_head`."""
    if kind == "transformer":
        return transformer_head(classes, width)
    if kind == "abmil":
        return BagHead(ABMIL(classes, name="abmil"), name="abmil_head")
    return conv_head(classes, cells, latent, kind, width)


def baseline(name, image_shape, classes, kind="published", latent=LATENT, width=256, **options):
    """A plain network of whole images with the same head, so that it is not the head that makes the difference.

    The trunk's map of features becomes `latent` channels by a convolution of 1 x 1, and that is what Z is for PatchGD.

    Args:
        name: of the trunk, see `tfbig.models.encoders.make`.
        image_shape: `(H, W, C)`, or `(None, None, C)`.
        classes, kind, latent, width: as in `make_head`.
        options: `mean` and `std` of the channels.
    """
    coded = encoders.make(name, image_shape, latent=latent, pooled=False, **options)
    z = coded.output
    cells = None if None in z.shape[1:3] else tuple(z.shape[1:3])
    head = make_head(kind, classes, cells, latent, width)
    return keras.Model(coded.input, head(z), name=f"plain_{name}")


def start_from(encoder, trained):
    """Gives an encoder of patches the trunk of a baseline that was trained before (appendix D, low memory).

    Args:
        encoder: of `encoders.make(name, ..., latent=...)`.
        trained: of `baseline(name, ...)`.

    Raises:
        ValueError: They do not have the same trunk.
    """
    name = encoder.name.removesuffix("_code")
    try:
        encoder.get_layer(name).set_weights(trained.get_layer(name).get_weights())
    except ValueError as error:
        raise ValueError(
            f"'{trained.name}' has no trunk '{name}' of the encoder's sizes ({error}). Train one with the same "
            "--encoder."
        ) from error


def positions(cells, width):
    """Sines and cosines of places, `[*cells, width]` float32.

    An equal part of the channels, an even number, for each axis: of channels `2i` and `2i + 1` of a part of p,
    `sin` and `cos(place / 10000**(2i / p))`. Channels that are left over are 0.
    """
    axes = len(cells)
    part = width // (2 * axes) * 2
    rates = np.float32(10000.0) ** (-np.arange(0, part, 2, dtype="float32") / part)
    found = []
    for axis, count in enumerate(cells):
        angle = ops.cast(ops.arange(count), "float32")[:, None] * rates
        own = ops.reshape(ops.stack([ops.sin(angle), ops.cos(angle)], -1), (count, part))
        shape = [1] * axes + [part]
        shape[axis] = count
        found.append(ops.broadcast_to(ops.reshape(own, shape), (*cells, part)))
    left = ops.zeros((*cells, width - axes * part), "float32")
    return ops.concatenate([*found, left], axis=-1)
