"""Sums of gradients: weighted means over items, and missing gradients."""

import numpy as np
import tensorflow as tf

from tfbig.training.gradient_sums import Sums


def test_means_are_weighted_by_items():
    sums = Sums()
    for value, items in ((1.0, 1), (4.0, 2), (0.0, 5)):
        sums = sums.with_more([tf.constant([value]), None], items)
    assert (sums.batches, sums.items) == (3, 8)
    mean, missing = sums.means()
    np.testing.assert_array_equal(mean, [9 / 8])
    assert missing is None


def test_single_batch_is_not_rounded():
    gradient = tf.constant([1 / 3, 1e-45, 3e38])
    sums = Sums().with_more([gradient], 3)
    assert sums.means()[0] is gradient
    np.testing.assert_array_equal(sums.weighted()[0], gradient * 3)


def test_gradient_missing_in_one_batch():
    sums = Sums().with_more([None], 1).with_more([tf.constant(6.0)], 2)
    assert float(sums.means()[0]) == 4.0
