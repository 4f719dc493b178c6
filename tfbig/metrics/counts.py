"""Keras metrics whose state is counts, which add up over strips and batches."""

from __future__ import annotations

import math
from typing import Any

import keras
import tensorflow as tf
from keras import ops


@keras.saving.register_keras_serializable(package="tfbig")
class Dice(keras.metrics.Metric):
    """Overlap of a thresholded prediction with a mask, over all pixels seen.

        dice = 2 * |predicted and labelled| / (|predicted| + |labelled|)

    and 1 where nothing is predicted and nothing is labelled. The state is three pixel counts, so
    the result does not depend on how the images are cut into strips or batches. The counts are
    int64 and exact; one float32 number would stop counting at 2**24 pixels.

    Args:
        name: Name of the metric.
        threshold: A pixel counts as predicted above it.
        dtype: Type of the result.
    """

    def __init__(self, name: str = "dice", threshold: float = 0.5, dtype: Any = None) -> None:
        super().__init__(name=name, dtype=dtype)
        self.threshold = threshold
        self.both = self._count("both")
        self.predicted = self._count("predicted")
        self.labelled = self._count("labelled")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds the pixels of a batch or strip.

        Args:
            y_true: Mask `[..., W, C]`; above 0.5 is labelled.
            y_pred: Prediction of the same shape.
            sample_weight: Must be None.

        Raises:
            ValueError: Weights were given.
        """
        if sample_weight is not None:
            raise ValueError(
                f"metric '{self.name}' counts pixels and takes no sample weights. "
                "List it under `metrics`, not `weighted_metrics`."
            )
        labelled = ops.greater(ops.cast(y_true, "float32"), 0.5)
        predicted = ops.greater(y_pred, ops.cast(self.threshold, y_pred.dtype))
        self.both.assign_add(_num_true(ops.logical_and(labelled, predicted)))
        self.predicted.assign_add(_num_true(predicted))
        self.labelled.assign_add(_num_true(labelled))

    def result(self) -> Any:
        """The Dice coefficient so far, a scalar."""
        both = ops.cast(self.both, self.dtype)
        total = ops.cast(self.predicted + self.labelled, self.dtype)
        return ops.where(total > 0, 2 * both / ops.maximum(total, 1), ops.ones_like(total))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "threshold": self.threshold}

    def _count(self, name: str) -> Any:
        return self.add_variable(shape=(), initializer="zeros", dtype="int64", name=name)


@keras.saving.register_keras_serializable(package="tfbig")
class ConfusionMatrix(keras.metrics.Metric):
    """How many samples of each class were predicted as each class.

    The state and the result are int64 counts `[classes, classes]`: row the true class, column the
    predicted one. Adding counts is exact, so batches in any order and of any size give the same.

    Args:
        classes: Number of classes, 2 or more.
        name: Name of the metric.
        threshold: A probability above it is class 1, where the model has a single output.
        from_logits: Whether such an output is a logit; it is then compared with that of `threshold`.
        dtype: Type of what subclasses compute from the counts.

    Raises:
        ValueError: Fewer than two classes, or a threshold outside of (0, 1).
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
        """Adds the samples of a batch.

        Args:
            y_true: Classes 0, 1, ... `[N]` or `[N, 1]`, of any dtype but whole numbers; not one-hot.
            y_pred: Logits or probabilities `[N, classes]`, of which the largest is predicted (the
                first of those that are equal); or, of two classes, `[N, 1]` for class 1.
            sample_weight: Must be None.

        Raises:
            ValueError: Weights were given, or shapes are not those above.
            tf.errors.InvalidArgumentError: A label is no class. XLA compiles no assertions: there
                such a sample is left out instead.
        """
        if sample_weight is not None:
            raise ValueError(
                f"metric '{self.name}' counts samples and takes no sample weights. "
                "List it under `metrics`, not `weighted_metrics`."
            )
        labels = self._labels(ops.convert_to_tensor(y_true))
        predicted = self._predicted(ops.convert_to_tensor(y_pred))
        # Products of 0 and 1 that are summed in float32 are exact for batches of up to 2**24.
        rows, columns = (ops.one_hot(c, self.classes, dtype="float32") for c in (labels, predicted))
        self.counts.assign_add(ops.cast(ops.matmul(ops.transpose(rows), columns), "int64"))

    def result(self) -> Any:
        """The counts so far, int64 `[classes, classes]`."""
        return ops.convert_to_tensor(self.counts)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "classes": self.classes,
            "threshold": self.threshold,
            "from_logits": self.from_logits,
        }

    def _labels(self, y_true: Any) -> Any:
        """Checked labels, int64 `[N]`."""
        shape = y_true.shape
        if len(shape) not in (1, 2) or (len(shape) == 2 and shape[1] != 1):
            raise ValueError(
                f"metric '{self.name}': labels have shape {tuple(shape)}, expected [N] or [N, 1] "
                "with a class in each. Give np.argmax(labels, axis=-1) for one-hot labels."
            )
        y_true = ops.reshape(y_true, (-1,))  # [N]
        labels = ops.cast(y_true, "int64")
        within = ops.logical_and(labels >= 0, labels < self.classes)
        whole = ops.equal(ops.cast(labels, y_true.dtype), y_true)
        message = (
            f"metric {self.name}: labels are whole numbers from 0 to {self.classes - 1}, one for "
            f"each of {self.classes} classes. Check the labels, or raise `classes`. Received from"
        )
        extent = (tf.reduce_min(y_true), "to", tf.reduce_max(y_true))
        valid = ops.all(ops.logical_and(within, whole))
        with tf.control_dependencies([tf.debugging.Assert(valid, [message, *extent])]):
            return tf.identity(
                labels
            )  # so nothing is counted before the labels are known to be valid

    def _predicted(self, y_pred: Any) -> Any:
        """Predicted classes, int64 `[N]`."""
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
    """Agreement beyond chance on ordered classes, errors weighted by their squared distance.

        O = confusion matrix
        E[i, j] = sum(O[i, :]) * sum(O[:, j]) / sum(O)
        w[i, j] = (i - j)**2 / (classes - 1)**2
        kappa = 1 - sum(w * O) / sum(w * E)

    of Cohen, "Weighted kappa", Psychological Bulletin 70 (1968). 1 is perfect, 0 is what predictions
    reach that do not depend on the sample.

    It is undefined where every label and every prediction is the same class, or nothing was seen
    (`sum(w * E) == 0`); scikit-learn gives NaN. Here it is 0: what any other prediction would get
    for labels of a single class, and a number that callbacks can compare and that never looks good.

    Args:
        classes: Number of classes, 2 or more.
        name: Name of the metric.
        threshold: As for `ConfusionMatrix`.
        from_logits: As for `ConfusionMatrix`.
        dtype: Type of the result. It is computed in float64.
    """

    def __init__(self, classes: int, name: str = "qwk", **kwargs: Any) -> None:
        super().__init__(classes, name=name, **kwargs)

    def result(self) -> Any:
        """Kappa so far, a scalar."""
        observed = ops.cast(self.counts, "float64")
        expected = ops.sum(observed, 1)[:, None] * ops.sum(observed, 0)  # sum(O) times E
        ranks = ops.arange(self.classes, dtype="float64")
        weights = (ranks[:, None] - ranks) ** 2  # (classes - 1)**2 times w, which cancels
        errors = ops.sum(weights * observed) * ops.sum(observed)
        chance = ops.sum(weights * expected)
        kappa = 1 - errors / ops.where(chance > 0, chance, 1)
        return ops.cast(ops.where(chance > 0, kappa, 0), self.dtype)


def _num_true(mask: Any) -> Any:
    """How many are true, int64: float32 sums along the rows, exact for rows of up to 2**24."""
    rows = ops.sum(ops.cast(mask, "float32"), axis=(-2, -1))
    return ops.sum(ops.cast(rows, "int64"))
