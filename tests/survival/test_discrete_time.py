"""Bins of times and the likelihood of hazards, against hand-computed values and the formula of MCAT."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tfbig.survival import TimeBins, discrete_time_loss, discrete_time_risk, survival_function

few = settings(max_examples=25)


def members(seed, n=50, bins=4):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, bins)), rng.integers(0, bins, n), rng.integers(0, 2, n)


def mcat_loss(logits, bins, events, alpha):
    """Return the loss as MCAT writes it, without its clipping: survival padded by 1, gathered at the bin."""
    hazards = 1 / (1 + np.exp(-logits))
    survival = np.cumprod(1 - hazards, axis=1)
    padded, row = np.concatenate([np.ones((len(bins), 1)), survival], 1), np.arange(len(bins))
    uncensored = -events * (np.log(padded[row, bins]) + np.log(hazards[row, bins]))
    censored = -(1 - events) * np.log(padded[row, bins + 1])
    return np.mean((1 - alpha) * (censored + uncensored) + alpha * uncensored)


@pytest.mark.parametrize("alpha", [0.0, 0.15, 1.0])
def test_matches_mcat(alpha):
    logits, bins, events = members(0)
    loss = discrete_time_loss(logits, bins, events, alpha)
    assert float(loss) == pytest.approx(mcat_loss(logits, bins, events, alpha), rel=1e-12)


def test_by_hand():
    """Hazards of 1/2, 1/4 and 1/5."""
    logits = np.log([[1.0, 1 / 3, 1 / 4]])
    for bin_, event, likelihood in [
        (0, 1, 1 / 2),
        (1, 1, 1 / 2 * 1 / 4),
        (2, 1, 1 / 2 * 3 / 4 * 1 / 5),
        (0, 0, 1 / 2),
        (1, 0, 1 / 2 * 3 / 4),
        (2, 0, 1 / 2 * 3 / 4 * 4 / 5),
    ]:
        loss = discrete_time_loss(logits, [bin_], [event])
        assert float(loss) == pytest.approx(-np.log(likelihood), rel=1e-12)
    np.testing.assert_allclose(survival_function(logits), [[1 / 2, 3 / 8, 3 / 10]], rtol=1e-12)
    np.testing.assert_allclose(discrete_time_risk(logits), [-(1 / 2 + 3 / 8 + 3 / 10)], rtol=1e-12)


def test_probabilities_of_all_outcomes_add_up_to_one():
    """An event in any bin, or survival of the last."""
    logits, *_ = members(1, n=1)
    losses = [discrete_time_loss(logits, [k], [1]) for k in range(4)]
    losses.append(discrete_time_loss(logits, [3], [0]))
    assert sum(np.exp(-np.array(losses))) == pytest.approx(1, rel=1e-12)


@few
@given(st.integers(0, 10**6), st.permutations(range(7)))
def test_the_order_of_members_changes_nothing(seed, order):
    data = members(seed, n=7)
    loss, moved = discrete_time_loss(*data), discrete_time_loss(*(x[order] for x in data))
    assert float(moved) == pytest.approx(float(loss), rel=1e-12)


@few
@given(st.integers(0, 10**6), st.integers(0, 3))
def test_a_higher_hazard_is_a_higher_risk(seed, column):
    logits, *_ = members(seed)
    higher = logits + (np.arange(4) == column)
    assert (discrete_time_risk(higher).numpy() > discrete_time_risk(logits).numpy()).all()
    survival = survival_function(logits).numpy()
    assert (np.diff(survival, axis=1) < 0).all() and (survival < 1).all()


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_large_logits(dtype):
    """Gradients are exact where clipping would make them zero."""
    logits = tf.constant([[-1000.0, 1000.0], [1000.0, -1000.0]], dtype)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        loss = discrete_time_loss(logits, [0, 1], [1, 1])
    assert float(loss) == pytest.approx((1000 + 2000) / 2)
    np.testing.assert_allclose(tape.gradient(loss, logits), [[-0.5, 0], [0.5, -0.5]])


def test_loss_in_a_graph_and_types():
    logits, bins, events = members(2)
    expected = discrete_time_loss(logits, bins, events)
    graph = tf.function(discrete_time_loss)(*map(tf.constant, (logits, bins, events)))
    assert float(graph) == pytest.approx(float(expected), rel=1e-12)
    half = discrete_time_loss(tf.constant(logits, tf.float16), bins, events)
    assert half.dtype == tf.float32
    assert float(half) == pytest.approx(float(expected), rel=1e-2)
    assert discrete_time_loss([[0, 0]], [0], [True]).dtype == tf.float32


def test_bins_hold_equal_numbers_of_events():
    rng = np.random.default_rng(0)
    times, events = rng.exponential(size=1000), rng.integers(0, 2, 1000)
    bins = TimeBins.of_events(times, events, 5)
    held = np.bincount(bins.bins_of(times)[events == 1])
    assert bins.num_bins == len(held) == 5
    assert held.max() - held.min() <= 1


def test_censored_times_do_not_move_the_cuts():
    cuts = TimeBins.of_events([1, 2, 3, 4, 50, 60], [1, 1, 1, 1, 0, 0], 4).cuts
    assert cuts == TimeBins.of_events([1, 2, 3, 4], [1, 1, 1, 1], 4).cuts == (1.75, 2.5, 3.25)


def test_a_cut_belongs_to_the_later_bin():
    bins = TimeBins((1, 2.5))
    assert bins == TimeBins((1.0, 2.5))
    found = bins.bins_of([0, 0.99, 1, 2.5, 1e9])
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, [0, 0, 1, 2, 2])


@few
@given(st.lists(st.integers(0, 6), min_size=1, max_size=12), st.integers(2, 5))
def test_every_bin_holds_an_event_or_is_refused(times, num_bins):
    try:
        bins = TimeBins.of_events(times, np.ones(len(times)), num_bins)
    except ValueError as error:
        assert "without an event" in str(error)
    else:
        assert len(set(bins.bins_of(times))) == num_bins


@pytest.mark.parametrize("cuts", [(), (0.0, 1.0), (1.0, np.inf), (1.0, 1.0), (2.0, 1.0), (np.nan,)])
def test_wrong_cuts_are_refused(cuts):
    with pytest.raises(ValueError, match=r"TimeBins: cuts are .* expected"):
        TimeBins(cuts)


def test_wrong_bins_are_refused():
    with pytest.raises(ValueError, match="num_bins is 1, expected at least 2"):
        TimeBins.of_events([1, 2], [1, 1], 1)
    with pytest.raises(ValueError, match="2 events at 1 different times leave bin 0 of 2 without"):
        TimeBins.of_events([1, 1], [1, 1], 2)
    with pytest.raises(ValueError, match="of_events: all 2 members are censored"):
        TimeBins.of_events([1, 1], [0, 0], 2)
    with pytest.raises(ValueError, match="bins_of: 1 of 1 times are missing"):
        TimeBins((1.0,)).bins_of([np.nan])


@pytest.mark.parametrize(
    ("logits", "bins", "events", "message"),
    [
        ([0.0, 0.0], [0], [1], r"logits have shape \(2,\), expected \[n, bins\]. Give one"),
        ([[0.0, 0.0]], [0, 1], [1, 1], "there are 1 rows of logits and 2 bins"),
        ([[0.0, 0.0]], [2], [1], r"bins are \[2\], expected integers from 0 to 1"),
        ([[0.0, 0.0]], [0.5], [1], r"bins are \[0.5\], expected integers"),
        ([[0.0, 0.0]], [-1], [1], r"bins are \[-1\], expected integers"),
        ([[0.0, 0.0]], [0], [1, 1], r"bins have shape \(1,\) and events \(2,\)"),
        ([[0.0, 0.0]], [0], [3], "events are neither 0 nor 1"),
    ],
)
def test_wrong_members_are_refused(logits, bins, events, message):
    with pytest.raises(ValueError, match="discrete_time_loss: .*" + message):
        discrete_time_loss(logits, bins, events)


def test_alpha_is_checked():
    with pytest.raises(ValueError, match=r"alpha is 1\.5, expected a number from 0 to 1"):
        discrete_time_loss([[0.0]], [0], [1], alpha=1.5)
