"""Survival curves of groups of members, and the test whether two of them differ. Both are SciPy's."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from tfbig.survival.observations import observed


@dataclass(frozen=True)
class SurvivalCurve:
    """A survival curve: a step function that falls at the times of events.

    Args:
        times: Time 0 and the distinct times of the members, rising, `[m]`.
        survival: Estimated chance of no event up to each time, that time included, `[m]`.
        low: Lower end of the confidence band, `[m]`.
        high: Upper end of the confidence band, `[m]`.
        num_at_risk: Members that were under observation without an event just before each time, `[m]`.

    Example:
        >>> curve = tfbig.survival.kaplan_meier([1, 2, 3, 4], [1, 0, 1, 1])
        >>> isinstance(curve, tfbig.survival.SurvivalCurve), curve.num_at_risk.tolist()
        (True, [4, 4, 3, 2, 1])
    """

    times: np.ndarray
    survival: np.ndarray
    low: np.ndarray
    high: np.ndarray
    num_at_risk: np.ndarray

    @property
    def median(self) -> float:
        """First time at which at most half survive; infinite if more than half survive all times."""
        below = np.flatnonzero(self.survival <= 0.5)
        return float(self.times[below[0]]) if below.size else float("inf")


def kaplan_meier(times: Any, events: Any, level: float = 0.95) -> SurvivalCurve:
    """Estimate a survival curve with a pointwise confidence band.

    Kaplan and Meier, "Nonparametric estimation from incomplete observations", JASA 1958, with Greenwood's variance and
    the band of `log(-log(survival))`, which stays within 0 and 1 (`scipy.stats.ecdf`):

        survival(t) = prod over distinct times u <= t of 1 - events(u) / at_risk(u)

    At one time, events come before censoring.

    Args:
        times: Times `[n]` in any unit, as in `cox_loss`.
        events: Events `[n]`, each 0 or 1. There may be none: the curve is 1 then.
        level: Confidence level of the band at each time, between 0 and 1.

    Returns:
        The curve. Its band is 1 to 1 before the first event, and NaN where the curve is 0.

    Raises:
        ValueError: Times or events are wrong, as in `cox_loss`, there are no members, or the level is not between 0
            and 1.

    Example:
        >>> curve = tfbig.survival.kaplan_meier([1, 2, 3, 4], [1, 0, 1, 1])
        >>> curve.survival.tolist(), curve.median
        ([1.0, 0.75, 0.75, 0.375, 0.0], 3.0)
    """
    times, events = observed("kaplan_meier", times, events, need_event=False)
    if not times.size:
        raise ValueError("kaplan_meier: there are no members, expected at least one.")
    if not 0 < level < 1:
        raise ValueError(f"kaplan_meier: level is {level}, expected a number between 0 and 1.")
    curve = stats.ecdf(stats.CensoredData.right_censored(times, ~events)).sf
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The confidence interval is undefined", RuntimeWarning)
        band = curve.confidence_interval(level, method="log-log")
    start = [] if curve.quantiles[0] == 0 else [0.0]  # the curve begins at time 0, with 1
    ones, rising = np.ones(len(start)), np.concatenate([start, curve.quantiles])
    survival = np.concatenate([ones, curve.probabilities])
    low, high = (
        np.where(survival == 1, 1.0, np.concatenate([ones, end.probabilities]))
        for end in (band.low, band.high)
    )
    num_at_risk = len(times) - np.searchsorted(np.sort(times), rising, "left")
    return SurvivalCurve(rising, survival, low, high, num_at_risk)


@dataclass(frozen=True)
class LogRank:
    """Result of a log-rank test.

    Args:
        statistic: Chi-squared statistic of one degree of freedom; NaN if no event could have been in either group.
        p_value: Chance of a statistic as large if both groups have the same survival; NaN as above.

    Example:
        >>> tfbig.survival.LogRank(statistic=3.84, p_value=0.05).p_value
        0.05
    """

    statistic: float
    p_value: float


def log_rank_test(times: Any, events: Any, groups: Any) -> LogRank:
    """Test whether two groups of members have the same survival.

    Mantel, "Evaluation of survival data and two new rank order statistics arising in its consideration", Cancer
    Chemotherapy Reports 1966 (`scipy.stats.logrank`, two-sided):

        expected(t) = events(t) * at_risk in group 0 / at_risk, at each distinct time t
        statistic = (events of group 0 - sum of expected) ** 2 / sum of the hypergeometric variances

    Groups that were chosen by the outcome, such as those of a cut that separates best, make the p value too small.

    Args:
        times: Times `[n]` in any unit, as in `cox_loss`.
        events: Events `[n]`, each 0 or 1, as in `cox_loss`.
        groups: Two different values `[n]`, of any type: the group of each member, such as `risks > median`.

    Returns:
        The statistic and the p value.

    Raises:
        ValueError: Times or events are wrong, as in `cox_loss`, lengths differ, or there are not two groups.

    Example:
        >>> result = tfbig.survival.log_rank_test([1, 2, 3, 4, 5, 6], [1] * 6, [0, 0, 0, 1, 1, 1])
        >>> round(result.statistic, 3), round(result.p_value, 3)
        (5.052, 0.025)
    """
    times, events = observed("log_rank_test", times, events)
    groups = np.asarray(groups)
    names = np.unique(groups)
    if groups.shape != times.shape or len(names) != 2:
        raise ValueError(
            f"log_rank_test: groups have shape {groups.shape} and {len(names)} different values, expected "
            f"{times.shape} and 2. Compare more groups pair by pair."
        )
    samples = [
        stats.CensoredData.right_censored(times[chosen], ~events[chosen])
        for chosen in (groups == name for name in names)
    ]
    with np.errstate(divide="ignore", invalid="ignore"):
        result = stats.logrank(*samples)
    if not np.isfinite(result.statistic):
        return LogRank(float("nan"), float("nan"))
    return LogRank(float(result.statistic**2), float(result.pvalue))
