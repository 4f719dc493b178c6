"""Scaled images, against exact fractions, Pillow and one another."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from slide_files import image, read_all

from tfbig import sources
from tfbig.sources import Scaled
from tfbig.sources.bilinear import Axis

SIDE = st.integers(1, 130)


@pytest.mark.parametrize(("extent", "size"), [(7, 3), (3, 7), (5, 5), (90, 4), (1, 6), (6, 1)])
def test_weights_are_the_triangles_of_their_pixels(extent: int, size: int) -> None:
    """Each within 1.5 units of 2**-22, of which rounding the running sum takes 1, and the sum exactly 1."""
    axis = Axis(extent, size)
    for pixel in range(size):
        start, stop = axis.reads((pixel, pixel + 1))
        actual = np.zeros(extent)
        actual[start:stop] = axis.weights((pixel, pixel + 1))[0]
        np.testing.assert_allclose(actual, triangle(extent, size, pixel), rtol=0, atol=1.5 / 2**22)
        assert actual.sum() == 1


def triangle(extent: int, size: int, pixel: int) -> list[float]:
    """Weights in exact fractions, of the whole axis."""
    scale = Fraction(extent, size)
    centre, reach = (pixel + Fraction(1, 2)) * scale, max(scale, 1)
    heights = [max(1 - abs(i + Fraction(1, 2) - centre) / reach, 0) for i in range(extent)]
    return [float(height / sum(heights)) for height in heights]


@given(source=st.tuples(SIDE, SIDE), shape=st.tuples(SIDE, SIDE), data=st.data())
@settings(max_examples=100)
def test_pixels_do_not_depend_on_the_rectangle(
    source: tuple[int, int], shape: tuple[int, int], data: st.DataObject
) -> None:
    scaled = Scaled(sources.open(image(*source, 3)), shape)
    whole = read_all(scaled)
    for _ in range(4):
        rows, columns = (
            sorted(data.draw(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1))))
            for n in shape
        )
        rectangle = (rows[0], rows[1] + 1), (columns[0], columns[1] + 1)
        expected = whole[slice(*rectangle[0]), slice(*rectangle[1])]
        np.testing.assert_array_equal(scaled.read_window(*rectangle), expected)


@given(source=st.tuples(SIDE, SIDE), shape=st.tuples(SIDE, SIDE))
@settings(max_examples=100)
def test_scaled_equals_pillow(source: tuple[int, int], shape: tuple[int, int]) -> None:
    """Pillow rounds twice, by at most half a grey level each: the results differ by at most one."""
    pixels = image(*source, 3)
    expected = Image.fromarray(pixels).resize(shape[::-1], Image.Resampling.BILINEAR)
    actual = read_all(Scaled(sources.open(pixels), shape))
    assert abs(actual.astype(int) - np.asarray(expected)).max() <= 1


@pytest.mark.parametrize("shape", [(1, 1), (1, 40), (2000, 3)])
def test_one_colour_stays_as_it_is(shape: tuple[int, int]) -> None:
    """Weights of pixels sum to 1 whatever the scale: Pillow rounds each, and loses a grey level at large ones."""
    white = np.full((40_000, 40, 1), 255, np.uint8)
    np.testing.assert_array_equal(read_all(Scaled(sources.open(white), shape)), 255)
