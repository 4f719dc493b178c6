"""The cumulative/dynamic AUC by hand, by definition and against scikit-survival."""

from __future__ import annotations

import numpy as np
import pytest
from cohorts import cohort, cohorts
from hypothesis import given, settings

from tfbig.metrics import auc
from tfbig.survival import time_dependent_auc
from tfbig.survival.time_dependent_auc import under_observation


def by_definition(risks, times, events, at):
    """One pair after the other, and G one time after the other."""

    def not_censored_before(t):
        chance = 1.0
        for u in np.unique(times[times < t]):
            censored = ((times == u) & ~events).sum()
            at_risk = (times > u).sum() + censored
            chance *= 1 - censored / at_risk if at_risk else 1
        return chance

    score = total = 0.0
    for i in np.flatnonzero(events & (times <= at)):
        for j in np.flatnonzero(times > at):
            weight = 1 / not_censored_before(times[i])
            total += weight
            score += weight * ((risks[i] > risks[j]) + (risks[i] == risks[j]) / 2)
    return score / total if total else np.nan


@settings(max_examples=50)
@given(cohorts(whole_risks=True))
def test_matches_definition(data):
    areas = time_dependent_auc(*data, at=[0, 2, 3.5, 6])
    expected = [by_definition(*data, at) for at in (0, 2, 3.5, 6)]
    np.testing.assert_allclose(areas, expected, rtol=1e-12)


def test_by_hand():
    """The second of five is censored at 2, so those after it stand for 4/3 members each."""
    times, events = np.array([1.0, 2, 3, 4, 5]), np.array([1, 0, 1, 1, 1])
    chances = under_observation(times, events.astype(bool))
    np.testing.assert_allclose(chances, [1, 1, 3 / 4, 3 / 4, 3 / 4])
    # cases 0 (weight 1) and 2 (weight 4/3), controls 3 and 4: case 0 above both, case 2 above one
    area = time_dependent_auc([9.0, 0.0, 2.0, 3.0, 1.0], times, events, at=3)
    assert area == pytest.approx((1 * 2 + 4 / 3 * 1) / (2 * (1 + 4 / 3)))


def test_events_come_before_censoring():
    chances = under_observation(np.array([1.0, 1, 1, 2, 3]), np.array([1, 1, 0, 1, 1], bool))
    np.testing.assert_allclose(chances, [1, 1, 1, 2 / 3, 2 / 3])


def test_without_censoring_it_is_the_plain_area():
    risks, times, _ = cohort(0)
    areas = time_dependent_auc(risks, times, np.ones(40), at=[3, 10])
    expected = [auc(times <= at, risks) for at in (3, 10)]
    np.testing.assert_allclose(areas, expected, rtol=1e-12)
    assert (areas > 0.6).all()  # a higher risk is worse


def test_matches_scikit_survival():
    """Without ties: at a time with an event and a censoring, it weights by G after the censoring."""
    metrics = pytest.importorskip("sksurv.metrics")
    from sksurv.util import Surv

    risks, times, events = cohort(1, n=150, tied=False)
    at, observations = np.quantile(times, [0.2, 0.5, 0.8]), Surv.from_arrays(events, times)
    expected = metrics.cumulative_dynamic_auc(observations, observations, risks, at)[0]
    np.testing.assert_allclose(time_dependent_auc(risks, times, events, at), expected, rtol=1e-12)


def test_times_without_cases_or_controls():
    areas = time_dependent_auc([3, 2, 1], [1, 2, 3], [1, 1, 0], at=[0.5, 1.5, 3])
    assert np.isnan(areas).tolist() == [True, False, True]


def test_shapes_and_infinite_risks():
    assert time_dependent_auc([[np.inf], [-np.inf]], [1, 2], [1, 0], at=1).tolist() == [1.0]


def test_wrong_input_is_refused():
    for risks, events, at, message in [
        ([0.0], [1, 1], 1, r"risks have shape \(1,\), expected \[2\]"),
        ([0.0, np.nan], [1, 1], 1, "1 of 2 risks are NaN"),
        ([0.0, 1.0], [0, 0], 1, "all 2 members are censored"),
        ([0.0, 1.0], [1, 1], [1, np.nan], r"at is .*, expected finite times \[m\]"),
        ([0.0, 1.0], [1, 1], [[1]], r"at is .*, expected finite times \[m\]"),
    ]:
        with pytest.raises(ValueError, match="^time_dependent_auc: " + message):
            time_dependent_auc(risks, [1, 2], events, at)
