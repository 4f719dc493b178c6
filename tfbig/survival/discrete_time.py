"""Survival in discrete time: bins of times, and the likelihood of hazards in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfbig.survival.observations import check_observations, known_values, observed, shape_of


@dataclass(frozen=True)
class TimeBins:
    """Bins of times, found once from the training set and used for all sets.

    Bin k holds the times from `cuts[k - 1]`, included, up to `cuts[k]`; the first begins at 0 and the last never ends.

    Args:
        cuts: Cut points in the unit of the times, positive and rising: one less than there are bins.

    Raises:
        ValueError: There are no cuts, or they are not positive, finite and rising.

    Example:
        >>> bins = tfbig.survival.TimeBins.of_events([1, 2, 3, 4, 9], [1, 1, 1, 1, 0], num_bins=2)
        >>> bins.cuts
        (2.5,)
        >>> bins.bins_of([0.5, 2.5, 100]).tolist()
        [0, 1, 1]
    """

    cuts: tuple[float, ...]

    def __post_init__(self) -> None:
        cuts = np.asarray(self.cuts, np.float64)
        if cuts.ndim != 1 or not cuts.size or not np.isfinite(cuts).all() or cuts[0] <= 0:
            raise ValueError(f"TimeBins: cuts are {self.cuts}, expected positive, finite numbers.")
        if (np.diff(cuts) <= 0).any():
            raise ValueError(f"TimeBins: cuts are {self.cuts}, expected each above the last.")
        object.__setattr__(self, "cuts", tuple(cuts.tolist()))

    @classmethod
    def of_events(cls, times: Any, events: Any, num_bins: int = 4) -> TimeBins:
        """Cut at quantiles of the times of events, so that each bin has about as many events.

        Chen et al., "Multimodal co-attention transformer for survival prediction in gigapixel whole slide images"
        (MCAT), ICCV 2021, cut so into 4 bins, before they split the cohort. Give the training set alone, or the
        bins depend on the members that are to be predicted.

        Args:
            times: Times `[n]` of the training set, in any unit.
            events: Events `[n]`, each 0 or 1; times of censored members have no influence.
            num_bins: Number of bins, from 2.

        Raises:
            ValueError: Observations are wrong, as in `cox_loss`; there are fewer than 2 bins; or a bin would hold no
                event.
        """
        times, events = observed("TimeBins.of_events", times, events)
        if num_bins < 2:
            raise ValueError(f"TimeBins.of_events: num_bins is {num_bins}, expected at least 2.")
        event_times = times[events]
        cuts = np.quantile(event_times, np.arange(1, num_bins) / num_bins)
        held = np.bincount(np.searchsorted(cuts, event_times, "right"), minlength=num_bins)
        if not held.all():
            raise ValueError(
                f"TimeBins.of_events: {event_times.size} events at {np.unique(event_times).size} different times leave "
                f"bin {int(np.argmin(held))} of {num_bins} without an event, expected at least one in each. Lower "
                "num_bins, or give cuts."
            )
        return cls(tuple(cuts))

    @property
    def num_bins(self) -> int:
        """Number of bins."""
        return len(self.cuts) + 1

    def bins_of(self, times: Any) -> np.ndarray:
        """Find the bin of each time, int32 `[n]`, for times `[n]` of any set."""
        times, _ = observed("TimeBins.bins_of", times, np.zeros(np.shape(times)), need_event=False)
        return np.searchsorted(self.cuts, times, "right").astype(np.int32)


def discrete_time_loss(logits: Any, bins: Any, events: Any, alpha: float = 0.0) -> tf.Tensor:
    """Compute the negative log likelihood of hazards in discrete time, for each member.

    Zadeh and Schmid, "Bias in cross-entropy-based training of deep survival networks", TPAMI 2020. With
    `hazards = sigmoid(logits)`, the probabilities of an event in each bin for those who reach it, a member with bin b
    contributes

        event:     -log(hazards[b]) - sum(log(1 - hazards[:b]))
        censored:  -(1 - alpha) * sum(log(1 - hazards[: b + 1]))

    and the loss is the mean over members. A censored member so counts as one that survives its whole bin. MCAT (ICCV
    2021) and Patch-GCN (MICCAI 2021) clip hazards at 1e-7; here logarithms come from the logits, and nothing is
    clipped.

    Args:
        logits: Logits of hazards `[n, bins]`, of any float type. Those of 16 bits are computed in float32.
        bins: Bin of each time, integers `[n]`, see `TimeBins`.
        events: Events `[n]`: 1 or True for an event, 0 or False for censoring.
        alpha: From 0 to 1: how far censored members count less. 0 is the likelihood.

    Returns:
        Scalar tensor, float32 or float64. It is a mean: batches of equal size may be averaged.

    Raises:
        ValueError: Shapes are not those above, a bin is not a column of the logits, an event is neither 0 nor 1, or
            alpha is not from 0 to 1. Values are checked if they are known, that is outside of a graph.

    Example:
        >>> loss = tfbig.survival.discrete_time_loss([[0.0, 0.0]], bins=[1], events=[1])
        >>> round(float(loss), 4)  # survives the first bin, dies in the second: 2 * log(2)
        1.3863
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"discrete_time_loss: alpha is {alpha}, expected a number from 0 to 1.")
    logits = _logits("discrete_time_loss", logits)
    _check_bins(logits, bins)
    check_observations("discrete_time_loss", bins, events, need_event=False, what="bins")
    bins, events = tf.cast(bins, tf.int32), tf.cast(events, logits.dtype)
    at_bin = tf.one_hot(bins, logits.shape[-1], dtype=logits.dtype)
    before = tf.cumsum(at_bin, axis=1, exclusive=True, reverse=True)  # 1 for bins below b
    log_hazard = tf.reduce_sum(at_bin * tf.math.log_sigmoid(logits), 1)
    log_no_hazard = tf.math.log_sigmoid(-logits)
    event = log_hazard + tf.reduce_sum(before * log_no_hazard, 1)
    censored = tf.reduce_sum((before + at_bin) * log_no_hazard, 1)
    return -tf.reduce_mean(events * event + (1 - alpha) * (1 - events) * censored)


def survival_function(logits: Any) -> tf.Tensor:
    """Compute the probability of no event up to the end of each bin.

        survival[:, k] = prod(1 - sigmoid(logits[:, : k + 1]))

    Args:
        logits: Logits of hazards `[n, bins]`.

    Returns:
        Probabilities `[n, bins]`, none above the one before it.

    Raises:
        ValueError: Logits are not `[n, bins]`.

    Example:
        >>> tfbig.survival.survival_function([[0.0, 0.0]]).numpy().tolist()
        [[0.5, 0.25]]
    """
    logits = _logits("survival_function", logits)
    return tf.exp(tf.cumsum(tf.math.log_sigmoid(-logits), axis=1))


def discrete_time_risk(logits: Any) -> tf.Tensor:
    """Compute one risk from the hazards of each member: minus the expected number of bins that it survives.

        risk = -sum(survival_function(logits), axis=1)

    A higher risk is worse, as everywhere in `tfbig.survival`. This is the risk of MCAT (ICCV 2021) and Patch-GCN.

    Args:
        logits: Logits of hazards `[n, bins]`.

    Returns:
        Risks `[n]`, from minus the number of bins to 0.

    Raises:
        ValueError: Logits are not `[n, bins]`.

    Example:
        >>> tfbig.survival.discrete_time_risk([[0.0, 0.0]]).numpy().tolist()
        [-0.75]
    """
    return -tf.reduce_sum(survival_function(_logits("discrete_time_risk", logits)), 1)


def _logits(name: str, logits: Any) -> tf.Tensor:
    logits = tf.convert_to_tensor(logits)
    if len(logits.shape) != 2 or logits.shape[1] is None:
        raise ValueError(
            f"{name}: logits have shape {tuple(logits.shape)}, expected [n, bins]. Give one logit for each bin."
        )
    if not logits.dtype.is_floating:
        logits = tf.cast(logits, keras.config.floatx())
    return tf.cast(logits, tf.float32) if logits.dtype.size < 4 else logits


def _check_bins(logits: tf.Tensor, bins: Any) -> None:
    num_members, num_bins = shape_of(bins)[0], logits.shape[1]
    if None not in (logits.shape[0], num_members) and logits.shape[0] != num_members:
        raise ValueError(
            f"discrete_time_loss: there are {logits.shape[0]} rows of logits and {num_members} bins, expected one of "
            "each for each member."
        )
    known = known_values(bins)
    if known is not None and not np.isin(known, range(num_bins)).all():
        raise ValueError(
            f"discrete_time_loss: bins are {np.unique(known)}, expected integers from 0 to {num_bins - 1}, one for "
            "each column of logits. Use TimeBins.bins_of."
        )
