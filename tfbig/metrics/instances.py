"""Precision of instances: how many are found, at an overlap."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import sparse


class Matches(NamedTuple):
    """Instances of an image that match.

    Args:
        correct: Number of pairs of a true and a predicted instance that overlap enough.
        missed: Number of true instances without a partner.
        false: Number of predicted instances without a partner.

    Example:
        >>> tfbig.metrics.Matches(correct=3, missed=1, false=2).average_precision
        0.5
    """

    correct: int
    missed: int
    false: int

    @property
    def average_precision(self) -> float:
        """The share `correct / (correct + missed + false)`; 1 if there are no instances at all."""
        total = sum(self)
        return self.correct / total if total else 1.0


def match_instances(
    labels: npt.NDArray[Any], predicted: npt.NDArray[Any], overlaps: Sequence[float] = (0.5,)
) -> list[Matches]:
    """Count matching instances, as the Data Science Bowl 2018, StarDist and Cellpose do.

    A true and a predicted instance match if their intersection over union is above an overlap. From 0.5 on, an instance
    has one partner at most, so that no assignment is needed.

    Args:
        labels: True instances, integers from 1; 0 is background.
        predicted: Predicted instances of the same shape.
        overlaps: Overlaps, 0.5 or more.

    Returns:
        The matches at each overlap.

    Raises:
        ValueError: The shapes differ, or an overlap is below 0.5.

    Example:
        >>> labels = np.array([[1, 1, 1, 0, 2, 2]])
        >>> found = tfbig.metrics.match_instances(labels, np.array([[1, 1, 0, 0, 2, 3]]))
        >>> found, round(found[0].average_precision, 2)
        ([Matches(correct=1, missed=1, false=2)], 0.25)
    """
    if labels.shape != predicted.shape or min(overlaps) < 0.5:
        raise ValueError(
            f"instances of shapes {labels.shape} and {predicted.shape}, overlaps {list(overlaps)}; expected equal "
            "shapes, and overlaps of 0.5 or more."
        )
    real, found = (np.unique(each, return_inverse=True) for each in (labels, predicted))
    pixels = np.ones(labels.size, np.int64)
    table = sparse.coo_array(
        (pixels, (real[1].ravel(), found[1].ravel())), (len(real[0]), len(found[0]))
    ).tocsr()
    areas = table.sum(1), table.sum(0)
    both = table.tocoo()
    counts = both.data
    union = areas[0][both.row] + areas[1][both.col] - counts
    inside = (real[0][both.row] > 0) & (found[0][both.col] > 0)
    iou = (counts / union)[inside]
    totals = int((real[0] > 0).sum()), int((found[0] > 0).sum())
    matched = [int((iou > overlap).sum()) for overlap in overlaps]
    return [Matches(n, totals[0] - n, totals[1] - n) for n in matched]
