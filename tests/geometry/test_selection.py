"""Axes of operations that copy rows, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tfbig.geometry.selection import Centre, Flip, Mirror, Scale, Slice
from tfbig.geometry.windows import Interval, Window

sizes = st.integers(1, 12)
ends = st.one_of(st.none(), st.integers(-14, 14))


def assert_needs(axis: Any, size: int, read: np.ndarray) -> None:
    """Assert that each interval of the output needs the hull of the rows that it reads, all at once."""
    assert axis.extent(size) == len(read)
    pairs = [(a, b) for a in range(len(read)) for b in range(a + 1, len(read) + 1)]
    if not pairs:
        return
    first, last = np.array(pairs).T
    start, stop = axis.needs(Interval(first, last), size)
    np.testing.assert_array_equal(start, [read[a:b].min() for a, b in pairs])
    np.testing.assert_array_equal(stop, [read[a:b].max() + 1 for a, b in pairs])


@given(sizes, st.integers(0, 12), st.integers(0, 12), st.booleans())
def test_mirror(size: int, before: int, after: int, edge: bool) -> None:
    assume(max(before, after) <= size - (not edge))
    read = np.pad(np.arange(size), (before, after), "symmetric" if edge else "reflect")
    axis = Mirror(before, after, edge)
    np.testing.assert_array_equal(axis.index(np.arange(len(read)), size), read)
    assert axis.extent(size) == axis.length(size) == len(read) == axis.window.extent(size)
    first, last = np.array(
        [(a, b) for a in range(len(read)) for b in range(a + 1, len(read) + 1)]
    ).T
    start, stop = axis.needs(Interval(first, last), size)
    pairs = list(zip(first, last, strict=True))
    assert np.all((start >= 0) & (stop <= size))
    assert np.all(start <= [read[a:b].min() for a, b in pairs])
    assert np.all(stop > [read[a:b].max() for a, b in pairs])


@given(sizes, st.integers(0, 12), st.integers(0, 12), st.booleans(), st.integers(1, 5))
def test_tiles_of_a_mirror_can_be_joined(
    size: int, before: int, after: int, edge: bool, height: int
) -> None:
    assume(max(before, after) <= size - (not edge))
    axis = Mirror(before, after, edge)
    first = np.arange(0, axis.extent(size), height)
    last = np.minimum(first + height, axis.extent(size))
    start, stop = axis.needs(Interval(first, last), size)
    assert np.all(np.diff(start) >= 0)
    assert np.all(np.diff(stop) >= 0)


def test_mirror_of_a_small_image() -> None:
    with pytest.raises(ValueError, match=r"axis of 3 pixels is padded by \(1, 3\).* at most 2"):
        Mirror(1, 3).extent(3)


@given(sizes)
def test_flip(size: int) -> None:
    read = np.arange(size)[::-1]
    np.testing.assert_array_equal(Flip().index(np.arange(size), size), read)
    assert_needs(Flip(), size, read)


@given(sizes, ends, ends, st.integers(1, 4))
def test_slice(size: int, start: int | None, stop: int | None, step: int) -> None:
    axis = Slice(start, stop, step)
    read = np.arange(size)[start:stop:step]
    assert_needs(axis, size, read)
    if isinstance(axis.window, Window) and len(read):
        assert_needs(axis.window, size, read)


@given(sizes, st.integers(1, 12))
def test_centre(size: int, rows: int) -> None:
    assume(rows <= size)
    first = (size - rows) // 2
    assert_needs(Centre(rows), size, np.arange(first, first + rows))


def test_centre_of_a_small_image() -> None:
    with pytest.raises(ValueError, match="the 5 pixels in the middle of an axis of 4"):
        Centre(5).extent(4)


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 5), st.booleans())
def test_scale_reads_all_rows_within_the_radius(
    size: int, target: int, radius: int, antialias: bool
) -> None:
    axis, scale = Scale(target, radius, antialias), size / target
    centres = (np.arange(target) + 0.5) * scale
    reach = radius * (max(scale, 1) if antialias else 1)
    start, stop = axis.needs(Interval(np.arange(target), np.arange(target) + 1), size)
    assert axis.extent(size) == target
    assert np.all(start <= np.maximum(np.ceil(centres - reach - 0.5), 0))
    assert np.all(stop > np.minimum(np.floor(centres + reach - 0.5), size - 1))
    assert np.all((start >= 0) & (start < stop) & (stop <= size))
