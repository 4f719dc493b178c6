"""Times and events that cannot be used are refused by name."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfbig.survival.observations import check_observations, observed

WRONG = [
    (
        [1.0, 2.0],
        [1],
        r"times have shape \(2,\) and events \(1,\), expected equal shapes \[n\]. Give one of the times and one",
    ),
    ([[1.0]], [[1]], r"times have shape \(1, 1\)"),
    ([1.0, -1.0], [1, 0], r"1 of 2 times .* negative \(member 1 has -1.0\), .* Correct the table"),
    ([np.nan, 1.0, np.nan], [1, 0, 0], r"2 of 3 times are missing, .* \(member 0 has nan\)"),
    ([1.0, np.inf], [1, 0], r"1 of 2 times .* \(member 1 has inf\)"),
    (
        ["2 years"],
        [1],
        "times are of type (<U7|object), expected numbers. Give durations, not dates",
    ),
    ([1.0, 2.0], [1, 2], r"1 of 2 events are neither 0 nor 1 \(member 1 has 2\)"),
    ([1.0, 2.0], [1, np.nan], r"\(member 1 has nan\), expected 1 for an event and 0 for cens"),
    ([1.0, 2.0], [0, 0], r"all 2 members are censored, expected at least one event \(1\). Follow"),
    ([], [], "all 0 members are censored"),
]


@pytest.mark.parametrize("kind", [list, np.array, tf.constant, tf.Variable])
@pytest.mark.parametrize(("times", "events", "message"), WRONG)
def test_wrong_observations_are_refused_in_one_line(kind, times, events, message):
    with pytest.raises(ValueError, match=message) as error:
        check_observations("here", kind(times), kind(events))
    assert str(error.value).startswith("here: ")
    assert "\n" not in str(error.value)


def test_only_shapes_of_graph_tensors_are_checked():
    @tf.function
    def check(times, events):
        check_observations("here", times, events)
        return True

    assert check(tf.constant([-1.0]), tf.constant([0.0]))
    with pytest.raises(ValueError, match=r"times have shape \(2,\) and events \(3,\)"):
        check(tf.zeros([2]), tf.zeros([3]))
    assert check.get_concrete_function(tf.TensorSpec([None]), tf.TensorSpec([3]))


def test_observed_gives_arrays():
    times, events = observed("here", [3, 0], [0, 1.0])
    assert times.dtype == np.float64 and events.dtype == bool
    np.testing.assert_array_equal(times, [3, 0])
    np.testing.assert_array_equal(events, [False, True])
    assert not observed("here", [3], [False], need_event=False)[1].any()
