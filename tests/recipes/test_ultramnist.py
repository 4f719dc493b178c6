"""UltraMNIST images compared with the published description."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest

from tfbig.recipes.digits import drawn_digits
from tfbig.recipes.ultramnist import DigitCanvas, ultramnist
from tfbig.sources import ArrayBag


def pool() -> tuple[ArrayBag, np.ndarray]:
    """Return digits whose pixels are all 10 plus the class, so that an image shows its digits."""
    classes = np.tile(np.arange(10), 3)
    return ArrayBag(
        np.tile((10 + classes).astype(np.uint8)[:, None, None, None], (1, 28, 28, 1))
    ), classes


@pytest.mark.slow
def test_ultramnist_matches_publication() -> None:
    """Each image has 3 to 5 digits of varying sizes that add up to the label and do not touch, on black."""
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
        expected = Counter()
        for digit, kind in zip(image.digits, image.classes, strict=True):
            expected[10 + kind] += digit.side**2
            sizes[digit.side] += 1
        assert counts == expected
    assert set(sizes) == {14, *range(28, 253, 28)}
    assert sizes[14] + sizes[28] > sizes[140]  # small and large ones are drawn most


def test_every_set_of_digits_occurs() -> None:
    digits, classes = pool()
    images, labels = ultramnist(digits, classes, 60, side=512)
    occurring = {tuple(sorted(i.classes)) for i, y in zip(images, labels, strict=True) if y == 2}
    every = {
        c
        for n in (3, 4, 5)
        for c in itertools.combinations_with_replacement(range(10), n)
        if sum(c) == 2
    }
    assert occurring == every


def test_same_seed_gives_same_images() -> None:
    digits, classes = drawn_digits(300)
    datasets = [ultramnist(digits, classes, 2, side=300, factors=(1, 4), seed=s) for s in (1, 1, 2)]
    arrays = [np.stack([image.read(0, 300) for image in images]) for images, _ in datasets]
    np.testing.assert_array_equal(arrays[0], arrays[1])
    assert (arrays[0] != arrays[2]).any()
    np.testing.assert_array_equal(datasets[0][1], datasets[1][1])


@pytest.mark.parametrize(
    "window", [(0, 40, 0, 40), (13, 14, 3, 90), (50, 90, 41, 43), (60, 100, 0, 100)]
)
def test_windows_of_canvas(window: tuple[int, ...]) -> None:
    """A window equals the slice of the whole canvas, composed with np.kron."""
    digits, classes = drawn_digits(50)
    (image, *_), _ = ultramnist(digits, classes, 1, side=100, factors=(1, 2), seed=4)
    whole = np.zeros((100, 100, 1), np.uint8)
    for digit in image.digits:
        large = np.kron(digit.pixels, np.ones((digit.factor, digit.factor), np.uint8))
        whole[digit.top : digit.top + digit.side, digit.left : digit.left + digit.side, 0] = large
    start, stop, left, right = window
    window_pixels = image.read_window((start, stop), (left, right))
    np.testing.assert_array_equal(window_pixels, whole[start:stop, left:right])
    np.testing.assert_array_equal(image.read(0, 100), whole)


def test_canvas_of_any_size() -> None:
    digits, classes = drawn_digits(50)
    images, _ = ultramnist(digits, classes, 1, side=65536, factors=(100, 900))
    assert isinstance(images[0], DigitCanvas)
    assert images[0].read_window((60000, 60010), (100, 110)).shape == (10, 10, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"side": 100}, "digits of up to 252 rows do not fit an image of 100"),
        ({"side": 60, "factors": (2, 2)}, "could not be placed without touching"),
        ({"factors": (0, 3)}, r"factors=\(0, 3\): expected"),
        ({"factors": (5, 3)}, r"factors=\(5, 3\): expected"),
    ],
)
def test_invalid_arguments(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ultramnist(*pool(), 1, **options)


def test_pool_without_a_digit() -> None:
    digits, classes = pool()
    with pytest.raises(ValueError, match="has no digit 7"):
        ultramnist(digits, np.where(classes == 7, 1, classes), 1)
