"""UltraMNIST: images with a few digits of very different sizes on black, labelled with the sum of the digits.

Gupta et al., "UltraMNIST classification: A benchmark to train CNNs for very large images" (2022), in the variant
of PatchGD, appendix C.2: 3 to 5 digits whose sum is below 10, no noise in the background.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Any, final

import numpy as np
import numpy.typing as npt

from tfbig.sources import Bag, Source

CLASSES = 10
COUNTS = (3, 4, 5)
TRIES = 1000


@dataclass(frozen=True)
class Digit:
    """Digit on an image, enlarged by an integer factor.

    Args:
        pixels: Digit, uint8 `[s, s]`.
        factor: Each pixel of the digit covers `factor` x `factor` pixels of the image.
        top: First row on the image.
        left: First column on the image.
    """

    pixels: npt.NDArray[np.uint8]
    factor: int
    top: int
    left: int

    @property
    def side(self) -> int:
        """Number of rows, and of columns, on the image."""
        return len(self.pixels) * self.factor

    def touches(self, other: Digit) -> bool:
        """Tell whether two digits share a pixel."""
        apart = (
            abs(2 * (a - b) + self.side - other.side) >= self.side + other.side
            for a, b in ((self.top, other.top), (self.left, other.left))
        )
        return not any(apart)


@final
class DigitCanvas(Source):
    """Black uint8 image `[side, side, 1]` with digits, drawn when it is read.

    Args:
        side: Rows and columns.
        digits: Digits on the image.
        classes: Classes of the digits.
        name: Name in error messages.
    """

    def __init__(
        self, side: int, digits: Sequence[Digit], classes: Sequence[int], name: str
    ) -> None:
        super().__init__((side, side, 1), np.uint8, name)
        self.digits, self.classes = tuple(digits), tuple(classes)

    def _read_window(self, start: int, stop: int, left: int, right: int) -> npt.NDArray[Any]:
        pixels = np.zeros((stop - start, right - left), np.uint8)
        for digit in self.digits:
            rows = np.arange(max(start, digit.top), min(stop, digit.top + digit.side))
            columns = np.arange(max(left, digit.left), min(right, digit.left + digit.side))
            if len(rows) and len(columns):
                places = (rows - digit.top) // digit.factor, (columns - digit.left) // digit.factor
                pixels[np.ix_(rows - start, columns - left)] = digit.pixels[np.ix_(*places)]
        return pixels[..., None]


def ultramnist(
    digits: Bag,
    classes: npt.ArrayLike,
    per_class: int,
    side: int = 512,
    factors: tuple[int, int] = (1, 9),
    counts: Sequence[int] = COUNTS,
    seed: int = 0,
    name: str = "ultramnist",
) -> tuple[tuple[DigitCanvas, ...], npt.NDArray[np.int64]]:
    """Create images and their labels: an equal number for each of the sums 0 to 9.

    The digits of a label are drawn uniformly from all sets of 3 to 5 digits (`counts`) that add up to it, each from the
    pool. Factors are drawn as published: the smallest and the largest most often, the middle ones least often; half of
    the digits of factor 1 are reduced to 14 x 14 pixels. Digits do not touch.

    Args:
        digits: Pool of digits, uint8 `[m, 28, 28, 1]`, for example from `tfbig.recipes.digits.read_digits`.
        classes: Classes of the pool, `[m]`.
        per_class: Number of images per label.
        side: Rows and columns of an image.
        factors: Smallest and largest factor of a digit; the default is the published one for 512 (28 to 252 rows).
        counts: Possible numbers of digits on an image.
        seed: Seed; the same seed gives the same images.
        name: Name of the images in error messages, followed by the number of the image.

    Returns:
        The images, and their labels, int64 `[10 * per_class]`.

    Raises:
        ValueError: The digits do not fit the image, or the pool lacks a class.
    """
    low, high = factors
    if not 1 <= low <= high:
        raise ValueError(
            f"factors={factors}: expected two numbers of 1 or more, the smaller one first."
        )
    largest = high * digits.shape[1]
    if largest > side:
        raise ValueError(
            f"digits of up to {largest} rows do not fit an image of {side}. Lower factors, or raise side."
        )
    pool_classes = np.asarray(classes)
    places = [np.flatnonzero(pool_classes == kind) for kind in range(10)]
    for kind, of_kind in enumerate(places):
        if not len(of_kind):
            raise ValueError(
                f"the pool of {len(pool_classes)} digits has no digit {kind}; expected all of 0 to 9."
            )
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(CLASSES, dtype=np.int64), per_class))
    sums = _sums(counts)
    images = []
    for number, label in enumerate(labels):
        kinds = sums[label][rng.integers(len(sums[label]))]
        tiles = digits.take([rng.choice(places[kind]) for kind in kinds])[..., 0]
        images.append(
            DigitCanvas(side, _place(tiles, side, factors, rng), kinds, f"{name} {number}")
        )
    return tuple(images), labels


def _sums(counts: Sequence[int]) -> list[list[tuple[int, ...]]]:
    """The sets of digits that add up to each label."""
    sets = [c for n in counts for c in combinations_with_replacement(range(10), n)]
    return [[c for c in sets if sum(c) == label] for label in range(CLASSES)]


def _place(
    tiles: npt.NDArray[np.uint8], side: int, factors: tuple[int, int], rng: np.random.Generator
) -> list[Digit]:
    """Place digits of random sizes at random positions; start over if one finds no free position."""
    low, high = factors
    steps = np.arange(high - low + 1)
    half = (high - low + 2) // 2
    odds = np.where(steps < half, half - steps, steps - half + 1).astype(float)
    for _ in range(TRIES):
        digits: list[Digit] = []
        for tile in tiles:
            factor = low + int(rng.choice(steps, p=odds / odds.sum()))
            pixels = tile[::2, ::2] if factor == 1 and rng.random() < 0.5 else tile
            digit = _place_one(pixels, factor, side, digits, rng)
            if digit is None:
                break
            digits.append(digit)
        else:
            return digits
    raise ValueError(
        f"{len(tiles)} digits of factors {factors} could not be placed without touching on an image of {side} in "
        f"{TRIES} attempts. Lower factors, or raise side."
    )


def _place_one(
    pixels: npt.NDArray[np.uint8],
    factor: int,
    side: int,
    others: list[Digit],
    rng: np.random.Generator,
) -> Digit | None:
    """Place a digit so that it touches no other, or return None after 20 attempts."""
    last = side - len(pixels) * factor
    for _ in range(20):
        top, left = (int(n) for n in rng.integers(last + 1, size=2))
        digit = Digit(pixels, factor, top, left)
        if not any(digit.touches(other) for other in others):
            return digit
    return None
