"""Loops over slices of items, compared with one pass over all of them."""

import numpy as np
import pytest
import tensorflow as tf

from tfbig.ops import slices

ITEMS = np.arange(30, dtype="float32").reshape(2, 5, 3)
ENDS = [0, 2, 4, 5]  # the last slice is smaller


def part(index):
    ends = tf.constant(ENDS)
    return tf.constant(ITEMS)[:, ends[index] : ends[index + 1]]


@pytest.mark.parametrize(("device", "at_once"), [(None, 1), ("CPU:0", 2)])
def test_results_are_joined_and_the_state_is_passed_on(device, at_once):
    @tf.function(autograph=False)
    def run():
        def of_slice(index, seen):
            return 2 * part(index), seen + tf.shape(part(index))[1]

        return slices.joined(
            of_slice, 3, tf.float32, tf.constant(0), device=device, at_once=at_once
        )

    results, seen = run()
    np.testing.assert_array_equal(results, 2 * ITEMS)
    assert int(seen) == 5


def test_gradients_of_joined_results():
    factor = tf.Variable(3.0)
    with tf.GradientTape() as tape:
        results, _ = slices.joined(lambda index, _: (factor * part(index), ()), 3, tf.float32)
    np.testing.assert_array_equal(tape.gradient(results, factor), ITEMS.sum())


def test_sums_over_slices():
    def of_slice(index, state):
        return [tf.reduce_sum(part(index), 1), tf.constant(1.0)], state + 1

    total, count = slices.summed(of_slice, 3, [tf.zeros([2, 3]), tf.constant(0.0)], tf.constant(0))
    np.testing.assert_array_equal(total, ITEMS.sum(1))
    assert float(count) == 3


def test_items_are_merged_and_divided_again():
    @tf.function(input_signature=[tf.TensorSpec([None, None, 3])], autograph=False)
    def run(items):
        flat = slices.merged(items)
        assert flat.shape[1:] == (3,)
        sums = slices.divided(tf.reduce_sum(flat, 1, keepdims=True), items)
        assert sums.shape.as_list() == [None, None, 1]
        return sums

    np.testing.assert_array_equal(run(ITEMS), ITEMS.sum(2, keepdims=True))
