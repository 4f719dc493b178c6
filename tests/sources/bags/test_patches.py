"""Bags of patches read the slices of an array."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from exactness import integers

from tfbig import SourceError, sources
from tfbig.sources import ArrayBag, Patches


@pytest.mark.parametrize(("patch", "stride"), [(8, 8), (8, 3), ((5, 9), (5, 2)), (20, 1)])
def test_patches_equal_slices(patch: Any, stride: Any) -> None:
    array = integers((20, 31, 3), "int16")
    bag = Patches(sources.open(array), patch, stride)
    assert bag.coords is not None
    rows, columns = bag.grid.patch
    expected = np.stack([array[y : y + rows, x : x + columns] for x, y in bag.coords])
    np.testing.assert_array_equal(bag.read(0, bag.shape[0]), expected)
    places = np.random.default_rng(0).integers(bag.shape[0], size=40)
    np.testing.assert_array_equal(bag.take(places), expected[places])
    assert bag.take([]).shape == (0, rows, columns, 3)


def test_chunks_of_series() -> None:
    series = integers((50, 9))
    bag = Patches(ArrayBag(series), 16)
    assert bag.shape == (4, 16, 9)
    expected = np.stack([series[i : i + 16] for i in (0, 16, 32, 34)])
    np.testing.assert_array_equal(bag.read(0, 4), expected)
    np.testing.assert_array_equal(bag.take([2, 0, 1, 1]), expected[[2, 0, 1, 1]])


def test_adjacent_patches_are_read_together() -> None:
    windows: list[Any] = []

    class RecordingSource(sources.Source):
        def _read_window(self, *window: int) -> Any:
            windows.append(window)
            return np.zeros((window[1] - window[0], window[3] - window[2], 1), np.uint8)

        def _read(self, start: int, stop: int) -> Any:
            raise AssertionError

    Patches(RecordingSource((8, 12), np.uint8, "seen"), 4, 4).take([0, 1, 2, 3, 5])
    assert windows == [(0, 4, 0, 12), (4, 8, 0, 4), (4, 8, 8, 12)]


def test_image_smaller_than_patch() -> None:
    with pytest.raises(SourceError, match=r"array: the image is .* smaller than a patch"):
        Patches(sources.open(np.zeros((5, 9), np.uint8)), 6)
    with pytest.raises(SourceError, match="for each of 2 axes"):
        Patches(sources.open(np.zeros((5, 9), np.uint8)), (2, 2, 2))
