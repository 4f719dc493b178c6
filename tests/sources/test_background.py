"""Windows read no background."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from masked_images import Recording
from slide_files import image

from tfbig import sources
from tfbig.geometry import cells
from tfbig.geometry.background import Background
from tfbig.sources.background import cells_of_window, colour_of, read_foreground

COLOUR = np.array([1, 2, 3], np.uint8)


@given(st.integers(1, 60), st.integers(0, 20), st.floats(0, 1), st.data())
def test_windows_equal_where(cell: int, seed: int, share: float, data: st.DataObject) -> None:
    array = image(50, 700, 3)
    shape = cells.num_cells((50, 700), cell)
    background = Background(np.random.default_rng(seed).random(shape) < share, cell)
    (start, stop), (left, right) = (
        sorted(data.draw(st.lists(st.integers(0, n), min_size=2, max_size=2, unique=True)))
        for n in (50, 700)
    )
    recording = Recording(array)
    window = (start, stop, left, right)
    actual = read_foreground(recording._read_window, background, COLOUR, window)
    mask = np.kron(background.foreground, np.ones((cell, cell), bool))[:50, :700, None]
    expected = np.where(mask, array, COLOUR)[start:stop, left:right]
    np.testing.assert_array_equal(actual, expected)
    inside = np.argwhere(mask[start:stop, left:right, 0])
    for top, bottom, side, end in recording.windows:  # no more than the hull of the foreground
        low, high = inside.min(0), inside.max(0) + 1
        assert top >= start + low[0]
        assert bottom <= start + high[0]
        assert side >= left + low[1]
        assert end <= left + high[1]


def test_two_areas_far_apart_are_read_one_by_one() -> None:
    foreground = np.zeros((2, 40), bool)
    foreground[0, 1] = foreground[1, 3] = foreground[1, 38] = True
    recording = Recording(image(64, 1280))
    colour = np.zeros(1, np.uint8)
    read_foreground(recording._read_window, Background(foreground, 32), colour, (5, 60, 0, 1280))
    assert recording.windows == [(5, 60, 32, 128), (32, 60, 1216, 1248)]


def test_cells_of_window() -> None:
    background = Background(np.arange(12).reshape(3, 4) % 2 == 0, 5)
    part = cells_of_window(background, (4, 11, 5, 10))
    np.testing.assert_array_equal(part, background.foreground[0:3, 1:2])


def test_colour_of_a_background() -> None:
    array = image(20, 30, 3)
    foreground = np.ones((2, 3), bool)
    foreground[1, 2] = False
    recording = Recording(array)
    colour = colour_of(recording, Background(foreground, 10))
    np.testing.assert_array_equal(colour, array[10, 20])
    assert recording.windows == [(10, 11, 20, 21)]


def test_a_colour_that_is_known_is_not_read() -> None:
    recording = Recording(image(20, 30))
    background = Background(np.array([[True, False, True]] * 2), 10)
    masked = sources.Masked(recording, background, 7)
    assert colour_of(masked, background).tolist() == [7]
    assert not recording.windows


def test_most_sources_have_no_background() -> None:
    assert sources.open(image(20, 30)).background is None
    assert sources.Grayscale(sources.open(image(20, 30, 3))).crop((0, 9)).background is None
