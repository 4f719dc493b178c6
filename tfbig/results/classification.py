"""Tables and curves of a classifier: what is read in a lab, class by class against all others, with scikit-learn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from sklearn import calibration
from sklearn import metrics as sklearn_metrics

from tfbig.metrics import roc
from tfbig.results import figures, run_folder
from tfbig.results.geojson import COLOURS, hex_of

TABLE: Final = "classes.csv"
CURVES: Final = "curves.png"
LEVEL: Final = 0.95
"""Level of confidence intervals."""
DEFAULT_THRESHOLD: Final = 0.5
_BINS: Final = 10
_REASONS: Final = 6
"""Most classes for which a figure says why they have no curve."""

Numbers = npt.NDArray[Any]


class Column(NamedTuple):
    """A class or a label of samples: its name, whether each sample has it `[n]`, and its probabilities `[n]`."""

    name: str
    positive: Numbers
    scores: Numbers


def class_columns(labels: Numbers, probabilities: Numbers, classes: Sequence[str]) -> list[Column]:
    """Each class against all others, from true classes `[n]` and probabilities `[n, classes]`."""
    return [Column(name, labels == k, probabilities[:, k]) for k, name in enumerate(classes)]


def known_columns(names: Sequence[str], labels: Numbers, probabilities: Numbers) -> list[Column]:
    """Each of several labels, for the samples of which it is known.

    `labels`, `[n, names]`, are 0, 1, or a negative number if unknown; `probabilities` are `[n, names]`.
    """
    return [
        Column(name, y[y >= 0] == 1, p[y >= 0])
        for name, y, p in zip(names, labels.T, probabilities.T, strict=True)
    ]


def write(
    folder: str | Path,
    labels: Numbers,
    probabilities: Numbers,
    classes: Sequence[str],
    thresholds: Sequence[float] | None = None,
) -> None:
    """Write `classes.csv` and `curves.png` into a run folder.

    `labels` are true classes `[n]`, `probabilities` `[n, classes]`. The threshold of each class is 0.5 by default.
    """
    columns = class_columns(labels, probabilities, classes)
    shown = columns[1:] if len(columns) == 2 else columns
    write_columns(folder, columns, thresholds, shown)


def write_columns(
    folder: str | Path,
    columns: Sequence[Column],
    thresholds: Sequence[float] | None = None,
    shown: Sequence[Column] | None = None,
) -> None:
    """Write `classes.csv` and `curves.png` of classes or labels into a run folder.

    The threshold of each is 0.5 by default. Curves are drawn of those in `shown`, by default of all.
    """
    thresholds = thresholds or [DEFAULT_THRESHOLD] * len(columns)
    numbers = [
        {"class": each.name, **evaluated(each.positive, each.scores, threshold)}
        for each, threshold in zip(columns, thresholds, strict=True)
    ]
    run_folder.write_csv(Path(folder) / TABLE, numbers)
    draw_curves(Path(folder) / CURVES, columns if shown is None else shown)


def evaluated(positive: Numbers, scores: Numbers, threshold: float) -> dict[str, Any]:
    """Evaluate the probabilities of a class, by name; what is not defined is an empty string.

    `positive` says whether each sample has the class, `[n]`; `scores` are its probabilities `[n]`. Samples with at
    least the threshold are assigned to the class.
    """
    chosen = scores >= threshold
    true = int((chosen & positive).sum())
    low, high = roc.auc_interval(positive, scores, LEVEL)
    precision = (
        float(sklearn_metrics.average_precision_score(positive, scores))
        if _is_divided(positive)
        else math.nan
    )
    values = {
        "samples": int(positive.sum()),
        "auc": roc.auc(positive, scores),
        "auc_low": low,
        "auc_high": high,
        "average_precision": precision,
        "threshold": threshold,
        "sensitivity": _ratio(true, positive.sum()),
        "specificity": _ratio((~chosen & ~positive).sum(), (~positive).sum()),
        "precision": _ratio(true, chosen.sum()),
        "f1": _ratio(2 * true, positive.sum() + chosen.sum()),
        "brier": float(np.mean((scores - positive) ** 2)),
    }
    return {name: "" if math.isnan(value) else value for name, value in values.items()}


def best_thresholds(labels: Numbers, probabilities: Numbers) -> list[float]:
    """The best threshold of each class, from classes `[n]` and probabilities `[n, classes]` of validation samples."""
    return [best_threshold(labels == k, p) for k, p in enumerate(probabilities.T)]


def thresholds_of_run(folder: str | Path, classes: Sequence[str]) -> list[float] | None:
    """Read the thresholds in `classes.csv` of a run; None if it has none, or other classes."""
    rows = run_folder.read_rows(Path(folder) / TABLE)
    if [row.get("class") for row in rows] != [*classes]:
        return None
    return [float(row["threshold"]) for row in rows]


def best_threshold(positive: Numbers, scores: Numbers) -> float:
    """Find the threshold with the largest sum of sensitivity and specificity (Youden, 1950).

    It lies between two of the scores `[n]`; it is 0.5 if all samples or none have the class, or the scores say
    nothing.
    """
    if not _is_divided(positive):
        return DEFAULT_THRESHOLD
    wrong, right, thresholds = sklearn_metrics.roc_curve(positive, scores, drop_intermediate=False)
    place = int(np.argmax(right - wrong))
    if right[place] <= wrong[place]:
        return DEFAULT_THRESHOLD
    below = thresholds[place + 1] if place + 1 < len(thresholds) else 0.0
    return float((thresholds[place] + below) / 2)


def draw_curves(path: str | Path, columns: Sequence[Column]) -> None:
    """Draw ROC, precision-recall and calibration curves of classes or labels.

    Those that no sample or all samples have are left out; if none is left, the figure says so.
    """
    figure = Figure(figsize=(13, 4.4), layout="constrained")
    receiver, recall, calibrated = figure.subplots(1, 3)
    for number, (name, positive, scores) in enumerate(columns):
        if not _is_divided(positive):
            continue
        style = {
            "color": hex_of(COLOURS[number % len(COLOURS)]),
            "label": _caption(name, positive, scores),
        }
        wrong, right, _ = sklearn_metrics.roc_curve(positive, scores)
        receiver.plot(wrong, right, **style)
        precision, found, _ = sklearn_metrics.precision_recall_curve(positive, scores)
        recall.step(found, precision, where="post", **style)
        observed, predicted = calibration.calibration_curve(
            positive, np.clip(scores, 0, 1), n_bins=_BINS
        )
        calibrated.plot(predicted, observed, "o-", **style)
    for axes, titles in (
        (receiver, ("ROC", "1 - specificity", "sensitivity")),
        (recall, ("precision and recall", "recall", "precision")),
        (calibrated, ("calibration", "predicted probability", "observed share")),
    ):
        axes.set(
            title=titles[0],
            xlabel=titles[1],
            ylabel=titles[2],
            xlim=(-0.02, 1.02),
            ylim=(-0.02, 1.02),
        )
        axes.grid(alpha=0.3)
    if not any(_is_divided(each.positive) for each in columns):
        why = _why_undefined(columns)
        for axes in (receiver, recall, calibrated):
            axes.text(0.5, 0.5, why, ha="center", va="center", parse_math=False)
    else:
        for axes in (receiver, calibrated):
            axes.plot([0, 1], [0, 1], color="grey", linewidth=0.8, linestyle="--")
    if receiver.get_legend_handles_labels()[0]:
        receiver.legend(loc="lower right", fontsize="small")
    figures.save(figure, path)


def _is_divided(positive: Numbers) -> bool:
    """Tell whether some samples have a class, and some do not."""
    return bool(positive.any() and not positive.all())


def _why_undefined(columns: Sequence[Column]) -> str:
    """Say why there is no curve of classes or labels that all samples have, or none."""
    reasons = [
        f"all samples are {name}" if positive.any() else f"no sample is {name}"
        for name, positive, _ in columns
    ]
    more = [f"and {len(reasons) - _REASONS} more"] if len(reasons) > _REASONS else []
    return "\n".join(["not defined:", *reasons[:_REASONS], *more])


def _caption(name: str, positive: Numbers, scores: Numbers) -> str:
    low, high = roc.auc_interval(positive, scores, LEVEL)
    interval = "" if math.isnan(low) else f" ({low:.2f} to {high:.2f})"
    return f"{name}: AUC {roc.auc(positive, scores):.3f}{interval}"


def _ratio(count: Any, total: Any) -> float:
    return float(count / total) if total else math.nan
