"""Exact areas under the ROC curve of NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import rankdata


def auc(labels: Any, scores: Any) -> float:
    """Compute the area under the ROC curve.

        auc = mean over pairs (p, n) of (scores[p] > scores[n]) + (scores[p] == scores[n]) / 2

    with `p` a positive and `n` a negative sample. It is computed from the ranks of the scores (Mann
    and Whitney, "On a test of whether one of two random variables is stochastically larger than
    the other", 1947), without a choice of thresholds.

    Args:
        labels: Labels `[n]`, each False or True, or 0 or 1.
        scores: Finite or infinite scores `[n]` on any scale.

    Returns:
        A number from 0 to 1; NaN if all labels are the same.

    Raises:
        ValueError: Shapes differ or are not `[n]`, a label is neither 0 nor 1, or a score is NaN.

    Example:
        >>> tfbig.metrics.auc([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8])
        0.75
    """
    labels, scores = np.asarray(labels), np.asarray(scores)
    if labels.ndim != 1 or labels.shape != scores.shape:
        raise ValueError(
            f"auc: labels have shape {labels.shape} and scores {scores.shape}, expected equal shapes [n]."
        )
    if not np.isin(labels, (0, 1)).all():
        raise ValueError(f"auc: labels are {np.unique(labels)}, expected 0 and 1 only.")
    _refuse_nan("auc", scores)
    positive = labels == 1
    num_positive = int(positive.sum())
    num_pairs = num_positive * (labels.size - num_positive)
    if num_pairs == 0:
        return float("nan")
    rank_sum = rankdata(scores)[positive].sum()  # ranks from 1, ties share their mean
    return float((rank_sum - num_positive * (num_positive + 1) / 2) / num_pairs)


def macro_auc(labels: Any, probabilities: Any) -> float:
    """Compute the mean of the one-versus-rest `auc` of each class.

    All classes have equal weight, whatever their numbers of samples (`average="macro"`,
    `multi_class="ovr"` in scikit-learn; here rows need not sum to 1).

    Args:
        labels: Classes from 0 to C - 1, `[n]`.
        probabilities: Probabilities or other scores `[n, C]`.

    Returns:
        A number from 0 to 1; NaN if a class has no samples or all of them.

    Raises:
        ValueError: Shapes are not those above, a label is not a class, or a probability is NaN.

    Example:
        >>> tfbig.metrics.macro_auc([0, 1, 2], np.eye(3))
        1.0
    """
    labels, probabilities = np.asarray(labels), np.asarray(probabilities)
    if labels.ndim != 1 or probabilities.ndim != 2 or len(labels) != len(probabilities):
        raise ValueError(
            f"macro_auc: labels have shape {labels.shape} and probabilities {probabilities.shape}, "
            "expected [n] and [n, classes]."
        )
    classes = range(probabilities.shape[1])
    if not np.isin(labels, classes).all():
        raise ValueError(
            f"macro_auc: labels are {np.unique(labels)}, expected classes from 0 to "
            f"{len(classes) - 1}, one for each column of probabilities."
        )
    _refuse_nan("macro_auc", probabilities)
    return float(np.mean([auc(labels == c, probabilities[:, c]) for c in classes]))


def _refuse_nan(name: str, scores: np.ndarray) -> None:
    num_nan = int(np.isnan(scores).sum())
    if num_nan:
        raise ValueError(f"{name}: {num_nan} of {scores.size} scores are NaN. Check the model.")
