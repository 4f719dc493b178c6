"""Random crops, flips and RandAugment as in "ResNet strikes back", A3."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from slide_files import image

from tfbig import sources
from tfbig.recipes import a3


def test_random_window() -> None:
    """Crops are inside, cover 8 to 100 % of the area and have an aspect from 3/4 to 4/3, up to rounding."""
    rng, shape = np.random.default_rng(0), (300, 200)
    shares, aspects = [], []
    for _ in range(500):
        (top, bottom), (left, right) = a3.random_window(shape, rng)
        assert 0 <= top < bottom <= 300
        assert 0 <= left < right <= 200
        shares.append((bottom - top) * (right - left) / 60000)
        aspects.append((right - left) / (bottom - top))
    assert 0.075 < min(shares) < 0.12
    assert 0.8 < max(shares) <= 1
    assert 0.73 < min(aspects) < 0.8
    assert 1.25 < max(aspects) < 1.37


def test_window_of_a_strip() -> None:
    """An image in which no crop fits gives its middle, with the nearest aspect that is allowed."""
    rng = np.random.default_rng(0)
    assert a3.random_window((3, 4000), rng) == ((0, 3), (1998, 2002))
    assert a3.random_window((4000, 3), rng) == ((1998, 2002), (0, 3))


@pytest.mark.parametrize("channels", [1, 3])
def test_augment(channels: int) -> None:
    """Equal seeds give equal images; others are crops, flips and changes of their own."""
    source = sources.open(image(60, 80, channels))
    augmented = [a3.augment(source, (32, 24), seed) for seed in range(30)]
    assert {pixels.shape for pixels in augmented} == {(32, 24, channels)}
    assert {pixels.dtype for pixels in augmented} == {np.dtype(np.uint8)}
    np.testing.assert_array_equal(augmented[3], a3.augment(source, (32, 24), 3))
    assert len({pixels.tobytes() for pixels in augmented}) == 30


@pytest.mark.parametrize("number", range(len(a3.OPERATIONS)))
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_operations(number: int, mode: str) -> None:
    picture = Image.fromarray(image(20, 30, 3)).convert(mode)
    for sign in (-1.0, 1.0):
        changed = a3.OPERATIONS[number](picture, 0.6, sign)
        assert (changed.mode, changed.size) == (mode, picture.size)
    weak = [a3.OPERATIONS[number](picture, 0.0, 1.0) for number in (3, *range(7, 15))]
    for same in weak:  # rotation, enhancements and moves of strength 0
        np.testing.assert_array_equal(np.asarray(same), np.asarray(picture))


def test_strengths() -> None:
    """The strengths of timm at magnitude 6: 27 % of a shift, 60 % of 30 degrees, 1.54 times as bright."""
    array = np.zeros((100, 100, 3), np.uint8)
    array[50, 50] = 200
    picture = Image.fromarray(array)
    shifted = np.asarray(a3.OPERATIONS[13](picture, 0.6, 1.0))
    assert np.argwhere(shifted[..., 0] == 200).tolist() == [[50, 23]]
    assert shifted[0, -1].tolist() == list(a3.MEAN)
    brighter = np.asarray(a3.OPERATIONS[9](Image.new("RGB", (1, 1), (100, 10, 0)), 0.6, 1.0))
    assert brighter[0, 0].tolist() == [154, 15, 0]
    turned = np.asarray(a3.OPERATIONS[3](Image.fromarray(array[..., 0]), 0.6, 1.0))
    expected = np.asarray(Image.fromarray(array[..., 0]).rotate(18, 2, fillcolor=a3.MEAN[1]))
    np.testing.assert_array_equal(turned, expected)
    added = np.asarray(
        a3.OPERATIONS[6](Image.fromarray(np.array([[5, 127, 128]], np.uint8)), 0.6, 1)
    )
    assert added.tolist() == [[71, 193, 128]]


def test_rand_augment() -> None:
    """Two operations, each applied with probability 1/2: a quarter of the pictures stays, up to weak operations."""
    rng, picture = np.random.default_rng(0), Image.fromarray(image(20, 30, 3))
    kept = [a3.rand_augment(picture, rng) is picture for _ in range(400)]
    assert 0.19 < np.mean(kept) < 0.31
