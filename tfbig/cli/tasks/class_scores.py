"""Scores of predicted classes, and their columns in tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from tfbig import metrics
from tfbig.metrics import roc


def scores(
    labels: npt.NDArray[Any], probabilities: npt.NDArray[Any], classes: int
) -> dict[str, Any]:
    """Compute confusion matrix, accuracy, quadratic weighted kappa and area under the curve of predictions.

    `labels` are classes `[n]`, `probabilities` are `[n, classes]`.
    """
    kappa = metrics.QuadraticWeightedKappa(classes)
    kappa.update_state(labels, probabilities.astype("float32"))
    return {
        "probabilities": probabilities,
        "confusion": np.asarray(keras.ops.convert_to_numpy(kappa.counts)),
        "accuracy": float((probabilities.argmax(1) == labels).mean()),
        "qwk": float(kappa.result()),
        "auc": _auc(labels, probabilities),
    }


def softmax(logits: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Compute the probabilities of logits `[..., classes]`, float64."""
    values = np.asarray(logits, np.float64)
    odds = np.exp(values - values.max(-1, keepdims=True))
    shares: npt.NDArray[np.float64] = odds / odds.sum(-1, keepdims=True)
    return shares


def _auc(labels: npt.NDArray[Any], probabilities: npt.NDArray[Any]) -> float:
    if probabilities.shape[1] == 2:
        return float(roc.auc(labels, probabilities[:, 1]))
    return float(roc.macro_auc(labels, probabilities))


def columns(classes: Sequence[str], probabilities: npt.NDArray[Any]) -> dict[str, Any]:
    """The columns of a predicted class: the most probable, and the probability of each."""
    shares = {f"probability_{n}": float(p) for n, p in zip(classes, probabilities, strict=True)}
    return {"predicted": classes[int(np.argmax(probabilities))], **shares}
