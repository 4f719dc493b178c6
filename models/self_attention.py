"""Aggregator with exact self-attention among all instances of a bag, for bags of any size.

Attention as in Vaswani et al., "Attention is all you need" (NIPS 2017), with the normalisation first as in Xiong et
al., "On layer normalization in the transformer architecture" (ICML 2020); `tfbig.ops.blockwise_attention` computes it
in blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import layers, ops

from tfbig.models.pooling import PACKAGE, Array, BagLayer, Shape, at_least_float32
from tfbig.models.torch_layers import EPSILON
from tfbig.ops.blockwise_attention import blockwise_attention


@keras.saving.register_keras_serializable(PACKAGE)
class SelfAttentionMIL(BagLayer):
    """Transformer over the instances of a bag, with exact attention and a class token.

        x = concatenate([token, relu(embed(bag))])
        x = x + attention(norm(x))              depth times, each followed by
        x = x + W2 gelu(W1 norm(x))             if `mlp` is not 0
        logits = head(norm(x[0]))

    Unlike `TransMIL`, it has exact attention and no positional encoding, so the order of the instances does
    not matter. Memory: `O(N n width)`, time `O(N n^2 width)`. Attention of Vaswani et al., "Attention is all you need"
    (NIPS 2017); normalisation first as in Xiong et al., "On layer normalization in the transformer architecture" (ICML
    2020).

    Args:
        classes: Number of classes.
        width: Width of a token.
        heads: Number of attention heads; must divide `width`.
        depth: Number of attention blocks.
        block: Number of queries and of keys held at once; see `tfbig.ops.blockwise_attention`.
        mlp: Width of W1 as a multiple of `width`; 4 in the original transformer, 0 for no MLP.
        **options: Options of `keras.layers.Layer`, such as `name` and `dtype`.

    Returns:
        Logits `[N, classes]` of bags of features `[N, n, d]`.

    Raises:
        ValueError: `depth` is below 1, or `heads` does not divide `width`.

    Example:
        >>> bag = np.random.default_rng(0).normal(size=(1, 5, 6)).astype("float32")  # five instances
        >>> pool = tfbig.mil.SelfAttentionMIL(classes=2, width=8, heads=2)
        >>> pool(bag).shape
        TensorShape([1, 2])
        >>> bool(np.allclose(pool(bag[:, ::-1]), pool(bag), atol=1e-5))  # in another order
        True
        >>> pool.attention(bag).shape
        TensorShape([1, 5])
    """

    def __init__(
        self,
        classes: int,
        width: int = 512,
        heads: int = 8,
        depth: int = 1,
        block: int = 1024,
        mlp: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if depth < 1:
            raise ValueError(f"depth={depth}; expected at least 1 block of attention.")
        self.classes, self.width, self.heads = classes, width, heads
        self.depth, self.block, self.mlp = depth, block, mlp
        self._create_layers()

    def _create_layers(self) -> None:
        width, depth = self.width, self.depth
        policy = {"dtype": self.dtype_policy}
        self.embed = layers.Dense(width, "relu", name="embed", **policy)
        self.norms = [
            layers.LayerNormalization(epsilon=EPSILON, name=f"norm{i}", **policy)
            for i in range(depth + 1)
        ]
        self.blocks = [
            SelfAttention(width, self.heads, self.block, name=f"attention{i}", **policy)
            for i in range(depth)
        ]
        self.mlps = [self._create_mlp(f"mlp{i}") for i in range(depth if self.mlp else 0)]
        self.head = layers.Dense(self.classes, name="head", **policy)

    def _create_mlp(self, name: str) -> keras.Sequential:
        policy = {"dtype": self.dtype_policy}
        steps = [
            layers.LayerNormalization(epsilon=EPSILON, **policy),
            layers.Dense(self.mlp * self.width, "gelu", **policy),
            layers.Dense(self.width, **policy),
        ]
        return keras.Sequential(steps, name=name)

    def build(self, shape: Sequence[int | None]) -> None:
        """Create the weights for features `[N, n, d]`."""
        self.embed.build(shape)
        for layer in (*self.norms, *self.blocks, *self.mlps):
            layer.build((shape[0], None, self.width))
        self.head.build((shape[0], self.width))
        self.token = self.add_weight(
            shape=(1, 1, self.width), initializer=keras.initializers.RandomNormal(), name="token"
        )
        super().build(shape)

    def call(self, bag: tf.Tensor) -> tf.Tensor:
        """Compute the logits `[N, classes]` of bags `[N, n, d]`."""
        return self._classify(self._encode(bag)[:, 0])

    def _embed_and_attend(self, bag: Array) -> tf.Tensor:
        """The tokens before the last block, `[N, 1 + n, width]`."""
        x = self.embed(bag)
        token = ops.broadcast_to(ops.cast(self.token, x.dtype), (ops.shape(x)[0], 1, self.width))
        x = ops.concatenate([token, x], axis=1)
        for index in range(self.depth - 1):
            x = self._block(x, index)
        return x

    def _block(self, x: tf.Tensor, index: int) -> tf.Tensor:
        """The tokens `[N, 1 + n, width]` after the block with this index."""
        x = x + self.blocks[index](self.norms[index](x))
        return x + self.mlps[index](x) if self.mlp else x

    def _encode(self, bag: Array) -> tf.Tensor:
        """The tokens after the last block, `[N, 1 + n, width]`."""
        return self._block(self._embed_and_attend(bag), self.depth - 1)

    def attention(self, bag: Array) -> tf.Tensor:
        """The attention of the class token to each instance in the last block.

        The mean over the heads, without the attention of the class token to itself, normalised to sum to 1.

        Args:
            bag: Features `[N, n, d]`.

        Returns:
            Weights `[N, n]`.
        """
        weights = self.blocks[-1].first_row(self.norms[-2](self._embed_and_attend(bag)))[:, 1:]
        return weights / ops.sum(weights, axis=1, keepdims=True)

    def scores(self, bag: Array) -> tf.Tensor:
        """Compute the logits of the token of each instance, classified like the class token.

        Args:
            bag: Features `[N, n, d]`.

        Returns:
            Logits `[N, n, classes]`.
        """
        return self._classify(self._encode(bag)[:, 1:])

    def _classify(self, tokens: tf.Tensor) -> tf.Tensor:
        """The logits of tokens `[..., width]`."""
        return self.head(self.norms[-1](tokens))

    def compute_output_shape(self, shape: Shape) -> Shape:
        """The shape `[N, classes]` of the logits of features `[N, n, d]`."""
        return (shape[0], self.classes)


@keras.saving.register_keras_serializable(PACKAGE)
class TransformerMIL(SelfAttentionMIL):
    """Transformer of two blocks of attention and MLP, with a class token and without positions.

    `SelfAttentionMIL` with other defaults, and with a second normalisation before the head, as in the code of Wagner et
    al., "Transformer-based biomarker prediction from colorectal cancer histology: a large-scale multicentric study"
    (Cancer Cell 2023). 3,681,282 parameters for d = 1024 and two classes.

    Args:
        classes: Number of classes.
        width: Width of a token; 512 in the original.
        heads: Number of attention heads; must divide `width`.
        depth: Number of blocks.
        block: Number of queries and of keys held at once; see `tfbig.ops.blockwise_attention`.
        mlp: Width of the MLP as a multiple of `width`.
        **options: Options of `keras.layers.Layer`, such as `name` and `dtype`.

    Returns:
        Logits `[N, classes]` of bags of features `[N, n, d]`.

    Raises:
        ValueError: `depth` is below 1, or `heads` does not divide `width`.

    Example:
        >>> bag = np.random.default_rng(0).normal(size=(1, 5, 6)).astype("float32")  # five instances
        >>> tfbig.mil.TransformerMIL(classes=2, width=8, heads=2)(bag).shape
        TensorShape([1, 2])
    """

    def __init__(
        self,
        classes: int,
        width: int = 512,
        heads: int = 8,
        depth: int = 2,
        block: int = 1024,
        mlp: int = 1,
        **options: Any,
    ) -> None:
        super().__init__(classes, width, heads, depth, block, mlp, **options)

    def _create_layers(self) -> None:
        super()._create_layers()
        self.last_norm = layers.LayerNormalization(
            epsilon=EPSILON, name="last_norm", dtype=self.dtype_policy
        )

    def build(self, shape: Sequence[int | None]) -> None:
        """Create the weights for features `[N, n, d]`."""
        self.last_norm.build((shape[0], self.width))
        super().build(shape)

    def _classify(self, tokens: tf.Tensor) -> tf.Tensor:
        """The logits of tokens `[..., width]`, normalised twice."""
        return self.head(self.last_norm(self.norms[-1](tokens)))


@keras.saving.register_keras_serializable(PACKAGE)
class SelfAttention(BagLayer):
    """Multi-head self-attention of tokens `[N, n, width]`, computed in blocks.

    `softmax(q k^T / sqrt(width / heads)) v` of each head, followed by a Dense layer over all heads.

    Args:
        width: Width of a token.
        heads: Number of attention heads; must divide `width`.
        block: Number of queries and of keys held at once.
        **options: Options of `keras.layers.Layer`.

    Raises:
        ValueError: `heads` does not divide `width`.
    """

    def __init__(self, width: int, heads: int = 8, block: int = 1024, **options: Any) -> None:
        super().__init__(**options)
        if heads < 1 or width % heads:
            raise ValueError(f"heads={heads}; expected a divisor of width={width}.")
        self.supports_jit = False  # the number of blocks is known only at run time
        self.width, self.heads, self.block = width, heads, block
        policy = {"dtype": self.dtype_policy}
        self.qkv = layers.Dense(3 * width, use_bias=False, name="qkv", **policy)
        self.out = layers.Dense(width, name="out", **policy)

    def build(self, shape: Sequence[int | None]) -> None:
        """Create the weights for tokens `[N, n, width]`."""
        self.qkv.build(shape)
        self.out.build(shape)
        super().build(shape)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        """Attend among tokens `[N, n, width]`; the result has the same shape."""
        attended = blockwise_attention(*self._heads(x), block=self.block)  # [N, heads, n, each]
        attended = ops.transpose(attended, (0, 2, 1, 3))
        return self.out(ops.reshape(attended, (ops.shape(x)[0], -1, self.width)))

    def first_row(self, x: tf.Tensor) -> tf.Tensor:
        """The attention of the first token to each token, the mean over the heads.

        Args:
            x: Tokens `[N, n, width]`.

        Returns:
            Weights `[N, n]`, at least float32.
        """
        q, k, _ = self._heads(x)
        score = ops.matmul(q[:, :, :1], ops.transpose(k, (0, 1, 3, 2)))[:, :, 0]
        score = at_least_float32(score) * (self.width // self.heads) ** -0.5
        return ops.mean(ops.softmax(score, axis=-1), axis=1)

    def _heads(self, x: tf.Tensor) -> list[tf.Tensor]:
        """Compute q, k and v of tokens `[N, n, width]`, each `[N, heads, n, width / heads]`."""
        size = self.width // self.heads
        parts = ops.reshape(self.qkv(x), (ops.shape(x)[0], -1, 3, self.heads, size))
        return [ops.transpose(parts[:, :, i], (0, 2, 1, 3)) for i in range(3)]

    def compute_output_shape(self, shape: Shape) -> Shape:
        """The shape of the tokens, `[N, n, width]`."""
        return shape
