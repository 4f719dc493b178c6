"""Digits from files as they are in them, drawn ones, and UltraMNIST made of either."""

from __future__ import annotations

import gzip
import itertools
import struct
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfbig import SourceError
from tfbig.datasets.digits import drawn_digits, read_digits
from tfbig.datasets.ultramnist import DigitCanvas, ultramnist
from tfbig.sources import ArrayBag


def write_idx(path: Path, array: np.ndarray) -> None:
    code = {"u1": 0x08, "i4": 0x0C}[array.dtype.str[1:]]
    head = bytes([0, 0, code, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    data = head + array.astype(array.dtype.newbyteorder(">")).tobytes()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def test_digits_of_mnist_and_of_qmnist(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (5, 28, 28), np.uint8)
    classes = np.array([3, 1, 9, 9, 0], np.uint8)
    write_idx(tmp_path / "train-images-idx3-ubyte.gz", images)
    write_idx(tmp_path / "train-labels-idx1-ubyte", classes)
    write_idx(tmp_path / "qmnist-test-images-idx3-ubyte", images[:2])
    table = np.zeros((2, 8), np.int32)
    table[:, 0] = 4, 9
    write_idx(tmp_path / "qmnist-test-labels-idx2-int.gz", table)
    bag, labels = read_digits(tmp_path, "train")
    np.testing.assert_array_equal(bag.read(0, 5), images[..., None])
    assert labels.tolist() == [3, 1, 9, 9, 0]
    bag, labels = read_digits(tmp_path, "test")
    assert (bag.shape, labels.tolist()) == ((2, 28, 28, 1), [4, 9])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "train-images-idx3-ubyte").unlink(), "has no train-images-idx3-ubyte"),
        (lambda f: (f / "train-labels-idx1-ubyte").unlink(), "but no train-labels-idx1-ubyte"),
        (lambda f: (f / "train-images-idx3-ubyte").write_bytes(b"PNG"), "is no IDX file"),
        (
            lambda f: (f / "train-images-idx3-ubyte").write_bytes(
                (f / "train-images-idx3-ubyte").read_bytes()[:-9]
            ),
            "has 3927 bytes; an IDX file of .5, 28, 28. has 3936",
        ),
        (
            lambda f: write_idx(f / "train-labels-idx1-ubyte", np.zeros(4, np.uint8)),
            r"has shape \(5, 28, 28\) for 4 labels",
        ),
    ],
)
def test_digits_that_are_missing_or_damaged(damage: Any, message: str, tmp_path: Path) -> None:
    write_idx(tmp_path / "train-images-idx3-ubyte", np.zeros((5, 28, 28), np.uint8))
    write_idx(tmp_path / "train-labels-idx1-ubyte", np.zeros(5, np.uint8))
    damage(tmp_path)
    with pytest.raises(SourceError, match=message):
        read_digits(tmp_path, "train")


def test_a_torn_gzip_is_named(tmp_path: Path) -> None:
    write_idx(tmp_path / "train-images-idx3-ubyte.gz", np.zeros((5, 28, 28), np.uint8))
    whole = (tmp_path / "train-images-idx3-ubyte.gz").read_bytes()
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(whole[:-10])
    write_idx(tmp_path / "train-labels-idx1-ubyte", np.zeros(5, np.uint8))
    with pytest.raises(SourceError, match=r"train-images-idx3-ubyte\.gz: cannot be read"):
        read_digits(tmp_path, "train")


def test_drawn_digits_are_the_same_again_and_can_be_told_apart() -> None:
    """By the nearest mean of 600 others, 5 of 10 times by far more than by chance."""
    bag, classes = drawn_digits(600)
    tiles = bag.read(0, 600).astype(float)
    np.testing.assert_array_equal(drawn_digits(600)[0].read(0, 600), tiles)
    assert bag.shape == (600, 28, 28, 1)
    assert set(classes) == set(range(10))
    assert ((tiles > 128).mean((1, 2, 3)) > 0.02).all()
    assert tiles[:, [0, -1]].mean() < 1  # a black margin
    means = np.stack([tiles[classes == k].mean(0) for k in range(10)])
    other, labels = drawn_digits(200, seed=1)
    distances = ((other.read(0, 200)[:, None].astype(float) - means) ** 2).sum((2, 3, 4))
    assert (distances.argmin(1) == labels).mean() > 0.5


def pool() -> tuple[ArrayBag, np.ndarray]:
    """Digits of which every pixel is 10 and its number, so that a picture tells what is in it."""
    classes = np.tile(np.arange(10), 3)
    return ArrayBag(
        np.tile((10 + classes).astype(np.uint8)[:, None, None, None], (1, 28, 28, 1))
    ), classes


def test_ultramnist_is_as_published() -> None:
    """3 to 5 digits that add up to the label, below 10, that do not touch, of sizes that vary, on black."""
    digits, classes = pool()
    images, labels = ultramnist(digits, classes, 12, side=512, seed=3)
    assert sorted(labels) == sorted(np.repeat(np.arange(10), 12))
    sizes = Counter[int]()
    for image, label in zip(images, labels, strict=True):
        assert image.shape == (512, 512, 1)
        assert 3 <= len(image.digits) <= 5
        assert sum(image.classes) == label
        rows = image.read(0, 512)
        counts = Counter(rows.ravel().tolist())
        assert counts.pop(0) == 512 * 512 - sum(d.side**2 for d in image.digits)  # none overlap
        wanted = Counter()
        for digit, kind in zip(image.digits, image.classes, strict=True):
            wanted[10 + kind] += digit.side**2
            sizes[digit.side] += 1
        assert counts == wanted
    assert set(sizes) == {14, *range(28, 253, 28)}
    assert sizes[14] + sizes[28] > sizes[140]  # small and large ones are drawn most


def test_every_sum_of_digits_comes_up() -> None:
    digits, classes = pool()
    images, labels = ultramnist(digits, classes, 60, side=512)
    found = {tuple(sorted(i.classes)) for i, y in zip(images, labels, strict=True) if y == 2}
    every = {
        c
        for n in (3, 4, 5)
        for c in itertools.combinations_with_replacement(range(10), n)
        if sum(c) == 2
    }
    assert found == every


def test_the_same_seed_makes_the_same_images() -> None:
    digits, classes = drawn_digits(300)
    made = [ultramnist(digits, classes, 2, side=300, factors=(1, 4), seed=s) for s in (1, 1, 2)]
    arrays = [np.stack([image.read(0, 300) for image in images]) for images, _ in made]
    np.testing.assert_array_equal(arrays[0], arrays[1])
    assert (arrays[0] != arrays[2]).any()
    np.testing.assert_array_equal(made[0][1], made[1][1])


@pytest.mark.parametrize(
    "window", [(0, 40, 0, 40), (13, 14, 3, 90), (50, 90, 41, 43), (60, 100, 0, 100)]
)
def test_windows_of_a_canvas(window: tuple[int, ...]) -> None:
    """As of the canvas painted whole."""
    digits, classes = drawn_digits(50)
    (image, *_), _ = ultramnist(digits, classes, 1, side=100, factors=(1, 2), seed=4)
    whole = np.zeros((100, 100, 1), np.uint8)
    for digit in image.digits:
        large = np.kron(digit.pixels, np.ones((digit.factor, digit.factor), np.uint8))
        whole[digit.top : digit.top + digit.side, digit.left : digit.left + digit.side, 0] = large
    start, stop, left, right = window
    found = image.read_window((start, stop), (left, right))
    np.testing.assert_array_equal(found, whole[start:stop, left:right])
    np.testing.assert_array_equal(image.read(0, 100), whole)


def test_a_canvas_of_any_size_costs_nothing() -> None:
    digits, classes = drawn_digits(50)
    images, _ = ultramnist(digits, classes, 1, side=65536, factors=(100, 900))
    assert isinstance(images[0], DigitCanvas)
    assert images[0].read_window((60000, 60010), (100, 110)).shape == (10, 10, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"side": 100}, "digits of up to 252 rows do not fit an image of 100"),
        ({"side": 60, "factors": (2, 2)}, "found no places that do not touch"),
        ({"factors": (0, 3)}, r"factors=\(0, 3\): expected"),
        ({"factors": (5, 3)}, r"factors=\(5, 3\): expected"),
    ],
)
def test_canvases_that_cannot_be(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ultramnist(*pool(), 1, **options)


def test_a_pool_without_a_digit_is_named() -> None:
    digits, classes = pool()
    with pytest.raises(ValueError, match="has no digit 7"):
        ultramnist(digits, np.where(classes == 7, 1, classes), 1)
