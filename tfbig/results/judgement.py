"""Metrics of saved predictions, and their bootstrap intervals over the cases that were tested."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tfbig.metrics import roc
from tfbig.metrics.confusion import OVERLAPS, kappa_terms
from tfbig.results import run_folder, shown
from tfbig.sources import table
from tfbig.survival import concordance

Floats = npt.NDArray[np.float64]
Measure = Callable[[Floats], Floats]
"""Function from weights `[samples, n]` of the predictions to the metric of each sample, NaN where it is not defined."""
Rows = Sequence[Mapping[str, str]]
NUM_SAMPLES = 1000
LEVEL = 0.95
INTERVAL_SUFFIXES = ("_low", "_high")
"""Endings of the metrics of a run that are ends of an interval."""
_ITEMS = ("bag", "image", "scene", "slide", "volume")
"""Columns of `predictions.csv` that name what was predicted."""
_OVERLAP_OF_A_CLASS = "dice_"


@dataclass(frozen=True)
class ScoredPredictions:
    """Predictions of a run, and what they are judged by.

    Attributes:
        cases: Case of each prediction `[n]`: the patient if the run knows it, else the slide, bag or image.
        measures: Function of the weights of the predictions for each metric, by its name in `metrics.json`.
    """

    cases: tuple[str, ...]
    measures: Mapping[str, Measure]


def read(folder: str | Path) -> ScoredPredictions:
    """Read the predictions of a training or an evaluation; without metrics if their kind is not known."""
    rows = run_folder.read_rows(Path(folder) / run_folder.PREDICTIONS)
    return ScoredPredictions(_cases(rows, Path(folder)), _measures(rows))


def means(runs: Sequence[ScoredPredictions]) -> dict[str, float]:
    """The mean over the runs of each metric that all have."""
    ones = {case: np.ones(1) for run in runs for case in run.cases}
    return {name: float(values[0]) for name, values in _sampled(runs, ones).items()}


def intervals(runs: Sequence[ScoredPredictions], seed: int = 0) -> dict[str, tuple[float, float]]:
    """Compute a 95 % confidence interval of the mean over the runs of each metric that all have.

    Cases are drawn with replacement, as many as there are (Efron, "Bootstrap methods: another look at the jackknife",
    Annals of Statistics 1979); a case that several runs tested is drawn for all of them. Runs in whose sample a metric
    is not defined do not count for its mean. The interval says how the mean depends on the cases, not on training.
    Equal seeds give equal intervals.
    """
    return {
        name: _ends(values) for name, values in _sampled(runs, _times_drawn(runs, seed)).items()
    }


def differences(
    first: Sequence[ScoredPredictions], second: Sequence[ScoredPredictions], seed: int = 0
) -> dict[str, tuple[float, float, float]]:
    """Compute how much the mean of the second runs exceeds that of the first, and its interval, by metric.

    Each metric that all have is `(difference, low, high)`.

    Cases that both tested are drawn for both, so that the interval is that of paired data.
    """
    weights = _times_drawn([*first, *second], seed)
    before, after = (_sampled(runs, weights) for runs in (first, second))
    points = [means(runs) for runs in (first, second)]
    return {
        name: (points[1][name] - points[0][name], *_ends(after[name] - before[name]))
        for name in before
        if name in after
    }


def _times_drawn(runs: Sequence[ScoredPredictions], seed: int) -> dict[str, Floats]:
    """Draw the samples of cases: how often each case is in each sample."""
    names = sorted({case for run in runs for case in run.cases})
    if not names:
        return {}
    shares = np.full(len(names), 1 / len(names))
    counts = np.random.default_rng(seed).multinomial(len(names), shares, NUM_SAMPLES)
    return dict(zip(names, counts.T.astype(np.float64), strict=True))


def _sampled(runs: Sequence[ScoredPredictions], weights: Mapping[str, Floats]) -> dict[str, Floats]:
    """The mean over the runs of each metric that all have, for each sample."""
    if not all(run.measures for run in runs):
        return {}
    tables = [np.stack([weights[case] for case in run.cases], axis=1) for run in runs]
    first, *others = runs
    names = [name for name in first.measures if all(name in run.measures for run in others)]
    found = {
        name: np.array([run.measures[name](table) for run, table in zip(runs, tables, strict=True)])
        for name in names
    }
    return {name: _mean_of_defined(values) for name, values in found.items()}


def _mean_of_defined(values: Floats) -> Floats:
    """The mean over the rows, without NaN; NaN where all are."""
    defined = np.isfinite(values)
    total, count = np.where(defined, values, 0).sum(0), defined.sum(0)
    return np.divide(total, count, np.full(len(total), np.nan), where=count > 0)


def _ends(values: Floats) -> tuple[float, float]:
    """The percentiles between which the level of the finite values lies."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return float("nan"), float("nan")
    low, high = np.quantile(finite, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _cases(rows: Rows, folder: Path) -> tuple[str, ...]:
    """The case of each row."""
    case_of: dict[str, str] = {}
    for row in run_folder.read_rows(folder / run_folder.SLIDES):
        if case := table.case_of(row):
            named = [row[key] for key in ("slide_id", *_ITEMS) if key in row]
            case_of |= dict.fromkeys((*named, Path(row.get("path", "")).name), case)
    names = [next((row[key] for key in _ITEMS if key in row), str(n)) for n, row in enumerate(rows)]
    return tuple(
        row.get("case") or case_of.get(name, name) for row, name in zip(rows, names, strict=True)
    )


def _measures(rows: Rows) -> dict[str, Measure]:
    """The metrics that a table of predictions allows, by its columns."""
    columns = {key: [row.get(key, "") for row in rows] for key in (rows[0] if rows else ())}
    classes = [
        key.removeprefix("probability_") for key in columns if key.startswith("probability_")
    ]
    if {"risk", "time", "event", "case"} <= columns.keys():
        return _survival(columns)
    if {"value", "predicted"} <= columns.keys():
        return _regression(*(np.array(columns[name], float) for name in ("value", "predicted")))
    if classes and {f"label_{name}" for name in classes} <= columns.keys():
        return _labels(columns, classes)
    if len(classes) > 1 and set(columns.get("label", ("",))) <= set(classes):
        probabilities = np.array([columns[f"probability_{name}"] for name in classes], float).T
        labels = np.array([classes.index(label) for label in columns["label"]])
        return shown.results(_classification(labels, probabilities), classes)
    overlaps = [
        name for name in columns if name in OVERLAPS or name.startswith(_OVERLAP_OF_A_CLASS)
    ]
    return {f"test_{name}": _mean(columns[name]) for name in overlaps if any(columns[name])}


def _survival(columns: Mapping[str, Sequence[str]]) -> dict[str, Measure]:
    """The concordance of the mean risks of cases, all of whose slides are drawn together."""
    _, first, place = np.unique(columns["case"], return_index=True, return_inverse=True)
    risks, times, events = (np.array(columns[name], float) for name in ("risk", "time", "event"))
    means = np.bincount(place, risks) / np.bincount(place)
    observed = times[first], events[first] > 0

    def index(weights: Floats) -> Floats:
        return np.asarray(concordance.weighted_indices(means, *observed, weights[:, first]))

    return {"test_concordance": index}


def _regression(values: Floats, predicted: Floats) -> dict[str, Measure]:
    """The errors, and the share of the variance that is explained."""
    error = predicted - values
    centred = values - values.mean()  # so that the variance does not cancel

    def explained(weights: Floats) -> Floats:
        total = weights.sum(1)
        spread = weights @ centred**2 - _divided((weights @ centred) ** 2, total)
        return np.asarray(1 - _divided(weights @ error**2, spread * (spread > 1e-12 * total)))

    return {
        "test_mae": lambda weights: _divided(weights @ np.abs(error), weights.sum(1)),
        "test_rmse": lambda weights: np.sqrt(_divided(weights @ error**2, weights.sum(1))),
        "test_r2": explained,
    }


def _labels(columns: Mapping[str, Sequence[str]], names: Sequence[str]) -> dict[str, Measure]:
    """The mean area under the curve of several labels, each over the bags of which it is known."""
    scores = {name: np.array(columns[f"probability_{name}"], float) for name in names}
    known = {name: np.array([cell != "" for cell in columns[f"label_{name}"]]) for name in names}
    positive = {name: np.array(columns[f"label_{name}"])[known[name]] == "1" for name in names}

    def auc(weights: Floats) -> Floats:
        areas = [
            roc.weighted_auc(positive[name], scores[name][known[name]], weights[:, known[name]])
            if known[name].any()
            else np.full(len(weights), np.nan)
            for name in names
        ]
        return _mean_of_defined(np.array(areas))

    return {"test_auc": auc}


def _mean(column: Sequence[str]) -> Measure:
    """The weighted mean of a column; empty cells do not count."""
    known = np.array([cell != "" for cell in column])
    values = np.array([float(cell) if cell else 0.0 for cell in column])
    return lambda weights: _divided(weights @ values, weights @ known.astype(float))


def _classification(labels: npt.NDArray[np.int64], probabilities: Floats) -> dict[str, Measure]:
    """Accuracy, quadratic weighted kappa and area under the ROC curve, the mean of those of each class."""
    classes, predicted = probabilities.shape[1], probabilities.argmax(1)
    correct = (predicted == labels).astype(float)
    positives = [1] if classes == 2 else range(classes)

    def auc(weights: Floats) -> Floats:
        areas = [
            roc.weighted_auc(labels == number, probabilities[:, number], weights)
            for number in positives
        ]
        return np.asarray(np.mean(areas, axis=0))

    return {
        "test_accuracy": lambda weights: _divided(weights @ correct, weights.sum(1)),
        "test_qwk": lambda weights: _kappa(labels, predicted, classes, weights),
        "test_auc": auc,
    }


def _kappa(
    labels: npt.NDArray[np.int64], predicted: npt.NDArray[np.int64], classes: int, weights: Floats
) -> Floats:
    """The quadratic weighted kappa of each sample."""
    cells = np.eye(classes**2)[labels * classes + predicted]
    counts = (weights @ cells).reshape(-1, classes, classes)
    errors, chance = (term.ravel() for term in kappa_terms(counts))
    return 1 - _divided(errors, chance)


def _divided(dividend: Any, divisor: Any) -> Floats:
    """Divide; NaN where the divisor is 0."""
    return np.divide(dividend, divisor, np.full(np.shape(divisor), np.nan), where=divisor != 0)
