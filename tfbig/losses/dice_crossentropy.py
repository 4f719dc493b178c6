"""Dice and cross-entropy together, the loss of nnU-Net."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from tfbig.losses.sums import LossOfSums

SMALLEST = 1e-8
"""Least denominator, which only counts with `smooth=0`."""


@keras.saving.register_keras_serializable(package="tfbig")
class DiceCrossentropy(LossOfSums):
    """Cross-entropy minus the mean soft Dice coefficient of the foreground classes.

        p    = softmax(y_pred)
        dice = (2 * sum(p * y) + smooth) / (sum(p) + sum(y) + smooth)     for each class but 0
        loss = crossentropy_weight * mean(-log(p of the label)) - dice_weight * mean(dice)

    The lowest value is `-dice_weight`, as in nnU-Net (`DC_and_CE_loss` of nnunetv2, with `MemoryEfficientSoftDiceLoss`,
    `do_bg=False` and `smooth=1e-5`). Isensee et al., Nature Methods 18, 2021.

    Args:
        smooth: Number added above and below, so that a class that neither occurs nor is predicted has Dice 1.
        batch_dice: Whether sums of Dice are over the images of a batch together; otherwise each image has its own Dice.
        dice_weight: Weight of Dice.
        crossentropy_weight: Weight of cross-entropy.
        reduction: As in `keras.losses.Loss`.
        name: Name of the loss.
        dtype: Dtype of the computation.

    Call arguments:
        y_true: Class indices `[N, ..., 1]` or `[N, ...]`, 0 for the background.
        y_pred: Logits `[N, ..., classes]`.

    Raises:
        ValueError: `smooth` is negative, or predictions have fewer than two classes.

    Example:
        >>> logits = np.log([[[0.75, 0.25], [0.5, 0.5]]])  # one image of two pixels
        >>> loss = tfbig.losses.DiceCrossentropy(smooth=0.0)(np.array([[0, 1]]), logits)
        >>> round(float(loss), 4)  # (-log(0.75) - log(0.5)) / 2 - 2 * 0.5 / 1.75
        -0.081
    """

    class_labels = True

    def __init__(
        self,
        smooth: float = 1e-5,
        batch_dice: bool = False,
        dice_weight: float = 1.0,
        crossentropy_weight: float = 1.0,
        reduction: str = "sum_over_batch_size",
        name: str = "dice_crossentropy",
        dtype: Any = None,
    ) -> None:
        super().__init__(name=name, reduction=reduction, dtype=dtype)
        if smooth < 0:
            raise ValueError(f"loss '{name}': smooth is {smooth}, expected 0 or more.")
        self.smooth = smooth
        self.batch_dice = batch_dice
        self.dice_weight = dice_weight
        self.crossentropy_weight = crossentropy_weight

    def sums(self, y_true: Any, y_pred: Any) -> tuple[Any, ...]:
        """Sum over pixels: cross-entropy and ones `[N]`; `p * y`, `p` and `y` of each class but 0.

        Args:
            y_true: Class indices `[N, ..., 1]` or `[N, ...]`.
            y_pred: Logits `[N, ..., classes]`.
        """
        classes = y_pred.shape[-1]
        if classes is None or classes < 2:
            raise ValueError(
                f"loss '{self.name}' received predictions {tuple(y_pred.shape)}; expected logits of two classes or "
                "more, background included, on the last axis."
            )
        labels = ops.cast(y_true, "int32")
        labels = ops.squeeze(labels, -1) if len(labels.shape) == len(y_pred.shape) else labels
        axes = tuple(range(1, len(y_pred.shape) - 1))
        surprise = ops.sparse_categorical_crossentropy(labels, y_pred, from_logits=True)
        p = ops.softmax(y_pred)[..., 1:]
        y = ops.one_hot(labels, classes, dtype=p.dtype)[..., 1:]
        crossentropy, pixels = ops.sum(surprise, axes), ops.sum(ops.ones_like(surprise), axes)
        return crossentropy, pixels, ops.sum(p * y, axes), ops.sum(p, axes), ops.sum(y, axes)

    def of_sums(self, sums: tuple[Any, ...]) -> Any:
        """The loss of each image, `[N]`.

        Args:
            sums: What `sums` returns for all pixels.
        """
        crossentropy, pixels, *overlaps = sums
        if self.batch_dice:
            overlaps = [ops.sum(t, 0, keepdims=True) for t in overlaps]
        both, predicted, labelled = overlaps
        bottom = ops.maximum(predicted + labelled + self.smooth, SMALLEST)
        dice = ops.mean((2 * both + self.smooth) / bottom, -1)  # [N], or [1]
        return self.crossentropy_weight * crossentropy / pixels - self.dice_weight * dice

    def get_config(self) -> dict[str, Any]:
        """The configuration for serialisation."""
        return {
            **super().get_config(),
            "smooth": self.smooth,
            "batch_dice": self.batch_dice,
            "dice_weight": self.dice_weight,
            "crossentropy_weight": self.crossentropy_weight,
        }
