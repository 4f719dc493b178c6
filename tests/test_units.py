"""Formatted byte counts, and element sizes of dtypes."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from tfbig.system.budget import parse_bytes
from tfbig.units import ITEMSIZE, ceil_div, counted, format_bytes, itemsize


@given(st.integers(1, 2**45))
def test_format_bytes_rounds_up_by_less_than_a_tenth(count: int) -> None:
    text = format_bytes(count)
    unit = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}[text.split()[1]]
    assert count <= parse_bytes(text) < count + unit / 10
    assert unit == 2**30 or count <= 1024 * unit


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (1537, "1.6 KiB"),
        (5 * 2**20, "5.0 MiB"),
        (2**41, "2048.0 GiB"),
    ],
)
def test_format_bytes(count: int, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        ("bool", 1),
        ("uint8", 1),
        ("uint16", 2),
        ("bfloat16", 2),
        ("float32", 4),
        ("int64", 8),
        (None, 4),
    ],
)
def test_itemsize(dtype: str | None, size: int) -> None:
    assert itemsize(dtype) == size


@pytest.mark.parametrize("dtype", ITEMSIZE)
def test_itemsize_matches_tensorflow(dtype: str) -> None:
    assert itemsize(dtype) == tf.as_dtype(dtype).size


def test_itemsize_of_unknown_dtype() -> None:
    with pytest.raises(KeyError, match="complex64"):
        itemsize("complex64")


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (0, "band", "0 bands"),
        (1, "band", "1 band"),
        (1, "class", "1 class"),
        (3, "class", "3 classes"),
    ],
)
def test_counted(count: int, noun: str, text: str) -> None:
    assert counted(count, noun) == text


def test_division_is_rounded_up() -> None:
    assert [ceil_div(a, 4) for a in (-5, -4, 0, 1, 4, 5)] == [-1, -1, 0, 1, 1, 2]
    assert ceil_div(np.array([3, 4]), np.array([2, 2])).tolist() == [2, 2]
