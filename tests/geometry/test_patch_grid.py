"""Patches cover an image, and a bag of them reads what a slice of the array is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from exactness import integers
from hypothesis import given
from hypothesis import strategies as st

from tfbig import SourceError, sources
from tfbig.geometry.patch_grid import PatchGrid, num_cells, per_axis
from tfbig.sources import ArrayBag, Patches


@given(patch=st.integers(1, 9), more=st.integers(0, 40), data=st.data())
def test_every_pixel_is_in_a_patch_and_every_patch_in_the_image(
    patch: int, more: int, data: Any
) -> None:
    stride = data.draw(st.integers(1, patch))
    grid = PatchGrid((patch + more,), (patch,), (stride,))
    (starts,) = grid.corners(np.arange(grid.count)).T
    seen = np.zeros(patch + more, int)
    for start in starts:
        assert 0 <= start <= more
        seen[start : start + patch] += 1
    assert seen.min() >= 1
    assert (np.diff(starts) > 0).all()  # none twice, and none could be left out
    assert (starts[:-1] == stride * np.arange(grid.count - 1)).all()


def test_grids_of_the_papers() -> None:
    assert PatchGrid((2048, 2048), (128, 128), (128, 128)).cells == (16, 16)
    assert PatchGrid((512, 512), (32, 32), (32, 32)).count == 256
    assert PatchGrid((224, 224), (40, 40), (20, 20)).cells == (11, 11)
    assert PatchGrid((128,), (16,), (16,)).cells == (8,)
    assert num_cells(128, 16, 16) == 8


@pytest.mark.parametrize(
    ("extents", "patch", "stride", "message"),
    [
        ((7, 9), (8, 8), (8, 8), r"the image is \(7, 9\), smaller than a patch of \(8, 8\)"),
        ((9, 9), (4, 4), (4, 5), r"a stride of \(4, 5\) leaves pixels out"),
        ((9,), (4, 4), (4, 4), "an image of 1 axes"),
    ],
)
def test_what_is_no_grid(extents: Any, patch: Any, stride: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PatchGrid(extents, patch, stride)


@pytest.mark.parametrize("sizes", [0, (3, -1), (3, 3, 3)])
def test_sizes_that_are_none(sizes: Any) -> None:
    with pytest.raises(ValueError, match=r"patch=.*expected a positive number"):
        per_axis(sizes, 2, "patch")


@pytest.mark.parametrize(("patch", "stride"), [(8, 8), (8, 3), ((5, 9), (5, 2)), (20, 1)])
def test_a_bag_of_patches_is_what_slices_are(patch: Any, stride: Any) -> None:
    array = integers((20, 31, 3), "int16")
    bag = Patches(sources.open(array), patch, stride)
    assert bag.coords is not None
    rows, columns = bag.grid.patch
    expected = np.stack([array[y : y + rows, x : x + columns] for x, y in bag.coords])
    np.testing.assert_array_equal(bag.read(0, bag.shape[0]), expected)
    places = np.random.default_rng(0).integers(bag.shape[0], size=40)
    np.testing.assert_array_equal(bag.take(places), expected[places])
    assert bag.take([]).shape == (0, rows, columns, 3)


def test_chunks_of_a_series() -> None:
    series = integers((50, 9))
    bag = Patches(ArrayBag(series), 16)
    assert bag.shape == (4, 16, 9)
    expected = np.stack([series[i : i + 16] for i in (0, 16, 32, 34)])
    np.testing.assert_array_equal(bag.read(0, 4), expected)
    np.testing.assert_array_equal(bag.take([2, 0, 1, 1]), expected[[2, 0, 1, 1]])


def test_neighbours_are_read_together() -> None:
    asked: list[Any] = []

    class Seen(sources.Source):
        def _read_window(self, *window: int) -> Any:
            asked.append(window)
            return np.zeros((window[1] - window[0], window[3] - window[2], 1), np.uint8)

        def _read(self, start: int, stop: int) -> Any:
            raise AssertionError

    Patches(Seen((8, 12), np.uint8, "seen"), 4, 4).take([0, 1, 2, 3, 5])
    assert asked == [(0, 4, 0, 12), (4, 8, 0, 4), (4, 8, 8, 12)]


def test_images_smaller_than_a_patch_are_named() -> None:
    with pytest.raises(SourceError, match=r"array: the image is .* smaller than a patch"):
        Patches(sources.open(np.zeros((5, 9), np.uint8)), 6)
    with pytest.raises(SourceError, match="for each of 2 axes"):
        Patches(sources.open(np.zeros((5, 9), np.uint8)), (2, 2, 2))
