"""Vision transformers as timm has them, as functional Keras models whose layers have the names of timm's tensors.

Dosovitskiy et al., "An image is worth 16x16 words" (ICLR 2021), with the additions of later encoders: LayerScale
(Touvron et al., ICCV 2021), SwiGLU (Shazeer 2020), and registers (Darcet et al., ICLR 2024).

Import this module before `keras.saving.load_model` reads a saved network, so that Keras knows its layers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from keras import layers, ops

from tfbig.models.pooling import PACKAGE, Array
from tfbig.models.weight_files import Arrays

Shape: TypeAlias = tuple[Any, ...]
"""Shape of a tensor; only the size of a batch is unknown."""

POOLINGS = ("token", "token_mean", "mean")
RESAMPLINGS = ("timm", "stretched")
TORCH_EPSILON = 1e-5
"""Epsilon of layer normalisation unless a network of torch says otherwise."""


@dataclass(frozen=True)
class ViT:
    """Configuration of a vision transformer.

    Attributes:
        patch: Rows and columns of a patch in pixels.
        width: Width of a token.
        depth: Number of blocks.
        heads: Number of attention heads; divides `width`.
        mlp_ratio: Width of the first layer of an MLP as a multiple of `width`, rounded down.
        mlp: "gelu", or "swiglu" for `silu(a) * b` of the two halves of the first layer, `SwiGLUPacked` in timm.
        registers: Number of register tokens.
        class_token: Whether there is a class token.
        prefix_positions: Whether class token and registers have position embeddings; False is timm's
            `no_embed_class=True`.
        layer_scale: Initial factor of the branches of a block, or None for no LayerScale.
        qkv_bias: Whether queries, keys and values have a bias.
        epsilon: Epsilon of layer normalisation.
        pooling: "token" for the class token, "token_mean" for the class token followed by the mean of the patches,
            "mean" for the mean of the patches, which is normalised after it as in timm; None for all tokens.
        resampling: How position embeddings of a file are adapted to images of another size. "timm": bicubic and
            antialiased, as timm does it; "stretched": see `Tokens.fitted`; None: such a file is refused.
    """

    patch: int = 16
    width: int = 1024
    depth: int = 24
    heads: int = 16
    mlp_ratio: float = 4.0
    mlp: str = "gelu"
    registers: int = 0
    class_token: bool = True
    prefix_positions: bool = True
    layer_scale: float | None = None
    qkv_bias: bool = True
    epsilon: float = 1e-6
    pooling: str | None = "token"
    resampling: str | None = "timm"

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ValueError: `heads` does not divide `width`, or a name is not one of the options.
        """
        if self.width % self.heads:
            raise ValueError(f"heads={self.heads}: expected a divisor of width={self.width}.")
        options = (
            ("mlp", self.mlp, tuple(MLPS)),
            ("pooling", self.pooling, (None, *POOLINGS)),
            ("resampling", self.resampling, (None, *RESAMPLINGS)),
        )
        for name, value, expected in options:
            if value not in expected:
                raise ValueError(
                    f"{name}={value!r}: expected one of {', '.join(map(repr, expected))}."
                )
        if not self.class_token and self.pooling in ("token", "token_mean"):
            raise ValueError(f"pooling={self.pooling!r} needs class_token=True; choose 'mean'.")

    @property
    def prefix(self) -> int:
        """Number of tokens before those of the patches."""
        return self.class_token + self.registers

    @property
    def features(self) -> int:
        """Number of features of an image."""
        return 2 * self.width if self.pooling == "token_mean" else self.width


def vision_transformer(
    input_shape: Sequence[int | None], config: ViT, name: str = "vision_transformer"
) -> keras.Model:
    """Build a vision transformer.

    Args:
        input_shape: `(H, W, C)`, with H and W multiples of the patch.
        config: Configuration.
        name: Name of the model.

    Returns:
        A plain functional `keras.Model` with random weights, from normalised images `[N, H, W, C]` to features
        `[N, config.features]`, or to tokens `[N, n, width]` without pooling. It has no dropout.

    Raises:
        ValueError: H or W is unknown, or no multiple of the patch.

    Example:
        >>> config = ViT(patch=4, width=8, depth=1, heads=2, registers=4, pooling="token_mean")
        >>> vision_transformer((8, 8, 3), config).output_shape
        (None, 16)
    """
    rows, columns = input_shape[:2]
    if any(size is None or size % config.patch for size in (rows, columns)):
        raise ValueError(
            f"input_shape={tuple(input_shape)}: '{name}' has position embeddings, so it expects a known height and "
            f"width, multiples of its patch of {config.patch} pixels."
        )
    image = keras.Input(input_shape, name="image")
    patches = layers.Conv2D(
        config.width,
        config.patch,
        config.patch,
        kernel_initializer=_normal(),
        name="patch_embed.proj",
    )
    x = Tokens(
        config.registers,
        config.class_token,
        config.prefix_positions,
        config.resampling,
        name="tokens",
    )(patches(image))
    for index in range(config.depth):
        x = _block(x, config, f"blocks.{index}")
    return keras.Model(image, _pooled(x, config), name=name)


def _block(x: keras.KerasTensor, config: ViT, name: str) -> keras.KerasTensor:
    """Add attention and an MLP, each normalised first and added to its input."""
    y = _norm(config, f"{name}.norm1")(x)
    y = _dense(3 * config.width, f"{name}.attn.qkv", config.qkv_bias)(y)
    y = Attention(config.heads, name=f"{name}.attn")(y)
    x = _added(x, _dense(config.width, f"{name}.attn.proj")(y), config, f"{name}.ls1")
    y = _norm(config, f"{name}.norm2")(x)
    y = _dense(int(config.width * config.mlp_ratio), f"{name}.mlp.fc1")(y)
    y = MLPS[config.mlp](f"{name}.mlp.act")(y)
    return _added(x, _dense(config.width, f"{name}.mlp.fc2")(y), config, f"{name}.ls2")


def _added(
    x: keras.KerasTensor, branch: keras.KerasTensor, config: ViT, name: str
) -> keras.KerasTensor:
    """Add a branch of a block, scaled if the network has LayerScale."""
    if config.layer_scale is not None:
        branch = LayerScale(config.layer_scale, name=name)(branch)
    return layers.Add(name=f"{name}.add")([x, branch])


def _pooled(x: keras.KerasTensor, config: ViT) -> keras.KerasTensor:
    """Add the last normalisation and the pooling; as in timm, means without a class token are normalised after it."""
    if config.pooling == "mean":
        return _norm(config, "fc_norm")(PoolTokens("mean", config.prefix, name="pool")(x))
    x = _norm(config, "norm")(x)
    return (
        x if config.pooling is None else PoolTokens(config.pooling, config.prefix, name="pool")(x)
    )


def attention_pool(
    x: keras.KerasTensor, width: int, heads: int, name: str = "attn_pool_contrast"
) -> keras.KerasTensor:
    """Add attention of one learned query to all tokens, and layer normalisation: the pooling of CONCH.

    Args:
        x: Tokens `[N, n, w]`.
        width: Width of the query.
        heads: Number of attention heads; divides `width`.
        name: Name of the pooling, put before the names of its layers.

    Returns:
        Features `[N, width]`.
    """
    x = layers.LayerNormalization(epsilon=TORCH_EPSILON, name=f"{name}.ln_k")(x)
    query = Query(width, name=name)(x)
    query = layers.LayerNormalization(epsilon=TORCH_EPSILON, name=f"{name}.ln_q")(query)
    query = _dense(width, f"{name}.to_q", use_bias=False)(query)
    x = _dense(2 * width, f"{name}.to_kv", use_bias=False)(x)
    x = Attention(heads, name=f"{name}.attn")(x, query)
    x = _dense(width, f"{name}.to_out", use_bias=False)(x)
    x = PoolTokens("token", name=f"{name}.pool")(x)
    return layers.LayerNormalization(epsilon=TORCH_EPSILON, name="ln_contrast")(x)


def _normal() -> keras.initializers.Initializer:
    """The distribution of initial weights, that of timm."""
    return keras.initializers.TruncatedNormal(stddev=0.02)


def _dense(width: int, name: str, use_bias: bool = True) -> layers.Dense:
    return layers.Dense(width, use_bias=use_bias, kernel_initializer=_normal(), name=name)


def _norm(config: ViT, name: str) -> layers.LayerNormalization:
    return layers.LayerNormalization(epsilon=config.epsilon, name=name)


@keras.saving.register_keras_serializable(PACKAGE)
class Tokens(layers.Layer):
    """Class token, registers, then the patches in rows, all with position embeddings.

    Args:
        registers: Number of register tokens.
        class_token: Whether there is a class token.
        prefix_positions: Whether class token and registers have position embeddings.
        resampling: How position embeddings of a file are adapted, see `ViT`.
        **options: Options of `keras.layers.Layer`.

    Returns:
        Tokens `[N, class_token + registers + rows * columns, width]` of patches `[N, rows, columns, width]`.
    """

    def __init__(
        self,
        registers: int = 0,
        class_token: bool = True,
        prefix_positions: bool = True,
        resampling: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.registers, self.class_token = registers, class_token
        self.prefix_positions, self.resampling = prefix_positions, resampling
        self.prefix = class_token + registers

    def build(self, shape: Shape) -> None:
        """Create the weights for patches `[N, rows, columns, width]`."""
        _, rows, columns, width = shape
        self.grid = rows, columns
        self.cls_token = self.reg_token = None
        if self.class_token:
            self.cls_token = self._add_token("cls_token", (1, 1, width))
        if self.registers:
            self.reg_token = self._add_token("reg_token", (1, self.registers, width))
        positions = rows * columns + (self.prefix if self.prefix_positions else 0)
        self.pos_embed = self.add_weight(
            shape=(1, positions, width), initializer=_normal(), name="pos_embed"
        )
        super().build(shape)

    def _add_token(self, name: str, shape: Shape) -> keras.Variable:
        return self.add_weight(
            shape=shape, initializer=keras.initializers.RandomNormal(stddev=1e-6), name=name
        )

    def call(self, x: Array) -> tf.Tensor:
        """Turn patches `[N, rows, columns, width]` into tokens."""
        count, width = ops.shape(x)[0], x.shape[-1]
        x = ops.reshape(x, (-1, x.shape[1] * x.shape[2], width))
        positions = ops.cast(self.pos_embed, x.dtype)
        if not self.prefix_positions:
            x = x + positions
        tokens = [token for token in (self.cls_token, self.reg_token) if token is not None]
        prefix = [
            ops.broadcast_to(ops.cast(token, x.dtype), (count, token.shape[1], width))
            for token in tokens
        ]
        x = ops.concatenate([*prefix, x], axis=1)
        return x + positions if self.prefix_positions else x

    def fitted(self, positions: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Fit position embeddings of a square grid to the grid of this layer, if it has a resampling.

        "stretched" is bicubic with `a = -0.75`, where position i of m rows is at `(i + 0.5) * n / (m + 0.1) - 0.5`
        of the n rows of the file: the code of DINO and iBOT adds 0.1 against rounding, and torch takes the scale from
        that number.

        Args:
            positions: Embeddings `[1, n, width]` of a file.

        Returns:
            Embeddings for `pos_embed`; the same ones if they fit already, or cannot be adapted.
        """
        prefix = self.prefix if self.prefix_positions else 0
        patches = positions.shape[1] - prefix if positions.ndim == 3 else 0
        side = math.isqrt(max(patches, 0))
        same = positions.shape == tuple(self.pos_embed.shape)
        if same or self.resampling is None or side == 0 or side * side != patches:
            return positions
        grid = positions[:, prefix:].reshape(1, side, side, -1).astype("float64")
        if self.resampling == "timm":
            grid = tf.image.resize(
                grid.astype("float32"), self.grid, tf.image.ResizeMethod.BICUBIC, antialias=True
            ).numpy()
        else:
            rows, columns = (_stretching(side, size) for size in self.grid)
            grid = np.einsum("ri,cj,nijw->nrcw", rows, columns, grid)
        fitted = grid.reshape(1, -1, positions.shape[-1]).astype(positions.dtype)
        return np.concatenate([positions[:, :prefix], fitted], axis=1)

    def compute_output_shape(self, shape: Shape) -> Shape:
        """The shape of the tokens of patches `[N, rows, columns, width]`."""
        return (shape[0], self.prefix + shape[1] * shape[2], shape[3])

    def get_config(self) -> dict[str, Any]:
        """The arguments of the layer."""
        config: dict[str, Any] = super().get_config()
        names = ("registers", "class_token", "prefix_positions", "resampling")
        return config | {name: getattr(self, name) for name in names}


def _stretching(old: int, new: int) -> npt.NDArray[np.float64]:
    """The weights `[new, old]` of bicubic interpolation with `a = -0.75`, stretched as in `Tokens.fitted`."""
    weights = np.zeros((new, old))
    for row in range(new):
        place = (row + 0.5) * old / (new + 0.1) - 0.5
        first = math.floor(place) - 1
        for i in range(first, first + 4):
            weights[row, min(max(i, 0), old - 1)] += _cubic(abs(place - i))
    return weights


def _cubic(distance: float, a: float = -0.75) -> float:
    """The weight of a number at a distance of at most 2 (Keys, 1981)."""
    if distance <= 1:
        return ((a + 2) * distance - (a + 3)) * distance**2 + 1
    return ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a


@keras.saving.register_keras_serializable(PACKAGE)
class Attention(layers.Layer):
    """Multi-head attention, `softmax(q k^T / sqrt(size)) v` of each head; without weights.

    Args:
        heads: Number of heads.
        **options: Options of `keras.layers.Layer`.
    """

    def __init__(self, heads: int, **options: Any) -> None:
        super().__init__(**options)
        self.heads = heads

    def call(self, packed: Array, query: Array | None = None) -> tf.Tensor:
        """Sum the values that the tokens attend to.

        Args:
            packed: Queries, keys and values `[N, n, 3 * width]`; with `query` keys and values `[N, n, 2 * width]`.
            query: Queries `[N, m, width]`.

        Returns:
            Tensor `[N, n, width]`, or `[N, m, width]`.
        """
        parts = 3 if query is None else 2
        width = packed.shape[-1] // parts
        size = width // self.heads
        shape = (-1, packed.shape[1], parts, self.heads, size)
        *own, keys, values = ops.unstack(ops.reshape(packed, shape), parts, axis=2)
        if query is None:
            (queries,) = own
        else:
            queries = ops.reshape(query, (-1, query.shape[1], self.heads, size))
        # Keras rounds its own scale to float32, for float64 too.
        attended = ops.dot_product_attention(queries * size**-0.5, keys, values, scale=1.0)
        return ops.reshape(attended, (-1, queries.shape[1], width))

    def compute_output_shape(self, packed_shape: Shape, query_shape: Shape | None = None) -> Shape:
        """The shape of the result."""
        count, tokens, width = packed_shape
        return (count, tokens, width // 3) if query_shape is None else query_shape

    def get_config(self) -> dict[str, Any]:
        """The arguments of the layer."""
        config: dict[str, Any] = super().get_config()
        return config | {"heads": self.heads}


@keras.saving.register_keras_serializable(PACKAGE)
class LayerScale(layers.Layer):
    """Product of tokens `[N, n, width]` with a trained factor for each number of a token.

    Args:
        initial: Initial factor.
        **options: Options of `keras.layers.Layer`.
    """

    def __init__(self, initial: float = 1e-5, **options: Any) -> None:
        super().__init__(**options)
        self.initial = initial

    def build(self, shape: Shape) -> None:
        """Create the factors `[width]`."""
        self.gamma = self.add_weight(
            shape=(shape[-1],), initializer=keras.initializers.Constant(self.initial), name="gamma"
        )
        super().build(shape)

    def call(self, x: Array) -> tf.Tensor:
        """Scale the tokens."""
        return x * ops.cast(self.gamma, x.dtype)

    def compute_output_shape(self, shape: Shape) -> Shape:
        """The shape of the tokens."""
        return shape

    def get_config(self) -> dict[str, Any]:
        """The arguments of the layer."""
        config: dict[str, Any] = super().get_config()
        return config | {"initial": self.initial}


@keras.saving.register_keras_serializable(PACKAGE)
class Gate(layers.Layer):
    """`silu(a) * b` of the halves a and b of the last axis; without weights."""

    def call(self, x: Array) -> tf.Tensor:
        """Multiply the halves of a tensor `[..., 2 * width]`, the first after SiLU."""
        gate, value = ops.split(x, 2, axis=-1)
        return ops.silu(gate) * value

    def compute_output_shape(self, shape: Shape) -> Shape:
        """The shape of the product."""
        return (*shape[:-1], shape[-1] // 2)


MLPS: Mapping[str, Any] = {
    "gelu": lambda name: layers.Activation("gelu", name=name),
    "swiglu": lambda name: Gate(name=name),
}
"""Activation of each kind of MLP, a function of its name."""


@keras.saving.register_keras_serializable(PACKAGE)
class PoolTokens(layers.Layer):
    """Features `[N, d]` of tokens `[N, n, width]`; without weights.

    Args:
        pooling: "token", "token_mean" or "mean", see `ViT`.
        prefix: Number of tokens before those of the patches.
        **options: Options of `keras.layers.Layer`.
    """

    def __init__(self, pooling: str, prefix: int = 1, **options: Any) -> None:
        super().__init__(**options)
        self.pooling, self.prefix = pooling, prefix

    def call(self, x: Array) -> tf.Tensor:
        """Pool tokens to features."""
        if self.pooling == "token":
            return x[:, 0]
        mean = ops.mean(x[:, self.prefix :], axis=1)
        return mean if self.pooling == "mean" else ops.concatenate([x[:, 0], mean], axis=-1)

    def compute_output_shape(self, shape: Shape) -> Shape:
        """The shape of the features."""
        return (shape[0], shape[-1] * (2 if self.pooling == "token_mean" else 1))

    def get_config(self) -> dict[str, Any]:
        """The arguments of the layer."""
        config: dict[str, Any] = super().get_config()
        return config | {"pooling": self.pooling, "prefix": self.prefix}


@keras.saving.register_keras_serializable(PACKAGE)
class Query(layers.Layer):
    """A trained query `[N, 1, width]`, the same for every image of a batch of N.

    Args:
        width: Width of the query.
        **options: Options of `keras.layers.Layer`.
    """

    def __init__(self, width: int, **options: Any) -> None:
        super().__init__(**options)
        self.width = width

    def build(self, shape: Shape) -> None:
        """Create the query."""
        self.query = self.add_weight(
            shape=(1, self.width), initializer=keras.initializers.RandomNormal(), name="query"
        )
        super().build(shape)

    def call(self, x: Array) -> tf.Tensor:
        """Repeat the query for each image of `x`."""
        query = ops.cast(self.query, x.dtype)[None]
        return ops.broadcast_to(query, (ops.shape(x)[0], 1, self.width))

    def compute_output_shape(self, shape: Shape) -> Shape:
        """The shape of the query."""
        return (shape[0], 1, self.width)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the layer."""
        config: dict[str, Any] = super().get_config()
        return config | {"width": self.width}


TRANSFORMERS = "embeddings.cls_token"
"""Key by which a file of transformers is recognised, after a prefix such as `dinov2.`."""
RENAMED = (
    (r"^embeddings\.position_embeddings$", "pos_embed"),
    (r"^embeddings\.", ""),
    (r"^patch_embeddings\.projection\.", "patch_embed.proj."),
    (r"^encoder\.layer\.", "blocks."),
    (r"^layernorm\.", "norm."),
    (r"\.attention\.output\.dense\.", ".attn.proj."),
    (r"\.attention\.attention\.", ".attn."),
    (r"\.layernorm_before\.", ".norm1."),
    (r"\.layernorm_after\.", ".norm2."),
    (r"\.intermediate\.dense\.", ".mlp.fc1."),
    (r"\.output\.dense\.", ".mlp.fc2."),
    (r"\.mlp\.weights_in\.", ".mlp.fc1."),
    (r"\.mlp\.weights_out\.", ".mlp.fc2."),
    (r"\.layer_scale([12])\.lambda1$", r".ls\1.gamma"),
)
"""Patterns in the keys of `ViTModel` and `Dinov2Model` of transformers, in order, and their names in timm."""


def from_transformers(arrays: Arrays) -> Arrays:
    """Rename arrays of `ViTModel` or `Dinov2Model` of transformers as timm does.

    Args:
        arrays: Arrays of a file, possibly with a prefix such as `vit.`; those of timm are returned as they are.

    Returns:
        The arrays; queries, keys and values of a block are one, `blocks.0.attn.qkv.weight`.
    """
    prefixes = {key.removesuffix(TRANSFORMERS) for key in arrays if key.endswith(TRANSFORMERS)}
    if len(prefixes) != 1:
        return arrays
    (prefix,) = prefixes
    named: Arrays = {}
    for key, array in arrays.items():
        name = key.removeprefix(prefix)
        for pattern, replacement in RENAMED:
            name = re.sub(pattern, replacement, name)
        named[name] = array
    for key in [key for key in named if ".attn.query." in key]:
        parts = [key.replace(".query.", f".{part}.") for part in ("query", "key", "value")]
        if all(part in named for part in parts):
            named[key.replace(".query.", ".qkv.")] = np.concatenate([named.pop(p) for p in parts])
    return named
