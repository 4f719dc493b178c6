"""Losses of targets of a bag other than a class: survival, and several labels of which some are unknown.

Labels of survival are integers `[N, 4]`, the columns of `Survival`. Times are given as their rank among the times of
the cohort: losses and concordance depend on their order only, and ranks are exact in float32, which Keras casts labels
to.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import keras
import tensorflow as tf

from tfbig import survival

PACKAGE = "tfbig"


class Survival(IntEnum):
    """Columns of the labels of survival."""

    BIN = 0
    """Bin of the time; 0 for Cox's model."""
    EVENT = 1
    """1 for an event, 0 for censoring."""
    RANK = 2
    """Rank of the time; equal times have one rank."""
    CASE = 3
    """Number of the case."""


@keras.saving.register_keras_serializable(package=PACKAGE)
class DiscreteTimeLoss(keras.losses.Loss):
    """Negative log likelihood of hazards in bins of time, see `tfbig.survival.discrete_time_loss`.

    Args:
        alpha: From 0 to 1: how far censored members count less.
        name: Name of the loss.
        **options: Options of `keras.losses.Loss`.
    """

    def __init__(self, alpha: float = 0.0, name: str = "discrete_time_loss", **options: Any):
        super().__init__(name=name, **options)
        self.alpha = alpha

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        """Return the mean loss of the bags.

        Args:
            y_true: Labels `[N, 4]`, see `Survival`.
            y_pred: Logits of hazards `[N, bins]`.
        """
        bins, events = y_true[:, Survival.BIN], y_true[:, Survival.EVENT]
        return survival.discrete_time_loss(y_pred, bins, events, self.alpha)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the loss."""
        config: dict[str, Any] = super().get_config()
        return config | {"alpha": self.alpha}


@keras.saving.register_keras_serializable(package=PACKAGE)
class CoxLoss(keras.losses.Loss):
    """Loss of Cox's model over the bags of a batch as one risk set, see `tfbig.survival.cox_loss`.

    Args:
        name: Name of the loss.
        **options: Options of `keras.losses.Loss`.
    """

    def __init__(self, name: str = "cox_loss", **options: Any):
        super().__init__(name=name, **options)

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        """Return the loss of the risk set.

        Args:
            y_true: Labels `[N, 4]`, see `Survival`.
            y_pred: Risks `[N, 1]`.
        """
        return survival.cox_loss(y_pred, y_true[:, Survival.RANK], y_true[:, Survival.EVENT])


@keras.saving.register_keras_serializable(package=PACKAGE)
class LabelCrossEntropy(keras.losses.Loss):
    """Binary cross-entropy of several labels, of which some are unknown.

        loss = sum over known labels of -log(probability of the label) / number of labels

    So a known label counts as much in every bag, however many others are known, and the loss of two batches is the
    mean of both.

    Args:
        name: Name of the loss.
        **options: Options of `keras.losses.Loss`.
    """

    def __init__(self, name: str = "label_cross_entropy", **options: Any):
        super().__init__(name=name, **options)

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        """Return the loss of each bag, `[N]`.

        Args:
            y_true: Labels `[N, labels, ...]`: 0, 1, or a negative number if unknown. Later columns are not used.
            y_pred: Logits `[N, labels]`.
        """
        labels = tf.cast(y_true[:, : y_pred.shape[-1]], y_pred.dtype)
        known = tf.cast(labels >= 0, y_pred.dtype)
        losses = tf.nn.sigmoid_cross_entropy_with_logits(known * labels, y_pred)
        return tf.reduce_mean(known * losses, -1)
