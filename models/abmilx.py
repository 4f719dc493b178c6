"""ABMILX: attention pooling with several heads, whose attention is refined by the similarity of instances.

Tang et al., "Revisiting end-to-end learning with slide-level supervision in computational pathology" (NeurIPS 2025),
made for encoders that are trained end to end: attention on very few instances gives the encoder a poor gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import layers, ops

from tfbig.models.pooling import PACKAGE, Array, BagLayer, Shape, at_least_float32, softmax
from tfbig.models.torch_layers import EPSILON
from tfbig.ops.blockwise_attention import blockwise_attention


@keras.saving.register_keras_serializable(PACKAGE)
class ABMILX(BagLayer):
    """Attention pooling with heads, each of which spreads its attention to similar instances.

        h = gelu(E norm(bag))                              split into heads of width / heads features
        a = w2 gelu(W1 h)                                  of each head, with the same weights
        a = a + softmax(q k^T / sqrt(width / heads)) v a   attention plus: q, k = Q norm(h), K norm(h); v a number
        x = P concatenate_heads(sum_i softmax(a)_i h_i)
        x = x + W4 gelu(W3 x)                              if `mlp`
        logits = head(norm(x))

    Only W3 and W4 have biases, and the normalisation in "attention plus". Memory: `O(N n width)`, time `O(N n^2
    width)`. 801,473 parameters for d = 1024, two classes and the default arguments.

    Tang et al., "Revisiting end-to-end learning with slide-level supervision in computational pathology" (NeurIPS
    2025). Its experiments have `width=256`; with `heads=4, mlp=True` on PANDA.

    Args:
        classes: Number of classes.
        width: Width of the reduced features of all heads.
        heads: Number of heads; must divide `width`.
        plus: Whether attention is refined by the similarity of instances.
        mlp: Whether the pooled features pass through an MLP of four times their width.
        normalise: Whether the features and the pooled features are normalised.
        rate: Dropout rate of the reduced features.
        block: Number of queries and of keys held at once; see `tfbig.ops.blockwise_attention`.
        **options: Options of `keras.layers.Layer`, such as `name` and `dtype`.

    Returns:
        Logits `[N, classes]` of bags of features `[N, n, d]`.

    Raises:
        ValueError: `heads` does not divide `width`.

    Example:
        >>> bag = np.random.default_rng(0).normal(size=(1, 5, 6)).astype("float32")  # five instances
        >>> pool = tfbig.mil.ABMILX(classes=2, width=8, heads=2)
        >>> pool(bag).shape
        TensorShape([1, 2])
        >>> pool.attention(bag).shape
        TensorShape([1, 5])
    """

    def __init__(
        self,
        classes: int,
        width: int = 512,
        heads: int = 8,
        plus: bool = True,
        mlp: bool = False,
        normalise: bool = True,
        rate: float = 0.25,
        block: int = 1024,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if heads < 1 or width % heads:
            raise ValueError(f"heads={heads}; expected a divisor of width={width}.")
        self.supports_jit = False  # the number of blocks of attention is known only at run time
        self.classes, self.width, self.heads, self.plus = classes, width, heads, plus
        self.mlp, self.normalise, self.rate, self.block = mlp, normalise, rate, block
        self._create_layers()

    def _create_layers(self) -> None:
        each = self.width // self.heads

        def dense(name: str, units: int, activation: str | None = None, bias: bool = False) -> Any:
            return layers.Dense(
                units,
                activation,
                bias,
                kernel_initializer=keras.initializers.GlorotNormal(),
                name=name,
                dtype=self.dtype_policy,
            )

        def norm(name: str, center: bool) -> Any:
            return layers.LayerNormalization(
                epsilon=EPSILON, center=center, name=name, dtype=self.dtype_policy
            )

        self.norms = [norm("norm0", False), norm("norm1", False)]
        self.embed = dense("embed", self.width, "gelu")
        self.drop = layers.Dropout(self.rate, name="drop", dtype=self.dtype_policy)
        self.gate = [dense("gate0", each, "gelu"), dense("gate1", 1)]
        self.plus_norm = norm("plus_norm", True)
        self.qk, self.v = dense("qk", 2 * each), dense("v", 1)
        self.project = dense("project", self.width)
        self.mlp_norm = norm("mlp_norm", True)
        self.wide = dense("wide", 4 * self.width, "gelu", True)
        self.narrow = dense("narrow", self.width, None, True)
        self.head = dense("head", self.classes)

    def build(self, shape: Sequence[int | None]) -> None:
        """Create the weights for features `[N, n, d]`."""
        each, pooled = self.width // self.heads, (shape[0], self.width)
        inputs: dict[Any, Any] = {self.embed: shape, self.project: pooled, self.head: pooled}
        inputs |= dict.fromkeys(self.gate, (shape[0], self.heads, None, each))
        if self.normalise:
            inputs |= {self.norms[0]: shape, self.norms[1]: pooled}
        if self.plus:
            heads = (shape[0], self.heads, None, each)
            inputs |= {self.plus_norm: heads, self.qk: heads, self.v: (*heads[:-1], 1)}
        if self.mlp:
            inputs |= {self.wide: pooled, self.narrow: (shape[0], 4 * self.width)}
            inputs |= {} if self.normalise else {self.mlp_norm: pooled}
        for layer, expected in inputs.items():
            layer.build(expected)
        super().build(shape)

    def call(self, bag: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """Compute the logits `[N, classes]` of bags `[N, n, d]`."""
        x = self._split(self.drop(self._embed(bag), training=training))
        weights = ops.cast(self._weights(x), x.dtype)
        pooled = ops.matmul(weights[:, :, None], x)  # [N, heads, 1, width / heads]
        return self._classify(ops.reshape(pooled, (-1, self.width)))

    def attention(self, bag: Array) -> tf.Tensor:
        """The attention of each instance, `[N, n]`, the mean over the heads."""
        return ops.mean(self._weights(self._split(self._embed(bag))), axis=1)

    def scores(self, bag: Array) -> tf.Tensor:
        """Compute the logits of each instance, classified as if it were the whole bag.

        Args:
            bag: Features `[N, n, d]`.

        Returns:
            Logits `[N, n, classes]`.
        """
        return self._classify(self._embed(bag))

    def _embed(self, bag: Array) -> tf.Tensor:
        """The reduced features `[N, n, width]`."""
        return self.embed(self.norms[0](bag) if self.normalise else bag)

    def _split(self, h: tf.Tensor) -> tf.Tensor:
        """Split features `[N, n, width]` into heads, `[N, heads, n, width / heads]`."""
        shape = (ops.shape(h)[0], -1, self.heads, self.width // self.heads)
        return ops.transpose(ops.reshape(h, shape), (0, 2, 1, 3))

    def _weights(self, x: tf.Tensor) -> tf.Tensor:
        """Compute the attention `[N, heads, n]` of each head, of features `[N, heads, n, width / heads]`."""
        a = self.gate[1](self.gate[0](x))
        if self.plus:
            q, k = ops.split(self.qk(self.plus_norm(x)), 2, axis=-1)
            a = a + blockwise_attention(q, k, self.v(a), block=self.block)
        a = at_least_float32(a[..., 0])
        return softmax(a)

    def _classify(self, x: tf.Tensor) -> tf.Tensor:
        """The logits of pooled features `[..., width]`."""
        x = self.project(x)
        if self.mlp:
            x = x + self.narrow(self.wide(x if self.normalise else self.mlp_norm(x)))
        return self.head(self.norms[1](x) if self.normalise else x)

    def compute_output_shape(self, shape: Shape) -> Shape:
        """The shape `[N, classes]` of the logits of features `[N, n, d]`."""
        return (shape[0], self.classes)
