"""Dice of several classes, from counts that add up exactly over strips and batches."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from tfbig.metrics.counts import dice_or, num_true, refuse_weights


@keras.saving.register_keras_serializable(package="tfbig")
class ClassDice(keras.metrics.Metric):
    """Mean Dice coefficient of the classes but the background, over all pixels or voxels.

        dice = 2 * |predicted and labelled| / (|predicted| + |labelled|)      for each class but 0

    Classes that are neither predicted nor labelled do not count; if that is so for all, the result is 1. The state is
    three counts of each class, int64, so the result does not depend on how images are cut into strips or batches.

    Args:
        classes: Number of classes, background included.
        name: Name of the metric.
        dtype: Dtype of the result.

    Example:
        >>> metric = tfbig.metrics.ClassDice(3)
        >>> metric.update_state(np.array([[0, 1, 2, 2]]), np.eye(3)[[[0, 1, 2, 1]]])
        >>> round(float(metric.result()), 4)  # 2/3 for each of two classes
        0.6667
    """

    def __init__(self, classes: int, name: str = "dice", dtype: Any = None) -> None:
        super().__init__(name=name, dtype=dtype)
        if classes < 2:
            raise ValueError(f"metric '{name}': classes is {classes}, expected 2 or more.")
        self.classes = classes
        self.counts = self.add_variable(
            shape=(3, classes - 1), initializer="zeros", dtype="int64", name="counts"
        )

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Add the pixels of a batch or strip.

        Args:
            y_true: Class indices `[..., 1]`, or without the last axis.
            y_pred: Logits or probabilities `[..., classes]`, of which the largest is predicted.
            sample_weight: Must be None.

        Raises:
            ValueError: `sample_weight` is not None.
        """
        refuse_weights(self, "pixels", sample_weight)
        predicted = ops.cast(ops.argmax(y_pred, axis=-1), "int32")
        labels = ops.reshape(ops.cast(y_true, "int32"), ops.shape(predicted))
        counts = []
        for label in range(1, self.classes):
            real, found = ops.equal(labels, label), ops.equal(predicted, label)
            both = ops.logical_and(real, found)
            counts.append(ops.stack([num_true(mask, (-1,)) for mask in (both, found, real)]))
        self.counts.assign_add(ops.stack(counts, axis=1))

    def result(self) -> Any:
        """Average Dice over the classes that occur, a scalar."""
        both, predicted, labelled = ops.unstack(ops.cast(self.counts, self.dtype), axis=0)
        total = predicted + labelled
        dice = dice_or(0, both, total)
        occur = ops.sum(ops.cast(total > 0, self.dtype))
        mean = ops.sum(dice) / ops.maximum(occur, 1)
        return ops.where(occur > 0, mean, ops.ones_like(mean))

    def get_config(self) -> dict[str, Any]:
        """The configuration for serialisation."""
        return {**super().get_config(), "classes": self.classes}
