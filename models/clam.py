"""CLAM: gated attention over a bag, and classifiers of its most and least attended instances.

Lu et al., "Data-efficient and weakly supervised computational pathology on whole-slide images" (Nature Biomedical
Engineering 2021).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import layers, ops

from tfbig.choices import INSTANCE_LOSSES
from tfbig.models.pooling import (
    NEVER,
    PACKAGE,
    Array,
    BagLayer,
    Shape,
    at_least_float32,
    largest,
    softmax,
)


@keras.saving.register_keras_serializable(PACKAGE)
class CLAM(BagLayer):
    """Attention pooling with clustering of instances: CLAM-SB, or CLAM-MB with an attention branch for each class.

        h = relu(R bag)
        a = softmax(W (tanh(V h) * sigmoid(U h)))          one branch, or one of each class
        bag_c = head_c(sum_i a_i h_i)                      with the branch of class c
        instances_c = classifier_c(h_j)                    j: the k largest a, then the k smallest

    `InstanceLoss` trains the classifiers of instances. A bag of less than k instances gives all of them at each end;
    the logits of those it lacks are -1e30, and the loss leaves them out. For d = 1024 and two classes CLAM-SB has
    790,791 parameters, CLAM-MB 791,048.

    Lu et al., "Data-efficient and weakly supervised computational pathology on whole-slide images" (Nature Biomedical
    Engineering 2021).

    Args:
        classes: Number of classes.
        width: Width of the reduced features.
        hidden: Number of rows of V and U.
        per_class: Whether each class has its own branch of attention (CLAM-MB).
        samples: Number of instances at each end, k.
        gated: Whether to multiply by the gate `sigmoid(U h)`.
        rate: Dropout rate of the reduced features and of both factors of the attention.
        **options: Options of `keras.layers.Layer`, such as `name` and `dtype`.

    Returns:
        A dict of logits: `bag` `[N, classes]` and `instances` `[N, classes, 2 samples, 2]`, of bags of features
        `[N, n, d]`.

    Raises:
        ValueError: `samples` is below 1.

    Example:
        >>> bag = np.random.default_rng(0).normal(size=(1, 5, 6)).astype("float32")  # five instances
        >>> pool = tfbig.mil.CLAM(classes=2, width=8, hidden=4, samples=2)
        >>> logits = pool(bag)
        >>> logits["bag"].shape, logits["instances"].shape
        (TensorShape([1, 2]), TensorShape([1, 2, 4, 2]))
        >>> pool.attention(bag).shape
        TensorShape([1, 5])
    """

    def __init__(
        self,
        classes: int,
        width: int = 512,
        hidden: int = 256,
        per_class: bool = False,
        samples: int = 8,
        gated: bool = True,
        rate: float = 0.25,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if samples < 1:
            raise ValueError(f"samples={samples}; expected at least 1 instance at each end.")
        self.classes, self.width, self.hidden = classes, width, hidden
        self.per_class, self.samples, self.gated, self.rate = per_class, samples, gated, rate
        self.branches = classes if per_class else 1
        self._create_layers()

    def _create_layers(self) -> None:
        policy = {"dtype": self.dtype_policy}
        self.reduce = layers.Dense(self.width, "relu", name="reduce", **policy)
        self.v = layers.Dense(self.hidden, "tanh", name="v", **policy)
        self.u = layers.Dense(self.hidden, "sigmoid", name="u", **policy)
        self.w = layers.Dense(self.branches, name="w", **policy)
        self.drops = [layers.Dropout(self.rate, name=f"drop{i}", **policy) for i in range(3)]
        self.head = layers.Dense(self.classes, name="head", **policy)
        self.instances = layers.Dense(2 * self.classes, name="instances", **policy)

    def build(self, shape: Sequence[int | None]) -> None:
        """Create the weights for features `[N, n, d]`."""
        features = (shape[0], None, self.width)
        self.reduce.build(shape)
        self.v.build(features)
        if self.gated:
            self.u.build(features)
        self.w.build((shape[0], None, self.hidden))
        self.head.build(features)
        self.instances.build(features)
        super().build(shape)

    def call(self, bag: tf.Tensor, training: bool | None = None) -> dict[str, tf.Tensor]:
        """Compute the logits of bags and of their most and least attended instances.

        Args:
            bag: Features `[N, n, d]`.
            training: Whether dropout is on.

        Returns:
            `bag`, `[N, classes]`, and `instances`, `[N, classes, 2 samples, 2]`.
        """
        h = self.drops[0](self.reduce(bag), training=training)
        a = self._logits(h, training)
        return {"bag": self._classify(h, a), "instances": self._ends(h, a)}

    def attention(self, bag: Array) -> tf.Tensor:
        """The attention of each instance, `[N, n]`: with `per_class`, that of the predicted class.

        Args:
            bag: Features `[N, n, d]`.

        Returns:
            Weights `[N, n]`.
        """
        h = self.reduce(bag)
        a = self._logits(h)
        if not self.per_class:
            return softmax(a)[:, 0]
        predicted = ops.argmax(self._classify(h, a), axis=-1)
        return ops.take_along_axis(softmax(a), predicted[:, None, None], axis=1)[:, 0]

    def scores(self, bag: Array) -> tf.Tensor:
        """Compute the logits of each instance, classified as if it were the whole bag.

        Args:
            bag: Features `[N, n, d]`.

        Returns:
            Logits `[N, n, classes]`.
        """
        return self.head(self.reduce(bag))

    def _logits(self, h: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """The attention `[N, branches, n]` of features `[N, n, width]` before the softmax."""
        inner = self.drops[1](self.v(h), training=training)
        if self.gated:
            inner = inner * self.drops[2](self.u(h), training=training)
        a = ops.transpose(self.w(inner), (0, 2, 1))
        return at_least_float32(a)

    def _classify(self, h: tf.Tensor, a: tf.Tensor) -> tf.Tensor:
        """The logits `[N, classes]` of features pooled by the softmax of `a`, `[N, branches, n]`."""
        pooled = ops.matmul(ops.cast(softmax(a), h.dtype), h)
        if not self.per_class:
            return self.head(pooled[:, 0])
        # Class c classifies what branch c has pooled.
        return _diagonal(self.head(pooled), 2)

    def _ends(self, h: tf.Tensor, a: tf.Tensor) -> tf.Tensor:
        """The logits of the instances with the largest and the smallest attention.

        Args:
            h: Features of the instances, `[N, n, width]`.
            a: Attention before the softmax, `[N, branches, n]`.

        Returns:
            Logits `[N, classes, 2 samples, 2]`; -1e30 for instances that the bag lacks.
        """
        a = ops.stop_gradient(a)
        ends = [largest(end, self.samples) for end in (a, -a)]
        indices, exists = (ops.concatenate(parts, axis=-1) for parts in zip(*ends, strict=True))
        shape = (ops.shape(h)[0], self.branches, 2 * self.samples, self.classes, 2)
        flat = ops.reshape(indices, (shape[0], -1))
        items = ops.take_along_axis(h, flat[..., None], axis=1)
        logits = at_least_float32(ops.reshape(self.instances(items), shape))
        logits = ops.where(exists[..., None, None], logits, NEVER)
        logits = ops.transpose(logits, (0, 1, 3, 2, 4))  # [N, branches, classes, 2 samples, 2]
        return _diagonal(logits, 2) if self.per_class else logits[:, 0]

    def compute_output_shape(self, shape: Shape) -> dict[str, Shape]:
        """The shapes of the logits of features `[N, n, d]`: of `bag` and of `instances`."""
        return {
            "bag": (shape[0], self.classes),
            "instances": (shape[0], self.classes, 2 * self.samples, 2),
        }


def _diagonal(x: tf.Tensor, axis: int) -> tf.Tensor:
    """The entries of `x` that have the same index on axis 1 and on `axis`, which is left out."""
    count = x.shape[1]
    return ops.stack([ops.take(x[:, i], i, axis=axis - 1) for i in range(count)], axis=1)


@keras.saving.register_keras_serializable(PACKAGE)
class InstanceLoss(keras.losses.Loss):
    """Loss of the classifiers of instances of `CLAM`, with the label of the bag, `[N]` or `[N, 1]`.

    The classifier of the bag's class should call the most attended instances 1 and the least attended ones 0. With
    `subtyping`, where a bag has only one of the classes, the classifiers of the other classes should call their most
    attended instances 0; the sum over the classes is then divided by their number. Each term is the mean over its
    instances of

        softplus(x[other] - x[target])          cross-entropy
        softplus(x[other] - x[target] + 1)      smooth support vector machine, with temperature and margin 1

    `compile(loss={"bag": SparseCategoricalCrossentropy(from_logits=True), "instances": InstanceLoss()},
    loss_weights={"bag": 0.7, "instances": 0.3})` is the loss of CLAM. The support vector machine is that of Berrada,
    Zisserman, Kumar, "Smooth loss functions for deep top-k classification" (ICLR 2018), for the top 1 of two classes;
    their code changes to a hinge where logits differ by more than 6.9, by less than 3e-3.

    Args:
        kind: "cross_entropy" or "svm".
        subtyping: Whether the classes exclude each other, so that those of other classes are trained too.
        name: Name of the loss.
        **options: Options of `keras.losses.Loss`.

    Raises:
        ValueError: `kind` is neither, or the labels are not one per bag.

    Example:
        >>> sure = np.array([[0.0, 9.0], [9.0, 0.0]])  # logits of the most and of the least attended instance
        >>> loss = tfbig.mil.InstanceLoss()
        >>> logits = np.stack([sure, -sure])[None].astype("float32")  # one bag, two classes
        >>> [round(float(loss(np.array([label]), logits)), 2) for label in (0, 1)]
        [0.0, 9.0]
    """

    def __init__(
        self,
        kind: str = "cross_entropy",
        subtyping: bool = False,
        name: str = "instance_loss",
        **options: Any,
    ) -> None:
        super().__init__(name=name, **options)
        if kind not in INSTANCE_LOSSES:
            raise ValueError(f"kind={kind!r}; expected 'cross_entropy' or 'svm'.")
        self.kind = kind
        self.subtyping = subtyping

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        """Compute the loss of each bag.

        Args:
            y_true: Labels of the bags, `[N]` or `[N, 1]`.
            y_pred: Logits of instances, `[N, classes, 2 k, 2]`: k of the largest attention, then k of the smallest.

        Returns:
            Losses `[N]`.
        """
        if len(y_true.shape) != 1 and tuple(y_true.shape[1:]) != (1,):
            raise ValueError(f"labels of shape {tuple(y_true.shape)}; expected [N] or [N, 1].")
        exists = ops.stop_gradient(y_pred[..., 0]) > NEVER / 2
        margin = ops.where(exists, y_pred[..., 0] - y_pred[..., 1], 0)  # margin of target 1
        exists = ops.cast(exists, margin.dtype)
        half = y_pred.shape[2] // 2
        signs = ops.cast(ops.concatenate([ops.ones(half), -ops.ones(half)]), margin.dtype)
        extra = float(self.kind == "svm")

        losses = ops.softplus(signs * margin + extra) * exists
        inside = ops.sum(losses, axis=-1) / ops.sum(exists, axis=-1)
        classes = y_pred.shape[1]
        labels = ops.one_hot(ops.reshape(ops.cast(y_true, "int32"), (-1,)), classes)
        labels = ops.cast(labels, margin.dtype)
        if not self.subtyping:
            return ops.sum(labels * inside, axis=1)
        losses = ops.softplus(extra - margin[..., :half]) * exists[..., :half]
        outside = ops.sum(losses, axis=-1) / ops.sum(exists[..., :half], axis=-1)
        return ops.sum(labels * inside + (1 - labels) * outside, axis=1) / classes

    def get_config(self) -> dict[str, Any]:
        """The arguments of the loss."""
        config: dict[str, Any] = super().get_config()
        return config | {"kind": self.kind, "subtyping": self.subtyping}
