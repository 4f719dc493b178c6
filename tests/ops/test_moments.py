"""Moments agree with NumPy for any split, count pixels exactly and do not suffer from cancellation.

Bounds use u, half a unit in the last place of float64, the type of the sums over rows: one operation has a relative
error below u. Sums within a row are float32 for float32.
"""

from __future__ import annotations

from fractions import Fraction
from functools import reduce
from itertools import accumulate
from math import sqrt

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tfbig.ops import moments
from tfbig.ops.moments import Moments

fast = settings(deadline=None, max_examples=25)


UNIT = 2.0**-53
UNIT32 = 2.0**-24


def of(numbers: np.ndarray) -> Moments:
    return moments.of(tf.constant(numbers), [0])


def exact(numbers: np.ndarray) -> tuple[int, float, float]:
    """Return count, mean and sum of squared deviations, computed in rational arithmetic."""
    values = [Fraction(float(v)) for v in numbers]
    mean = sum(values) / len(values)
    return len(values), float(mean), float(sum((v - mean) ** 2 for v in values))


def bounds(numbers: np.ndarray, merges: int) -> tuple[float, float]:
    """Return bounds on the errors of mean and m2.

    The mean: n additions of at most n * M, and eight operations per merge on at most 2 M:
    d = (n + 8 k) u 2 M. The deviations are off by d, so their squares by `2 sqrt(n m2) d + n d**2` in total,
    once for the parts and once per merge; and (n + 8 k) operations round m2 itself.
    """
    n, _, m2 = exact(numbers)
    u = UNIT
    d = (n + 8 * merges) * u * 2 * float(np.abs(numbers).max())
    return d, (1 + merges) * (2 * sqrt(n * m2) * d + n * d * d) + (n + 8 * merges) * u * m2


def assert_close(actual: Moments, numbers: np.ndarray, merges: int, factor: int = 1) -> None:
    count, mean, m2 = exact(numbers)
    d_mean, d_m2 = bounds(numbers, merges)
    assert int(actual.count) == count
    assert abs(float(actual.mean) - mean) <= factor * d_mean
    assert abs(float(actual.m2) - m2) <= factor * d_m2


def assert_same(a: Moments, b: Moments) -> None:
    """Assert that moments are bitwise equal."""
    for one, other in zip(a, b, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


numbers = st.lists(
    st.floats(-1e3, 1e3, allow_subnormal=False, width=32), min_size=1, max_size=12
).map(lambda v: np.array(v, np.float64))


@pytest.mark.parametrize("dtype", [pytest.param("float64", marks=pytest.mark.slow), "float32"])
@given(st.lists(numbers, min_size=1, max_size=6))
@fast
def test_moments_do_not_depend_on_split(dtype: str, parts: list[np.ndarray]) -> None:
    parts = [p.astype(dtype) for p in parts]
    merged = reduce(moments.merge, map(of, parts))
    assert_close(merged, np.concatenate(parts), len(parts))


@given(numbers, numbers, numbers)
@fast
def test_merge_is_associative_and_commutative(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> None:
    x, y, z = of(a), of(b), of(c)
    whole = np.concatenate([a, b, c])
    for actual in (
        moments.merge(moments.merge(x, y), z),
        moments.merge(x, moments.merge(y, z)),
        moments.merge(moments.merge(z, x), y),
    ):
        assert_close(actual, whole, 2)


@given(numbers)
@fast
def test_empty_moments_are_neutral(a: np.ndarray) -> None:
    x, nothing = of(a), moments.init([])
    assert_same(moments.merge(x, nothing), x)
    assert_same(moments.merge(nothing, x), x)
    assert_same(moments.merge(nothing, nothing), nothing)


@given(st.integers(0, 4), st.integers(0, 5), st.integers(0, 2**32 - 1))
@fast
def test_moments_of_integers_are_exact(split: int, size: int, seed: int) -> None:
    """Parts of 2**k integers in -8..7, merged pairwise: means and m2 are multiples of 2**-9 below 2**15."""
    data = np.random.default_rng(seed).integers(-8, 8, [2**split, 2**size]).astype(np.float32)
    parts = [moments.of(tf.constant(part[None, None]), [0, 1, 2]) for part in data]
    while len(parts) > 1:
        parts = [moments.merge(a, b) for a, b in zip(parts[::2], parts[1::2], strict=True)]
    mean, variance = moments.finalize(parts[0])
    assert mean.dtype == variance.dtype == tf.float64
    assert float(mean) == data.mean(dtype=np.float64)
    assert float(variance) == data.var(dtype=np.float64)


@pytest.mark.parametrize("axes", [[0, 1, 2], [1, 2], [1, 2, 4], [3]])
def test_axes_match_numpy(axes: list[int]) -> None:
    data = np.random.default_rng(0).integers(-8, 8, [2, 4, 8, 2, 4]).astype(np.float64)
    actual = moments.of(tf.constant(data), axes)
    mean, variance = moments.finalize(actual)
    assert int(actual.count) == np.prod([data.shape[a] for a in axes])
    np.testing.assert_array_equal(mean, data.mean(tuple(axes)))  # exact: powers of two
    np.testing.assert_array_equal(variance, data.var(tuple(axes)))


def constant(count: int, mean: float) -> Moments:
    """Return the moments of `count` equal numbers."""
    return Moments(
        *(
            tf.constant(n, t)
            for n, t in zip((count, mean, 0), (tf.int64, tf.float64, tf.float64), strict=True)
        )
    )


@pytest.mark.parametrize("count", [2**24, 2**31 - 1, 2**31, 2**40])
def test_count_beyond_float32_and_int32(count: int) -> None:
    """A float32 count would lose the last number from 2**24 on, an int32 count wraps at 2**31."""
    merged = moments.merge(constant(count, 0), constant(1, 1))
    assert merged.count.dtype == tf.int64
    assert int(merged.count) == count + 1
    # five operations at most
    assert float(merged.mean) == pytest.approx(1 / (count + 1), rel=5 * UNIT)
    assert float(merged.m2) == pytest.approx(count / (count + 1), rel=5 * UNIT)


@pytest.mark.parametrize("power", [24, 31, 32, 40, 61])
def test_merge_of_large_counts_is_exact(power: int) -> None:
    """The product of the counts exceeds 2**63; powers of two are exact."""
    merged = moments.merge(constant(2**power, -1), constant(2**power, 3))
    mean, variance = moments.finalize(merged)
    assert int(merged.count) == 2 ** (power + 1)
    assert (float(mean), float(variance)) == (1.0, 4.0)


def test_count_is_int64() -> None:
    actual = moments.of(tf.zeros([3, 5, 7, 2]), [0, 1, 2])
    assert actual.count.dtype == tf.int64
    assert int(actual.count) == 3 * 5 * 7


def test_no_cancellation_at_large_offset() -> None:
    """Mean 1e4, deviation 1e-2: float32 numbers there are 2**-10 apart, a tenth of the deviation.

    Deviations are exact (numbers within a factor two of each other subtract without rounding), so
    only means have errors, at most d, and n * u is the rounding of sums. Squares within strips are
    off by d**2 each. A merge squares a difference off by 2 d; its weights add up to less than n, so
    with Cauchy and Schwarz all merges together are off by `4 d sqrt(between) + 4 d**2` a number,
    `between` the variance of the strips' means. E[x**2] - E[x]**2 rounds at 1e8 * u = 6 instead.
    """
    data = np.random.default_rng(1).normal(1e4, 1e-2, [64, 256]).astype(np.float32)
    truth = data.astype(np.float64)
    variance = truth.var()
    strips = [moments.of(tf.constant(strip[None, None]), [0, 1, 2]) for strip in data]
    merged = list(accumulate(strips, moments.merge))
    d = max(
        *(abs(float(s.mean) - t.mean()) for s, t in zip(strips, truth, strict=True)),
        *(abs(float(s.mean) - truth[: n + 1].mean()) for n, s in enumerate(merged)),
    )
    between = truth.mean(1).var()
    tolerance = 4 * d * sqrt(between) + 5 * d * d + data.size * UNIT32 * variance
    assert tolerance < variance / 10
    assert abs(float(moments.finalize(merged[-1])[1]) - variance) <= tolerance
    x = tf.constant(data)
    naive = tf.reduce_mean(x * x) - tf.reduce_mean(x) ** 2
    assert abs(float(naive) - variance) > variance


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "uint8"])
def test_16_bit_numbers_are_summed_in_float32(dtype: str) -> None:
    x = tf.cast(np.random.default_rng(2).integers(0, 200, [4, 9, 3]), dtype)
    actual = moments.of(x, [0, 1])
    assert (actual.mean.dtype, actual.m2.dtype) == (tf.float64, tf.float64)
    assert_same(actual, moments.of(tf.cast(x, tf.float32), [0, 1]))


@given(st.integers(1, 11), st.integers(0, 2**32 - 1))
@fast
def test_cut_between_rows_changes_float64_rounding_only(cut: int, seed: int) -> None:
    """Both add the same 24 row sums in different orders; terms of a mean are at most 3, terms of m2 are squares."""
    data = np.random.default_rng(seed).normal(1, 1, [2, 12, 9, 3]).astype(np.float32)
    whole = moments.of(tf.constant(data), [0, 1, 2])
    parts = (
        moments.of(tf.constant(data[:, rows]), [0, 1, 2]) for rows in (np.s_[:cut], np.s_[cut:])
    )
    actual = moments.merge(*parts)
    operations = 24 + 8
    np.testing.assert_allclose(
        actual.mean, whole.mean, rtol=0, atol=2 * operations * UNIT * abs(data).max()
    )
    np.testing.assert_allclose(actual.m2, whole.m2, rtol=4 * operations * UNIT)
    truth = np.float64(data)
    # a row of nine: eight additions and a division of at most 9 * max; deviations and squares likewise
    np.testing.assert_allclose(
        whole.mean, truth.mean((0, 1, 2)), rtol=0, atol=10 * UNIT32 * abs(data).max()
    )
    np.testing.assert_allclose(whole.m2 / 216, truth.var((0, 1, 2)), rtol=24 * UNIT32)


def test_empty_moments() -> None:
    nothing = moments.init([2, 3])
    assert nothing.m2.dtype == tf.float64
    assert nothing.mean.shape == nothing.m2.shape == [2, 3]
    assert int(nothing.count) == 0


@pytest.mark.parametrize("axes", [[0, 1, 2], [1, 2]])
def test_pullback_matches_tf_nn_moments(axes: list[int]) -> None:
    rng = np.random.default_rng(3)
    x = tf.constant(rng.normal(3, 2, [2, 7, 5, 3]))
    with tf.GradientTape() as tape:
        tape.watch(x)
        mean, variance = tf.nn.moments(x, axes, keepdims=True)
    d_mean, d_variance = (tf.constant(rng.normal(size=mean.shape)) for _ in range(2))
    expected = tape.gradient([mean, variance], x, [d_mean, d_variance])
    count = moments.of(x, axes).count
    actual = moments.pullback(x, mean, d_mean, d_variance, count)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-12 * np.abs(expected).max())


def test_pullback_does_not_depend_on_strips() -> None:
    """Strips are bitwise equal: given the statistics, the pullback is pixelwise."""
    rng = np.random.default_rng(4)
    x, mean, d_mean, d_variance = (
        tf.constant(rng.normal(size=shape)) for shape in ([1, 9, 4, 3], [3], [3], [3])
    )
    count = tf.constant(36, tf.int64)
    whole = moments.pullback(x, mean, d_mean, d_variance, count)
    strips = [
        moments.pullback(x[:, a:b], mean, d_mean, d_variance, count)
        for a, b in ((0, 1), (1, 6), (6, 9))
    ]
    np.testing.assert_array_equal(tf.concat(strips, 1), whole)


def test_pullback_of_large_count() -> None:
    """The count exceeds int32 and the integers of float32; powers of two keep the division exact."""
    x = tf.constant([[5.0]])
    mean, d_mean, d_variance = (tf.constant([n], tf.float64) for n in (1, 8, 2))
    actual = moments.pullback(x, mean, d_mean, d_variance, tf.constant(2**40))
    assert float(actual[0, 0]) == (8 + 2 * 2 * (5 - 1)) / 2**40


def test_pullback_keeps_dtype() -> None:
    x = tf.constant([[1.0, 2.0]], tf.bfloat16)
    one = tf.constant([1.0, 1.0], tf.float64)
    actual = moments.pullback(x, one, one, one, tf.constant(2, tf.int64))
    assert actual.dtype == tf.bfloat16
    np.testing.assert_array_equal(actual, [[0.5, 1.5]])
