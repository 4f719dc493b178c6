"""The concordance index against its definition over pairs, other libraries, and the coverage of its interval."""

from __future__ import annotations

import numpy as np
import pytest
from cohorts import cohort, cohorts
from hypothesis import given, settings

from tfbig.metrics import auc
from tfbig.survival import concordance, concordance_index, concordance_interval

few = settings(max_examples=50)


def by_definition(risks, times, events):
    """One pair after the other."""
    scores = [
        (risks[i] > risks[j]) + (risks[i] == risks[j]) / 2
        for i in range(len(times))
        for j in range(len(times))
        if events[i] and (times[i] < times[j] or (times[i] == times[j] and not events[j]))
    ]
    return np.mean(scores) if scores else np.nan


@few
@given(cohorts(whole_risks=True))
def test_matches_definition_over_pairs(data):
    np.testing.assert_allclose(concordance_index(*data), by_definition(*data), rtol=1e-14)


def test_by_hand():
    """Comparable: (0, 2), (0, 3), (1, 2), (1, 3), (2, 3). The first two die together: no order."""
    times, events = [1, 1, 2, 3], [1, 1, 1, 0]
    assert concordance_index([4, 3, 2, 1], times, events) == 1.0
    assert concordance_index([1, 2, 3, 4], times, events) == 0.0
    assert concordance_index([0, 0, 0, 0], times, events) == 0.5
    assert concordance_index([2, 1, 1, 0], times, events) == (1 + 1 + 0.5 + 1 + 1) / 5
    assert concordance_index([0, 1], [1, 1], [1, 0]) == 0.0  # the event comes before the censoring


def test_order_alone_counts():
    risks, times, events = cohort(0, n=60)
    index = concordance_index(risks, times, events)
    assert index > 0.6  # a higher risk is worse
    assert concordance_index(np.exp(risks), times * 365.25, events) == index
    assert concordance_index(risks[:, None], times, events) == index
    assert concordance_index(-risks, times, events) == pytest.approx(1 - index, rel=1e-14)
    assert concordance_index([np.inf, 0, -np.inf], [1, 2, 3], [1, 1, 1]) == 1.0


def test_of_one_event_time_is_the_area_under_the_roc_curve():
    risks, _, events = cohort(1)
    times = np.where(events, 1, 2)
    assert concordance_index(risks, times, events) == pytest.approx(auc(events, risks), rel=1e-14)


@pytest.mark.parametrize("tied", [False, True])
def test_matches_lifelines(tied):
    utils = pytest.importorskip("lifelines.utils")
    risks, times, events = cohort(2, n=150, tied=tied)
    risks = np.round(risks, 1)
    expected = utils.concordance_index(times, -risks, events)
    assert concordance_index(risks, times, events) == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("tied", [False, True])
def test_matches_scikit_survival(tied):
    metrics = pytest.importorskip("sksurv.metrics")
    risks, times, events = cohort(3, n=150, tied=tied)
    expected = metrics.concordance_index_censored(events, times, risks)[0]
    assert concordance_index(risks, times, events) == pytest.approx(expected, rel=1e-14)


def test_no_comparable_pair():
    data = [0.0, 1.0], [2, 1], [1, 0]
    assert np.isnan(concordance_index(*data))
    assert np.isnan(concordance_interval(*data)).all()


def test_interval_matches_samples_of_members(monkeypatch):
    """Counts of members stand for the members themselves; blocks change nothing."""
    risks, times, events = cohort(4, n=12)
    risks = np.round(risks)
    drawn = np.random.default_rng(9).multinomial(12, np.full(12, 1 / 12), 40)
    indices = []
    for counts in drawn:
        members = np.repeat(np.arange(12), counts)
        indices.append(by_definition(risks[members], times[members], events[members]))
    expected = np.quantile([i for i in indices if np.isfinite(i)], [0.1, 0.9])
    for rows in (256, 1):
        monkeypatch.setattr(concordance, "BLOCK_ROWS", rows)
        interval = concordance_interval(risks, times, events, 0.8, num_samples=40, seed=9)
        np.testing.assert_allclose(interval, expected, rtol=1e-14)


def test_interval_is_reproducible_and_wider_at_a_higher_level():
    data = cohort(5)
    low, high = concordance_interval(*data)
    assert (low, high) == concordance_interval(*data)
    assert (low, high) != concordance_interval(*data, seed=1)
    assert low < concordance_index(*data) < high
    wider = concordance_interval(*data, level=0.99)
    assert wider[0] < low and high < wider[1]


def test_interval_contains_the_truth_about_as_often_as_it_says():
    """The truth is the mean index of 1000 cohorts; percentiles are a little narrow at this size."""
    truth = np.mean([concordance_index(*cohort(seed, 80, tied=False)) for seed in range(1000)])
    inside = 0
    for seed in range(200):
        low, high = concordance_interval(*cohort(seed, 80, tied=False), 0.9, num_samples=200)
        inside += low <= truth <= high
    assert 0.84 < inside / 200 < 0.96


@pytest.mark.parametrize(
    ("risks", "events", "message"),
    [
        ([0.0], [1, 1], r"risks have shape \(1,\), expected \[2\] or \[2, 1\]"),
        ([[0.0, 1.0]], [1, 1], r"risks have shape \(1, 2\)"),
        ([0.0, np.nan], [1, 1], "1 of 2 risks are NaN. Check the model"),
        ([0.0, 1.0], [0, 0], "all 2 members are censored"),
    ],
)
@pytest.mark.parametrize("function", [concordance_index, concordance_interval])
def test_wrong_input_is_refused(function, risks, events, message):
    with pytest.raises(ValueError, match=f"^{function.__name__}: {message}"):
        function(risks, [1, 2], events)


def test_wrong_options_are_refused():
    data = cohort(0)
    with pytest.raises(ValueError, match="level is 95, expected a number between 0 and 1"):
        concordance_interval(*data, level=95)
    with pytest.raises(ValueError, match="num_samples is 0, expected at least 1"):
        concordance_interval(*data, num_samples=0)
