"""Survival curves and the log-rank test by hand, by definition and against lifelines."""

from __future__ import annotations

import numpy as np
import pytest
from cohorts import cohort, cohorts
from hypothesis import assume, given, settings
from scipy.stats import chi2, norm

from tfbig.survival import kaplan_meier, log_rank_test

few = settings(max_examples=50)


def test_curve_by_hand():
    """Two of six are censored, one of them at the time of an event."""
    curve = kaplan_meier([1, 2, 2, 3, 5, 8], [1, 1, 0, 1, 0, 1])
    np.testing.assert_array_equal(curve.times, [0, 1, 2, 3, 5, 8])
    np.testing.assert_array_equal(curve.num_at_risk, [6, 6, 5, 3, 2, 1])
    expected = np.cumprod([1, 5 / 6, 4 / 5, 2 / 3, 1, 0])
    np.testing.assert_allclose(curve.survival, expected, rtol=1e-14)
    assert curve.median == 3
    assert kaplan_meier([1, 2, 3, 4], [1, 1, 1, 1]).median == 2  # where exactly half survive


@few
@given(cohorts())
def test_curve_and_band_match_the_definition(data):
    """Greenwood's variance, carried over to `log(-log(survival))`."""
    _, times, events = data
    curve = kaplan_meier(times, events, level=0.9)
    survival, total = 1.0, 0.0
    for k, time in enumerate(curve.times):
        at_risk, deaths = (times >= time).sum(), ((times == time) & events).sum()
        survival *= 1 - deaths / at_risk
        assert curve.survival[k] == pytest.approx(survival, abs=1e-14)
        assert curve.num_at_risk[k] == at_risk
        if survival == 0:
            assert np.isnan([curve.low[k], curve.high[k]]).all()
            continue
        total += deaths / at_risk / (at_risk - deaths)
        band = [1.0, 1.0]
        if survival < 1:
            reach = norm.ppf(0.95) * np.sqrt(total) / np.log(survival)
            band = [survival ** np.exp(-reach), survival ** np.exp(reach)]
        np.testing.assert_allclose([curve.low[k], curve.high[k]], band, rtol=1e-10)


def test_curve_matches_lifelines():
    lifelines = pytest.importorskip("lifelines")
    _, times, events = cohort(0, n=100)
    curve, fitter = kaplan_meier(times, events), lifelines.KaplanMeierFitter().fit(times, events)
    assert curve.median == fitter.median_survival_time_
    expected = fitter.survival_function_["KM_estimate"]
    np.testing.assert_array_equal(curve.times, expected.index)
    np.testing.assert_allclose(curve.survival, expected, rtol=1e-12, atol=1e-15)
    positive = curve.survival > 0
    band = np.stack([curve.low, curve.high], 1)[positive]
    np.testing.assert_allclose(band, fitter.confidence_interval_[positive], rtol=1e-10)


def test_curve_without_events_and_from_time_zero():
    curve = kaplan_meier([1, 2], [0, 0])
    np.testing.assert_array_equal([curve.survival, curve.low, curve.high], np.ones((3, 3)))
    assert curve.median == np.inf
    at_zero = kaplan_meier([0, 0, 1], [1, 0, 0])
    np.testing.assert_array_equal(at_zero.times, [0, 1])
    np.testing.assert_allclose(at_zero.survival, [2 / 3, 2 / 3])


@few
@given(cohorts(max_size=20))
def test_log_rank_matches_the_definition(data):
    _, times, events = data
    groups = np.arange(len(times)) % 2
    assume(len(times) > 1)
    excess = variance = 0.0
    for time in np.unique(times[events]):
        at_risk, died = times >= time, (times == time) & events
        n, n0, d = at_risk.sum(), (at_risk & (groups == 0)).sum(), died.sum()
        excess += (died & (groups == 0)).sum() - d * n0 / n
        variance += d * n0 / n * (1 - n0 / n) * (n - d) / (n - 1) if n > 1 else 0
    result = log_rank_test(times, events, groups)
    if variance == 0:
        assert np.isnan([result.statistic, result.p_value]).all()
        return
    assert result.statistic == pytest.approx(excess**2 / variance, rel=1e-9, abs=1e-12)
    assert result.p_value == pytest.approx(chi2.sf(excess**2 / variance, 1), rel=1e-6)


def test_log_rank_matches_lifelines():
    statistics = pytest.importorskip("lifelines.statistics")
    risks, times, events = cohort(1, n=100)
    high = risks > 0
    expected = statistics.logrank_test(times[high], times[~high], events[high], events[~high])
    result = log_rank_test(times, events, high)
    assert result.statistic == pytest.approx(expected.test_statistic, rel=1e-12)
    assert result.p_value == pytest.approx(expected.p_value, rel=1e-9)
    names = log_rank_test(times, events, np.where(high, "worse", "better"))
    assert names.statistic == pytest.approx(result.statistic, rel=1e-12)


def test_p_values_are_uniform_if_the_groups_are_alike():
    p_values = []
    for seed in range(300):
        _, times, events = cohort(seed, n=80, tied=False)
        p_values.append(log_rank_test(times, events, np.arange(80) % 2).p_value)
    assert 0.02 < np.mean(np.array(p_values) < 0.05) < 0.09
    assert 0.43 < np.mean(p_values) < 0.57


def test_wrong_input_is_refused():
    for level in (0, 1, 95):
        with pytest.raises(ValueError, match=f"kaplan_meier: level is {level}, expected"):
            kaplan_meier([1], [1], level)
    with pytest.raises(ValueError, match="kaplan_meier: there are no members, expected at least"):
        kaplan_meier([], [])
    with pytest.raises(ValueError, match=r"kaplan_meier: 1 of 1 times are missing"):
        kaplan_meier([np.nan], [1])
    with pytest.raises(ValueError, match="log_rank_test: all 2 members are censored"):
        log_rank_test([1, 2], [0, 0], [0, 1])
    for groups in ([0, 0], [0], [[0, 1]]):
        with pytest.raises(ValueError, match=r"groups have shape .* expected \(2,\) and 2"):
            log_rank_test([1, 2], [1, 1], groups)
    with pytest.raises(ValueError, match=r"and 3 different values, .* pair by pair"):
        log_rank_test([1, 2, 3], [1, 1, 1], [0, 1, 2])
