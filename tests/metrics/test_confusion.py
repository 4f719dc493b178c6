"""Streamed counts equal scikit-learn's, however images are cut, and refuse what is no class."""

from __future__ import annotations

import math
from itertools import pairwise

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics

from tfbig.metrics import QuadraticWeightedKappa, confusion
from tfbig.metrics.confusion import OVERLAPS, Confusion, kappa_terms


def counted(labels: np.ndarray, predictions: np.ndarray, classes: int) -> Confusion:
    """Count pixels at once."""
    seen = Confusion.empty(classes)
    seen.add(labels, predictions)
    return seen


def pair(seed: int, classes: int, size: int = 500) -> tuple[np.ndarray, np.ndarray]:
    """Draw labels and predictions in which all classes occur."""
    rng = np.random.default_rng(seed)
    labels, predictions = rng.integers(0, classes, (2, size))
    labels[:classes] = predictions[:classes] = range(classes)
    return labels, predictions


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_ratios_are_those_of_scikit_learn(classes: int) -> None:
    labels, predictions = pair(classes, classes)
    seen = counted(labels, predictions, classes)
    assert seen.counts.tolist() == metrics.confusion_matrix(labels, predictions).tolist()
    each = {"average": None}
    expected = {
        "dice": metrics.f1_score(labels, predictions, **each),
        "iou": metrics.jaccard_score(labels, predictions, **each),
        "precision": metrics.precision_score(labels, predictions, **each),
        "sensitivity": metrics.recall_score(labels, predictions, **each),
    }
    for name in OVERLAPS:
        found = getattr(seen, name)()
        assert found == pytest.approx(expected[name].tolist(), rel=1e-15)
        assert [seen.of_class(number)[name] for number in range(classes)] == found
    accuracy = metrics.accuracy_score(labels, predictions)
    assert seen.accuracy() == pytest.approx(accuracy, rel=1e-15)
    kappa = metrics.cohen_kappa_score(labels, predictions, weights="quadratic")
    assert seen.kappa() == pytest.approx(kappa, rel=1e-12)


@given(st.integers(0, 2**32), st.lists(st.integers(0, 60), max_size=4), st.integers(1, 70))
def test_strips_and_parts_add_up(seed: int, cuts: list[int], chunk: int) -> None:
    rng = np.random.default_rng(seed)
    labels, predictions = rng.integers(0, 4, (2, 60, 3))
    whole, merged = counted(labels, predictions, 4), Confusion.empty(4)
    ends = [0, *sorted(cuts), 60]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(confusion, "_CHUNK", chunk)
        for start, stop in pairwise(ends):
            part = labels[start:stop].astype("float32"), predictions[start:stop].astype("uint8")
            merged.merge(counted(*part, 4))
    assert merged.counts.tolist() == whole.counts.tolist()


def test_what_divides_by_0_is_none() -> None:
    nothing = Confusion.empty(3)
    assert (nothing.accuracy(), nothing.kappa(), nothing.dice()) == (None, None, [None] * 3)
    seen = counted(np.array([False, True]), np.array([False, False]), 3)
    assert seen.precision() == [0.5, None, None]
    assert seen.sensitivity() == [1.0, 0.0, None]
    assert seen.iou() == [0.5, 0.0, None]
    assert counted(np.ones(5), np.ones(5), 2).kappa() is None


def test_one_class_more_or_less() -> None:
    """The counts of a class do not run into those of the next."""
    for labels, predictions in (([0], [3]), ([3], [0]), ([-1], [0]), ([0], [-1])):
        with pytest.raises(ValueError, match=r"from -?\d to \d, expected classes from 0 to 2"):
            counted(np.array(labels), np.array(predictions), 3)
    with pytest.raises(ValueError, match=r"shape \(2,\) and predictions \(1,\), expected equal"):
        counted(np.zeros(2), np.zeros(1), 3)


def test_kappa_of_many_matrices_and_of_the_metric() -> None:
    """Sums of whole numbers are exact, so all three are equal to the last bit."""
    pairs = [pair(seed, 5, 50) for seed in range(4)]
    kappas = [counted(*each, 5).kappa() for each in pairs]
    stacked = np.stack([counted(*each, 5).counts for each in pairs]).astype(float)
    errors, chance = (term.ravel() for term in kappa_terms(stacked))
    assert (1 - errors / chance).tolist() == kappas
    for (labels, predictions), kappa in zip(pairs, kappas, strict=True):
        metric = QuadraticWeightedKappa(5, dtype="float64")
        metric.update_state(labels, keras.ops.one_hot(predictions, 5))
        assert float(metric.result()) == kappa


def test_counts_beyond_float32() -> None:
    seen = Confusion.empty(2)
    seen.counts[:] = [[0, 1], [0, 2**53]]
    seen.merge(counted(np.ones(1), np.ones(1), 2))
    assert seen.counts[1, 1] == 2**53 + 1
    assert math.isclose(seen.dice()[1] or 0, 1)
