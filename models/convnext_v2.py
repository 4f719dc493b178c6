"""ConvNeXt V2: convolutions of 7 x 7 pixels, MLPs, and a normalisation of each channel by its response to the image.

Woo et al., "ConvNeXt V2: Co-designing and Scaling ConvNets with Masked Autoencoders" (CVPR 2023). Layers have the names
of timm's tensors.

Import this module before `keras.saving.load_model` reads a saved network, so that Keras knows its layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from tfbig.models.pooling import PACKAGE, Array
from tfbig.models.torch_layers import added

EPSILON = 1e-6
"""Epsilon of all normalisations."""

LEAST = float(np.finfo("float32").tiny)
"""Least sum of squares, so that the root of the sum over a channel of zeros has a gradient."""


@dataclass(frozen=True)
class ConvNeXtV2:
    """Configuration of a ConvNeXt V2; the default is the smallest of the paper, "atto".

    Attributes:
        depths: Number of blocks of each stage.
        widths: Channels of each stage.
        kernel: Rows and columns of the depthwise convolutions.
        drop_path: Rate at which the branch of the last block is dropped; it grows from 0 in the first block.
    """

    depths: tuple[int, ...] = (2, 2, 6, 2)
    widths: tuple[int, ...] = (40, 80, 160, 320)
    kernel: int = 7
    drop_path: float = 0.0

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ValueError: Stages differ in number.
        """
        if len(self.depths) != len(self.widths):
            raise ValueError(
                f"depths={self.depths} and widths={self.widths}: expected one number for each stage in both."
            )


def convnext_v2(
    input_shape: Sequence[int | None],
    config: ConvNeXtV2 | None = None,
    pool: keras.Layer | None = None,
    name: str = "convnext_v2",
) -> keras.Model:
    """Build a ConvNeXt V2.

    Args:
        input_shape: `(H, W, C)`; H and W may be None. Rows and columns beyond a multiple of 4 times 2 for every stage
            after the first, 32 by default, are left out.
        config: Configuration, by default that of "atto".
        pool: Layer that pools the last map to a vector, by default the mean of its pixels.
            `tfbig.layers.AttentionPooling` weights them by a small network that is trained with the rest.
        name: Name of the model.

    Returns:
        A plain functional `keras.Model` with random weights, from normalised images `[N, H, W, C]` to features
        `[N, width of the last stage]`.

    Example:
        >>> convnext_v2((None, None, 3), ConvNeXtV2(depths=(1, 1), widths=(4, 8))).output_shape
        (None, 8)
    """
    config = config or ConvNeXtV2()
    image = keras.Input(input_shape, name="image")
    x = layers.Conv2D(config.widths[0], 4, 4, kernel_initializer=_normal(), name="stem.0")(image)
    x = _norm("stem.1")(x)
    rates = iter(np.linspace(0, config.drop_path, sum(config.depths)).tolist())
    for stage, (depth, width) in enumerate(zip(config.depths, config.widths, strict=True)):
        if stage:
            halved = f"stages.{stage}.downsample"
            x = _norm(f"{halved}.0")(x)
            x = layers.Conv2D(width, 2, 2, kernel_initializer=_normal(), name=f"{halved}.1")(x)
        for index in range(depth):
            x = _block(x, config.kernel, next(rates), f"stages.{stage}.blocks.{index}")
    pool = pool or layers.GlobalAveragePooling2D(name="head.global_pool")
    return keras.Model(image, _norm("head.norm")(pool(x)), name=name)


def _normal() -> keras.initializers.Initializer:
    return keras.initializers.TruncatedNormal(stddev=0.02)


def _norm(name: str) -> layers.LayerNormalization:
    return layers.LayerNormalization(epsilon=EPSILON, name=name)


def _dense(width: int, name: str) -> layers.Dense:
    return layers.Dense(width, kernel_initializer=_normal(), name=name)


def _block(x: keras.KerasTensor, kernel: int, rate: float, name: str) -> keras.KerasTensor:
    """Add a depthwise convolution and an MLP to their input."""
    width = x.shape[-1]
    y = layers.DepthwiseConv2D(
        kernel, padding="same", depthwise_initializer=_normal(), name=f"{name}.conv_dw"
    )(x)
    y = _dense(4 * width, f"{name}.mlp.fc1")(_norm(f"{name}.norm")(y))
    y = layers.Activation("gelu", name=f"{name}.mlp.act")(y)
    y = _dense(width, f"{name}.mlp.fc2")(GlobalResponseNorm(name=f"{name}.mlp.grn")(y))
    return added(x, y, rate, f"{name}.drop_path")


@keras.saving.register_keras_serializable(PACKAGE)
class GlobalResponseNorm(layers.Layer):
    """Global response normalisation: channels that respond more than others to an image are raised.

        g_c = sqrt(sum_p x_pc^2)                       over the pixels p of an image
        y_pc = gamma_c x_pc g_c / (mean_c g_c + 1e-6) + beta_c + x_pc

    Woo et al. (CVPR 2023), equations 1 to 3 and algorithm 1. gamma and beta are zeros at first.

    Args:
        **options: Options of `keras.layers.Layer`.

    Returns:
        An image of the shape of the input, `[N, rows, columns, C]`.
    """

    def build(self, shape: Sequence[int | None]) -> None:
        """Create the factors and shifts `[C]`."""
        self.gamma = self.add_weight(shape=(shape[-1],), initializer="zeros", name="gamma")
        self.beta = self.add_weight(shape=(shape[-1],), initializer="zeros", name="beta")
        super().build(shape)

    def call(self, x: Array) -> tf.Tensor:
        """Normalise an image."""
        wide = ops.cast(x, "float64" if self.compute_dtype == "float64" else "float32")
        pixels = tuple(range(1, len(x.shape) - 1))
        total = ops.sum(ops.square(wide), axis=pixels, keepdims=True)
        response = ops.sqrt(ops.maximum(total, LEAST))
        relative = response / (ops.mean(response, axis=-1, keepdims=True) + EPSILON)
        return self.gamma * (x * ops.cast(relative, x.dtype)) + self.beta + x

    def compute_output_shape(self, shape: Sequence[int | None]) -> Sequence[int | None]:
        """The shape of the image."""
        return shape
