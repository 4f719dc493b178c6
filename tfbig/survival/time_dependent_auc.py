"""Area under the ROC curve of risks for events up to a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfbig.metrics import roc
from tfbig.survival.observations import observed, risks_of


def time_dependent_auc(risks: Any, times: Any, events: Any, at: Any) -> np.ndarray:
    """Compute the cumulative/dynamic AUC: how well risks separate events up to a time from survivors beyond it.

    Uno et al., "Evaluating prediction rules for t-year survivors with censored regression models", JASA 2007; Hung and
    Chiang, "Estimation methods for time-dependent AUC models with survival data", Canadian Journal of Statistics
    2010. For each time t of `at`, with cases i (an event up to t), controls j (times above t), and G the Kaplan-Meier
    estimate of the chance of being under observation still,

        auc = sum over i, j of w[i] * ((risks[i] > risks[j]) + (risks[i] == risks[j]) / 2) / sum over i, j of w[i]
        w[i] = 1 / G(just before times[i])

    The weights make up for cases that were censored before. They assume that censoring does not depend on the risk.
    At one time, events come before censoring. G is estimated from the same members.

    Args:
        risks: Risks `[n]` or `[n, 1]` on any scale; a higher risk is worse.
        times: Times `[n]` in any unit, as in `cox_loss`.
        events: Events `[n]`, each 0 or 1, as in `cox_loss`.
        at: Times `[m]`, or one time, in the unit of `times`.

    Returns:
        Areas, float64 `[m]`, each from 0 to 1; NaN for a time without a case or without a control.

    Raises:
        ValueError: Lengths differ, a risk is NaN, times or events are wrong, as in `cox_loss`, or `at` is not finite.

    Example:
        >>> tfbig.survival.time_dependent_auc([4, 2, 3, 1], [1, 2, 3, 4], [1, 1, 1, 0], at=[1, 2.5]).tolist()
        [1.0, 0.75]
    """
    times, events = observed("time_dependent_auc", times, events)
    risks = risks_of("time_dependent_auc", risks, len(times))
    at = np.atleast_1d(np.asarray(at, np.float64))
    if at.ndim != 1 or not np.isfinite(at).all():
        raise ValueError(f"time_dependent_auc: at is {at}, expected finite times [m].")
    weights = 1 / under_observation(times, events)
    return np.array([_auc(risks, times > t, (times <= t) & events, weights) for t in at])


def under_observation(times: np.ndarray, events: np.ndarray) -> np.ndarray:
    """Estimate the chance that a member is not censored before each time.

        chance(t) = prod over distinct times u < t of 1 - censored(u) / (at_risk(u) - events(u))

    Args:
        times: Times `[n]`.
        events: Events `[n]`, bool.

    Returns:
        Chances `[n]`, above 0: the member itself is observed up to its time.
    """
    distinct, place = np.unique(times, return_inverse=True)
    num_events, num_censored = (
        np.bincount(place[m], minlength=len(distinct)) for m in (events, ~events)
    )
    at_risk = (num_events + num_censored)[::-1].cumsum()[::-1] - num_events
    factors = 1 - num_censored / np.maximum(at_risk, 1)
    return np.concatenate([[1.0], np.cumprod(factors)[:-1]])[place]


def _auc(risks: np.ndarray, controls: np.ndarray, cases: np.ndarray, weights: np.ndarray) -> float:
    if not controls.any() or not cases.any():
        return float("nan")
    shares = roc.num_below(risks[controls], risks[cases]) / controls.sum()
    return float(np.average(shares, weights=weights[cases]))
