"""Swin transformers: attention within windows, which are shifted by half of their side in every second block.

Liu et al., "Swin Transformer: Hierarchical Vision Transformer using Shifted Windows" (ICCV 2021). They cost as much for
each pixel of a large image as of a small one. Layers have the names of timm's tensors.

Import this module before `keras.saving.load_model` reads a saved network, so that Keras knows its layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

from tfbig.models.pooling import PACKAGE, Array
from tfbig.models.torch_layers import added

EPSILON = 1e-5
"""Epsilon of layer normalisation."""

FAR = -1e4
"""What is added to the scores of tokens that are not in the image; float16 has it, and its exponential is zero."""


@dataclass(frozen=True)
class Swin:
    """Configuration of a Swin transformer; the default is Swin-T.

    Attributes:
        patch: Rows and columns of a patch in pixels.
        width: Width of a token in the first stage; it doubles from stage to stage.
        depths: Number of blocks of each stage.
        heads: Number of attention heads of each stage; each divides the width of its stage.
        window: Rows and columns of a window in tokens. A stage whose map is smaller has one window without a shift.
        mlp_ratio: Width of the first layer of an MLP as a multiple of the width.
        drop_path: Rate at which the branches of the last block are dropped; it grows from 0 in the first block.
    """

    patch: int = 4
    width: int = 96
    depths: tuple[int, ...] = (2, 2, 6, 2)
    heads: tuple[int, ...] = (3, 6, 12, 24)
    window: int = 7
    mlp_ratio: float = 4.0
    drop_path: float = 0.0

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ValueError: Stages differ in number, or a number of heads does not divide the width.
        """
        if len(self.depths) != len(self.heads):
            raise ValueError(
                f"depths={self.depths} and heads={self.heads}: expected one number for each stage in both."
            )
        for stage, heads in enumerate(self.heads):
            if self.width * 2**stage % heads:
                raise ValueError(
                    f"heads={self.heads}: expected divisors of the widths of the stages, which double from "
                    f"width={self.width}."
                )


def swin_transformer(
    input_shape: Sequence[int | None], config: Swin | None = None, name: str = "swin_transformer"
) -> keras.Model:
    """Build a Swin transformer.

    Where the side of a map is no multiple of the window, the last windows reach beyond it, and no token attends to what
    is outside; the network of the paper attends to zeros there. Patches are merged in the order of their rows, then
    columns; timm's is the other way around.

    Args:
        input_shape: `(H, W, C)`, with H and W multiples of the patch times 2 for every stage after the first.
        config: Configuration, by default that of Swin-T.
        name: Name of the model.

    Returns:
        A plain functional `keras.Model` with random weights, from normalised images `[N, H, W, C]` to features
        `[N, width of the last stage]`.

    Raises:
        ValueError: H or W is unknown, or no multiple of the patches that are merged.

    Example:
        >>> config = Swin(width=8, depths=(2, 2), heads=(1, 2), window=4)
        >>> swin_transformer((64, 48, 3), config).output_shape
        (None, 16)
    """
    config = config or Swin()
    merged = config.patch * 2 ** (len(config.depths) - 1)
    if any(size is None or size % merged for size in input_shape[:2]):
        raise ValueError(
            f"input_shape={tuple(input_shape)}: '{name}' has windows of fixed size, so it expects a known height and "
            f"width, multiples of {merged}, the pixels of a patch of its last stage."
        )
    image = keras.Input(input_shape, name="image")
    x = layers.Conv2D(config.width, config.patch, config.patch, name="patch_embed.proj")(image)
    x = _norm("patch_embed.norm")(x)
    rates = iter(np.linspace(0, config.drop_path, sum(config.depths)).tolist())
    for stage, (depth, heads) in enumerate(zip(config.depths, config.heads, strict=True)):
        if stage:
            x = _merged(x, f"layers.{stage}.downsample")
        for index in range(depth):
            block = f"layers.{stage}.blocks.{index}"
            x = _block(x, config, heads, bool(index % 2), next(rates), block)
    x = _norm("norm")(x)
    return keras.Model(image, layers.GlobalAveragePooling2D(name="pool")(x), name=name)


def _norm(name: str) -> layers.LayerNormalization:
    return layers.LayerNormalization(epsilon=EPSILON, name=name)


def _dense(width: int, name: str, use_bias: bool = True) -> layers.Dense:
    kernel = keras.initializers.TruncatedNormal(stddev=0.02)
    return layers.Dense(width, use_bias=use_bias, kernel_initializer=kernel, name=name)


def _merged(x: keras.KerasTensor, name: str) -> keras.KerasTensor:
    """Merge blocks of 2 x 2 patches, and double the width."""
    x = _norm(f"{name}.norm")(ops.space_to_depth(x, 2))
    return _dense(x.shape[-1] // 2, f"{name}.reduction", use_bias=False)(x)


def _block(
    x: keras.KerasTensor, config: Swin, heads: int, shifted: bool, rate: float, name: str
) -> keras.KerasTensor:
    """Add attention within windows and an MLP, each normalised first and added to its input."""
    width = x.shape[-1]
    y = window_attention(
        _norm(f"{name}.norm1")(x), heads, config.window, shifted, name=f"{name}.attn"
    )
    x = added(x, y, rate, f"{name}.drop_path1")
    y = _dense(int(width * config.mlp_ratio), f"{name}.mlp.fc1")(_norm(f"{name}.norm2")(x))
    y = layers.Activation("gelu", name=f"{name}.mlp.act")(y)
    return added(x, _dense(width, f"{name}.mlp.fc2")(y), rate, f"{name}.drop_path2")


def window_attention(
    x: keras.KerasTensor, heads: int, window: int, shifted: bool = False, name: str = "attn"
) -> keras.KerasTensor:
    """Add attention within windows, with biases by relative position.

    A window is a pixel of an image that has `window ** 2` tokens in its channels. Windows that are shifted, or that the
    image does not fill, reach beyond it; their tokens attend to those of the image only. A cyclic shift, whose windows
    at the border are masked, computes the same.

    Args:
        x: Image of tokens `[N, rows, columns, C]` of known size.
        heads: Number of attention heads; divides C.
        window: Rows and columns of a window, at most those of the image.
        shifted: Whether windows begin half a window before the image, unless one window has the whole image.
        name: Name of the attention, put before the names of its layers.

    Returns:
        An image of the shape of `x`.
    """
    _, *sides, width = x.shape
    size, each = min(window, *sides), width // heads
    before = size - size // 2 if shifted and size < min(sides) else 0
    around = [(before, -(side + before) % size) for side in sides]
    tokens = size**2
    grid = [(a + side + b) // size for (a, b), side in zip(around, sides, strict=True)]

    def in_windows(t: keras.KerasTensor) -> keras.KerasTensor:
        padded = ops.pad(t, ((0, 0), *around, (0, 0))) if any(map(any, around)) else t
        return ops.space_to_depth(padded, size)

    qkv = in_windows(_dense(3 * width, f"{name}.qkv")(x))
    qkv = ops.reshape(qkv, (-1, *grid, tokens, 3, heads, each))
    q, k, v = (ops.transpose(qkv[..., n, :, :], (0, 1, 2, 4, 3, 5)) for n in range(3))
    scores = ops.matmul(q * each**-0.5, ops.transpose(k, (0, 1, 2, 3, 5, 4)))
    scores = RelativePositionBias(size, name=name)(scores)
    if any(map(any, around)):
        inside = in_windows(ops.ones_like(x[..., :1]))
        scores = scores + ops.reshape((1 - inside) * FAR, (-1, *grid, 1, 1, tokens))
    shape = scores.shape[1:]  # Softmax of a CPU takes five axes at most
    weights = ops.softmax(ops.reshape(scores, (-1, *grid, heads * tokens, tokens)), axis=-1)
    y = ops.matmul(ops.reshape(weights, (-1, *shape)), v)
    y = ops.reshape(ops.transpose(y, (0, 1, 2, 4, 3, 5)), (-1, *grid, tokens * width))
    y = ops.depth_to_space(y, size)
    if any(map(any, around)):
        y = layers.Cropping2D(tuple(around), name=f"{name}.cropped")(y)
    return _dense(width, f"{name}.proj")(y)


@keras.saving.register_keras_serializable(PACKAGE)
class RelativePositionBias(layers.Layer):
    """Adds a learned bias to the scores of every pair of tokens of a window, by head and relative position.

    Args:
        window: Rows and columns of a window.
        **options: Options of `keras.layers.Layer`.

    Returns:
        Scores `[..., heads, window ** 2, window ** 2]`, as they are given.
    """

    def __init__(self, window: int, **options: Any) -> None:
        super().__init__(**options)
        self.window = window

    def build(self, shape: Sequence[int | None]) -> None:
        """Create the biases for scores `[..., heads, window ** 2, window ** 2]`."""
        heads = shape[-3]
        self.relative_position_bias_table = self.add_weight(
            shape=((2 * self.window - 1) ** 2, heads),
            initializer=keras.initializers.TruncatedNormal(stddev=0.02),
            name="relative_position_bias_table",
        )
        super().build(shape)

    def call(self, scores: Array) -> tf.Tensor:
        """Add the biases."""
        table = ops.transpose(self.relative_position_bias_table)
        return scores + ops.cast(
            ops.take(table, relative_positions(self.window), axis=1), scores.dtype
        )

    def compute_output_shape(self, shape: Sequence[int | None]) -> Sequence[int | None]:
        """The shape of the scores."""
        return shape

    def get_config(self) -> dict[str, Any]:
        """The arguments of the layer."""
        config: dict[str, Any] = super().get_config()
        return config | {"window": self.window}


def relative_positions(window: int) -> np.ndarray:
    """Return the number of the relative position of every pair of tokens of a window, `[window ** 2, window ** 2]`."""
    rows, columns = np.divmod(np.arange(window**2), window)
    down, right = (each[:, None] - each for each in (rows, columns))
    numbers: np.ndarray = (down + window - 1) * (2 * window - 1) + right + window - 1
    return numbers
