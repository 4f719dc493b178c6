"""TransMIL: self-attention among the instances of a bag, approximated with landmarks.

Shao et al., "TransMIL: Transformer based correlated multiple instance learning for whole slide image classification"
(NeurIPS 2021), with the attention of Xiong et al., "Nystroemformer" (AAAI 2021).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import layers, ops

from tfbig.models.pooling import PACKAGE, Array, BagLayer, Shape
from tfbig.models.torch_layers import EPSILON
from tfbig.ops.blockwise_attention import blockwise_attention


@keras.saving.register_keras_serializable(PACKAGE)
class TransMIL(BagLayer):
    """Transformer over the instances of a bag, with approximate attention and a class token.

    The first instances are repeated until the tokens fill a square, and a class token comes first. Two blocks of
    Nystroem attention follow, with a positional encoding between them: depthwise convolutions of 7 x 7, 5 x 5 and 3 x 3
    over the square. The class token is classified. 2,672,146 parameters for d = 1024 and two classes.

    Shao et al., "TransMIL: Transformer based correlated multiple instance learning for whole slide image
    classification" (NeurIPS 2021).

    Args:
        classes: Number of classes.
        width: Width of a token; a multiple of the 8 attention heads.
        landmarks: Number of landmarks of the attention; by default half the width, as in the code of TransMIL: 256 for
            a width of 512, 64 for one of 128.
        **options: Options of `keras.layers.Layer`, such as `name` and `dtype`.

    Returns:
        Logits `[N, classes]` of bags of features `[N, n, d]`.

    Raises:
        ValueError: The number of features d differs from the one that the layer was built for.

    Example:
        >>> bag = np.random.default_rng(0).normal(size=(1, 5, 6)).astype("float32")  # five instances
        >>> pool = tfbig.mil.TransMIL(classes=2, width=8)
        >>> pool(bag).shape
        TensorShape([1, 2])
        >>> pool.attention(bag).shape
        TensorShape([1, 5])
    """

    def __init__(
        self, classes: int, width: int = 512, landmarks: int | None = None, **options: Any
    ) -> None:
        super().__init__(**options)
        self.classes = classes
        self.width = width
        self.landmarks = width // 2 if landmarks is None else landmarks
        policy = {"dtype": self.dtype_policy}
        self.embed = layers.Dense(width, "relu", name="embed", **policy)
        self.norms = [
            layers.LayerNormalization(epsilon=EPSILON, name=f"norm{i}", **policy) for i in range(3)
        ]
        self.blocks = [
            NystromAttention(width, landmarks=self.landmarks, name=f"attention{i}", **policy)
            for i in range(2)
        ]
        self.places = [
            layers.DepthwiseConv2D(k, padding="same", name=f"place{k}", **policy) for k in (7, 5, 3)
        ]
        self.head = layers.Dense(classes, name="head", **policy)

    def build(self, shape: Sequence[int | None]) -> None:
        """Create the weights for features `[N, n, d]`."""
        self.embed.build(shape)
        tokens = (shape[0], None, self.width)
        for layer in (*self.norms, *self.blocks):
            layer.build(tokens)
        for layer in self.places:
            layer.build((shape[0], None, None, self.width))
        self.head.build((shape[0], self.width))
        self.token = self.add_weight(
            shape=(1, 1, self.width), initializer=keras.initializers.RandomNormal(), name="token"
        )
        super().build(shape)

    def call(self, bag: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """Compute the logits `[N, classes]` of bags `[N, n, d]`."""
        x = self._encode_positions(bag, training)
        x = x + self.blocks[1](self.norms[1](x), training=training)
        return self.head(self.norms[2](x[:, :1])[:, 0])

    def _encode_positions(self, bag: Array, training: bool | None = None) -> tf.Tensor:
        """The tokens before the second block, `[N, 1 + s * s, width]`."""
        x = self.embed(bag)
        count = ops.shape(x)[1]
        side = _side(count)
        x = ops.concatenate([x, x[:, : side * side - count]], axis=1)
        token = ops.broadcast_to(ops.cast(self.token, x.dtype), (ops.shape(x)[0], 1, self.width))
        x = ops.concatenate([token, x], axis=1)
        x = x + self.blocks[0](self.norms[0](x), training=training)
        square = ops.reshape(x[:, 1:], (-1, side, side, self.width))
        square = square + sum(layer(square) for layer in self.places)
        return ops.concatenate(
            [x[:, :1], ops.reshape(square, (-1, side * side, self.width))], axis=1
        )

    def attention(self, bag: Array) -> tf.Tensor:
        """The attention of the class token to each instance in the second block.

        The mean over the heads, with negative values (of the approximation) set to 0. A token that fills the square
        counts for the instance that it repeats.

        Args:
            bag: Features `[N, n, d]`.

        Returns:
            Weights `[N, n]`.
        """
        x = self._encode_positions(bag)
        weights = self.blocks[1].first_row(self.norms[1](x))[:, 1:]
        count = ops.shape(bag)[1]
        repeated = ops.shape(weights)[1] - count
        weights = weights[:, :count] + ops.pad(weights[:, count:], [[0, 0], [0, count - repeated]])
        weights = ops.maximum(weights, 0)
        return weights / ops.sum(weights, axis=1, keepdims=True)

    def scores(self, bag: Array) -> tf.Tensor:
        """Compute the logits of the token of each instance, classified like the class token.

        Args:
            bag: Features `[N, n, d]`.

        Returns:
            Logits `[N, n, classes]`.
        """
        x = self._encode_positions(bag)
        x = x + self.blocks[1](self.norms[1](x), training=False)
        return self.head(self.norms[2](x[:, 1 : 1 + ops.shape(bag)[1]]))

    def compute_output_shape(self, shape: Shape) -> Shape:
        """The shape `[N, classes]` of the logits of features `[N, n, d]`."""
        return (shape[0], self.classes)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> TransMIL:
        """Create a layer with these arguments; layers saved without a number of landmarks had 256."""
        return cls(**{"landmarks": 256, **config})


def _side(count: int | tf.Tensor) -> int | tf.Tensor:
    """The side of the smallest square with at least `count` cells."""
    if isinstance(count, int):
        side = int(count**0.5)
        return side + (side * side < count)
    side = ops.cast(ops.floor(ops.sqrt(ops.cast(count, "float64"))), "int32")
    return side + ops.cast(side * side < count, "int32")


@keras.saving.register_keras_serializable(PACKAGE)
class NystromAttention(BagLayer):
    """Approximate self-attention of tokens `[N, n, width]` through m landmarks, the means of n / m consecutive tokens.

    `softmax(q kl^T) pinv(softmax(ql kl^T)) softmax(ql k^T) v`, plus a convolution of v along the tokens. Zeros in front
    pad the tokens to a multiple of m. Memory: `8 * N * n * m` numbers instead of `8 * N * n * n`.

    Args:
        width: Width of a token.
        heads: Number of attention heads.
        landmarks: Number of landmarks, m.
        iterations: Iterations of the pseudo-inverse.
        kernel: Size of the convolution.
        rate: Dropout rate after the attention.
        **options: Options of `keras.layers.Layer`.
    """

    def __init__(
        self,
        width: int,
        heads: int = 8,
        landmarks: int = 256,
        iterations: int = 6,
        kernel: int = 33,
        rate: float = 0.1,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.width, self.heads = width, heads
        self.landmarks, self.iterations = landmarks, iterations
        self.kernel, self.rate = kernel, rate
        self.supports_jit = False  # the number of blocks of attention is known only at run time
        self._create_layers()

    def _create_layers(self) -> None:
        policy = {"dtype": self.dtype_policy}
        self.qkv = layers.Dense(3 * self.width, use_bias=False, name="qkv", **policy)
        self.near = layers.DepthwiseConv2D(
            (self.kernel, 1), padding="same", use_bias=False, name="near", **policy
        )
        self.out = layers.Dense(self.width, name="out", **policy)
        self.drop = layers.Dropout(self.rate, name="drop", **policy)

    def build(self, shape: Sequence[int | None]) -> None:
        """Create the weights for tokens `[N, n, width]`."""
        self.qkv.build(shape)
        self.near.build((shape[0], None, self.width // self.heads, self.heads))
        self.out.build(shape)
        super().build(shape)

    def call(self, x: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """Attend among tokens `[N, n, width]`; the result has the same shape."""
        count = ops.shape(x)[1]
        q, k, v = self._heads(x)
        ql, kl = self._landmarks(q), self._landmarks(k)
        inverse = self._inverse(_softmax(ql, kl))
        attended = blockwise_attention(q, kl, ops.matmul(inverse, blockwise_attention(ql, k, v)))
        near = self.near(ops.transpose(v, (0, 2, 3, 1)))  # [N, n, width / heads, heads]
        attended = ops.transpose(attended, (0, 2, 1, 3)) + ops.transpose(near, (0, 1, 3, 2))
        attended = ops.reshape(attended, (ops.shape(x)[0], -1, self.width))
        attended = attended[:, ops.shape(attended)[1] - count :]
        return self.drop(self.out(attended), training=training)

    def first_row(self, x: tf.Tensor) -> tf.Tensor:
        """The attention of the first token to each token, the mean over the heads.

        Args:
            x: Tokens `[N, n, width]`.

        Returns:
            Weights `[N, n]`; the approximation may make some negative.
        """
        count = ops.shape(x)[1]
        q, k, v = self._heads(x)
        ql, kl = self._landmarks(q), self._landmarks(k)
        padding = ops.shape(v)[2] - count
        first = _softmax(q[:, :, padding : padding + 1], kl)
        row = ops.matmul(ops.matmul(first, self._inverse(_softmax(ql, kl))), _softmax(ql, k))
        return ops.mean(row[:, :, 0, padding:], axis=1)

    def _heads(self, x: tf.Tensor) -> list[tf.Tensor]:
        """Compute q, k and v of tokens `[N, n, width]`, each `[N, heads, p, width / heads]`; p is n padded."""
        padding = -ops.shape(x)[1] % self.landmarks
        x = ops.pad(x, [[0, 0], [padding, 0], [0, 0]])
        size = self.width // self.heads
        parts = ops.reshape(self.qkv(x), (ops.shape(x)[0], ops.shape(x)[1], 3, self.heads, size))
        return [ops.transpose(parts[:, :, i], (0, 2, 1, 3)) for i in range(3)]

    def _landmarks(self, x: tf.Tensor) -> tf.Tensor:
        """The landmarks `[N, heads, m, width / heads]` of q or k."""
        batch, size = ops.shape(x)[0], self.width // self.heads
        return ops.mean(ops.reshape(x, (batch, self.heads, self.landmarks, -1, size)), axis=3)

    def _inverse(self, a: tf.Tensor) -> tf.Tensor:
        """Approximate the Moore-Penrose inverse of `[N, heads, m, m]` (Razavi et al. 2014).

        The iteration starts from `a^T` divided by the largest column sum and row sum over all heads of a bag. The
        published code takes the largest over all bags of a batch, which is the same for the one bag that it trains on.
        """
        sums = [ops.max(ops.sum(ops.abs(a), axis), axis=(1, 2), keepdims=True) for axis in (-1, -2)]
        z = ops.transpose(a, (0, 1, 3, 2)) / ops.expand_dims(sums[0] * sums[1], -1)
        one = ops.eye(self.landmarks, dtype=a.dtype)
        for _ in range(self.iterations):
            az = ops.matmul(a, z)
            inner = 15 * one - ops.matmul(az, 7 * one - az)
            z = 0.25 * ops.matmul(z, 13 * one - ops.matmul(az, inner))
        return z


def _softmax(q: tf.Tensor, k: tf.Tensor) -> tf.Tensor:
    """Compute `softmax(q k^T / sqrt(d))`, `[N, heads, n, m]`, of `[N, heads, n, d]` and `[N, heads, m, d]`."""
    return ops.softmax(ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))) * q.shape[-1] ** -0.5)
