"""SegFormer: a pyramid of transformers whose keys and values have fewer pixels than the queries, and a decoder of MLPs.

Xie et al., "SegFormer: Simple and Efficient Design for Semantic Segmentation with Transformers" (NeurIPS 2021). It has
no positions, so images may have any size. Layers have the names of transformers' tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import keras
import numpy as np
from keras import layers

from tfbig.models.torch_layers import added

EPSILON = 1e-6
"""Epsilon of layer normalisation."""


@dataclass(frozen=True)
class SegFormer:
    """Configuration of a SegFormer; the default is B0.

    Attributes:
        widths: Channels of each stage.
        depths: Number of blocks of each stage.
        heads: Number of attention heads of each stage; each divides the width of its stage.
        reductions: Rows and columns of the pixels of each stage that one key and value stands for.
        mlp_ratio: Width of the first layer of an MLP as a multiple of the width.
        decoder: Channels of the decoder.
        drop_path: Rate at which the branches of the last block are dropped; it grows from 0 in the first block.
        dropout: Rate of the dropout before the last layer.
    """

    widths: tuple[int, ...] = (32, 64, 160, 256)
    depths: tuple[int, ...] = (2, 2, 2, 2)
    heads: tuple[int, ...] = (1, 2, 5, 8)
    reductions: tuple[int, ...] = (8, 4, 2, 1)
    mlp_ratio: float = 4.0
    decoder: int = 256
    drop_path: float = 0.0
    dropout: float = 0.1

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ValueError: Stages differ in number, or a number of heads does not divide the width of its stage.
        """
        stages = {len(each) for each in (self.widths, self.depths, self.heads, self.reductions)}
        if len(stages) > 1:
            raise ValueError(
                f"widths={self.widths}, depths={self.depths}, heads={self.heads} and reductions={self.reductions}: "
                "expected one number for each stage in all of them."
            )
        if any(width % heads for width, heads in zip(self.widths, self.heads, strict=True)):
            raise ValueError(f"heads={self.heads}: expected divisors of widths={self.widths}.")


def segformer(
    input_shape: Sequence[int | None],
    classes: int,
    config: SegFormer | None = None,
    activation: str | None = "softmax",
    name: str = "segformer",
) -> keras.Model:
    """Build a SegFormer.

    Args:
        input_shape: `(H, W, C)`; H and W may be None. Images have multiples of 4 times 2 for every stage after the
            first, 32 by default.
        classes: Channels of the output.
        config: Configuration, by default that of B0.
        activation: Activation of the output in float32; None for logits.
        name: Name of the model.

    Returns:
        A plain functional `keras.Model` with random weights, from normalised images `[N, H, W, C]` to classes of
        pixels `[N, H, W, classes]`, which are enlarged bilinearly from a quarter of the rows and columns.

    Raises:
        ValueError: H or W is no multiple of the stride of the last stage.

    Example:
        >>> config = SegFormer((4, 8), (1, 1), (1, 2), (2, 1), decoder=8)
        >>> segformer((None, None, 3), 5, config).output_shape
        (None, None, None, 5)
    """
    config = config or SegFormer()
    stride = 4 * 2 ** (len(config.widths) - 1)
    if any(size is not None and size % stride for size in input_shape[:2]):
        raise ValueError(
            f"input_shape={tuple(input_shape)}: '{name}' expects a height and width that are multiples of {stride}, "
            "the stride of its last stage, or None."
        )
    image = keras.Input(input_shape, name="image")
    maps, x = [], image
    rates = iter(np.linspace(0, config.drop_path, sum(config.depths)).tolist())
    for stage, depth in enumerate(config.depths):
        x = _patches(x, config.widths[stage], stage)
        for index in range(depth):
            x = _block(x, config, stage, next(rates), f"block.{stage}.{index}")
        x = _norm(f"layer_norm.{stage}")(x)
        maps.append(x)
    x = _decoded(maps, config)
    x = layers.Conv2D(classes, 1, name="classifier")(x)
    x = layers.UpSampling2D(4, interpolation="bilinear", name="enlarged")(x)
    return keras.Model(
        image, layers.Activation(activation, dtype="float32", name="pixels")(x), name=name
    )


def _norm(name: str) -> layers.LayerNormalization:
    return layers.LayerNormalization(epsilon=EPSILON, name=name)


def _dense(width: int, name: str) -> layers.Dense:
    kernel = keras.initializers.TruncatedNormal(stddev=0.02)
    return layers.Dense(width, kernel_initializer=kernel, name=name)


def _patches(x: keras.KerasTensor, width: int, stage: int) -> keras.KerasTensor:
    """Add overlapping patches, every fourth pixel in the first stage, every second in the others."""
    kernel, stride = (3, 2) if stage else (7, 4)
    x = layers.ZeroPadding2D(kernel // 2, name=f"patch_embeddings.{stage}.padding")(x)
    x = layers.Conv2D(width, kernel, stride, name=f"patch_embeddings.{stage}.proj")(x)
    return _norm(f"patch_embeddings.{stage}.layer_norm")(x)


def _block(
    x: keras.KerasTensor, config: SegFormer, stage: int, rate: float, name: str
) -> keras.KerasTensor:
    """Add attention and an MLP, each normalised first and added to its input."""
    width, heads = config.widths[stage], config.heads[stage]
    queries = _norm(f"{name}.layer_norm_1")(x)
    keys, reduction = queries, config.reductions[stage]
    if reduction > 1:
        keys = layers.Conv2D(width, reduction, reduction, name=f"{name}.attention.self.sr")(keys)
        keys = _norm(f"{name}.attention.self.layer_norm")(keys)
    attention = layers.MultiHeadAttention(heads, width // heads, name=f"{name}.attention")
    x = added(x, attention(queries, keys), rate, f"{name}.drop_path1")
    y = _dense(int(width * config.mlp_ratio), f"{name}.mlp.dense1")(
        _norm(f"{name}.layer_norm_2")(x)
    )
    y = layers.DepthwiseConv2D(3, padding="same", name=f"{name}.mlp.dwconv")(y)
    y = layers.Activation("gelu", name=f"{name}.mlp.act")(y)
    return added(x, _dense(width, f"{name}.mlp.dense2")(y), rate, f"{name}.drop_path2")


def _decoded(maps: Sequence[keras.KerasTensor], config: SegFormer) -> keras.KerasTensor:
    """Join the maps of all stages, enlarged to the first, and mix their channels."""
    parts = []
    for stage, x in enumerate(maps):
        x = _dense(config.decoder, f"linear_c.{stage}.proj")(x)
        if stage:
            x = layers.UpSampling2D(2**stage, interpolation="bilinear", name=f"enlarged{stage}")(x)
        parts.append(x)
    x = layers.Concatenate(name="joined")(parts[::-1])
    x = layers.Conv2D(config.decoder, 1, use_bias=False, name="linear_fuse")(x)
    x = layers.BatchNormalization(epsilon=1e-5, momentum=0.9, name="batch_norm")(x)
    x = layers.ReLU(name="linear_fuse.act")(x)
    return layers.Dropout(config.dropout, name="dropout")(x) if config.dropout else x
