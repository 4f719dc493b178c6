"""Exact areas under the ROC curve of NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import norm


def auc(labels: Any, scores: Any) -> float:
    """Compute the area under the ROC curve.

        auc = mean over pairs (p, n) of (scores[p] > scores[n]) + (scores[p] == scores[n]) / 2

    with `p` a positive and `n` a negative sample (Mann and Whitney, "On a test of whether one of two
    random variables is stochastically larger than the other", 1947), without a choice of thresholds.

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
    positive, negative = scores[labels == 1], scores[labels == 0]
    num_pairs = len(positive) * len(negative)
    return float(num_below(negative, positive).sum() / num_pairs) if num_pairs else float("nan")


def auc_interval(labels: Any, scores: Any, level: float = 0.95) -> tuple[float, float]:
    """Compute a confidence interval of `auc` without assumptions on the distribution of the scores.

    DeLong, DeLong and Clarke-Pearson, "Comparing the areas under two or more correlated receiver operating
    characteristic curves: a nonparametric approach", Biometrics 1988. With `v[p]` the share of negatives ranked below
    positive p, and `w[n]` the share of positives ranked above negative n, ties counted half:

        variance = var(v) / len(v) + var(w) / len(w)
        interval = auc -+ z(level) * sqrt(variance), within 0 and 1

    It is too narrow for few samples, and is not defined if the scores separate the classes, where the variance is 0.

    Args:
        labels: Labels `[n]`, as in `auc`.
        scores: Scores `[n]`, as in `auc`.
        level: Confidence level, between 0 and 1.

    Returns:
        The lower and the upper end; NaN if a class has fewer than two samples or the scores separate the classes.

    Raises:
        ValueError: As in `auc`, or the level is not between 0 and 1.

    Example:
        >>> low, high = tfbig.metrics.auc_interval([0, 0, 0, 1, 1, 1], [0.1, 0.4, 0.3, 0.35, 0.8, 0.9])
        >>> round(low, 3), round(high, 3)
        (0.581, 1.0)
    """
    if not 0 < level < 1:
        raise ValueError(f"auc_interval: level is {level}, expected a number between 0 and 1.")
    area = auc(labels, scores)
    labels, scores = np.asarray(labels), np.asarray(scores, np.float64)
    positive, negative = scores[labels == 1], scores[labels == 0]
    if min(len(positive), len(negative)) < 2:
        return float("nan"), float("nan")
    shares = (
        num_below(negative, positive) / len(negative),
        1 - num_below(positive, negative) / len(positive),
    )
    variance = sum(values.var(ddof=1) / len(values) for values in shares)
    if variance == 0:
        return float("nan"), float("nan")
    reach = float(norm.ppf((1 + level) / 2) * np.sqrt(variance))
    return max(area - reach, 0.0), min(area + reach, 1.0)


def num_below(values: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Count the values below each place; those that equal it count half.

    Args:
        values: Values `[n]`, none of them NaN.
        places: Places `[m]`.

    Returns:
        Counts `[m]`, float64 and exact.
    """
    ordered = np.sort(values)
    below, up_to = (np.searchsorted(ordered, places, side) for side in ("left", "right"))
    counts: np.ndarray = (below + up_to) / 2
    return counts


def weighted_auc(positive: np.ndarray, scores: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Compute the `auc` of many samples of the same predictions at once, such as those of a bootstrap.

    Args:
        positive: Whether a prediction is of a positive, `[n]`.
        scores: Scores `[n]`.
        weights: How often each prediction counts in each sample, `[samples, n]`.

    Returns:
        The areas `[samples]`; NaN for samples without positives or negatives.
    """
    order = np.argsort(scores, kind="stable")
    _, starts = np.unique(scores[order], return_index=True)
    weights = weights[:, order]
    positives, negatives = (
        np.add.reduceat(weights * chosen[order], starts, axis=1) for chosen in (positive, ~positive)
    )
    below = negatives.cumsum(1) - negatives / 2
    pairs = positives.sum(1) * negatives.sum(1)
    undefined = np.full(len(pairs), np.nan)
    areas: np.ndarray = np.divide((positives * below).sum(1), pairs, undefined, where=pairs != 0)
    return areas


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
