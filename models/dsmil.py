"""DSMIL: attention by the similarity of each instance to the one with the highest score.

Li, Li, Eliceiri: "Dual-stream multiple instance learning network for whole slide image classification with
self-supervised contrastive learning" (CVPR 2021).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import layers, ops

from tfbig.models.pooling import PACKAGE, Array, BagLayer, Shape, at_least_float32, softmax


@keras.saving.register_keras_serializable(PACKAGE)
class DSMIL(BagLayer):
    """Two streams: the maximum of the scores of instances, and attention to what is similar to that instance.

        c = S bag                                   scores of the instances
        max = c[m]                                  for each class, with m = argmax_i c_i, the critical instance
        q = tanh(W2 relu(W1 bag))
        a = softmax_i(q_i q_m^T / sqrt(hidden))     for each class
        bag = head(concatenate_c(sum_i a_ci v_i))   with v = bag, or relu(P bag)

    Both logits are trained with the label of the bag; the published loss is their mean. Here it is a cross-entropy of
    the classes, where the original has one yes or no for each class. 85,252 parameters for d = 512 and two classes.

    Li, Li, Eliceiri: "Dual-stream multiple instance learning network for whole slide image classification with
    self-supervised contrastive learning" (CVPR 2021).

    Args:
        classes: Number of classes.
        hidden: Width of the queries q.
        values: Whether v is a Dense layer of the features, and not the features.
        **options: Options of `keras.layers.Layer`, such as `name` and `dtype`.

    Returns:
        A dict of logits: `bag` and `max`, both `[N, classes]`, of bags of features `[N, n, d]`.

    Raises:
        ValueError: The number of features d differs from the one that the layer was built for.

    Example:
        >>> bag = np.random.default_rng(0).normal(size=(1, 5, 6)).astype("float32")  # five instances
        >>> pool = tfbig.mil.DSMIL(classes=2, hidden=4)
        >>> logits = pool(bag)
        >>> logits["bag"].shape, logits["max"].shape
        (TensorShape([1, 2]), TensorShape([1, 2]))
        >>> pool.attention(bag).shape
        TensorShape([1, 5])
    """

    def __init__(
        self, classes: int, hidden: int = 128, values: bool = False, **options: Any
    ) -> None:
        super().__init__(**options)
        self.classes, self.hidden, self.values = classes, hidden, values
        policy = {"dtype": self.dtype_policy}
        self.instances = layers.Dense(classes, name="instances", **policy)
        self.q = [
            layers.Dense(hidden, activation, name=f"q{i}", **policy)
            for i, activation in enumerate(("relu", "tanh"))
        ]
        self.head = layers.Dense(classes, name="head", **policy)

    def build(self, shape: Sequence[int | None]) -> None:
        """Create the weights for features `[N, n, d]`."""
        width = shape[-1]
        assert width is not None
        self.instances.build(shape)
        self.q[0].build(shape)
        self.q[1].build((*shape[:-1], self.hidden))
        if self.values:
            self.v = layers.Dense(width, "relu", name="v", dtype=self.dtype_policy)
            self.v.build(shape)
        self.head.build((shape[0], self.classes * width))
        super().build(shape)

    def call(self, bag: tf.Tensor) -> dict[str, tf.Tensor]:
        """Compute the logits of both streams.

        Args:
            bag: Features `[N, n, d]`.

        Returns:
            `bag` and `max`, both `[N, classes]`.
        """
        c = self.instances(bag)
        critical = _critical(c)
        a = self._attention(bag, critical)
        # Not ops.max, which would divide the gradient among equal scores.
        largest = ops.take_along_axis(c, critical[:, None], axis=1)[:, 0]
        return {"bag": self._classify(bag, a), "max": largest}

    def attention(self, bag: Array) -> tf.Tensor:
        """The attention of the class that is predicted for the bag.

        Args:
            bag: Features `[N, n, d]`.

        Returns:
            Weights `[N, n]`.
        """
        a = self._attention(bag, _critical(self.instances(bag)))
        predicted = ops.argmax(self._classify(bag, a), axis=-1)
        return ops.take_along_axis(a, predicted[:, None, None], axis=1)[:, 0]

    def scores(self, bag: Array) -> tf.Tensor:
        """Compute the logits of each instance, of the stream of instances.

        Args:
            bag: Features `[N, n, d]`.

        Returns:
            Logits `[N, n, classes]`.
        """
        return self.instances(bag)

    def _attention(self, bag: Array, critical: tf.Tensor) -> tf.Tensor:
        """The attention `[N, classes, n]` to instances that are similar to the critical ones, `[N, classes]`."""
        q = self.q[1](self.q[0](bag))
        q_m = ops.take_along_axis(q, critical[..., None], axis=1)  # [N, classes, hidden]
        a = ops.matmul(q_m, ops.transpose(q, (0, 2, 1)))
        a = at_least_float32(a) * self.hidden**-0.5
        return softmax(a)

    def _classify(self, bag: Array, a: tf.Tensor) -> tf.Tensor:
        """The logits `[N, classes]` of features pooled with attention `[N, classes, n]`."""
        v = self.v(bag) if self.values else ops.convert_to_tensor(bag, self.compute_dtype)
        pooled = ops.matmul(ops.cast(a, v.dtype), v)
        return self.head(ops.reshape(pooled, (-1, self.classes * v.shape[-1])))

    def compute_output_shape(self, shape: Shape) -> dict[str, Shape]:
        """The shapes of the logits of features `[N, n, d]`: of `bag` and of `max`."""
        return dict.fromkeys(("bag", "max"), (shape[0], self.classes))


def _critical(c: tf.Tensor) -> tf.Tensor:
    """Find the instance with the highest score of each class, `[N, classes]`."""
    return ops.argmax(c, axis=1)
