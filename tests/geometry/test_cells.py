"""Tests of `tfbig.geometry.cells`."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfbig.geometry import cells
from tfbig.geometry.background import Background


def test_number_and_intervals_of_cells() -> None:
    assert cells.num_cells((33, 32), 8) == (5, 4)
    places = cells.intervals(33, 8)
    assert places.start.tolist() == [0, 8, 16, 24, 32]
    assert places.stop.tolist() == [8, 16, 24, 32, 33]


def test_power_of_two() -> None:
    numbers = [0.01, 1, 1.99, 2, 31.9, 32]
    assert [cells.power_of_two(n) for n in numbers] == [1, 1, 1, 2, 16, 32]


@pytest.mark.parametrize(
    ("shape", "least", "side"),
    [
        ((2048, 2048), 1, 1),
        ((2048, 2049), 1, 2),
        ((22658, 46212), 1, 16),
        ((65536, 65536), 1, 32),
        ((65536, 65536), 3, 48),
        ((10, 10), 7, 7),
    ],
)
def test_side_of_cells(shape: tuple[int, int], least: int, side: int) -> None:
    assert cells.side_of_cells(shape, least) == side


@pytest.mark.parametrize(
    ("shape", "cell", "offsets", "side"),
    [
        ((100, 100), 16, (32, 0), 16),  # aligned
        ((100, 100), 16, (8, 24), 8),
        ((100, 100), 16, (1, 0), 1),
        ((40000, 40000), 256, (1, 0), 64),  # not 1.6e9 cells
        ((40000, 40000), 16, (1, 0), 16),
    ],
)
def test_side_between(
    shape: tuple[int, int], cell: int, offsets: tuple[int, ...], side: int
) -> None:
    assert cells.side_between(shape, cell, offsets) == side


@given(
    st.integers(1, 7),
    st.lists(st.integers(0, 29), min_size=2, max_size=2, unique=True).map(sorted),
    st.lists(st.integers(0, 33), min_size=2, max_size=2, unique=True).map(sorted),
)
def test_rectangle_is_foreground(cell: int, rows: list[int], columns: list[int]) -> None:
    background = cells.rectangle((29, 33), cell, (rows[0], rows[1]), (columns[0], columns[1]))
    assert background.foreground.shape == cells.num_cells((29, 33), cell)
    inside = np.zeros((29, 33), bool)
    inside[slice(*rows), slice(*columns)] = True
    covered = cells.pixels(background, (0, 29), (0, 33))
    assert (covered >= inside).all()
    grown = np.zeros((29, 33), bool)
    top, left = (max(pair[0] - cell + 1, 0) for pair in (rows, columns))
    grown[top : rows[1] + cell - 1, left : columns[1] + cell - 1] = True
    assert (covered <= grown).all()


@given(st.integers(1, 5), st.data())
def test_pixels_of_a_rectangle(cell: int, data: st.DataObject) -> None:
    foreground = np.random.default_rng(cell).random((6, 4)) < 0.5
    whole = np.kron(foreground, np.ones((cell, cell), bool))
    rows, columns = (
        sorted(data.draw(st.lists(st.integers(0, n), min_size=2, max_size=2, unique=True)))
        for n in whole.shape
    )
    part = cells.pixels(Background(foreground, cell), tuple(rows), tuple(columns))
    np.testing.assert_array_equal(part, whole[slice(*rows), slice(*columns)])


@pytest.mark.parametrize(
    ("tile", "shape", "cell"),
    [
        ((256, 256), (1000, 900), 256),
        ((240, 48), (1000, 900), 16),
        ((100, 900), (1000, 900), 4),  # strips
        ((2000, 2000), (1000, 900), 16),  # one tile
        ((3, 3), (4000, 4000), 4),  # not 1.8e6 cells
    ],
)
def test_background_of_tiles(tile: tuple[int, int], shape: tuple[int, int], cell: int) -> None:
    count = [-(-n // m) for n, m in zip(shape, tile, strict=True)]
    stored = np.random.default_rng(0).random(count) < 0.3
    background = cells.of_tiles(stored, tile, shape)
    assert background.cell == cell
    actual = cells.pixels(background, (0, shape[0]), (0, shape[1]))
    rows, columns = (np.arange(n) // m for n, m in zip(shape, tile, strict=True))
    expected = stored[rows][:, columns]
    if cell > 3 and 4000 not in shape:
        np.testing.assert_array_equal(actual, expected)
    assert (actual >= expected).all()
