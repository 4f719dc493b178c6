"""Random masks are independent of strips, differ between seeds, and have the right distribution."""

from __future__ import annotations

from itertools import pairwise
from math import log, sqrt

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tfbig.ops import counter_random

RARE = 1e-12
"""Probability that truly random numbers exceed a bound below; seeds are fixed, so runs are reproducible."""


def seed(a: int = 1, b: int = 2) -> tf.Tensor:
    return tf.constant([a, b], tf.int64)


def rows(shape: tuple[int, ...], key: tf.Tensor, first: int = 0) -> np.ndarray:
    return counter_random.uniform_rows(tf.constant(shape), key, first).numpy()


def hoeffding(count: int, width: float) -> float:
    """Return a bound on the error of the mean of `count` independent numbers from an interval of `width`.

    Hoeffding (1963): an error above t has a probability of at most `2 * exp(-2 * n * t**2 / width**2)`.
    """
    return width * sqrt(log(2 / RARE) / (2 * count))


@given(
    st.integers(1, 3),
    st.integers(1, 12),
    st.integers(1, 7),
    st.integers(1, 3),
    st.lists(st.integers(1, 11), max_size=4),
    st.integers(0, 2**62),
)
@settings(deadline=None, max_examples=60)
def test_numbers_do_not_depend_on_strips(
    batch: int, height: int, width: int, channels: int, cuts: list[int], key: int
) -> None:
    whole = rows((batch, height, width, channels), seed(key))
    edges = sorted({0, height, *(c for c in cuts if c < height)})
    strips = [rows((batch, b - a, width, channels), seed(key), a) for a, b in pairwise(edges)]
    np.testing.assert_array_equal(np.concatenate(strips, 1), whole)


def test_rows_far_down_an_image() -> None:
    """A row of 5 x 3 numbers uses four counter values, so the counter exceeds 2**32 here."""
    first = 2**30
    below = rows((1, 4, 5, 3), seed(), first)
    np.testing.assert_array_equal(rows((1, 2, 5, 3), seed(), first + 2), below[:, 2:])
    assert not np.isin(below, rows((1, 4, 5, 3), seed())).all()


def test_first_row_may_be_a_tensor() -> None:
    traced = tf.function(counter_random.uniform_rows)
    actual = traced(tf.constant([2, 3, 5, 1]), seed(), tf.constant(7))
    np.testing.assert_array_equal(actual, rows((2, 3, 5, 1), seed(), 7))


def test_rows_images_and_seeds_differ() -> None:
    """Two rows of 35 numbers with 2**23 values each are not equal by chance."""
    keys = [(1, 2), (1, 3), (2, 2), (2, 1), (0, 2), (-1, 2), (1, 2**40)]
    actual = np.concatenate([rows((2, 6, 7, 5), seed(*key)).reshape(-1, 35) for key in keys])
    assert len(np.unique(actual, axis=0)) == len(keys) * 2 * 6


def test_numbers_are_uniform() -> None:
    """Mean 1/2 and variance 1/12, within Hoeffding's bound; the square of a deviation lies in 0..1/4."""
    numbers = rows((3, 200, 101, 3), seed(5, 6)).astype(np.float64)
    assert 0 <= numbers.min() <= numbers.max() < 1
    count = numbers.size
    assert abs(numbers.mean() - 1 / 2) <= hoeffding(count, 1)
    assert abs(((numbers - 1 / 2) ** 2).mean() - 1 / 12) <= hoeffding(count, 1 / 4)


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
def test_neighbours_are_independent(axis: int) -> None:
    """Products of deviations of disjoint pairs along an axis have mean 0, and lie within 1/4 of it."""
    numbers = rows((2, 100, 102, 2), seed(7, 8)).astype(np.float64) - 1 / 2
    pairs = np.take(numbers, range(0, numbers.shape[axis], 2), axis) * np.take(
        numbers, range(1, numbers.shape[axis], 2), axis
    )
    assert abs(pairs.mean()) <= hoeffding(pairs.size, 1 / 2)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.75])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_dropout_rate_and_scale(rate: float, dtype: str) -> None:
    x = tf.ones([2, 60, 51, 3], dtype)
    actual = counter_random.dropout(x, rate, seed(), 0)
    assert actual.dtype == x.dtype
    kept = actual.numpy().astype(np.float64)
    scale = float(tf.constant(1 / (1 - rate), dtype))
    assert set(np.unique(kept)) == {0.0, scale}
    assert abs((kept == 0).mean() - rate) <= hoeffding(kept.size, 1)


def test_dropout_does_not_depend_on_strips() -> None:
    x = tf.random.stateless_normal([2, 9, 5, 3], [1, 2])
    whole = counter_random.dropout(x, 0.5, seed(), 0)
    strips = [
        counter_random.dropout(x[:, a:b], 0.5, seed(), a) for a, b in ((0, 1), (1, 6), (6, 9))
    ]
    np.testing.assert_array_equal(tf.concat(strips, 1), whole)


@pytest.mark.parametrize(("rate", "expected"), [(0.0, 3.0), (1.0, 0.0)])
def test_dropout_of_rate_zero_and_one(rate: float, expected: float) -> None:
    x = tf.fill([1, 20, 30, 2], 3.0)
    np.testing.assert_array_equal(
        counter_random.dropout(x, rate, seed(), 0), tf.fill(x.shape, expected)
    )


def test_dropout_of_whole_pixels() -> None:
    actual = counter_random.dropout(tf.ones([2, 9, 8, 3]), 0.5, seed(), 0, alike=True).numpy()
    np.testing.assert_array_equal(actual, np.repeat(actual[..., :1], 3, -1))
    assert set(np.unique(actual)) == {0.0, 2.0}


def test_normal_numbers_do_not_depend_on_strips() -> None:
    shape = [2, 9, 5, 3]
    whole = counter_random.normal_rows(tf.constant(shape), seed(), 0).numpy()
    strips = [
        counter_random.normal_rows(tf.constant([2, b - a, 5, 3]), seed(), a)
        for a, b in ((0, 1), (1, 6), (6, 9))
    ]
    np.testing.assert_array_equal(np.concatenate(strips, 1), whole)
    assert len(np.unique(whole)) == whole.size


def test_moments_of_normal_numbers() -> None:
    """Sums of n squares of normal numbers: Laurent and Massart (2000), lemma 1, bounds both tails."""
    actual = (
        counter_random.normal_rows(tf.constant([3, 200, 101, 2]), seed(), 7)
        .numpy()
        .astype("float64")
    )
    n, rare = actual.size, log(2 / RARE)
    assert abs(actual.mean()) <= sqrt(2 * rare / n)
    assert abs((actual**2).mean() - 1) <= 2 * sqrt(rare / n) + 2 * rare / n


def test_dropout_gradient_equals_mask() -> None:
    x = tf.random.stateless_normal([1, 8, 9, 2], [1, 2])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = counter_random.dropout(x, 0.5, seed(), 3)
    kept = counter_random.dropout(tf.ones_like(x), 0.5, seed(), 3)
    np.testing.assert_array_equal(tape.gradient(y, x), kept)
