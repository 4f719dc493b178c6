"""Streamed counts of labels and predictions, and the overlaps, the accuracy and the kappa that follow from them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]

OVERLAPS: Final = ("dice", "iou", "precision", "sensitivity")
"""Names of the overlaps of a class, in the order of tables."""
_CHUNK: Final = 1 << 18
"""Pixels that are counted at once, so that their int64 numbers stay in the cache."""


@dataclass(frozen=True, eq=False)
class Confusion:
    """Counts of the pixels of each class that are predicted as each class.

    `add` and `merge` change the counts in place. They are exact, so nothing depends on how images are cut into strips.
    Ratios are computed from them in float64, and are None where they divide by 0.

    Attributes:
        counts: True classes as rows, predicted classes as columns, int64 `[classes, classes]`.

    Example:
        >>> from tfbig.metrics.confusion import Confusion
        >>> seen = Confusion.empty(2)
        >>> seen.add(np.array([0, 1, 1, 1]), np.array([0, 0, 1, 1]))
        >>> seen.counts.tolist(), seen.accuracy(), seen.dice()[1]
        ([[1, 0], [1, 2]], 0.75, 0.8)
    """

    counts: Counts

    @classmethod
    def empty(cls, classes: int) -> Confusion:
        """Start without pixels."""
        return cls(np.zeros((classes, classes), np.int64))

    def add(self, labels: npt.NDArray[Any], predictions: npt.NDArray[Any]) -> None:
        """Count pixels.

        Args:
            labels: True classes of any shape and dtype.
            predictions: Predicted classes of the same shape.

        Raises:
            ValueError: The shapes differ, or a number is not a class.
        """
        if labels.shape != predictions.shape:
            raise ValueError(
                f"labels have shape {labels.shape} and predictions {predictions.shape}, expected equal shapes."
            )
        size = len(self.counts)
        for truth, found in _chunks(labels, predictions):
            ends = [min(truth.min(), found.min()), max(truth.max(), found.max())]
            if ends[0] < 0 or ends[1] >= size:
                raise ValueError(
                    f"labels and predictions are from {ends[0]} to {ends[1]}, expected classes from 0 to {size - 1}."
                )
            cells = np.bincount(size * truth + found, minlength=size * size)
            self.counts[:] += cells.reshape(size, size)

    def merge(self, other: Confusion) -> None:
        """Add the counts of another, of as many classes."""
        self.counts[:] += other.counts

    @property
    def labelled(self) -> Counts:
        """Pixels of each true class, `[classes]`."""
        return self.counts.sum(1)

    @property
    def predicted(self) -> Counts:
        """Pixels of each predicted class, `[classes]`."""
        return self.counts.sum(0)

    @property
    def both(self) -> Counts:
        """Pixels of each class that are predicted as it, `[classes]`."""
        return self.counts.diagonal()

    def dice(self) -> list[float | None]:
        """Dice of each class, which is also called F1: `2 both / (labelled + predicted)`."""
        return _ratios(2 * self.both, self.labelled + self.predicted)

    def iou(self) -> list[float | None]:
        """Intersection over union of each class: `both / (labelled + predicted - both)`."""
        return _ratios(self.both, self.labelled + self.predicted - self.both)

    def precision(self) -> list[float | None]:
        """Share of the pixels predicted as each class that are right: `both / predicted`."""
        return _ratios(self.both, self.predicted)

    def sensitivity(self) -> list[float | None]:
        """Share of the pixels of each class that are found, which is also called recall: `both / labelled`."""
        return _ratios(self.both, self.labelled)

    def of_class(self, number: int) -> dict[str, float | None]:
        """Give the `OVERLAPS` of a class by their names."""
        return {name: getattr(self, name)()[number] for name in OVERLAPS}

    def accuracy(self) -> float | None:
        """Share of all pixels whose class is right."""
        return _ratios(self.both.sum(keepdims=True), self.counts.sum().reshape(1))[0]

    def kappa(self) -> float | None:
        """Quadratic weighted kappa of ordered classes, as of `tfbig.metrics.QuadraticWeightedKappa`."""
        errors, chance = (float(term.item()) for term in kappa_terms(self.counts.astype(float)))
        return 1 - errors / chance if chance else None


def kappa_terms(counts: Any) -> tuple[Any, Any]:
    """Compute the two sums of quadratic weighted kappa (Cohen, Psychological Bulletin 70, 1968).

        O, N = counts, sum(counts)
        E[i, j] = sum(O[i, :]) * sum(O[:, j]) / N
        kappa = 1 - errors / chance,  errors = N * sum((i - j)**2 * O),  chance = N * sum((i - j)**2 * E)

    Both are sums of whole numbers, and so exact below 2**53.

    Args:
        counts: Confusion matrices `[..., classes, classes]`, a float64 array of NumPy or a tensor of TensorFlow.

    Returns:
        Errors and chance, each `[..., 1, 1]`. Kappa is undefined where chance is 0.
    """
    ranks = np.arange(counts.shape[-1], dtype=np.float64)
    distances, ones = (ranks[:, None] - ranks) ** 2, np.ones((len(ranks), 1))
    labelled, predicted = counts @ ones, ones.T @ counts  # [..., classes, 1], [..., 1, classes]
    errors = (ones.T @ (distances * counts) @ ones) * (ones.T @ labelled)
    return errors, predicted @ distances @ labelled


def _chunks(*arrays: npt.NDArray[Any]) -> Iterator[tuple[Counts, ...]]:
    """Yield parts of arrays of one size as int64."""
    flat = [array.ravel() for array in arrays]
    for start in range(0, flat[0].size, _CHUNK):
        yield tuple(array[start : start + _CHUNK].astype(np.int64) for array in flat)


def _ratios(parts: Counts, wholes: Counts) -> list[float | None]:
    pairs = zip(parts.tolist(), wholes.tolist(), strict=True)
    return [part / whole if whole else None for part, whole in pairs]
