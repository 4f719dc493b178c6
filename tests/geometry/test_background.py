"""Tests of `tfbig.geometry.background`."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfbig.geometry.background import Background
from tfbig.geometry.windows import Interval


def _random(seed: int, rows: int, columns: int) -> np.ndarray:
    return np.random.default_rng(seed).random((rows, columns)) < 0.2


@given(st.integers(0, 99), st.integers(1, 9), st.integers(1, 9), st.integers(1, 4), st.data())
def test_touches_every_pixel_of_a_rectangle(
    seed: int, rows: int, columns: int, cell: int, data: st.DataObject
) -> None:
    cells = _random(seed, rows, columns)
    pixels = np.kron(cells, np.ones((cell, cell), bool))
    edges = [
        sorted(data.draw(st.lists(st.integers(0, n), min_size=2, max_size=2, unique=True)))
        for n in pixels.shape
    ]
    (top, bottom), (left, right) = edges
    touched = Background(cells, cell).touches(Interval([top], [bottom]), Interval([left], [right]))
    assert touched.tolist() == [[pixels[top:bottom, left:right].any()]]


def test_touches_pairs_rows_with_columns() -> None:
    cells = _random(3, 6, 5)
    starts, sides = np.arange(6), np.arange(5)
    touched = Background(cells).touches(Interval(starts, starts + 1), Interval(sides, sides + 1))
    np.testing.assert_array_equal(touched, cells)


def test_signals_have_one_column() -> None:
    background = Background(np.array([True, False]), 4)
    assert background.touches(Interval([0, 4], [5, 8])).tolist() == [[True], [False]]


@pytest.mark.parametrize("factor", [1, 2, 3])
def test_coarser_cells_hold_no_less_foreground(factor: int) -> None:
    cells = _random(1, 7, 5)
    coarse = Background(cells, 2).coarser(factor)
    assert coarse.cell == 2 * factor
    large = np.kron(coarse.foreground, np.ones((factor, factor), bool))[:7, :5]
    assert (large >= cells).all()
    assert coarse.foreground.sum() <= cells.sum()


def test_joins_images_with_cells_of_two_sizes() -> None:
    fine, coarse = np.zeros((4, 4), bool), np.zeros((2, 2), bool)
    fine[3, 0] = coarse[0, 1] = True
    for first, second in (
        (Background(fine, 8), Background(coarse, 16)),
        (Background(coarse, 16), Background(fine, 8)),
    ):
        assert first.joined(second) == Background(np.array([[0, 1], [1, 0]], bool), 16)


def test_joins_cells_of_sizes_that_do_not_divide_each_other() -> None:
    first, second = np.zeros((6, 6), bool), np.zeros((4, 4), bool)
    first[0, 3], second[3, 3] = True, True
    joint = Background(first, 2).joined(Background(second, 3))
    assert joint == Background(np.array([[0, 1], [0, 1]], bool), 6)


def test_refuses_cells_without_pixels() -> None:
    with pytest.raises(ValueError, match="a cell of 0 pixels"):
        Background(np.ones((3, 3), bool), 0)


def test_equal_by_content() -> None:
    cells = _random(2, 5, 5)
    assert Background(cells, 3) == Background(cells.copy(), 3)
    assert hash(Background(cells, 3)) == hash(Background(cells.copy(), 3))
    assert Background(cells, 3) != Background(cells, 4)
    assert Background(cells, 3) != Background(~cells, 3)


def test_share_counts_cells() -> None:
    assert Background(np.array([[True, False, False, False]]), 8).share == 0.25
