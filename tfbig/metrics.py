"""Keras metrics whose state adds up over strips."""

from __future__ import annotations

from typing import Any

import keras
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


def _num_true(mask: Any) -> Any:
    """How many are true, int64: float32 sums along the rows, exact for rows of up to 2**24."""
    rows = ops.sum(ops.cast(mask, "float32"), axis=(-2, -1))
    return ops.sum(ops.cast(rows, "int64"))
