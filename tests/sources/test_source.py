"""Source: rows, windows and crops of any image, and their limits."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from slide_files import image, read_all

from tfbig import sources
from tfbig.errors import SourceError
from tfbig.sources import ArraySource, Source


def test_windows_of_custom_source() -> None:
    """A subclass that defines `_read` only."""

    class Ramp(Source):
        def _read(self, start: int, stop: int) -> np.ndarray:
            return np.arange(start * 4, stop * 4, dtype=np.int32).reshape(-1, 4, 1)

    source = Ramp((6, 4), np.int32, "ramp")
    np.testing.assert_array_equal(source.read_window((2, 4), (1, 3))[..., 0], [[9, 10], [13, 14]])


def test_rows_of_custom_source() -> None:
    """A subclass that defines `_read_window` only."""

    class Sums(Source):
        def _read_window(self, start: int, stop: int, left: int, right: int) -> np.ndarray:
            return np.add.outer(np.arange(start, stop), np.arange(left, right))[..., None]

    source = Sums((6, 4), np.int64, "sums")
    np.testing.assert_array_equal(source.read(2, 4)[..., 0], [[2, 3, 4, 5], [3, 4, 5, 6]])


def test_source_that_reads_nothing() -> None:
    with pytest.raises(TypeError, match="Empty: defines neither _read nor _read_window"):
        type("Empty", (Source,), {})


@pytest.mark.parametrize("window", [((0, 21), (0, 1)), ((3, 3), (0, 1)), ((0, 1), (-1, 2))])
def test_window_outside_image(window: Any) -> None:
    with pytest.raises(IndexError, match="requested, but the image has"):
        ArraySource(image(20, 30)).read_window(*window)


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (0, 11), (5, 4), (11, 11)])
def test_rows_outside_image(start: int, stop: int) -> None:
    message = f"array: rows {start}:{stop} requested, but the image has rows 0:10. Request"
    with pytest.raises(IndexError, match=message):
        ArraySource(image(10, 3)).read(start, stop)


def test_empty_range() -> None:
    assert ArraySource(image(10, 3)).read(4, 4).shape == (0, 3, 1)


def test_crop() -> None:
    array = image(20, 15, 3)
    source = ArraySource(array)
    np.testing.assert_array_equal(read_all(source.crop()), array)
    np.testing.assert_array_equal(read_all(source.crop((3, 9))), array[3:9])
    np.testing.assert_array_equal(read_all(source.crop(columns=(14, 15))), array[:, 14:])
    inner = source.crop((3, 19), (2, 12)).crop((1, 5), (4, 7))
    rows = inner.read(1, 3)
    assert inner.shape == (4, 3, 3)
    assert rows.flags.c_contiguous
    np.testing.assert_array_equal(rows, array[5:7, 6:9])
    assert inner.describe().startswith("Cropped of array[3:19, 2:12][1:5, 4:7]: 4 x 3 x 3 uint8")


@pytest.mark.parametrize(
    ("rows", "columns", "what"), [((5, 5), None, "rows 5:5"), (None, (-1, 3), "columns -1:3")]
)
def test_crop_outside_image(rows: Any, columns: Any, what: str) -> None:
    with pytest.raises(IndexError, match=f"array: {what} requested, but the image has"):
        ArraySource(image(20, 15)).crop(rows, columns)


@pytest.mark.parametrize("shape", [(5,), (0, 4), (3, 0, 1)])
def test_invalid_shapes(shape: tuple[int, ...]) -> None:
    message = rf"array: has shape {re.escape(str(shape))}; expected \[rows, columns\] or"
    with pytest.raises(SourceError, match=message):
        sources.open(np.zeros(shape))


def test_invalid_dtype() -> None:
    with pytest.raises(SourceError, match="array: has dtype complex128; expected a boolean"):
        sources.open(np.zeros((2, 2), complex))
