"""Exact self-attention among all instances of a bag, however many, as an aggregator.

The attention is that of Vaswani et al., "Attention is all you need" (NIPS 2017), normalised first as in Xiong et al.,
"On layer normalization in the transformer architecture" (ICML 2020);
`tfbig.ops.blockwise_attention` computes it in blocks.
"""

import keras
from keras import layers, ops

from tfbig.models.pooling import PACKAGE
from tfbig.ops.blockwise_attention import blockwise_attention

EPSILON = 1e-5
"""Of layer normalisation, as in torch."""


@keras.saving.register_keras_serializable(PACKAGE)
class SelfAttentionMIL(layers.Layer):
    """A bag of features `[N, n, d]` to logits `[N, classes]`: TransMIL without its approximation and its places.

        x = concatenate([token, relu(embed(bag))])
        x = x + attention(norm(x))              depth times, each followed by
        x = x + W2 gelu(W1 norm(x))             where `mlp` is not 0
        logits = head(norm(x[0]))

    Nothing says where an instance is, so their order does not matter. Memory: `O(N n width)`, time `O(N n^2 width)`.

    Args:
        classes: Logits.
        width: Of a token.
        heads: Of the attention; they divide the width.
        depth: Blocks of attention.
        block: Queries and keys that are held at once; see `blockwise_attention`.
        mlp: Width of W1 in widths; 4 in the original transformer, 0 for none.

    Raises:
        ValueError: There is no block, or `heads` does not divide `width`.
    """

    def __init__(self, classes, width=512, heads=8, depth=1, block=1024, mlp=0, **options):
        super().__init__(**options)
        if depth < 1:
            raise ValueError(f"depth={depth}; expected at least 1 block of attention.")
        self.classes, self.width, self.heads = classes, width, heads
        self.depth, self.block, self.mlp = depth, block, mlp
        own = {"dtype": self.dtype_policy}
        self.embed = layers.Dense(width, "relu", name="embed", **own)
        self.norms = [
            layers.LayerNormalization(epsilon=EPSILON, name=f"norm{i}", **own)
            for i in range(depth + 1)
        ]
        self.blocks = [
            SelfAttention(width, heads, block, name=f"attention{i}", **own) for i in range(depth)
        ]
        self.mlps = [
            keras.Sequential(
                [
                    layers.LayerNormalization(epsilon=EPSILON, **own),
                    layers.Dense(mlp * width, "gelu", **own),
                    layers.Dense(width, **own),
                ],
                name=f"mlp{i}",
            )
            for i in range(depth if mlp else 0)
        ]
        self.head = layers.Dense(classes, name="head", **own)

    def build(self, shape):
        self.embed.build(shape)
        for layer in (*self.norms, *self.blocks, *self.mlps):
            layer.build((shape[0], None, self.width))
        self.head.build((shape[0], self.width))
        self.token = self.add_weight(
            shape=(1, 1, self.width), initializer=keras.initializers.RandomNormal(), name="token"
        )
        super().build(shape)

    def call(self, bag):
        return self.head(self.norms[-1](self._last(bag)[:, 0]))

    def _before(self, bag):
        """Tokens before the last block, `[N, 1 + n, width]`."""
        x = self.embed(bag)
        token = ops.broadcast_to(ops.cast(self.token, x.dtype), (ops.shape(x)[0], 1, self.width))
        x = ops.concatenate([token, x], axis=1)
        for index in range(self.depth - 1):
            x = self._block(x, index)
        return x

    def _block(self, x, index):
        x = x + self.blocks[index](self.norms[index](x))
        return x + self.mlps[index](x) if self.mlp else x

    def _last(self, bag):
        """Tokens behind the last block, `[N, 1 + n, width]`."""
        return self._block(self._before(bag), self.depth - 1)

    def attention(self, bag):
        """What the class token looks at in the last block but itself, the mean of the heads, `[N, n]`."""
        seen = self.blocks[-1].first_row(self.norms[-2](self._before(bag)))[:, 1:]
        return seen / ops.sum(seen, axis=1, keepdims=True)

    def scores(self, bag):
        """Logits of every token that is classified like the class token, `[N, n, classes]`."""
        return self.head(self.norms[-1](self._last(bag)[:, 1:]))

    def compute_output_shape(self, shape):
        return (shape[0], self.classes)

    def get_config(self):
        own = ("classes", "width", "heads", "depth", "block", "mlp")
        return super().get_config() | {name: getattr(self, name) for name in own}


@keras.saving.register_keras_serializable(PACKAGE)
class SelfAttention(layers.Layer):
    """`softmax(q k^T / sqrt(width / heads)) v` of `[N, n, width]`, and a Dense layer of all heads.

    Args:
        width: Of a token.
        heads: Of the attention; they divide the width.
        block: Queries and keys that are held at once.

    Raises:
        ValueError: `heads` does not divide `width`.
    """

    def __init__(self, width, heads=8, block=1024, **options):
        super().__init__(**options)
        if heads < 1 or width % heads:
            raise ValueError(f"heads={heads}; expected a divisor of width={width}.")
        self.supports_jit = False  # how many blocks there are is known when it runs
        self.width, self.heads, self.block = width, heads, block
        own = {"dtype": self.dtype_policy}
        self.qkv = layers.Dense(3 * width, use_bias=False, name="qkv", **own)
        self.out = layers.Dense(width, name="out", **own)

    def build(self, shape):
        self.qkv.build(shape)
        self.out.build(shape)
        super().build(shape)

    def call(self, x):
        found = blockwise_attention(*self._heads(x), block=self.block)  # [N, heads, n, each]
        found = ops.transpose(found, (0, 2, 1, 3))
        return self.out(ops.reshape(found, (ops.shape(x)[0], -1, self.width)))

    def first_row(self, x):
        """How much the first token looks at each, the mean of the heads, `[N, n]` in float32 or wider."""
        q, k, _ = self._heads(x)
        score = ops.matmul(q[:, :, :1], ops.transpose(k, (0, 1, 3, 2)))[:, :, 0]
        wide = keras.backend.result_type(score.dtype, "float32")
        score = ops.cast(score, wide) * (self.width // self.heads) ** -0.5
        return ops.mean(ops.softmax(score, axis=-1), axis=1)

    def _heads(self, x):
        """q, k and v, each `[N, heads, n, width / heads]`."""
        each = self.width // self.heads
        parts = ops.reshape(self.qkv(x), (ops.shape(x)[0], -1, 3, self.heads, each))
        return [ops.transpose(parts[:, :, i], (0, 2, 1, 3)) for i in range(3)]

    def compute_output_shape(self, shape):
        return shape

    def get_config(self):
        own = ("width", "heads", "block")
        return super().get_config() | {name: getattr(self, name) for name in own}
