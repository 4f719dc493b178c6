"""Concordance of risks and times of events."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfbig.survival.observations import observed, risks_of

BLOCK_ROWS = 256
"""Members whose pairs with all others are in memory at a time."""


def concordance_index(risks: Any, times: Any, events: Any) -> float:
    """Compute the share of comparable pairs in which the member with the earlier event has the higher risk.

    Harrell et al., "Evaluating the yield of medical tests", JAMA 1982. With pairs (i, j) of which it is known that i
    has its event first,

        comparable = events[i] and (times[i] < times[j] or (times[i] == times[j] and not events[j]))
        index = mean over comparable pairs of (risks[i] > risks[j]) + (risks[i] == risks[j]) / 2

    Two events at one time are not comparable. 1 is a perfect order, 0.5 that of chance: a higher risk is worse.

    Args:
        risks: Risks `[n]` or `[n, 1]` on any scale.
        times: Times `[n]` in any unit, as in `cox_loss`.
        events: Events `[n]`, each 0 or 1, as in `cox_loss`.

    Returns:
        A number from 0 to 1; NaN if no pair is comparable.

    Raises:
        ValueError: Lengths differ, a risk is NaN, or times or events are wrong, as in `cox_loss`.

    Example:
        >>> tfbig.survival.concordance_index([3.0, 1.0, 2.0], times=[1, 2, 3], events=[1, 1, 0])
        0.6666666666666666
    """
    risks, times, events = _checked("concordance_index", risks, times, events)
    return float(weighted_indices(risks, times, events, np.ones((1, len(risks))))[0])


def concordance_interval(
    risks: Any,
    times: Any,
    events: Any,
    level: float = 0.95,
    num_samples: int = 1000,
    seed: int = 0,
) -> tuple[float, float]:
    """Compute a confidence interval of `concordance_index` by bootstrap.

    Members are drawn with replacement, as many as there are, and the interval has the percentiles of the indices of all
    samples (Efron, "Bootstrap methods: another look at the jackknife", Annals of Statistics 1979). Samples without a
    comparable pair are left out. The interval says how the index varies with the members, not with training.

    Args:
        risks: Risks `[n]` or `[n, 1]`, as in `concordance_index`.
        times: Times `[n]`.
        events: Events `[n]`.
        level: Confidence level, between 0 and 1.
        num_samples: Number of bootstrap samples. Memory is `16 * num_samples * n` bytes.
        seed: Seed of the samples; equal seeds give equal intervals.

    Returns:
        The lower and the upper end; NaN if no sample has a comparable pair.

    Raises:
        ValueError: As in `concordance_index`, the level is not between 0 and 1, or there are no samples.

    Example:
        >>> low, high = tfbig.survival.concordance_interval([4, 2, 3, 1], [1, 2, 3, 4], [1, 1, 1, 1])
        >>> bool(low <= tfbig.survival.concordance_index([4, 2, 3, 1], [1, 2, 3, 4], [1, 1, 1, 1]) <= high)
        True
    """
    risks, times, events = _checked("concordance_interval", risks, times, events)
    if not 0 < level < 1:
        raise ValueError(
            f"concordance_interval: level is {level}, expected a number between 0 and 1."
        )
    if num_samples < 1:
        raise ValueError(
            f"concordance_interval: num_samples is {num_samples}, expected at least 1."
        )
    n = len(risks)
    drawn = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), num_samples)
    indices = weighted_indices(risks, times, events, drawn.astype(np.float64))
    indices = indices[np.isfinite(indices)]
    if not indices.size:
        return float("nan"), float("nan")
    low, high = np.quantile(indices, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def _checked(
    name: str, risks: Any, times: Any, events: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    times, events = observed(name, times, events)
    return risks_of(name, risks, len(times)), times, events


def weighted_indices(
    risks: np.ndarray, times: np.ndarray, events: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """Compute concordance indices of samples in which members count several times or not at all.

    Args:
        risks: Risks `[n]`.
        times: Times `[n]`.
        events: Events `[n]`, bool.
        weights: How often each member counts, `[samples, n]`.

    Returns:
        The indices `[samples]`; NaN for samples without a comparable pair.
    """
    in_order, comparable = np.zeros(len(weights)), np.zeros(len(weights))
    first = np.flatnonzero(events)  # members i
    for start in range(0, len(first), BLOCK_ROWS):
        i = first[start : start + BLOCK_ROWS]
        time, risk = times[i, None], risks[i, None]
        pairs = (time < times) | ((time == times) & ~events)  # [block, n]
        scores = pairs * ((risk > risks) + 0.5 * (risk == risks))
        comparable += ((weights @ pairs.T) * weights[:, i]).sum(1)
        in_order += ((weights @ scores.T) * weights[:, i]).sum(1)
    return np.divide(in_order, comparable, np.full(len(weights), np.nan), where=comparable > 0)
