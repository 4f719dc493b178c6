"""Keras metrics whose states are counts, which add up exactly over strips and batches."""

from __future__ import annotations

import math
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from tfbig.metrics.confusion import kappa_terms


@keras.saving.register_keras_serializable(package="tfbig")
class Dice(keras.metrics.Metric):
    """Dice coefficient of a thresholded prediction and a mask, over all pixels.

        dice = 2 * |predicted and labelled| / (|predicted| + |labelled|)

    and 1 if nothing is predicted and nothing is labelled. The state is three pixel counts, so
    the result does not depend on how the images are cut into strips or batches. The counts are
    int64 and exact; a float32 number would stop counting at 2**24 pixels.

    Args:
        name: Name of the metric.
        threshold: A pixel counts as predicted if its probability is above the threshold.
        dtype: Dtype of the result.

    Example:
        >>> metric = tfbig.metrics.Dice()
        >>> metric.update_state(np.array([[[1], [1], [0]]]), np.array([[[0.9], [0.2], [0.8]]]))
        >>> float(metric.result())  # one pixel of two predicted and two labelled ones
        0.5
    """

    def __init__(self, name: str = "dice", threshold: float = 0.5, dtype: Any = None) -> None:
        super().__init__(name=name, dtype=dtype)
        self.threshold = threshold
        self.both = self._count("both")
        self.predicted = self._count("predicted")
        self.labelled = self._count("labelled")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Add the pixels of a batch or strip.

        Args:
            y_true: Mask `[..., W, C]`; numbers above 0.5 are labelled.
            y_pred: Predictions of the same shape.
            sample_weight: Must be None.

        Raises:
            ValueError: `sample_weight` is not None.
        """
        refuse_weights(self, "pixels", sample_weight)
        labelled = ops.greater(ops.cast(y_true, "float32"), 0.5)
        predicted = ops.greater(y_pred, ops.cast(self.threshold, y_pred.dtype))
        self.both.assign_add(num_true(ops.logical_and(labelled, predicted)))
        self.predicted.assign_add(num_true(predicted))
        self.labelled.assign_add(num_true(labelled))

    def result(self) -> Any:
        """The Dice coefficient of all pixels so far, a scalar."""
        both = ops.cast(self.both, self.dtype)
        total = ops.cast(self.predicted + self.labelled, self.dtype)
        return dice_or(ops.ones_like(total), both, total)

    def get_config(self) -> dict[str, Any]:
        """The configuration for serialisation."""
        return {**super().get_config(), "threshold": self.threshold}

    def _count(self, name: str) -> Any:
        return self.add_variable(shape=(), initializer="zeros", dtype="int64", name=name)


@keras.saving.register_keras_serializable(package="tfbig")
class ConfusionMatrix(keras.metrics.Metric):
    """Confusion matrix: the number of samples of each class that were predicted as each class.

    The state and the result are int64 counts `[classes, classes]` with true classes as rows and
    predicted classes as columns. Adding counts is exact, so the result does not depend on the
    order or size of batches.

    Args:
        classes: Number of classes, 2 or more.
        name: Name of the metric.
        threshold: For models with a single output: probabilities above it are class 1.
        from_logits: For models with a single output: the output is a logit, which is compared with
            the logit of `threshold`.
        dtype: Dtype of results that subclasses compute from the counts.

    Raises:
        ValueError: Fewer than two classes, or a threshold outside of (0, 1).

    Example:
        >>> metric = tfbig.metrics.ConfusionMatrix(2)
        >>> metric.update_state(np.array([0, 1, 1]), np.array([[0.2], [0.9], [0.4]]))
        >>> metric.result().numpy().tolist()
        [[1, 0], [1, 1]]
    """

    def __init__(
        self,
        classes: int,
        name: str = "confusion_matrix",
        threshold: float = 0.5,
        from_logits: bool = False,
        dtype: Any = None,
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        if classes < 2:
            raise ValueError(f"metric '{name}': classes is {classes}, expected 2 or more.")
        if not 0 < threshold < 1:
            raise ValueError(
                f"metric '{name}': threshold is {threshold}, expected a probability between 0 and "
                "1, also with from_logits=True."
            )
        self.classes = classes
        self.threshold = threshold
        self.from_logits = from_logits
        self.counts = self.add_variable(
            shape=(classes, classes), initializer="zeros", dtype="int64", name="counts"
        )

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Add the samples of a batch.

        Args:
            y_true: Classes 0, 1, ..., `[N]` or `[N, 1]`: whole numbers of any dtype, not one-hot.
            y_pred: Logits or probabilities `[N, classes]`, of which the largest is predicted (the
                first one in case of ties); or, for two classes, `[N, 1]` for class 1.
            sample_weight: Must be None.

        Raises:
            ValueError: `sample_weight` is not None, or a shape is not one of those above.
            tf.errors.InvalidArgumentError: A label is not a class. XLA does not compile assertions:
                there such a sample is ignored instead.
        """
        refuse_weights(self, "samples", sample_weight)
        labels = self._labels(ops.convert_to_tensor(y_true))
        predicted = self._predicted(ops.convert_to_tensor(y_pred))
        # Sums of zeros and ones in float32 are exact for batches of up to 2**24 samples.
        rows, columns = (ops.one_hot(c, self.classes, dtype="float32") for c in (labels, predicted))
        self.counts.assign_add(ops.cast(ops.matmul(ops.transpose(rows), columns), "int64"))

    def result(self) -> Any:
        """The counts so far, int64 `[classes, classes]`."""
        return ops.convert_to_tensor(self.counts)

    def get_config(self) -> dict[str, Any]:
        """The configuration for serialisation."""
        return {
            **super().get_config(),
            "classes": self.classes,
            "threshold": self.threshold,
            "from_logits": self.from_logits,
        }

    def _labels(self, y_true: Any) -> Any:
        """Validate the labels, and flatten them to int64 `[N]`."""
        shape = y_true.shape
        if len(shape) not in (1, 2) or (len(shape) == 2 and shape[1] != 1):
            raise ValueError(
                f"metric '{self.name}': labels have shape {tuple(shape)}, expected [N] or [N, 1] "
                "with one class per sample. Pass np.argmax(labels, axis=-1) for one-hot labels."
            )
        y_true = ops.reshape(y_true, (-1,))  # [N]
        labels = ops.cast(y_true, "int64")
        within = ops.logical_and(labels >= 0, labels < self.classes)
        whole = ops.equal(ops.cast(labels, y_true.dtype), y_true)
        message = (
            f"metric {self.name}: expected labels that are whole numbers from 0 to {self.classes - 1}, "
            f"for {self.classes} classes. Check the labels, or raise `classes`. Received from"
        )
        extent = (tf.reduce_min(y_true), "to", tf.reduce_max(y_true))
        valid = ops.all(ops.logical_and(within, whole))
        with tf.control_dependencies([tf.debugging.Assert(valid, [message, *extent])]):
            return tf.identity(labels)  # nothing is counted before the labels are validated

    def _predicted(self, y_pred: Any) -> Any:
        """The predicted classes, int64 `[N]`."""
        shape = y_pred.shape
        if len(shape) == 2 and shape[1] == self.classes:
            return ops.cast(ops.argmax(y_pred, axis=-1), "int64")
        if len(shape) == 2 and shape[1] == 1 and self.classes == 2:
            limit = self.threshold
            if self.from_logits:
                limit = math.log(limit / (1 - limit))
            return ops.cast(y_pred[:, 0] > limit, "int64")
        single = " or [N, 1]" if self.classes == 2 else ""
        raise ValueError(
            f"metric '{self.name}': predictions have shape {tuple(shape)}, expected "
            f"[N, {self.classes}]{single} for {self.classes} classes."
        )


@keras.saving.register_keras_serializable(package="tfbig")
class QuadraticWeightedKappa(ConfusionMatrix):
    """Cohen's kappa on ordered classes, with errors weighted by their squared distance.

        O = confusion matrix
        E[i, j] = sum(O[i, :]) * sum(O[:, j]) / sum(O)
        w[i, j] = (i - j)**2 / (classes - 1)**2
        kappa = 1 - sum(w * O) / sum(w * E)

    (Cohen, "Weighted kappa", Psychological Bulletin 70, 1968). 1 is perfect agreement, 0 the
    agreement of predictions that do not depend on the sample.

    Kappa is undefined if every label and every prediction is the same class, or if there are no
    samples (`sum(w * E) == 0`); scikit-learn returns NaN. Here it is 0: the value of any other
    prediction for labels of a single class, which callbacks can compare and which never looks good.

    Args:
        classes: Number of classes, 2 or more.
        name: Name of the metric.
        **kwargs: `threshold`, `from_logits` and `dtype` of `ConfusionMatrix`. `dtype` is the dtype
            of the result, which is computed in float64.

    Example:
        >>> metric = tfbig.metrics.QuadraticWeightedKappa(3)
        >>> metric.update_state(np.array([0, 1, 2, 2]), np.eye(3)[[0, 1, 2, 1]])
        >>> round(float(metric.result()), 3)
        0.8
    """

    def __init__(self, classes: int, name: str = "qwk", **kwargs: Any) -> None:
        super().__init__(classes, name=name, **kwargs)

    def result(self) -> Any:
        """Compute kappa of all samples so far, a scalar."""
        terms = kappa_terms(ops.cast(self.counts, "float64"))  # (classes - 1)**2 of w cancels
        errors, chance = (ops.squeeze(term) for term in terms)
        kappa = 1 - errors / ops.where(chance > 0, chance, 1)
        return ops.cast(ops.where(chance > 0, kappa, 0), self.dtype)


def refuse_weights(metric: keras.metrics.Metric, counted: str, sample_weight: Any) -> None:
    """Raise a ValueError if there are sample weights: counts have none."""
    if sample_weight is not None:
        raise ValueError(
            f"metric '{metric.name}' counts {counted} and does not support sample weights. "
            "List it under `metrics`, not `weighted_metrics`."
        )


def num_true(mask: Any, axes: tuple[int, ...] = (-2, -1)) -> Any:
    """Count the true elements as int64: float32 sums along some axes, exact for rows of up to 2**24."""
    rows = ops.sum(ops.cast(mask, "float32"), axis=axes)
    return ops.sum(ops.cast(rows, "int64"))


def dice_or(empty: Any, both: Any, total: Any) -> Any:
    """Compute `2 both / total`, with `total = predicted + labelled`; `empty` where that is 0."""
    return ops.where(total > 0, 2 * both / ops.maximum(total, 1), empty)
