"""Exact areas under the ROC curve, of NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import rankdata


def auc(labels: Any, scores: Any) -> float:
    """Area under the ROC curve: how often a positive sample scores higher than a negative one.

        auc = mean over pairs (p, n) of (scores[p] > scores[n]) + (scores[p] == scores[n]) / 2

    from the ranks of the scores (Mann and Whitney, "On a test of whether one of two random
    variables is stochastically larger than the other", 1947), without thresholds to choose.

    Args:
        labels: False or True, or 0 or 1, `[n]`.
        scores: Finite or infinite numbers `[n]`, in any order and scale.

    Returns:
        A number from 0 to 1; NaN if all labels are the same.

    Raises:
        ValueError: Shapes differ or are not `[n]`, a label is neither 0 nor 1, a score is NaN.
    """
    labels, scores = np.asarray(labels), np.asarray(scores)
    if labels.ndim != 1 or labels.shape != scores.shape:
        raise ValueError(
            f"auc: labels have shape {labels.shape} and scores {scores.shape}, expected [n] both."
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
    """Mean over the classes of `auc` of each against the others.

    Every class counts the same, however many samples it has (`average="macro"`,
    `multi_class="ovr"` of scikit-learn; rows need not sum to 1 here).

    Args:
        labels: Classes 0 to C - 1, `[n]`.
        probabilities: `[n, C]`, or any other scores.

    Returns:
        A number from 0 to 1; NaN if a class has no samples or all of them.

    Raises:
        ValueError: Shapes are not those above, a label is no class, a probability is NaN.
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
