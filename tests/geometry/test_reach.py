"""Tests of `tfbig.geometry.reach`, against windows that are followed row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
from graphs import for_examples
from hypothesis import strategies as st

from tfbig.geometry.reach import Reach
from tfbig.geometry.windows import Fixed, Interval, Resize, Transposed, Window

windows = st.builds(
    Window,
    kernel=st.integers(1, 5),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 2),
    padding=st.one_of(
        st.sampled_from(["same", "valid"]), st.tuples(st.integers(-2, 3), st.integers(-2, 3))
    ),
)
transposed = st.builds(
    Transposed,
    kernel=st.integers(1, 5),
    stride=st.integers(1, 3),
    padding=st.sampled_from(["same", "valid"]),
)
resizes = st.builds(Resize, factor=st.integers(1, 3), taps=st.integers(0, 1))
chains = st.lists(st.one_of(windows, transposed, resizes), min_size=1, max_size=4)

# Rows between the kernels of a transposed convolution read a row on which they do not depend.
without_gaps = st.lists(
    st.one_of(windows, transposed.filter(lambda t: t.kernel >= t.stride), resizes),
    min_size=1,
    max_size=4,
)


def followed(axes: list[Any], sizes: list[int], row: int) -> tuple[int, int]:
    """Return the rows of the input that a row depends on, clipped to every image on the way."""
    need = Interval(np.array(row), np.array(row + 1))
    for axis, size in zip(reversed(axes), reversed(sizes), strict=True):
        need = axis.needs(need, size).clip(size)
    return int(need.start), int(need.stop)


def touches_padding(axes: list[Any], sizes: list[int], row: int) -> bool:
    need = Interval(np.array(row), np.array(row + 1))
    for axis, size in zip(reversed(axes), reversed(sizes), strict=True):
        wanted = axis.needs(need, size)
        need = wanted.clip(size)
        if isinstance(axis, Window) and (wanted.start < 0 or wanted.stop > size):
            return True
    return False


@for_examples(without_gaps, st.integers(20, 60), fast=30, slow=100)
def test_covers_what_rows_depend_on(axes: list[Any], size: int) -> None:
    reach, sizes = Reach.of_input(size), [size]
    for axis in axes:
        passed = reach.through(axis, sizes[-1])
        assert passed is not None
        reach = passed
        sizes.append(axis.extent(sizes[-1]))
        if sizes[-1] < 1:
            return
    *inputs, last = sizes
    rows = np.arange(last)
    covered = reach.rows(Interval(rows, rows + 1))
    for row in range(last):
        start, stop = followed(axes, inputs, row)
        if start < stop:
            assert max(covered.start[row], 0) <= start
            assert min(covered.stop[row], size) >= stop
        if reach.inside.start <= row < reach.inside.stop:
            assert not touches_padding(axes, inputs, row)


@for_examples(chains, st.integers(60, 90), st.integers(0, 5), fast=30, slow=100)
def test_values_inside_repeat_with_the_period(axes: list[Any], size: int, seed: int) -> None:
    """A constant, passed through random windows, repeats on the rows inside."""
    random, reach, x = np.random.default_rng(seed), Reach.of_input(size), np.ones(size)
    for axis in axes:
        passed = reach.through(axis, len(x))
        assert passed is not None
        reach, x = passed, applied(axis, x, random)
        if not len(x):
            return
    inner = x[reach.inside.start : reach.inside.stop]
    np.testing.assert_allclose(
        inner[reach.period :], inner[: -reach.period or None][: len(inner) - reach.period]
    )


def applied(axis: Any, x: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return a layer with random weights, computed row by row."""
    extent, size = axis.extent(len(x)), len(x)
    if isinstance(axis, Resize):
        return np.repeat(x, axis.factor)
    weights = random.normal(size=axis.kernel)
    y = np.zeros(max(extent, 0))
    if isinstance(axis, Window):
        before = axis.pads(size)[0]
        for o in range(extent):
            for t in range(axis.kernel):
                i = o * axis.stride - before + t * axis.dilation
                y[o] += weights[t] * x[i] if 0 <= i < size else 0
        return y
    before = axis.cuts()[0]
    for i in range(size):
        for t in range(axis.kernel):
            o = i * axis.stride - before + t
            if 0 <= o < extent:
                y[o] += weights[t] * x[i]
    return y


def test_joins_two_ways() -> None:
    start = Reach.of_input(50)
    wide, narrow = (start.through(Window(k, padding="same"), 50) for k in (7, 3))
    assert wide is not None
    assert narrow is not None
    joint = narrow.joined(wide)
    assert (joint.before, joint.after) == (3, 3)
    assert joint.inside == Interval(3, 47)


def test_ways_with_other_strides_have_no_inside() -> None:
    start = Reach.of_input(50)
    once, twice = (start.through(Window(1, s), 50) for s in (1, 2))
    assert once is not None
    assert twice is not None
    joint = once.joined(twice)
    assert joint.inside.start >= joint.inside.stop


def test_layers_that_need_the_whole_image_have_none() -> None:
    assert Reach.of_input(8).through(Fixed(8), 8) is None
