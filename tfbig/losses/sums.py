"""Losses that are functions of sums over pixels: what such a loss defines so that it can be streamed."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import keras


class LossOfSums(keras.losses.Loss):
    """Loss of each image that is a function of sums over its pixels.

    Streamed, the sums of all strips are added up before the function is applied, so the loss is that of the whole
    image. In a plain Keras model it is an ordinary loss. Subclasses define `sums` and `of_sums`, not `call`.

    Attributes:
        class_labels: Whether labels are class indices, of one channel, however many the prediction has.

    Example:
        >>> class SquaredBias(tfbig.losses.LossOfSums):
        ...     def sums(self, y_true, y_pred):
        ...         axes = tuple(range(1, y_pred.ndim))
        ...         return keras.ops.sum(y_pred - y_true, axes), keras.ops.sum(y_true, axes)
        ...     def of_sums(self, sums):
        ...         return (sums[0] / sums[1]) ** 2
        >>> loss = SquaredBias()(np.ones((1, 2, 2, 1)), np.full((1, 2, 2, 1), 1.5))
        >>> float(loss)
        0.25
    """

    class_labels = False

    @abstractmethod
    def sums(self, y_true: Any, y_pred: Any) -> tuple[Any, ...]:
        """Sum over the pixels of each image.

        Args:
            y_true: Labels `[N, ..., C]` of all pixels or of some rows, in the dtype of the loss.
            y_pred: Predictions of the same pixels.

        Returns:
            Tensors `[N, ...]` whose further axes depend on the channels only.
        """

    @abstractmethod
    def of_sums(self, sums: tuple[Any, ...]) -> Any:
        """The loss of each image, `[N]`.

        Args:
            sums: What `sums` returns for all pixels, in float64 if streamed.
        """

    def call(self, y_true: Any, y_pred: Any) -> Any:
        """Compute the loss of each image, `[N]`.

        Args:
            y_true: Labels `[N, ..., C]`.
            y_pred: Predictions.
        """
        return self.of_sums(self.sums(y_true, y_pred))
