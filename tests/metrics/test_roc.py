"""Areas under the ROC curve compared with scikit-learn and with the definition over pairs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from tfbig.metrics.roc import auc, auc_interval, macro_auc, weighted_auc

SAMPLES = st.lists(st.tuples(st.booleans(), st.integers(-3, 3)), min_size=2, max_size=40)


@given(SAMPLES)
def test_auc_matches_definition_over_pairs(samples):
    labels, scores = (np.array(column) for column in zip(*samples, strict=True))
    positive, negative = scores[labels], scores[~labels]
    pairs = positive[:, None] - negative
    expected = np.mean((pairs > 0) + (pairs == 0) / 2) if pairs.size else np.nan
    np.testing.assert_allclose(auc(labels, scores), expected, rtol=1e-15)


@pytest.mark.parametrize("levels", [2, 5, 10**6])
def test_auc_matches_scikit_learn(levels):
    rng = np.random.default_rng(levels)
    labels, scores = rng.integers(0, 2, 300), rng.integers(0, levels, 300) / levels
    assert auc(labels, scores) == pytest.approx(roc_auc_score(labels, scores), rel=1e-12)


@pytest.mark.parametrize("levels", [3, 10**6])
def test_macro_auc_matches_scikit_learn(levels):
    rng = np.random.default_rng(levels)
    labels = rng.integers(0, 4, 200)
    scores = rng.integers(1, levels + 1, (200, 4))
    scores = scores / scores.sum(axis=1, keepdims=True)
    expected = roc_auc_score(labels, scores, multi_class="ovr", average="macro")
    assert macro_auc(labels, scores) == pytest.approx(expected, rel=1e-12)


def test_auc_by_hand():
    assert auc([0, 0, 1, 1], [0.1, 0.4, 0.35, 0.8]) == 0.75
    assert auc([False, True], [1, 1]) == 0.5
    assert auc([0.0, 1.0], [-np.inf, np.inf]) == 1.0


@pytest.mark.parametrize("dtype", ["float16", "float32", "int8"])
def test_auc_accepts_any_dtype(dtype):
    assert auc(np.array([1, 0, 1], dtype), np.array([3, 2, 1], dtype)) == 0.5


@pytest.mark.parametrize("labels", [[0, 0], [1, 1], []])
def test_auc_of_one_class_is_nan(labels):
    assert np.isnan(auc(labels, np.arange(len(labels))))


def test_macro_auc_with_missing_class_is_nan():
    assert np.isnan(macro_auc([0, 1, 0], np.eye(3)))


@pytest.mark.parametrize(
    ("labels", "scores", "message"),
    [
        ([0, 1], [0.5], r"shape \(2,\) and scores \(1,\)"),
        ([[0], [1]], [[0.5], [0.5]], r"expected equal shapes \[n\]"),
        ([0, 2], [0.5, 0.5], r"labels are \[0 2\], expected 0 and 1"),
        ([0, 1], [0.5, np.nan], "1 of 2 scores are NaN"),
    ],
)
def test_auc_rejects_invalid_input(labels, scores, message):
    with pytest.raises(ValueError, match=message):
        auc(labels, scores)


@pytest.mark.parametrize(
    ("labels", "scores", "message"),
    [
        ([0, 1], [0.5, 0.5], r"expected \[n\] and \[n, classes\]"),
        ([0], np.eye(2), r"shape \(1,\) and probabilities \(2, 2\)"),
        ([0, 2], np.eye(2), r"labels are \[0 2\], expected classes from 0 to 1"),
        ([0, 1], np.full((2, 2), np.nan), "4 of 4 scores are NaN"),
    ],
)
def test_macro_auc_rejects_invalid_input(labels, scores, message):
    with pytest.raises(ValueError, match=message):
        macro_auc(labels, scores)


def interval_by_definition(labels, scores):
    """The components of DeLong et al. by comparing every pair."""
    positive, negative = scores[labels == 1], scores[labels == 0]
    pairs = (positive[:, None] > negative) + 0.5 * (positive[:, None] == negative)
    variance = pairs.mean(1).var(ddof=1) / len(positive) + pairs.mean(0).var(ddof=1) / len(negative)
    reach = 1.959963984540054 * np.sqrt(variance)
    return max(pairs.mean() - reach, 0), min(pairs.mean() + reach, 1)


@pytest.mark.parametrize("levels", [3, 1000])
def test_auc_interval_matches_definition(levels):
    rng = np.random.default_rng(levels)
    for _ in range(20):
        labels = np.r_[0, 0, 1, 1, rng.integers(0, 2, 30)]
        scores = rng.integers(0, levels, 34) + labels * levels / 4
        assert auc_interval(labels, scores) == pytest.approx(interval_by_definition(labels, scores))


def test_auc_interval_contains_the_truth_as_often_as_it_says():
    """Normal scores one deviation apart have an AUC of 0.7602."""
    rng, inside = np.random.default_rng(0), 0
    labels = np.repeat([0, 1], 60)
    for _ in range(500):
        low, high = auc_interval(labels, rng.normal(size=120) + labels, level=0.9)
        inside += low <= 0.76025 <= high
    assert 0.87 < inside / 500 < 0.93


def test_auc_interval_of_few_samples():
    assert np.isnan(auc_interval([0, 1, 1], [0.1, 0.5, 0.9])).all()
    assert np.isnan(auc_interval([0, 0, 1, 1], [0.1, 0.2, 0.5, 0.9])).all()
    assert np.isnan(auc_interval([1, 1, 0, 0], [0.1, 0.2, 0.5, 0.9])).all()
    with pytest.raises(ValueError, match="level is 95, expected a number between 0 and 1"):
        auc_interval([0, 1], [0.1, 0.5], level=95)


def test_weights_count_predictions_several_times():
    """All sums are whole numbers or halves, so the areas are equal to the last bit."""
    rng = np.random.default_rng(1)
    labels, scores = rng.integers(0, 2, 40), rng.integers(0, 9, 40).astype(float)
    weights = rng.integers(0, 4, (5, 40)).astype(float)
    expected = [
        auc(np.repeat(labels, w.astype(int)), np.repeat(scores, w.astype(int))) for w in weights
    ]
    actual = weighted_auc(labels == 1, scores, weights)
    assert actual.tolist() == expected
    assert np.isnan(weighted_auc(np.ones(3, bool), np.arange(3.0), np.ones((1, 3))))
