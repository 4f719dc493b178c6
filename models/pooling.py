"""Aggregators of bags of features: mean, maximum and attention (ABMIL).

An aggregator is a Keras layer from a bag of features `[N, n, d]` to logits `[N, classes]`. Two methods explain its
result: `attention(bag)` returns the weight of each instance, `[N, n]`, which sums to 1 over a bag, and `scores(bag)`
returns the logits of each instance, `[N, n, classes]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from inspect import signature
from typing import Any, TypeAlias

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from keras import layers, ops

PACKAGE = "tfbig.models"
Array: TypeAlias = tf.Tensor | npt.NDArray[np.floating]
"""Features of a caller; what Keras passes to `call` is always a tensor."""
Shape: TypeAlias = tuple[int | None, ...]
"""Shape of a tensor; None for a size that is known only at run time."""
NEVER = -1e30
"""Logit whose softmax weight is exactly 0; finite, so that no gradient is NaN."""


def softmax(x: tf.Tensor, axis: int = -1) -> tf.Tensor:
    """The softmax along an axis; `keras.ops.softmax` would warn about an axis of length 1.

    Args:
        x: Logits.
        axis: The axis.
    """
    return ops.exp(x - ops.logsumexp(x, axis=axis, keepdims=True))


def largest(values: tf.Tensor, most: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Find the indices of the largest values along the last axis.

    Args:
        values: Values `[N, k, n]`; those of `NEVER` do not exist.
        most: Number of indices.

    Returns:
        Indices and a mask of those that exist, both `[N, k, most]`.
    """
    padded = ops.pad(values, [[0, 0], [0, 0], [0, most]], constant_values=NEVER)
    top, indices = ops.top_k(padded, most)
    return ops.minimum(indices, ops.shape(values)[2] - 1), top > NEVER


def at_least_float32(x: tf.Tensor) -> tf.Tensor:
    """Return logits in float32, or in float64 if they are."""
    return ops.cast(x, keras.backend.result_type(x.dtype, "float32"))


class BagLayer(layers.Layer):
    """Base class of layers over bags. The config has the arguments of the constructors that are attributes."""

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the layer."""
        config: dict[str, Any] = super().get_config()
        constructors = [
            vars(each)["__init__"]
            for each in type(self).__mro__
            if issubclass(each, BagLayer) and "__init__" in vars(each)
        ]
        names = [name for each in constructors for name in signature(each).parameters]
        own = {name: getattr(self, name) for name in names if hasattr(self, name)}
        return own | config


class Aggregator(BagLayer):
    """Classifier of the attention-weighted mean of a bag of features.

    `logits = head(sum_i a_i h_i)`, where `attention` returns `a`.

    Args:
        classes: Number of classes.
        **options: Options of `keras.layers.Layer`, such as `name` and `dtype`.
    """

    def __init__(self, classes: int, **options: Any) -> None:
        super().__init__(**options)
        self.classes = classes
        self.head = layers.Dense(classes, name="head", dtype=self.dtype_policy)

    def build(self, shape: Sequence[int | None]) -> None:
        """Create the weights for features `[N, n, d]`."""
        self.head.build((None, shape[-1]))
        super().build(shape)

    def attention(self, bag: Array) -> tf.Tensor:
        """The weight of each instance; the weights of a bag sum to 1.

        Args:
            bag: Features `[N, n, d]`.

        Returns:
            Weights `[N, n]`.
        """
        raise NotImplementedError

    def call(self, bag: tf.Tensor) -> tf.Tensor:
        """Compute the logits `[N, classes]` of bags `[N, n, d]`."""
        weights = ops.expand_dims(ops.cast(self.attention(bag), bag.dtype), 1)
        # A matrix product: bag * weights would be a second tensor as large as the bag.
        return self.head(ops.matmul(weights, bag)[:, 0])

    def scores(self, bag: Array) -> tf.Tensor:
        """Compute the logits of each instance, classified as if it were the whole bag.

        Args:
            bag: Features `[N, n, d]`.

        Returns:
            Logits `[N, n, classes]`.
        """
        return self.head(bag)

    def compute_output_shape(self, shape: Shape) -> Shape:
        """The shape `[N, classes]` of the logits of features `[N, n, d]`."""
        return (shape[0], self.classes)


@keras.saving.register_keras_serializable(PACKAGE)
class MeanPooling(Aggregator):
    """Mean of the features of a bag, followed by a linear classifier.

    `logits = head(sum_i h_i / n)`: every instance has attention 1 / n. This is the mean pooling that Ilse et al. (ICML
    2018) compare attention with.

    Args:
        classes: Number of classes.
        **options: Options of `keras.layers.Layer`, such as `name` and `dtype`.

    Returns:
        Logits `[N, classes]` of bags of features `[N, n, d]`.

    Raises:
        ValueError: The number of features d differs from the one that the layer was built for.

    Example:
        >>> bag = np.array([[[1.0, 0.0], [3.0, 2.0]]], "float32")  # one bag, two instances, two features
        >>> pool = tfbig.mil.MeanPooling(classes=3)
        >>> pool(bag).shape
        TensorShape([1, 3])
        >>> pool.attention(bag).numpy()
        array([[0.5, 0.5]], dtype=float32)
    """

    def attention(self, bag: Array) -> tf.Tensor:
        """Give each instance 1 / n, `[N, n]`."""
        ones = ops.ones_like(bag[..., 0])
        return ones / ops.sum(ones, axis=1, keepdims=True)


@keras.saving.register_keras_serializable(PACKAGE)
class MaxPooling(Aggregator):
    """Maximum of each feature over a bag, followed by a linear classifier.

    `logits = head(max_i h_i)`, the maximum taken feature by feature. The attention of an instance is the share of the
    features whose maximum it holds; instances with equal maxima divide a feature equally. This is the max pooling that
    Ilse et al. (ICML 2018) compare attention with.

    Args:
        classes: Number of classes.
        **options: Options of `keras.layers.Layer`, such as `name` and `dtype`.

    Returns:
        Logits `[N, classes]` of bags of features `[N, n, d]`.

    Raises:
        ValueError: The number of features d differs from the one that the layer was built for.

    Example:
        >>> bag = np.array([[[9.0, 7.0, 5.0, 0.0], [1.0, 2.0, 3.0, 4.0]]], "float32")  # two instances
        >>> pool = tfbig.mil.MaxPooling(classes=3)
        >>> pool(bag).shape
        TensorShape([1, 3])
        >>> pool.attention(bag).numpy()  # the first instance holds three of four maxima
        array([[0.75, 0.25]], dtype=float32)
    """

    def call(self, bag: tf.Tensor) -> tf.Tensor:
        """Compute the logits `[N, classes]` of bags `[N, n, d]`."""
        return self.head(ops.max(bag, axis=1))

    def attention(self, bag: Array) -> tf.Tensor:
        """The share of the features whose maximum each instance holds, `[N, n]`."""
        largest = ops.cast(ops.equal(bag, ops.max(bag, axis=1, keepdims=True)), bag.dtype)
        return ops.mean(largest / ops.sum(largest, axis=1, keepdims=True), axis=-1)


@keras.saving.register_keras_serializable(PACKAGE)
class ABMIL(Aggregator):
    """Attention-based pooling of a bag, followed by a linear classifier.

        a = softmax_i(w tanh(V h_i))                        over the instances of a bag
        a = softmax_i(w (tanh(V h_i) * sigmoid(U h_i)))     gated
        logits = head(sum_i a_i h_i)

    Ilse, Tomczak, Welling: "Attention-based deep multiple instance learning" (ICML 2018), equations 7 to 9. The code of
    Big-Layers has other activations, and may reduce the features first, `h = gelu(W2 gelu(W1 x))`.

    Args:
        classes: Number of classes; 1 for a binary label with a sigmoid.
        hidden: Number of rows of V and U.
        gated: Whether to multiply by the gate `sigmoid(U h)`.
        activation: Activation in the place of tanh: "tanh", "relu" or "gelu".
        widths: Units of Dense layers with GELU that reduce the features of an instance first; none by default.
        **options: Options of `keras.layers.Layer`, such as `name` and `dtype`.

    Returns:
        Logits `[N, classes]` of bags of features `[N, n, d]`.

    Raises:
        ValueError: The number of features d differs from the one that the layer was built for.

    Example:
        >>> bag = np.random.default_rng(0).normal(size=(1, 5, 16)).astype("float32")  # five instances
        >>> pool = tfbig.mil.ABMIL(classes=2, hidden=8, gated=True)
        >>> pool(bag).shape
        TensorShape([1, 2])
        >>> weights = pool.attention(bag)
        >>> weights.shape, round(float(tf.reduce_sum(weights)), 4)
        (TensorShape([1, 5]), 1.0)
        >>> pool.scores(bag).shape  # logits of each instance
        TensorShape([1, 5, 2])
    """

    def __init__(
        self,
        classes: int,
        hidden: int = 128,
        gated: bool = False,
        activation: str = "tanh",
        widths: Sequence[int] = (),
        **options: Any,
    ) -> None:
        super().__init__(classes, **options)
        self.hidden = hidden
        self.gated = gated
        self.activation = activation
        self.widths = tuple(widths)
        policy = {"dtype": self.dtype_policy}
        self.reduce = [
            layers.Dense(width, "gelu", name=f"reduce{i}", **policy)
            for i, width in enumerate(self.widths)
        ]
        self.gate = Gate(hidden, gated, activation, name="gate", **policy)

    def build(self, shape: Sequence[int | None]) -> None:
        """Create the weights for features `[N, n, d]`."""
        reduced = (*shape[:-1], *self.widths[-1:]) if self.widths else shape
        for layer, inputs in zip(self.reduce, (shape[-1], *self.widths), strict=False):
            layer.build((*shape[:-1], inputs))
        self.gate.build(reduced)
        super().build(reduced)

    def call(self, bag: tf.Tensor) -> tf.Tensor:
        """Compute the logits `[N, classes]` of bags `[N, n, d]`."""
        reduced = self._reduced(bag)
        weights = ops.expand_dims(ops.cast(self._softmax(reduced), reduced.dtype), 1)
        return self.head(ops.matmul(weights, reduced)[:, 0])

    def attention(self, bag: Array) -> tf.Tensor:
        """The softmax of the gate over the instances of each bag, `[N, n]`."""
        return self._softmax(self._reduced(bag))

    def scores(self, bag: Array) -> tf.Tensor:
        """Compute the logits of each instance, classified as if it were the whole bag.

        Args:
            bag: Features `[N, n, d]`.

        Returns:
            Logits `[N, n, classes]`.
        """
        return self.head(self._reduced(bag))

    def _reduced(self, bag: Array) -> Array:
        """The features `[N, n, widths[-1]]` that are pooled, or the bag itself without `widths`."""
        for layer in self.reduce:
            bag = layer(bag)
        return bag

    def _softmax(self, reduced: Array) -> tf.Tensor:
        """The attention `[N, n]` of reduced features."""
        return softmax(self.gate(reduced), axis=1)


@keras.saving.register_keras_serializable(PACKAGE, name="AttentionGate")
class Gate(BagLayer):
    """Attention logits of instances, before the softmax: `[N, n, d]` to `[N, n]`, in float32 or float64.

    `w tanh(V h)`, or gated `w (tanh(V h) * sigmoid(U h))`.

    Args:
        hidden: Number of rows of V and U.
        gated: Whether to multiply by the gate `sigmoid(U h)`.
        activation: Activation in the place of tanh: "tanh", "relu" or "gelu".
        **options: Options of `keras.layers.Layer`.
    """

    def __init__(
        self, hidden: int = 128, gated: bool = True, activation: str = "tanh", **options: Any
    ) -> None:
        super().__init__(**options)
        self.hidden = hidden
        self.gated = gated
        self.activation = activation
        self.v = layers.Dense(hidden, activation, name="v", dtype=self.dtype_policy)
        self.u = layers.Dense(hidden, "sigmoid", name="u", dtype=self.dtype_policy)
        self.w = layers.Dense(1, name="w", dtype=self.dtype_policy)

    def build(self, shape: Sequence[int | None]) -> None:
        """Create the weights for features `[N, n, d]`."""
        self.v.build(shape)
        if self.gated:
            self.u.build(shape)
        self.w.build((*shape[:-1], self.hidden))
        super().build(shape)

    def call(self, bag: tf.Tensor) -> tf.Tensor:
        """Compute the attention logits `[N, n]` of the instances of bags `[N, n, d]`."""
        inner = self.v(bag) * self.u(bag) if self.gated else self.v(bag)
        return at_least_float32(self.w(inner)[..., 0])

    def compute_output_shape(self, shape: Shape) -> Shape:
        """The shape `[N, n]` of the logits of features `[N, n, d]`."""
        return shape[:-1]
