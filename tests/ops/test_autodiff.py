"""Gradients of structures with integer tensors."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfbig.ops import autodiff


def test_gradients_have_the_structure_of_the_sources() -> None:
    """Integer sources get a scalar zero, unconnected ones zeros of their shape."""
    sources = {
        "used": tf.constant([1.0, 2.0]),
        "index": tf.constant([1]),
        "unused": tf.constant([[5.0]]),
    }
    with tf.GradientTape() as tape:
        tape.watch(autodiff.floats(sources))
        outputs = [3 * sources["used"], sources["index"] + 1, sources["used"] ** 2]
    seeds = [tf.constant([1.0, 10.0]), None, None]
    gradients = autodiff.gradients(tape, outputs, seeds, sources)
    np.testing.assert_array_equal(gradients["used"], [3, 30])
    np.testing.assert_array_equal(gradients["unused"], [[0]])
    assert gradients["index"].shape == []
    assert gradients["index"].dtype == tf.float32
    assert float(gradients["index"]) == 0


def test_gradients_of_lookups_are_dense() -> None:
    table = tf.reshape(tf.range(6.0), [3, 2])
    with tf.GradientTape() as tape:
        tape.watch(table)
        rows = tf.gather(table, [2, 0, 2])
    (gradient,) = autodiff.gradients(tape, [rows], [tf.ones_like(rows)], [table])
    np.testing.assert_array_equal(autodiff.add(gradient, gradient), [[2, 2], [0, 0], [4, 4]])


def test_floats_and_zeros() -> None:
    real, whole = tf.constant([1.0, 2.0], tf.float64), tf.constant([1, 2])
    assert autodiff.is_float(real)
    assert not autodiff.is_float(whole)
    (only,) = autodiff.floats((whole, [real]))
    assert only is real
    np.testing.assert_array_equal(autodiff.zeros(real), [0, 0])
    assert autodiff.zeros(real).dtype == tf.float64
    assert autodiff.zeros(whole).shape == []


def test_accumulate() -> None:
    sums: dict[int, tf.Tensor] = {}
    for new in ([1.0, 2.0], [10.0, 20.0]):
        autodiff.accumulate(sums, 7, tf.constant(new))
    autodiff.accumulate(sums, 8, tf.constant([5.0]))
    assert sorted(sums) == [7, 8]
    np.testing.assert_array_equal(sums[7], [11, 22])
    np.testing.assert_array_equal(sums[8], [5])


def test_sum_seeds() -> None:
    """Only images with a cotangent are returned, each with the sum over all places."""
    images = {value: tf.fill([2], float(value)) for value in (1, 2, 3)}
    seeds = [
        {1: tf.constant([1.0, 0.0])},
        {3: tf.constant([5.0, 5.0]), 1: tf.constant([10.0, 1.0])},
        {},
    ]
    with_seed, sums = autodiff.sum_seeds(images, seeds)
    assert [int(image[0]) for image in with_seed] == [1, 3]
    np.testing.assert_array_equal(sums[0], [11, 1])
    np.testing.assert_array_equal(sums[1], [5, 5])


@pytest.mark.parametrize(
    ("name", "count"), [("relu", 0), ("sigmoid", 0), ("hard_sigmoid", 1), ("gelu", 4)]
)
def test_waiting_tensors(name: str, count: int) -> None:
    """Hard sigmoid keeps what it clips; GELU its factors and their inputs; ReLU reads its output."""
    assert autodiff.waiting_tensors(getattr(keras.activations, name)) == count
