"""Metrics of classes and values equal those of NumPy and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn import metrics

from tfbig.cli.tasks.scene_results import ValueSums, class_metrics, class_rows
from tfbig.metrics.confusion import Confusion


def test_classes() -> None:
    rng = np.random.default_rng(0)
    truth, found = rng.integers(0, 4, 500), rng.integers(0, 5, 500)
    seen = Confusion.empty(300)
    seen.add(truth.astype("float32"), found.astype("uint16"))
    expected = {
        "accuracy": metrics.accuracy_score(truth, found),
        "miou": metrics.jaccard_score(truth, found, average="macro"),
        "mf1": metrics.f1_score(truth, found, average="macro"),
    }
    assert class_metrics(seen) == pytest.approx(expected)
    rows = class_rows(seen)
    assert [row["class"] for row in rows] == [0, 1, 2, 3, 4]
    precision = metrics.precision_score(truth, found, average=None)
    assert [row["precision"] for row in rows] == pytest.approx(precision)
    sensitivity = metrics.recall_score(truth, found, average=None, zero_division=0)
    assert [row["sensitivity"] for row in rows] == pytest.approx(sensitivity)
    assert class_metrics(Confusion.empty(3)) == {}


def test_values() -> None:
    rng = np.random.default_rng(0)
    truth = rng.normal(1e5, 1, 1000).astype("float32")
    found = truth + rng.normal(0, 0.5, 1000).astype("float32")
    sums, other = ValueSums(), ValueSums()
    sums.add(truth[:10], found[:10])
    sums.add(truth[:0], found[:0])
    sums.add(truth[10:400], found[10:400])
    other.add(truth[400:], found[400:])
    sums.merge(other)
    a, b = truth.astype(float), found.astype(float)
    expected = {
        "rmse": metrics.root_mean_squared_error(a, b),
        "mae": metrics.mean_absolute_error(a, b),
        "r2": metrics.r2_score(a, b),
    }
    assert sums.metrics() == pytest.approx(expected, rel=1e-9)
    assert ValueSums().metrics() == {}
    same = ValueSums()
    same.add(np.ones(3), np.zeros(3))
    assert same.metrics() == {"rmse": 1.0, "mae": 1.0}
