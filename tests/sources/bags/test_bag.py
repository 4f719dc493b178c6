"""Bags: slices, single instances, samples, and bags made from other bags."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bag_samples import SHAPE, every_bag, tiles
from slide_files import num_open

from tfbig import SourceError
from tfbig.sources import ArrayBag, Filled, Resized, resolve


@every_bag
def test_read_and_take(make: Callable[..., Any], tmp_path: Path) -> None:
    bag = make(tmp_path)
    assert (bag.shape, bag.dtype) == (SHAPE, np.uint8)
    for start, stop in ((0, 9), (0, 1), (3, 7), (8, 9), (4, 4)):
        np.testing.assert_array_equal(bag.read(start, stop), tiles()[start:stop])
    for places in ([0], [8, 0, 3, 4, 5, 5], []):
        np.testing.assert_array_equal(bag.take(places), tiles()[places].reshape(-1, *SHAPE[1:]))
    with pytest.raises(IndexError, match="instances 3:10 requested, but the bag has instances"):
        bag.read(3, 10)
    with pytest.raises(IndexError, match="instances 9 to 9 requested"):
        bag.take([9])


@every_bag
def test_sample(make: Callable[..., Any], tmp_path: Path) -> None:
    bag = make(tmp_path)
    drawn = bag.sample(4, seed=7).read(0, 4)
    places = [next(i for i in range(9) if (tiles()[i] == tile).all()) for tile in drawn]
    assert places == sorted(set(places))
    again = resolve(bag.drawn_handle(4, 7))
    np.testing.assert_array_equal(again.read(1, 3), drawn[1:3])
    assert bag.sample(9, seed=7) is bag
    bag.release()


def test_sample_is_uniform() -> None:
    bag = ArrayBag(np.arange(10)[:, None])
    samples = [bag.sample(3, seed).read(0, 3) for seed in range(2000)]
    counts = np.bincount(np.ravel(samples), minlength=10)
    assert abs(counts - 600).max() < 5 * (2000 * 0.3 * 0.7) ** 0.5


def test_sample_coordinates_and_labels() -> None:
    bag = ArrayBag(tiles(), coords=np.arange(18).reshape(9, 2), labels=np.arange(9))
    drawn = bag.sample(4, seed=1)
    np.testing.assert_array_equal(drawn.read(0, 4), tiles()[drawn.labels])
    np.testing.assert_array_equal(drawn.coords[:, 0], 2 * drawn.labels)


@pytest.mark.skipif(sys.platform != "linux", reason="open files are counted in /proc")
@every_bag
def test_files_are_closed_after_reading(make: Callable[..., Any], tmp_path: Path) -> None:
    """There may be thousands of bags, and a process may open 1024 files."""
    bag = make(tmp_path)
    bag.read(0, 2)
    bag.take([4, 1])
    assert num_open(tmp_path) == 0


def test_resized() -> None:
    """A linear ramp stays linear inside; the present size changes nothing."""
    ramp = np.broadcast_to(np.arange(0, 80, 10, dtype=np.uint8)[:, None], (2, 8, 4))[..., None]
    actual = Resized(ArrayBag(ramp), (16, 8)).read(0, 2)
    assert actual.shape == (2, 16, 8, 1)
    np.testing.assert_array_equal(actual[0, 1:-1, 0, 0], np.arange(3, 70, 5))
    np.testing.assert_array_equal(Resized(ArrayBag(ramp), (8, 4)).take([1]), ramp[1:])
    cut = Resized(ArrayBag(ramp), (2, 2), shorter=4).take([1])
    np.testing.assert_array_equal(cut, ramp[1:, 3:5, 1:3])
    with pytest.raises(SourceError, match="a shorter side of 3 is less than 4, which is cut out"):
        Resized(ArrayBag(ramp), (4, 2), shorter=3)


def test_filled() -> None:
    bag = Filled(ArrayBag(tiles(), labels=np.ones(9)), 12)
    assert bag.shape == (12, *SHAPE[1:])
    np.testing.assert_array_equal(bag.labels, [1] * 9 + [0] * 3)
    for start, stop in ((0, 12), (8, 10), (9, 12), (0, 3)):
        whole = np.concatenate([tiles(), np.full((3, *SHAPE[1:]), 255)])
        np.testing.assert_array_equal(bag.read(start, stop), whole[start:stop])
    with pytest.raises(SourceError, match="has 9 instances, and cannot be filled up to 8"):
        Filled(ArrayBag(tiles()), 8)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ArrayBag(np.ones((0, 4, 4, 3))), "array: is an empty bag"),
        (lambda: ArrayBag(np.ones((3, 0))), "its instances are empty"),
        (lambda: ArrayBag(np.ones(3)), r"has shape \(3,\); expected a bag \[n, ...\]"),
        (lambda: ArrayBag(tiles(), coords=np.ones((8, 2))), "coordinates of shape .* 9 instan"),
        (lambda: ArrayBag(tiles(), labels=np.ones(8)), "labels of shape"),
    ],
)
def test_invalid_arrays(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        make()


def test_empty_sample() -> None:
    with pytest.raises(ValueError, match="count=0 instances"):
        ArrayBag(tiles()).sample(0, 1)
