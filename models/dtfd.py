"""DTFD-MIL: a bag is split into pseudo-bags, and what is distilled from each of them is a bag of its own.

Zhang et al., "DTFD-MIL: Double-tier feature distillation multiple instance learning for histopathology whole slide
image classification" (CVPR 2022).
"""

import keras
import tensorflow as tf
from keras import layers, ops

from tfbig.models.pooling import PACKAGE, Gate

DISTILLATIONS = ("AFS", "MaxS", "MaxMinS", "MAS")
NEVER = -1e30
"""Before a softmax: a weight of exactly 0. Finite, so that no gradient is NaN."""
LARGEST = 60.0
"""Difference of two activations that counts; `expm1` of it is far from -NEVER."""
ARGUMENTS = (
    *("classes", "width", "hidden", "groups", "distillation", "blocks", "instances"),
    *("joint", "shuffle", "seed"),
)


@keras.saving.register_keras_serializable(PACKAGE)
class DTFDMIL(layers.Layer):
    """A bag of features `[N, n, d]` to logits of the bag and of its pseudo-bags; 789,254 parameters for d = 1024 and
    two classes.

        h = relu(R bag)                               and `blocks` times h = h + relu(S relu(T h))
        a = softmax(gate1(h))                         within each pseudo-bag
        pseudo = tier1(sum(a h))                      of each pseudo-bag
        items                                         distilled from each pseudo-bag
        bag = tier2(sum(softmax(gate2(items)) items))

    Distilled are, of each pseudo-bag: `AFS` the aggregated feature `sum(a h)`, `MaxS` the m instances whose activation
    `softmax(W a h)` of the last class is the largest, W the kernel of tier 1, `MaxMinS` those and the m where it is the
    smallest, `MAS` the instance of the largest a. m is `instances // groups`, at least 1; a pseudo-bag of fewer gives
    all it has.

    In training the pseudo-bags are random, others in each step and in each bag of a batch. In inference instance i is
    in pseudo-bag `i % groups`: each then is a sample of the whole slide, as in training, where consecutive tiles would
    be a region of it. Sizes differ by at most 1.

    Args:
        classes: Logits.
        width: Of the reduced features.
        hidden: Rows of the gated attentions.
        groups: Pseudo-bags.
        distillation: One of "AFS", "MaxS", "MaxMinS", "MAS".
        blocks: Residual blocks behind the reduction.
        instances: Instances that "MaxS" takes of a bag, and "MaxMinS" on each end.
        joint: Whether the gradient of the bag's logits reaches tier 1 and what is before it, as in Big-Layers; the
            original trains each tier with its own loss.
        shuffle: Whether the pseudo-bags are random in training.
        seed: Of the random pseudo-bags.

    Raises:
        ValueError: An argument is none of those, or a bag has fewer instances than there are pseudo-bags.
        tf.errors.InvalidArgumentError: The same, where the size of a bag is known only when it runs.
    """

    def __init__(
        self,
        classes,
        width=512,
        hidden=128,
        groups=4,
        distillation="AFS",
        blocks=0,
        instances=4,
        joint=True,
        shuffle=True,
        seed=None,
        **options,
    ):
        super().__init__(**options)
        _check(classes, groups, distillation)
        self.classes, self.width, self.hidden, self.groups = classes, width, hidden, groups
        self.distillation, self.blocks, self.instances = distillation, blocks, instances
        self.joint, self.shuffle, self.seed = joint, shuffle, seed
        self.generator = keras.random.SeedGenerator(seed)
        own = {"dtype": self.dtype_policy}
        plain = {"activation": "relu", "use_bias": False} | own
        self.reduce = layers.Dense(width, name="reduce", **plain)
        self.residual = [layers.Dense(width, name=f"block{i}", **plain) for i in range(2 * blocks)]
        self.gate1 = Gate(hidden, name="gate1", **own)
        self.tier1 = layers.Dense(classes, name="tier1", **own)
        self.gate2 = Gate(hidden, name="gate2", **own)
        self.tier2 = layers.Dense(classes, name="tier2", **own)

    def build(self, shape):
        self.reduce.build(shape)
        features = (shape[0], None, self.width)
        for layer in (*self.residual, self.gate1, self.tier1, self.gate2, self.tier2):
            layer.build(features)
        super().build(shape)

    def call(self, bag, training=None):
        h = self._features(bag)
        members = self._members(h, training)
        a = self._weights(h, members)
        pseudo = _weigh(a, h)
        items, b = self._items(h, a, members, pseudo)
        return {"bag": self.tier2(_weigh(b[:, None], items)[:, 0]), "pseudo": self.tier1(pseudo)}

    def attention(self, bag):
        """How much each instance counts in its pseudo-bag, times how much that counts in the bag, `[N, n]`.

        A pseudo-bag of which several instances are distilled counts as much as they do together.
        """
        h = self._features(bag)
        members = self._members(h, False)
        a = self._weights(h, members)
        _, b = self._items(h, a, members, _weigh(a, h))
        b = ops.sum(ops.reshape(b, (ops.shape(b)[0], self.groups, -1)), axis=2)
        return ops.sum(a * b[..., None], axis=1)

    def scores(self, bag):
        """Logits that tier 1 gives every instance as if it were a pseudo-bag, `[N, n, classes]`."""
        return self.tier1(self._features(bag))

    def _features(self, bag):
        x = self.reduce(bag)
        for first, second in zip(self.residual[::2], self.residual[1::2], strict=True):
            x = x + second(first(x))
        return x

    def _members(self, h, training):
        """Which instances are in which pseudo-bag, `[N, groups, n]`."""
        batch, count = ops.shape(h)[0], ops.shape(h)[1]
        _check_size(count, self.groups)
        if training and self.shuffle:
            places = ops.argsort(keras.random.uniform((batch, count), seed=self.generator))
        else:
            places = ops.broadcast_to(ops.arange(count, dtype="int32"), (batch, count))
        groups = ops.arange(self.groups, dtype="int32")[:, None]
        return ops.equal(places[:, None] % self.groups, groups)

    def _weights(self, h, members):
        """Attention in each pseudo-bag, `[N, groups, n]`: exactly 0 for the instances of the others."""
        return _softmax(ops.where(members, self.gate1(h)[:, None], NEVER))

    def _items(self, h, a, members, pseudo):
        """What is distilled, `[N, groups * items, width]`, and the attention of tier 2, `[N, groups * items]`."""
        there, items = True, pseudo
        if self.distillation != "AFS":
            chosen, there = self._chosen(h, a, members)
            items = ops.take_along_axis(h, chosen[..., None], axis=1)
        items = items if self.joint else ops.stop_gradient(items)
        return items, _softmax(ops.where(there, self.gate2(items), NEVER))

    def _chosen(self, h, a, members):
        """Places of the distilled instances, `[N, groups * items]`, and whether a pseudo-bag has that many."""
        a = ops.sum(a, axis=1)  # [N, n]
        if self.distillation == "MAS":
            found = [_highest(a, members, 1)]
        else:
            rank, most = self._rank(h, a), max(self.instances // self.groups, 1)
            ends = (rank, -rank) if self.distillation == "MaxMinS" else (rank,)
            found = [_highest(end, members, most) for end in ends]
        shape = (ops.shape(h)[0], -1)
        return [
            ops.reshape(ops.concatenate(parts, axis=-1), shape)
            for parts in zip(*found, strict=True)
        ]

    def _rank(self, h, a):
        """In the order of the activation of the last class, `[N, n]`.

        `softmax(c)[-1] = 1 / (classes + sum(expm1(c - c[-1])))`; that sum tells instances apart that all weigh 1e-5,
        for which the softmax is rounded to `1 / classes`.
        """
        c = ops.matmul(h, ops.cast(self.tier1.kernel, h.dtype))
        c = ops.cast(c, a.dtype) * a[..., None]
        return -ops.sum(ops.expm1(ops.minimum(c - c[..., -1:], LARGEST)), axis=-1)

    def compute_output_shape(self, shape):
        return {
            "bag": (shape[0], self.classes),
            "pseudo": (shape[0], self.groups, self.classes),
        }

    def get_config(self):
        return super().get_config() | {name: getattr(self, name) for name in ARGUMENTS}


def _softmax(x):
    """Along the last axis, where ops.softmax warns of one instance."""
    return ops.exp(x - ops.logsumexp(x, axis=-1, keepdims=True))


def _weigh(weights, x):
    """`[N, k, n]` of `[N, n, d]`: `[N, k, d]`."""
    return ops.matmul(ops.cast(weights, x.dtype), x)


def _highest(values, members, most):
    """Places of the highest of `[N, n]` in each pseudo-bag, `[N, groups, most]`, and whether there are so many."""
    values = ops.where(members, values[:, None], NEVER)
    values = ops.pad(values, [[0, 0], [0, 0], [0, most]], constant_values=NEVER)
    found, places = ops.top_k(values, most)
    return ops.minimum(places, ops.shape(members)[2] - 1), found > NEVER


def _check(classes, groups, distillation):
    if distillation not in DISTILLATIONS:
        raise ValueError(
            f"distillation={distillation!r}; expected one of {', '.join(DISTILLATIONS)}."
        )
    if groups < 1:
        raise ValueError(f"groups={groups}; expected at least 1 pseudo-bag.")
    if distillation.startswith("Max") and classes < 2:
        raise ValueError(
            f"classes={classes}; expected at least 2, of which distillation={distillation!r} ranks instances by the "
            "last."
        )


def _check_size(count, groups):
    text = "cannot be split into {} pseudo-bags: lower `groups`, or leave the bag out."
    if isinstance(count, int):
        if count < groups:
            raise ValueError(f"a bag of {count} instances {text.format(groups)}")
    else:
        tf.debugging.assert_greater_equal(
            count, groups, f"a bag of as many instances as x says {text.format(groups)}"
        )


@keras.saving.register_keras_serializable(PACKAGE)
class PseudoBagLoss(keras.losses.Loss):
    """Cross-entropy of the logits of pseudo-bags `[N, groups, classes]`, each labelled like its bag, `[N]` or `[N, 1]`.

    `compile(loss={"bag": SparseCategoricalCrossentropy(from_logits=True), "pseudo": PseudoBagLoss()})` is the loss of
    Big-Layers, which adds the pseudo-bags up; the original trains tier 1 with their mean.

    Args:
        reduce: "sum" or "mean" over the pseudo-bags of a bag.

    Raises:
        ValueError: `reduce` is neither, or there is not one label a bag.
    """

    def __init__(self, reduce="sum", name="pseudo_bag_loss", **options):
        super().__init__(name=name, **options)
        if reduce not in ("sum", "mean"):
            raise ValueError(f"reduce={reduce!r}; expected 'sum' or 'mean'.")
        self.reduce = reduce

    def call(self, y_true, y_pred):
        if len(y_true.shape) != 1 and tuple(y_true.shape[1:]) != (1,):
            raise ValueError(f"labels of shape {tuple(y_true.shape)}; expected [N] or [N, 1].")
        shape = ops.shape(y_pred)[:2]
        labels = ops.broadcast_to(ops.reshape(ops.cast(y_true, "int32"), (-1, 1)), shape)
        losses = keras.losses.sparse_categorical_crossentropy(labels, y_pred, from_logits=True)
        return ops.sum(losses, axis=1) if self.reduce == "sum" else ops.mean(losses, axis=1)

    def get_config(self):
        return super().get_config() | {"reduce": self.reduce}
