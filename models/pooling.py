"""Bags of features to logits: mean, maximum, and attention (ABMIL).

An aggregator is a Keras layer from a bag `[N, n, d]` to logits `[N, classes]`. Each says which instances it looked at:
`attention(bag)` gives `[N, n]`, which adds up to 1, and `scores(bag)` the logits of every instance, `[N, n, classes]`.
"""

import keras
from keras import layers, ops

PACKAGE = "tfbig.models"


class Aggregator(layers.Layer):
    """The mean of the features that `attention` weighs, and a classifier of it.

    Args:
        classes: Logits.
    """

    def __init__(self, classes, **options):
        super().__init__(**options)
        self.classes = classes
        self.head = layers.Dense(classes, name="head", dtype=self.dtype_policy)

    def build(self, shape):
        self.head.build((None, shape[-1]))
        super().build(shape)

    def attention(self, bag):
        """How much each instance counts, `[N, n]`."""
        raise NotImplementedError

    def call(self, bag):
        weights = ops.expand_dims(ops.cast(self.attention(bag), bag.dtype), 1)
        # As a product of matrices: the bag times its weights would be as large as the bag.
        return self.head(ops.matmul(weights, bag)[:, 0])

    def scores(self, bag):
        """Logits of every instance as if it were the bag, `[N, n, classes]`."""
        return self.head(bag)

    def compute_output_shape(self, shape):
        return (shape[0], self.classes)

    def get_config(self):
        return super().get_config() | {"classes": self.classes}


@keras.saving.register_keras_serializable(PACKAGE)
class MeanPooling(Aggregator):
    """Every instance counts alike."""

    def attention(self, bag):
        ones = ops.ones_like(bag[..., 0])
        return ones / ops.sum(ones, axis=1, keepdims=True)


@keras.saving.register_keras_serializable(PACKAGE)
class MaxPooling(Aggregator):
    """The largest of each feature; the attention of an instance is its share of the features."""

    def call(self, bag):
        return self.head(ops.max(bag, axis=1))

    def attention(self, bag):
        largest = ops.cast(ops.equal(bag, ops.max(bag, axis=1, keepdims=True)), bag.dtype)
        return ops.mean(largest / ops.sum(largest, axis=1, keepdims=True), axis=-1)


@keras.saving.register_keras_serializable(PACKAGE)
class ABMIL(Aggregator):
    """Attention-based pooling (Ilse, Tomczak, Welling: "Attention-based deep multiple instance learning", ICML 2018).

    `a = softmax(w tanh(V h))` over the instances; gated: `a = softmax(w (tanh(V h) * sigmoid(U h)))`; the bag is
    `sum a h`.

    Args:
        classes: Logits; 1 for a sigmoid.
        hidden: Rows of V and U.
        gated: Whether there is a U.
    """

    def __init__(self, classes, hidden=128, gated=False, **options):
        super().__init__(classes, **options)
        self.hidden = hidden
        self.gated = gated
        self.gate = Gate(hidden, gated, name="gate", dtype=self.dtype_policy)

    def build(self, shape):
        self.gate.build(shape)
        super().build(shape)

    def attention(self, bag):
        seen = self.gate(bag)  # ops.softmax warns of bags of one instance
        return ops.exp(seen - ops.logsumexp(seen, axis=1, keepdims=True))

    def get_config(self):
        return super().get_config() | {"hidden": self.hidden, "gated": self.gated}


@keras.saving.register_keras_serializable(PACKAGE)
class Gate(layers.Layer):
    """What attention is made of, before the softmax: `[N, n, d]` to `[N, n]`, in float32 or wider.

    Args:
        hidden: Rows of V and U.
        gated: Whether there is a U.
    """

    def __init__(self, hidden=128, gated=True, **options):
        super().__init__(**options)
        self.hidden = hidden
        self.gated = gated
        self.v = layers.Dense(hidden, "tanh", name="v", dtype=self.dtype_policy)
        self.u = layers.Dense(hidden, "sigmoid", name="u", dtype=self.dtype_policy)
        self.w = layers.Dense(1, name="w", dtype=self.dtype_policy)

    def build(self, shape):
        self.v.build(shape)
        if self.gated:
            self.u.build(shape)
        self.w.build((*shape[:-1], self.hidden))
        super().build(shape)

    def call(self, bag):
        inner = self.v(bag) * self.u(bag) if self.gated else self.v(bag)
        found = self.w(inner)[..., 0]
        wide = "float32" if keras.backend.standardize_dtype(found.dtype) != "float64" else "float64"
        return ops.cast(found, wide)

    def compute_output_shape(self, shape):
        return shape[:-1]

    def get_config(self):
        return super().get_config() | {"hidden": self.hidden, "gated": self.gated}
