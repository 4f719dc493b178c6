"""Metrics of targets of a bag other than a class, which `fit` and `tfbig.training.Loop` compute over an epoch.

Concordance and areas under a curve compare bags with each other, so they are no means over batches. `Collected` keeps
what they compare: sums, so that the order of bags has no influence, and replicas add up.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfbig import survival
from tfbig.metrics import roc
from tfbig.mil.target_losses import PACKAGE, Survival


def risks_of(outputs: Any) -> tf.Tensor:
    """Compute the risk of each bag from the outputs of a model of survival; a higher risk is worse.

    Args:
        outputs: Logits of hazards `[N, bins]`, or log hazard ratios of Cox's model `[N, 1]`.

    Returns:
        Risks `[N]`: `tfbig.survival.discrete_time_risk`, or the ratio as it is.
    """
    outputs = tf.convert_to_tensor(outputs)
    if outputs.shape[-1] == 1:
        return outputs[:, 0]
    return survival.discrete_time_risk(outputs)


class Collected(keras.metrics.Metric):
    """Metric of all items of an epoch, whose predictions and labels it keeps; several of one place are averaged.

    A step inside of a graph returns NaN; the result outside of a graph, as `Loop` asks for after an epoch, is that of
    all items.

    Args:
        places: Number of places: one more than the largest that an item has.
        width: Numbers that are kept of a prediction.
        num_labels: Labels that are kept of an item.
        name: Name of the metric.
        dtype: Type of the predictions that are kept.
    """

    def __init__(
        self, places: int, width: int, num_labels: int, name: str, dtype: Any = None
    ) -> None:
        super().__init__(name=name, dtype=dtype)
        self.places = places
        self.predictions = self._sum("predictions", (places, width), self.dtype)
        self.labels = self._sum("labels", (places, num_labels), "int64")
        self.counts = self._sum("counts", (places,), "int64")

    def _sum(self, name: str, shape: tuple[int, ...], dtype: str) -> Any:
        return self.add_variable(shape=shape, initializer="zeros", dtype=dtype, name=name)

    def collect(self, places: Any, labels: Any, predictions: Any) -> None:
        """Add items.

        Args:
            places: Place of each item, `[N]`.
            labels: Labels, whole numbers `[N, num_labels]`.
            predictions: Predictions `[N, width]`.
        """
        places = tf.cast(places, tf.int32)[:, None]
        pairs = (
            (self.predictions, predictions),
            (self.labels, labels),
            (self.counts, tf.ones_like(places[:, 0])),
        )
        for variable, values in pairs:
            values = tf.cast(values, variable.dtype)
            variable.assign_add(tf.scatter_nd(places, values, [*variable.shape]))

    def result(self) -> Any:
        """Return the metric of all items since the last reset; NaN inside of a graph."""
        if not tf.executing_eagerly():
            return tf.constant(np.nan, self.dtype)
        counts = np.asarray(self.counts)
        seen = counts > 0
        counts = counts[seen, None]
        predictions = np.asarray(self.predictions, np.float64)[seen] / counts
        return tf.constant(
            self.of(np.asarray(self.labels)[seen] // counts, predictions), self.dtype
        )

    @abstractmethod
    def of(self, labels: np.ndarray, predictions: np.ndarray) -> float:
        """Return the metric of labels `[n, num_labels]` and predictions `[n, width]`."""


@keras.saving.register_keras_serializable(package=PACKAGE)
class Concordance(Collected):
    """Concordance of the mean risk of each case with the order of events, `tfbig.survival.concordance_index`.

    Args:
        cases: Number of cases.
        name: Name of the metric.
        dtype: Type of the risks that are kept.
    """

    def __init__(self, cases: int, name: str = "concordance", dtype: Any = None) -> None:
        super().__init__(cases, 1, 2, name, dtype)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Add the bags of a batch.

        Args:
            y_true: Labels `[N, 4]`, see `Survival`.
            y_pred: Outputs of the model, see `risks_of`.
            sample_weight: Not used.
        """
        y_true = tf.convert_to_tensor(y_true)
        observed = tf.gather(y_true, [Survival.RANK, Survival.EVENT], axis=1)
        self.collect(y_true[:, Survival.CASE], observed, risks_of(y_pred)[:, None])

    def of(self, labels: np.ndarray, predictions: np.ndarray) -> float:
        """Return the concordance; NaN if no pair is comparable."""
        ranks, events = labels.T
        if not events.any():
            return float("nan")
        return survival.concordance_index(predictions, ranks, events)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the metric."""
        return {"cases": self.places, "name": self.name, "dtype": self.dtype}


@keras.saving.register_keras_serializable(package=PACKAGE)
class LabelAUC(Collected):
    """Mean over labels of the area under the ROC curve, over the bags of which a label is known.

    Args:
        bags: Number of bags.
        num_labels: Number of labels.
        name: Name of the metric.
        dtype: Type of the logits that are kept.
    """

    def __init__(self, bags: int, num_labels: int, name: str = "auc", dtype: Any = None) -> None:
        super().__init__(bags, num_labels, num_labels, name, dtype)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Add the bags of a batch.

        Args:
            y_true: Labels as in `LabelCrossEntropy`, and the number of the bag, `[N, labels + 1]`.
            y_pred: Logits `[N, labels]`.
            sample_weight: Not used.
        """
        y_true = tf.convert_to_tensor(y_true)
        self.collect(y_true[:, -1], y_true[:, :-1], y_pred)

    def of(self, labels: np.ndarray, predictions: np.ndarray) -> float:
        """Return the mean of the areas that are defined; NaN without any."""
        return mean_auc(labels, predictions)

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the metric."""
        labels = self.labels.shape[1]
        return {
            "bags": self.places,
            "num_labels": labels,
            "name": self.name,
            "dtype": self.dtype,
        }


def mean_auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """Compute the mean over labels of `tfbig.metrics.auc`, each over the items of which the label is known.

    Args:
        labels: Labels `[n, labels]`: 0, 1, or a negative number if unknown.
        scores: Scores `[n, labels]` on any scale.

    Returns:
        The mean over labels of which both values are known; NaN if there are none.
    """
    areas = [roc.auc(y[y >= 0], s[y >= 0]) for y, s in zip(labels.T, scores.T, strict=True)]
    defined = [area for area in areas if area == area]
    return float(np.mean(defined)) if defined else float("nan")


@keras.saving.register_keras_serializable(package=PACKAGE)
class ScaledError(keras.metrics.MeanAbsoluteError):
    """Mean absolute error of scaled numbers, in the unit of the numbers.

    Args:
        deviation: What numbers were divided by.
        name: Name of the metric.
        dtype: Type of the sum.
    """

    def __init__(self, deviation: float, name: str = "mae", dtype: Any = None) -> None:
        super().__init__(name=name, dtype=dtype)
        self.deviation = deviation

    def result(self) -> Any:
        """Return the error."""
        return super().result() * self.deviation

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of the metric."""
        return {"deviation": self.deviation, "name": self.name, "dtype": self.dtype}
