"""The loss of Cox's model against its formula, by hand and written out, and against lifelines."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from cohorts import cohort, cohorts
from hypothesis import given, settings
from hypothesis import strategies as st

from tfbig.survival import cox_loss

every_tie = pytest.mark.parametrize(
    "ties", ["efron", pytest.param("breslow", marks=pytest.mark.slow)]
)
few = settings(max_examples=25)


def by_definition(risks, times, events, ties):
    """Loss and its gradient, one term after the other."""
    weights, loss, gradient = np.exp(risks), 0.0, np.zeros(len(risks))
    for time in np.unique(times[events]):
        tied = events & (times == time)
        for k in range(tied.sum()):
            share = k / tied.sum() if ties == "efron" else 0
            parts = weights * (times >= time) - share * weights * tied
            loss += np.log(parts.sum())
            gradient += parts / parts.sum()
        loss -= risks[tied].sum()
        gradient -= tied
    return loss / events.sum(), gradient / events.sum()


def loss_and_gradient(risks, times, events, ties="efron", dtype=tf.float64):
    risks = tf.constant(risks, dtype)
    with tf.GradientTape() as tape:
        tape.watch(risks)
        loss = cox_loss(risks, times, events, ties)
    return loss.numpy(), tape.gradient(loss, risks).numpy()


@every_tie
@few
@given(data=cohorts())
def test_loss_and_gradient_match_the_formula(ties, data):
    loss, gradient = loss_and_gradient(*data, ties)
    expected_loss, expected = by_definition(*data, ties)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(gradient, expected, rtol=1e-11, atol=1e-13)


@every_tie
@pytest.mark.parametrize(("dtype", "rtol"), [(tf.float64, 1e-12), (tf.float32, 2e-5)])
def test_large_cohort(ties, dtype, rtol):
    data = cohort(0, n=1000)
    loss, gradient = loss_and_gradient(*data, ties, dtype)
    assert loss.dtype == gradient.dtype == dtype
    expected_loss, expected = by_definition(*data, ties)
    np.testing.assert_allclose(loss, expected_loss, rtol=rtol)
    np.testing.assert_allclose(gradient, expected, rtol=rtol, atol=rtol / 100)


def test_by_hand():
    """Two of four members die at time 1, one is censored there, one dies at time 2."""
    risks, times, events = np.log([1.0, 2.0, 3.0, 4.0]), [1, 1, 1, 2], [1, 1, 0, 1]
    efron = -(np.log(1 / 10) + np.log(2 / 8.5) + np.log(4 / 4)) / 3
    breslow = -(np.log(1 / 10) + np.log(2 / 10) + np.log(4 / 4)) / 3
    assert float(cox_loss(risks, times, events)) == pytest.approx(efron, rel=1e-12)
    assert float(cox_loss(risks, times, events, "breslow")) == pytest.approx(breslow, rel=1e-12)


@every_tie
def test_matches_lifelines(ties):
    """Its Cox model uses Efron's ties; without ties, both are the same."""
    lifelines = pytest.importorskip("lifelines")
    import pandas as pd

    risks, times, events = cohort(3, n=200, tied=ties == "efron")
    table = pd.DataFrame({"x": risks, "time": times, "event": events})
    fitter = lifelines.CoxPHFitter().fit(table, "time", "event")
    loss = cox_loss(risks * fitter.params_["x"], times, events, ties)
    assert -float(loss) * events.sum() == pytest.approx(fitter.log_likelihood_, rel=1e-10)


def test_higher_risk_is_worse():
    times, events = [1.0, 2.0, 3.0], [1, 1, 1]
    assert cox_loss([2.0, 1.0, 0.0], times, events) < cox_loss([0.0, 1.0, 2.0], times, events)
    _, gradient = loss_and_gradient([0.0, 0.0, 0.0], times, events)
    assert gradient[0] < 0 < gradient[2]  # descent raises the risk of the first to die


@pytest.mark.slow
@every_tie
@few
@given(data=cohorts(), constant=st.floats(-1e3, 1e3))
def test_a_constant_changes_nothing(ties, data, constant):
    risks, times, events = data
    loss, gradient = loss_and_gradient(risks, times, events, ties)
    moved, moved_gradient = loss_and_gradient(risks + constant, times, events, ties)
    np.testing.assert_allclose(moved, loss, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(moved_gradient, gradient, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(gradient.sum(), 0, atol=1e-13)  # which says the same


@pytest.mark.slow
@every_tie
@few
@given(data=cohorts(), random=st.randoms(use_true_random=False))
def test_the_order_of_members_changes_nothing(ties, data, random):
    order = list(range(len(data[0])))
    random.shuffle(order)
    loss, gradient = loss_and_gradient(*data, ties)
    moved, moved_gradient = loss_and_gradient(*(x[order] for x in data), ties)
    np.testing.assert_allclose(moved, loss, rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(moved_gradient, gradient[order], rtol=1e-11, atol=1e-13)


@few
@given(data=cohorts(), scale=st.sampled_from([1e-3, 7.0, 365.25]))
def test_the_unit_of_time_changes_nothing(data, scale):
    risks, times, events = data
    assert cox_loss(risks, times * scale, events) == cox_loss(risks, times, events)


@every_tie
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_risks_far_apart(ties, dtype):
    """Exponentials of these overflow, and the sums at late times are far below the largest."""
    risks = np.array([-5000.0, 3000.0, 5000.0, -4000.0, 0.0, -4990.0])
    times, events = [1, 1, 2, 3, 4, 4], [1, 1, 1, 1, 1, 1]
    loss, gradient = loss_and_gradient(risks, times, events, ties, dtype)
    sums = [5000 + 5000, 5000, 0, 0, np.log(0.5) if ties == "efron" else 0]
    np.testing.assert_allclose(loss, (sum(sums) - risks.sum()) / 6, rtol=1e-6)
    largest = 5000 * np.finfo(gradient.dtype).eps  # rounding of the logarithms
    np.testing.assert_allclose(gradient * 6, [-1, -1, 2, -1, 2, -1], atol=6 * largest)


def test_members_censored_before_the_first_event_do_not_count():
    loss, gradient = loss_and_gradient([9.0, 1.0, 0.0], [1, 2, 3], [0, 1, 1])
    without, _ = loss_and_gradient([1.0, 0.0], [2, 3], [1, 1])
    assert loss == pytest.approx(without, rel=1e-12)
    assert gradient[0] == 0


def test_times_keep_their_type():
    """In float32 these two would be one time."""
    times = np.array([1.0, 1.0 + 1e-12])
    assert float(cox_loss([0.0, 0.0], times, [1, 1])) == pytest.approx(np.log(2) / 2)
    assert float(cox_loss([0.0, 0.0], times.astype("float32"), [1, 1])) == pytest.approx(
        np.log(2) / 2
    )
    assert float(cox_loss([0.0, 0.0], times.astype("float32"), [1, 1], "breslow")) == pytest.approx(
        np.log(2)
    )


def test_column_of_risks_and_small_types():
    risks, times, events = cohort(1)
    loss = cox_loss(risks.astype("float32"), times, events)
    assert cox_loss(risks[:, None].astype("float32"), times, events) == loss
    half = cox_loss(tf.constant(risks, tf.bfloat16), times, events)
    assert half.dtype == tf.float32
    assert float(half) == pytest.approx(float(loss), rel=0.01)
    assert cox_loss([1, 0], [1, 2], [1, 1]).dtype == keras.config.floatx()


@pytest.mark.slow
@pytest.mark.parametrize("jit", [False, True])
def test_in_a_graph(jit):
    risks, times, events = cohort(2)
    compiled = tf.function(loss_in_graph, jit_compile=jit)
    specs = [tf.constant(x) for x in (risks, times, events)]
    loss, gradient = compiled(*specs)
    expected_loss, expected = loss_and_gradient(risks, times, events)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-12)
    np.testing.assert_allclose(gradient, expected, rtol=1e-11, atol=1e-14)


def loss_in_graph(risks, times, events):
    with tf.GradientTape() as tape:
        tape.watch(risks)
        loss = cox_loss(risks, times, events)
    return loss, tape.gradient(loss, risks)


def test_no_event_in_a_graph_is_no_loss():
    loss, gradient = tf.function(loss_in_graph)(*map(tf.constant, ([1.0, 2.0], [1, 2], [0, 0])))
    assert loss == 0
    np.testing.assert_array_equal(gradient, [0, 0])


@pytest.mark.parametrize(
    ("risks", "ties", "message"),
    [
        ([0.0, 0.0], "exact", "ties is 'exact', expected 'efron' or 'breslow'"),
        ([0.0], "efron", "there are 1 risks and 2 times, expected one of each"),
        ([[0.0, 0.0]], "efron", r"risks have shape \(1, 2\), expected \[n\] or \[n, 1\]. Give one"),
        (0.0, "efron", r"risks have shape \(\)"),
    ],
)
def test_wrong_risks_are_refused(risks, ties, message):
    with pytest.raises(ValueError, match=message):
        cox_loss(risks, [1, 2], [1, 0], ties)


def test_all_censored_is_refused():
    with pytest.raises(ValueError, match="cox_loss: all 2 members are censored"):
        cox_loss([0.0, 1.0], [1, 2], [0, 0])
