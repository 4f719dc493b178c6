"""Loss of Cox's proportional hazards model."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfbig.survival.observations import check_observations, shape_of

TIES = ("efron", "breslow")


def cox_loss(risks: Any, times: Any, events: Any, ties: str = "efron") -> tf.Tensor:
    """Compute the negative log partial likelihood of Cox's model, for each event.

    A member with a higher risk is worse: it is expected to have its event earlier. This holds for all of
    `tfbig.survival`. With `D` the members with an event at time t, d their number, and `rest` the other members with
    times from t on (those censored at t included):

        likelihood = sum over t of sum(risks[D])
                     - sum over k in range(d) of log(sum(exp(risks[rest])) + (1 - k / d) * sum(exp(risks[D])))
        loss = -likelihood / number of events

    This is Efron's likelihood ("The efficiency of Cox's likelihood function for censored data", JASA 1977). Breslow's
    ("Covariance analysis of censored survival data", Biometrics 1974) has 1 in place of `1 - k / d`. Both are Cox's own
    ("Regression models and life-tables", JRSS B 1972) if no two events have the same time.

    No exponential overflows, whatever the risks, and no two sums are subtracted from each other. A constant added to
    all risks changes nothing. The loss depends on whole risk sets: it is no mean over members, and the losses of two
    batches do not add up to that of both; see `risk_set_gradient` for members that do not fit in memory together.

    Args:
        risks: Log hazard ratios `[n]` or `[n, 1]`, of any float type. Those of 16 bits are computed in float32.
        times: Times `[n]` in any unit, not negative. They are compared in the type that they have: times of float64
            that differ by less than float32 resolves are no ties.
        events: Events `[n]`: 1 or True for an event, 0 or False for censoring.
        ties: Likelihood of events at the same time: `"efron"` or `"breslow"`.

    Returns:
        Scalar tensor, float32 or float64. Of graph tensors without any event, which cannot be refused: 0.

    Raises:
        ValueError: Lengths differ; a time is negative, missing or infinite; an event is neither 0 nor 1; no member has
            an event; or `ties` is unknown. Values are checked if they are known, that is outside of a graph.

    Example:
        >>> loss = tfbig.survival.cox_loss([0.0, 0.0], times=[1.0, 2.0], events=[1, 1])
        >>> round(2 * float(loss), 4)  # log(2) + log(1)
        0.6931
    """
    if ties not in TIES:
        raise ValueError(f"cox_loss: ties is {ties!r}, expected 'efron' or 'breslow'.")
    check_observations("cox_loss", times, events)
    risks = _risks(risks, shape_of(times)[0])
    times, events = tf.convert_to_tensor(times), tf.cast(events, tf.bool)
    order = _order(times, events)
    risks, times, events = (tf.gather(x, order) for x in (risks, times, events))
    return _loss(risks, times, events, ties == "efron")


def _risks(risks: Any, num_times: int | None) -> tf.Tensor:
    """Convert risks to a float tensor `[n]`."""
    risks = tf.convert_to_tensor(risks)
    shape = tuple(risks.shape)
    if len(shape) not in (1, 2) or shape[1:] not in ((), (1,)):
        raise ValueError(
            f"cox_loss: risks have shape {shape}, expected [n] or [n, 1]. Give one risk for each member."
        )
    if None not in (shape[0], num_times) and shape[0] != num_times:
        raise ValueError(
            f"cox_loss: there are {shape[0]} risks and {num_times} times, expected one of each for each member."
        )
    if not risks.dtype.is_floating:
        risks = tf.cast(risks, keras.config.floatx())
    if risks.dtype.size < 4:
        risks = tf.cast(risks, tf.float32)
    return tf.reshape(risks, [-1])


def _order(times: tf.Tensor, events: tf.Tensor) -> tf.Tensor:
    """Order members from the latest to the earliest; at one time, those censored come first."""
    by_event = tf.argsort(tf.cast(events, tf.int32), stable=True)
    by_time = tf.argsort(tf.gather(times, by_event), direction="DESCENDING", stable=True)
    return tf.gather(by_event, by_time)


def _loss(risks: tf.Tensor, times: tf.Tensor, events: tf.Tensor, efron: bool) -> tf.Tensor:
    """Compute the loss of ordered members, each array `[n]`."""
    count, lowest = tf.size(times), risks.dtype.min
    starts = tf.concat([[0], tf.cast(times[1:] != times[:-1], tf.int32)], 0)
    group = tf.cumsum(starts)  # number of the time of each member, [n]
    position = tf.range(count)
    first = tf.math.unsorted_segment_min(tf.where(events, position, count), group, count)
    first = tf.gather(first, group)  # position of the first event at the time of each member
    num_tied = tf.math.unsorted_segment_sum(tf.cast(events, risks.dtype), group, count)
    up_to = tf.concat([[lowest], tf.math.cumulative_logsumexp(risks)], 0)
    log_rest = tf.gather(up_to, tf.minimum(first, count))
    log_tied = tf.gather(_log_sum_exp(risks, events, group, count), group)
    if efron:
        rank = tf.cast(position - first, risks.dtype)  # k of each event
        share = 1 - rank / tf.maximum(tf.gather(num_tied, group), 1)
        log_tied += tf.math.log(tf.where(events, share, tf.ones_like(share)))
    log_sums = tf.reduce_logsumexp(tf.stack([log_rest, log_tied], 1), 1)
    terms = tf.where(events, log_sums - risks, tf.zeros_like(risks))
    return tf.math.divide_no_nan(tf.reduce_sum(terms), tf.reduce_sum(num_tied))


def _log_sum_exp(risks: tf.Tensor, events: tf.Tensor, group: tf.Tensor, count: Any) -> tf.Tensor:
    """Compute `log(sum(exp(risks)))` over the events of each group; finite for groups without events."""
    lowest = tf.fill(tf.shape(risks), risks.dtype.min)
    largest = tf.math.unsorted_segment_max(tf.where(events, risks, lowest), group, count)
    largest = tf.stop_gradient(largest)
    shifted = tf.where(events, risks - tf.gather(largest, group), tf.zeros_like(risks))
    scaled = tf.where(events, tf.exp(shifted), tf.zeros_like(risks))
    sums = tf.math.unsorted_segment_sum(scaled, group, count)
    return largest + tf.math.log(tf.where(sums > 0, sums, tf.ones_like(sums)))
