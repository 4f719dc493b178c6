"""Tests of `tfbig.stores.row_bands`."""

from __future__ import annotations

import numpy as np
import pytest

from tfbig.stores import row_bands
from tfbig.stores.row_bands import Bands

SIZE = [10, 6]


class Written:
    """An image that is written by rows, in order and without gaps."""

    def __init__(self) -> None:
        self.rows: list[np.ndarray] = []
        self.next = 0

    def __call__(self, first: int, rows: np.ndarray) -> None:
        assert first == self.next
        self.next += len(rows)
        self.rows.append(rows.copy())

    @property
    def image(self) -> np.ndarray:
        return np.concatenate(self.rows)


def test_whole_rows_are_passed_on() -> None:
    image, written = np.arange(60.0).reshape(10, 6, 1), Written()
    bands = Bands(written)
    for start in (0, 4, 8):
        bands.write([start], image[start : start + 4], SIZE, False)
    bands.finish()
    np.testing.assert_array_equal(written.image, image)


@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("tiles", [[], [(4, 2)], [(0, 0), (4, 4)], [(2, 0), (2, 4), (8, 4)]])
def test_background_fills_the_gaps(
    tiles: list[tuple[int, int]], step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_bands, "BAND_ROWS", 3)
    pattern = np.arange(2.0 * step * step).reshape(step, step, 2)
    image, written = np.tile(pattern, (10 // step, 6 // step, 1)), Written()
    bands = Bands(written)
    bands.write([4, 4], pattern, SIZE, True)
    for top, left in tiles:
        image[top : top + 2, left : left + 2] = -1 - top - left
        bands.write([top, left], image[top : top + 2, left : left + 2], SIZE, False)
    bands.finish()
    np.testing.assert_array_equal(written.image, image)


def test_nothing_is_written_twice() -> None:
    image, written = np.arange(60.0).reshape(10, 6, 1), Written()
    bands = Bands(written)
    for top in (0, 5):
        for left in (0, 3):
            bands.write([top, left], image[top : top + 5, left : left + 3], SIZE, False)
    assert written.next == 10
    bands.finish()
    assert written.next == 10


def test_tiles_of_different_heights() -> None:
    """Tiles come in the order of their first rows; a high one is still open when the next begin."""
    pattern = np.full((1, 1, 2), 7.0)
    image, written = np.tile(pattern, (10, 6, 1)), Written()
    bands = Bands(written)
    bands.write([4, 4], pattern, SIZE, True)
    for top, bottom, left, right in [(1, 7, 0, 2), (1, 3, 4, 6), (3, 5, 2, 6), (8, 9, 1, 2)]:
        image[top:bottom, left:right] = -top - left
        bands.write([top, left], image[top:bottom, left:right], SIZE, False)
        assert written.next == top
    bands.finish()
    np.testing.assert_array_equal(written.image, image)
