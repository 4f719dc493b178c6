"""UltraMNIST: a few digits of very different sizes on a large black image, labelled by their sum.

Gupta et al., "UltraMNIST classification: A benchmark to train CNNs for very large images" (2022), in the form of
PatchGD, appendix C.2: 3 to 5 digits whose sum is below 10, no noise in the background.
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
    """A digit on an image, each of its pixels `factor` x `factor` pixels of the image.

    Args:
        pixels: `[s, s]` uint8.
        factor: as above.
        top, left: first row and column.
    """

    pixels: npt.NDArray[np.uint8]
    factor: int
    top: int
    left: int

    @property
    def side(self) -> int:
        """Rows and columns on the image."""
        return len(self.pixels) * self.factor

    def touches(self, other: Digit) -> bool:
        """Whether they share a pixel."""
        apart = (
            abs(2 * (a - b) + self.side - other.side) >= self.side + other.side
            for a, b in ((self.top, other.top), (self.left, other.left))
        )
        return not any(apart)


@final
class DigitCanvas(Source):
    """A black image `[side, side, 1]` of uint8 with digits on it, painted as it is read.

    Args:
        side: rows and columns.
        digits: what is on it.
        classes: of the digits.
        name: what error messages call it.
    """

    def __init__(
        self, side: int, digits: Sequence[Digit], classes: Sequence[int], name: str
    ) -> None:
        super().__init__((side, side, 1), np.uint8, name)
        self.digits, self.classes = tuple(digits), tuple(classes)

    def _read(self, start: int, stop: int) -> npt.NDArray[Any]:
        return self._read_window(start, stop, 0, self.shape[1])

    def _read_window(self, start: int, stop: int, left: int, right: int) -> npt.NDArray[Any]:
        found = np.zeros((stop - start, right - left), np.uint8)
        for digit in self.digits:
            rows = np.arange(max(start, digit.top), min(stop, digit.top + digit.side))
            columns = np.arange(max(left, digit.left), min(right, digit.left + digit.side))
            if len(rows) and len(columns):
                places = (rows - digit.top) // digit.factor, (columns - digit.left) // digit.factor
                found[np.ix_(rows - start, columns - left)] = digit.pixels[np.ix_(*places)]
        return found[..., None]


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
    """Images and their labels, the sums 0 to 9, as many of each.

    A label's digits are drawn evenly from all sets of 3 to 5 digits (`counts`) that add up to it, each from the pool.
    Factors of size are drawn as published: the smallest and the largest most, those in the middle least; half of the
    digits of factor 1 are halved, to 14 x 14. Digits do not touch.

    Args:
        digits: the pool `[m, 28, 28, 1]` of uint8, such as `tfbig.datasets.digits.read_digits` gives.
        classes: of the pool, `[m]`.
        per_class: images of each label.
        side: rows and columns of an image.
        factors: the smallest and the largest size of a pixel of a digit; as published for 512 (28 to 252 rows).
        counts: how many digits an image may have.
        seed: same seed, same images.
        name: what error messages call an image, with its number.

    Raises:
        ValueError: digits of these sizes do not fit, or the pool lacks one.
    """
    low, high = factors
    if not 1 <= low <= high:
        raise ValueError(
            f"factors={factors}: expected two numbers, 1 or more, the smaller one first."
        )
    largest = high * digits.shape[1]
    if largest > side:
        raise ValueError(
            f"digits of up to {largest} rows do not fit an image of {side}. Lower factors, or raise side."
        )
    known = np.asarray(classes)
    places = [np.flatnonzero(known == kind) for kind in range(10)]
    for kind, found in enumerate(places):
        if not len(found):
            raise ValueError(f"the pool of {len(known)} has no digit {kind}.")
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(CLASSES, dtype=np.int64), per_class))
    sums = _sums(counts)
    images = []
    for number, label in enumerate(labels):
        own = sums[label][rng.integers(len(sums[label]))]
        tiles = digits.take([rng.choice(places[kind]) for kind in own])[..., 0]
        images.append(
            DigitCanvas(side, _placed(tiles, side, factors, rng), own, f"{name} {number}")
        )
    return tuple(images), labels


def _sums(counts: Sequence[int]) -> list[list[tuple[int, ...]]]:
    """The sets of digits that add up to each label."""
    sets = [c for n in counts for c in combinations_with_replacement(range(10), n)]
    return [[c for c in sets if sum(c) == label] for label in range(CLASSES)]


def _placed(
    tiles: npt.NDArray[np.uint8], side: int, factors: tuple[int, int], rng: np.random.Generator
) -> list[Digit]:
    """Digits at random places of random sizes; where one finds no place, all begin again."""
    low, high = factors
    steps = np.arange(high - low + 1)
    half = (high - low + 2) // 2
    odds = np.where(steps < half, half - steps, steps - half + 1).astype(float)
    for _ in range(TRIES):
        digits: list[Digit] = []
        for tile in tiles:
            factor = low + int(rng.choice(steps, p=odds / odds.sum()))
            pixels = tile[::2, ::2] if factor == 1 and rng.random() < 0.5 else tile
            made = _free(pixels, factor, side, digits, rng)
            if made is None:
                break
            digits.append(made)
        else:
            return digits
    raise ValueError(
        f"{len(tiles)} digits of factors {factors} found no places that do not touch on an image of {side} in {TRIES} "
        "tries. Lower factors, or raise side."
    )


def _free(
    pixels: npt.NDArray[np.uint8],
    factor: int,
    side: int,
    others: list[Digit],
    rng: np.random.Generator,
) -> Digit | None:
    """The digit where it touches no other, or None."""
    last = side - len(pixels) * factor
    for _ in range(20):
        top, left = (int(n) for n in rng.integers(last + 1, size=2))
        made = Digit(pixels, factor, top, left)
        if not any(made.touches(other) for other in others):
            return made
    return None
