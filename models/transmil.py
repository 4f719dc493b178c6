"""TransMIL: self-attention among the instances of a bag, approximated with landmarks.

Shao et al., "TransMIL: Transformer based correlated multiple instance learning for whole slide image classification"
(NeurIPS 2021), with the attention of Xiong et al., "Nystroemformer" (AAAI 2021).
"""

import keras
from keras import layers, ops

from tfbig.models.pooling import PACKAGE
from tfbig.ops.blockwise_attention import blockwise_attention

EPSILON = 1e-5
"""Of layer normalisation, as in torch."""


@keras.saving.register_keras_serializable(PACKAGE)
class TransMIL(layers.Layer):
    """A bag of features `[N, n, d]` to logits `[N, classes]`; 2,672,146 parameters for d = 1024 and two classes.

    The tokens are filled up to a square with the first of them, and get a class token in front. Two blocks of Nystroem
    attention, with a positional encoding by depthwise convolutions over the square between them; the class token is
    classified.

    Args:
        classes: Logits.
        width: Of a token.
    """

    def __init__(self, classes, width=512, **options):
        super().__init__(**options)
        self.classes = classes
        self.width = width
        own = {"dtype": self.dtype_policy}
        self.embed = layers.Dense(width, "relu", name="embed", **own)
        self.norms = [
            layers.LayerNormalization(epsilon=EPSILON, name=f"norm{i}", **own) for i in range(3)
        ]
        self.blocks = [NystromAttention(width, name=f"attention{i}", **own) for i in range(2)]
        self.places = [
            layers.DepthwiseConv2D(k, padding="same", name=f"place{k}", **own) for k in (7, 5, 3)
        ]
        self.head = layers.Dense(classes, name="head", **own)

    def build(self, shape):
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

    def call(self, bag, training=None):
        x = self._middle(bag, training)
        x = x + self.blocks[1](self.norms[1](x), training=training)
        return self.head(self.norms[2](x[:, :1])[:, 0])

    def _middle(self, bag, training=None):
        """Tokens before the second block, `[N, 1 + s * s, width]`."""
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

    def attention(self, bag):
        """What the class token looks at in the second block, `[N, n]`: the mean of the heads, negatives as 0.

        A token that fills the square counts for the instance that it repeats.
        """
        x = self._middle(bag)
        seen = self.blocks[1].first_row(self.norms[1](x))[:, 1:]
        count = ops.shape(bag)[1]
        more = ops.shape(seen)[1] - count
        seen = seen[:, :count] + ops.pad(seen[:, count:], [[0, 0], [0, count - more]])
        seen = ops.maximum(seen, 0)
        return seen / ops.sum(seen, axis=1, keepdims=True)

    def scores(self, bag):
        """Logits of every token that is classified like the class token, `[N, n, classes]`."""
        x = self._middle(bag)
        x = x + self.blocks[1](self.norms[1](x), training=False)
        return self.head(self.norms[2](x[:, 1 : 1 + ops.shape(bag)[1]]))

    def compute_output_shape(self, shape):
        return (shape[0], self.classes)

    def get_config(self):
        return super().get_config() | {"classes": self.classes, "width": self.width}


def _side(count):
    """Of the smallest square that holds so many."""
    if isinstance(count, int):
        side = int(count**0.5)
        return side + (side * side < count)
    side = ops.cast(ops.floor(ops.sqrt(ops.cast(count, "float64"))), "int32")
    return side + ops.cast(side * side < count, "int32")


@keras.saving.register_keras_serializable(PACKAGE)
class NystromAttention(layers.Layer):
    """Self-attention of `[N, n, width]` through m landmarks, the means of n / m consecutive tokens.

    `softmax(q kl^T) pinv(softmax(ql kl^T)) softmax(ql k^T) v`, plus a convolution of v along the tokens. Tokens are
    filled up to a multiple of m with zeros in front. Memory: `8 * N * n * m` numbers instead of `8 * N * n * n`.

    Args:
        width: Of a token.
        heads: Of the attention.
        landmarks: m.
        iterations: Of the pseudo-inverse.
        kernel: Of the convolution.
        rate: Of the dropout behind it.
    """

    def __init__(self, width, heads=8, landmarks=256, iterations=6, kernel=33, rate=0.1, **options):
        super().__init__(**options)
        self.config = {
            "width": width,
            "heads": heads,
            "landmarks": landmarks,
            "iterations": iterations,
            "kernel": kernel,
            "rate": rate,
        }
        self.width, self.heads, self.landmarks, self.iterations = (
            width,
            heads,
            landmarks,
            iterations,
        )
        own = {"dtype": self.dtype_policy}
        self.qkv = layers.Dense(3 * width, use_bias=False, name="qkv", **own)
        self.supports_jit = False  # attention in blocks, whose number is known when it runs
        self.near = layers.DepthwiseConv2D(
            (kernel, 1), padding="same", use_bias=False, name="near", **own
        )
        self.out = layers.Dense(width, name="out", **own)
        self.drop = layers.Dropout(rate, name="drop", **own)

    def build(self, shape):
        self.qkv.build(shape)
        self.near.build((shape[0], None, self.width // self.heads, self.heads))
        self.out.build(shape)
        super().build(shape)

    def call(self, x, training=None):
        count = ops.shape(x)[1]
        q, k, v = self._heads(x)
        ql, kl = self._landmarks(q), self._landmarks(k)
        inverse = self._inverse(_softmax(ql, kl))
        found = blockwise_attention(q, kl, ops.matmul(inverse, blockwise_attention(ql, k, v)))
        near = self.near(ops.transpose(v, (0, 2, 3, 1)))  # [N, n, width / heads, heads]
        found = ops.transpose(found, (0, 2, 1, 3)) + ops.transpose(near, (0, 1, 3, 2))
        found = ops.reshape(found, (ops.shape(x)[0], -1, self.width))
        found = found[:, ops.shape(found)[1] - count :]
        return self.drop(self.out(found), training=training)

    def first_row(self, x):
        """How much the first token looks at each, the mean of the heads, `[N, n]`."""
        count = ops.shape(x)[1]
        q, k, v = self._heads(x)
        ql, kl = self._landmarks(q), self._landmarks(k)
        begin = ops.shape(v)[2] - count
        first = _softmax(q[:, :, begin : begin + 1], kl)
        row = ops.matmul(ops.matmul(first, self._inverse(_softmax(ql, kl))), _softmax(ql, k))
        return ops.mean(row[:, :, 0, begin:], axis=1)

    def _heads(self, x):
        """q, k and v of the filled tokens, each `[N, heads, ., width / heads]`."""
        more = -ops.shape(x)[1] % self.landmarks
        x = ops.pad(x, [[0, 0], [more, 0], [0, 0]])
        each = self.width // self.heads
        parts = ops.reshape(self.qkv(x), (ops.shape(x)[0], ops.shape(x)[1], 3, self.heads, each))
        return [ops.transpose(parts[:, :, i], (0, 2, 1, 3)) for i in range(3)]

    def _landmarks(self, x):
        batch, each = ops.shape(x)[0], self.width // self.heads
        return ops.mean(ops.reshape(x, (batch, self.heads, self.landmarks, -1, each)), axis=3)

    def _inverse(self, a):
        """The Moore-Penrose inverse of `[N, heads, m, m]` (Razavi et al. 2014).

        It starts from `a^T` over the largest sums of a column and a row of all heads of a bag; the published code takes
        those of all bags of a batch, which for one bag, as it trains, is the same.
        """
        sums = [ops.max(ops.sum(ops.abs(a), axis), axis=(1, 2), keepdims=True) for axis in (-1, -2)]
        z = ops.transpose(a, (0, 1, 3, 2)) / ops.expand_dims(sums[0] * sums[1], -1)
        one = ops.eye(self.landmarks, dtype=a.dtype)
        for _ in range(self.iterations):
            az = ops.matmul(a, z)
            inner = 15 * one - ops.matmul(az, 7 * one - az)
            z = 0.25 * ops.matmul(z, 13 * one - ops.matmul(az, inner))
        return z

    def get_config(self):
        return super().get_config() | self.config


def _softmax(q, k):
    """`softmax(q k^T / sqrt(d))`."""
    return ops.softmax(ops.matmul(q, ops.transpose(k, (0, 1, 3, 2))) * q.shape[-1] ** -0.5)
