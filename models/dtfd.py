"""DTFD-MIL: a bag is split into pseudo-bags, and features distilled from each pseudo-bag form a second bag.

Zhang et al., "DTFD-MIL: Double-tier feature distillation multiple instance learning for histopathology whole slide
image classification" (CVPR 2022).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import layers, ops

from tfbig.choices import DISTILLATIONS
from tfbig.models.pooling import NEVER, PACKAGE, Array, BagLayer, Gate, Shape, largest, softmax

LARGEST = 60.0
"""Largest difference of two activations that is distinguished; its `expm1` is far below -NEVER."""


@keras.saving.register_keras_serializable(PACKAGE)
class DTFDMIL(BagLayer):
    """Double-tier aggregator: pools pseudo-bags, then what is distilled from them.

        h = relu(R bag)                               and `blocks` times h = h + relu(S relu(T h))
        a = softmax(gate1(h))                         within each pseudo-bag
        pseudo = tier1(sum(a h))                      of each pseudo-bag
        items                                         distilled from each pseudo-bag
        bag = tier2(sum(softmax(gate2(items)) items))

    Distilled from each pseudo-bag are: with `AFS` the aggregated feature `sum(a h)`; with `MaxS` the m instances with
    the largest activation `softmax(W a h)` of the last class, where W is the kernel of tier 1; with `MaxMinS` those and
    the m instances with the smallest one; with `MAS` the instance with the largest a. m is `instances // groups`, at
    least 1; a smaller pseudo-bag gives all its instances.

    In training the pseudo-bags are random, and new in each step and for each bag of a batch. In inference instance i is
    in pseudo-bag `i % groups`, so that each is a sample of the whole slide, as in training; consecutive tiles would be
    one region of it. Sizes of pseudo-bags differ by at most 1. 789,254 parameters for d = 1024 and two classes.

    Zhang et al., "DTFD-MIL: Double-tier feature distillation multiple instance learning for histopathology whole slide
    image classification" (CVPR 2022).

    Args:
        classes: Number of classes.
        width: Width of the reduced features.
        hidden: Number of rows of the gated attentions.
        groups: Number of pseudo-bags.
        distillation: One of "AFS", "MaxS", "MaxMinS", "MAS".
        blocks: Number of residual blocks after the reduction.
        instances: Instances that "MaxS" takes from a bag, and "MaxMinS" at each end.
        joint: Whether the gradient of the bag's logits reaches tier 1 and the layers before it, as in Big-Layers; the
            original trains each tier with its own loss.
        shuffle: Whether the pseudo-bags are random in training.
        seed: Seed of the random pseudo-bags.
        **options: Options of `keras.layers.Layer`, such as `name` and `dtype`.

    Returns:
        A dict of logits: `bag` `[N, classes]` and `pseudo` `[N, groups, classes]`, of bags of features `[N, n, d]`.

    Raises:
        ValueError: An argument is out of range, or a bag has fewer instances than there are pseudo-bags.
        tf.errors.InvalidArgumentError: A bag whose size is known only at run time has too few instances.

    Example:
        >>> bag = np.random.default_rng(0).normal(size=(1, 5, 6)).astype("float32")  # five instances
        >>> pool = tfbig.mil.DTFDMIL(classes=2, width=8, hidden=4, groups=2)
        >>> logits = pool(bag)
        >>> logits["bag"].shape, logits["pseudo"].shape
        (TensorShape([1, 2]), TensorShape([1, 2, 2]))
        >>> pool.attention(bag).shape
        TensorShape([1, 5])
    """

    def __init__(
        self,
        classes: int,
        width: int = 512,
        hidden: int = 128,
        groups: int = 4,
        distillation: str = "AFS",
        blocks: int = 0,
        instances: int = 4,
        joint: bool = True,
        shuffle: bool = True,
        seed: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        _check(classes, groups, distillation)
        self.classes, self.width, self.hidden, self.groups = classes, width, hidden, groups
        self.distillation, self.blocks, self.instances = distillation, blocks, instances
        self.joint, self.shuffle, self.seed = joint, shuffle, seed
        self.generator = keras.random.SeedGenerator(seed)
        self._create_layers()

    def _create_layers(self) -> None:
        policy = {"dtype": self.dtype_policy}
        dense = {"activation": "relu", "use_bias": False} | policy
        self.reduce = layers.Dense(self.width, name="reduce", **dense)
        self.residual = [
            layers.Dense(self.width, name=f"block{i}", **dense) for i in range(2 * self.blocks)
        ]
        self.gate1 = Gate(self.hidden, name="gate1", **policy)
        self.tier1 = layers.Dense(self.classes, name="tier1", **policy)
        self.gate2 = Gate(self.hidden, name="gate2", **policy)
        self.tier2 = layers.Dense(self.classes, name="tier2", **policy)

    def build(self, shape: Sequence[int | None]) -> None:
        """Create the weights for features `[N, n, d]`."""
        self.reduce.build(shape)
        features = (shape[0], None, self.width)
        for layer in (*self.residual, self.gate1, self.tier1, self.gate2, self.tier2):
            layer.build(features)
        super().build(shape)

    def call(self, bag: tf.Tensor, training: bool | None = None) -> dict[str, tf.Tensor]:
        """Compute the logits of bags and of their pseudo-bags.

        Args:
            bag: Features `[N, n, d]`.
            training: Whether the pseudo-bags are random, unless `shuffle` is False.

        Returns:
            `bag`, `[N, classes]`, and `pseudo`, `[N, groups, classes]`.
        """
        h = self._features(bag)
        members = self._members(h, training)
        a = self._weights(h, members)
        pseudo = _weigh(a, h)
        items, b = self._distil(h, a, members, pseudo)
        return {"bag": self.tier2(_weigh(b[:, None], items)[:, 0]), "pseudo": self.tier1(pseudo)}

    def attention(self, bag: Array) -> tf.Tensor:
        """The weight of each instance in its pseudo-bag times the weight of that in the bag.

        If several instances are distilled from a pseudo-bag, the weight of the pseudo-bag is their sum.

        Args:
            bag: Features `[N, n, d]`.

        Returns:
            Weights `[N, n]`.
        """
        h = self._features(bag)
        members = self._members(h, False)
        a = self._weights(h, members)
        _, b = self._distil(h, a, members, _weigh(a, h))
        b = ops.sum(ops.reshape(b, (ops.shape(b)[0], self.groups, -1)), axis=2)
        return ops.sum(a * b[..., None], axis=1)

    def scores(self, bag: Array) -> tf.Tensor:
        """Compute the logits of each instance, classified by tier 1 as if it were a pseudo-bag.

        Args:
            bag: Features `[N, n, d]`.

        Returns:
            Logits `[N, n, classes]`.
        """
        return self.tier1(self._features(bag))

    def _features(self, bag: Array) -> tf.Tensor:
        """Reduce bags `[N, n, d]` to features `[N, n, width]`."""
        x = self.reduce(bag)
        for first, second in zip(self.residual[::2], self.residual[1::2], strict=True):
            x = x + second(first(x))
        return x

    def _members(self, h: tf.Tensor, training: bool | None) -> tf.Tensor:
        """Divide the instances of features `[N, n, width]` among pseudo-bags: a mask `[N, groups, n]`."""
        batch, count = ops.shape(h)[0], ops.shape(h)[1]
        _check_size(count, self.groups)
        if training and self.shuffle:
            ranks = ops.argsort(keras.random.uniform((batch, count), seed=self.generator))
        else:
            ranks = ops.broadcast_to(ops.arange(count, dtype="int32"), (batch, count))
        groups = ops.arange(self.groups, dtype="int32")[:, None]
        return ops.equal(ranks[:, None] % self.groups, groups)

    def _weights(self, h: tf.Tensor, members: tf.Tensor) -> tf.Tensor:
        """The attention in each pseudo-bag, `[N, groups, n]`: exactly 0 for instances of other pseudo-bags."""
        return softmax(ops.where(members, self.gate1(h)[:, None], NEVER))

    def _distil(
        self, h: tf.Tensor, a: tf.Tensor, members: tf.Tensor, pseudo: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Choose the features that are passed to tier 2, and compute their attention there.

        Args:
            h: Features of the instances, `[N, n, width]`.
            a: Attention of tier 1, `[N, groups, n]`.
            members: Which instances are in which pseudo-bag, `[N, groups, n]`.
            pseudo: Features of the pseudo-bags, `[N, groups, width]`, which AFS passes on.

        Returns:
            Features `[N, groups * items, width]` and attention `[N, groups * items]`.
        """
        exists: bool | tf.Tensor = True
        items = pseudo
        if self.distillation != "AFS":
            chosen, exists = self._choose_instances(h, a, members)
            items = ops.take_along_axis(h, chosen[..., None], axis=1)
        items = items if self.joint else ops.stop_gradient(items)
        return items, softmax(ops.where(exists, self.gate2(items), NEVER))

    def _choose_instances(self, h: tf.Tensor, a: tf.Tensor, members: tf.Tensor) -> list[tf.Tensor]:
        """Choose the instances to distil: their indices, and a mask of those that exist.

        Args:
            h: Features of the instances, `[N, n, width]`.
            a: Attention of tier 1, `[N, groups, n]`.
            members: Which instances are in which pseudo-bag, `[N, groups, n]`.

        Returns:
            Indices and mask, both `[N, groups * items]`.
        """
        a = ops.sum(a, axis=1)  # [N, n]
        if self.distillation == "MAS":
            values, most = [a], 1
        else:
            rank, most = self._rank(h, a), max(self.instances // self.groups, 1)
            values = [rank, -rank] if self.distillation == "MaxMinS" else [rank]
        chosen = [largest(ops.where(members, each[:, None], NEVER), most) for each in values]
        shape = (ops.shape(h)[0], -1)
        return [
            ops.reshape(ops.concatenate(parts, axis=-1), shape)
            for parts in zip(*chosen, strict=True)
        ]

    def _rank(self, h: tf.Tensor, a: tf.Tensor) -> tf.Tensor:
        """Rank instances: values in the order of the activation of the last class.

        `softmax(c)[-1] = 1 / (classes + sum(expm1(c - c[-1])))`. That sum separates instances that all weigh 1e-5, for
        which the softmax itself is rounded to `1 / classes`.

        Args:
            h: Features of the instances, `[N, n, width]`.
            a: Attention of the instances, `[N, n]`.

        Returns:
            Values `[N, n]`.
        """
        c = ops.matmul(h, ops.cast(self.tier1.kernel, h.dtype))
        c = ops.cast(c, a.dtype) * a[..., None]
        return -ops.sum(ops.expm1(ops.minimum(c - c[..., -1:], LARGEST)), axis=-1)

    def compute_output_shape(self, shape: Shape) -> dict[str, Shape]:
        """The shapes of the logits of features `[N, n, d]`: of `bag` and of `pseudo`."""
        return {
            "bag": (shape[0], self.classes),
            "pseudo": (shape[0], self.groups, self.classes),
        }


def _weigh(weights: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Sum `[N, n, d]` with weights `[N, k, n]`, to `[N, k, d]`."""
    return ops.matmul(ops.cast(weights, x.dtype), x)


def _check(classes: int, groups: int, distillation: str) -> None:
    if distillation not in DISTILLATIONS:
        raise ValueError(
            f"distillation={distillation!r}; expected one of {', '.join(DISTILLATIONS)}."
        )
    if groups < 1:
        raise ValueError(f"groups={groups}; expected at least 1 pseudo-bag.")
    if distillation.startswith("Max") and classes < 2:
        raise ValueError(
            f"classes={classes}; expected at least 2, because distillation={distillation!r} ranks instances by the "
            "last class."
        )


def _check_size(count: int | tf.Tensor, groups: int) -> None:
    text = "cannot be split into {} pseudo-bags: lower `groups`, or exclude the bag."
    if isinstance(count, int):
        if count < groups:
            raise ValueError(f"a bag of {count} instances {text.format(groups)}")
    else:
        tf.debugging.assert_greater_equal(
            count, groups, f"a bag of x instances (x below) {text.format(groups)}"
        )


@keras.saving.register_keras_serializable(PACKAGE)
class PseudoBagLoss(keras.losses.Loss):
    """Cross-entropy of the logits of pseudo-bags `[N, groups, classes]`, with the label of the bag, `[N]` or `[N, 1]`.

    `compile(loss={"bag": SparseCategoricalCrossentropy(from_logits=True), "pseudo": PseudoBagLoss()})` is the loss of
    Big-Layers, which sums over the pseudo-bags; the original trains tier 1 with their mean.

    Args:
        reduce: "sum" or "mean" over the pseudo-bags of a bag.
        name: Name of the loss.
        **options: Options of `keras.losses.Loss`.

    Raises:
        ValueError: `reduce` is neither, or the labels are not one per bag.
    """

    def __init__(self, reduce: str = "sum", name: str = "pseudo_bag_loss", **options: Any) -> None:
        super().__init__(name=name, **options)
        if reduce not in ("sum", "mean"):
            raise ValueError(f"reduce={reduce!r}; expected 'sum' or 'mean'.")
        self.reduce = reduce

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        """Compute the loss of each bag.

        Args:
            y_true: Labels of the bags, `[N]` or `[N, 1]`.
            y_pred: Logits of the pseudo-bags, `[N, groups, classes]`.

        Returns:
            Losses `[N]`.
        """
        if len(y_true.shape) != 1 and tuple(y_true.shape[1:]) != (1,):
            raise ValueError(f"labels of shape {tuple(y_true.shape)}; expected [N] or [N, 1].")
        shape = ops.shape(y_pred)[:2]
        labels = ops.broadcast_to(ops.reshape(ops.cast(y_true, "int32"), (-1, 1)), shape)
        losses = keras.losses.sparse_categorical_crossentropy(labels, y_pred, from_logits=True)
        return ops.sum(losses, axis=1) if self.reduce == "sum" else ops.mean(losses, axis=1)

    def get_config(self) -> dict[str, Any]:
        """The arguments of the loss."""
        config: dict[str, Any] = super().get_config()
        return config | {"reduce": self.reduce}
