"""Augmentation of images in memory as in "ResNet strikes back", procedure A3: crops, flips and RandAugment.

Wightman, Touvron, Jégou, "ResNet strikes back: an improved training procedure in timm" (2021), table 2. Crops cover 8
to 100 % of an image, with an aspect from 3/4 to 4/3 (Szegedy et al., 2015). RandAugment (Cubuk et al., 2020) applies
two of 15 operations, each with probability 1/2; their strengths are those of timm's `rand-m6-mstd0.5-inc1`: a normal
deviate of mean 6 and deviation 0.5, on a scale from 0 to 10. Interpolation is bilinear; timm draws bilinear or bicubic.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from tfbig.sources.source import RowArray, Source
from tfbig.sources.views import Scaled

Picture = Image.Image
Operation = Callable[[Picture, float, float], Picture]
"""Function `(picture, strength from 0 to 1, sign -1 or 1)` that returns the changed picture."""

MAGNITUDE: Final = 0.6
DEVIATION: Final = 0.05
"""Mean and standard deviation of the strength, as shares of the strongest."""
OPERATIONS_PER_IMAGE: Final = 2
AREA: Final = (0.08, 1.0)
"""Smallest and largest share of the image that a crop covers."""
ASPECT: Final = (3 / 4, 4 / 3)
TRIES: Final = 10
MEAN: Final = (124, 116, 104)
"""Mean colour of ImageNet, for pixels from outside the image."""


def augment(source: Source, size: tuple[int, int], seed: int) -> RowArray:
    """Crop an image at random, scale it to `size`, flip it with probability 1/2 and change it by RandAugment.

    Args:
        source: Image `[H, W, 1 or 3]`, uint8.
        size: Rows and columns of the result.
        seed: Seed; the same seed gives the same result.

    Returns:
        `[rows, columns, C]`, uint8.
    """
    rng = np.random.default_rng(seed)
    rows, columns = random_window(source.shape[:2], rng)
    pixels = Scaled(source.crop(rows, columns), size).read(0, size[0])
    picture = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    picture = ImageOps.mirror(picture) if rng.random() < 0.5 else picture
    changed = np.asarray(rand_augment(picture, rng))
    return changed.reshape(*size, source.shape[2])


def random_window(
    shape: tuple[int, ...], rng: np.random.Generator
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Draw the rows and columns of a random crop; if none of ten fits, take the largest in the middle.

    Args:
        shape: Rows and columns of the image.
        rng: Generator of random numbers.

    Returns:
        `((start, stop), (left, right))`.
    """
    rows, columns = shape
    for _ in range(TRIES):
        area = rows * columns * rng.uniform(*AREA)
        aspect = math.exp(rng.uniform(math.log(ASPECT[0]), math.log(ASPECT[1])))
        height, width = round(math.sqrt(area / aspect)), round(math.sqrt(area * aspect))
        if 0 < height <= rows and 0 < width <= columns:
            top, left = (int(rng.integers(n + 1)) for n in (rows - height, columns - width))
            return (top, top + height), (left, left + width)
    height, width = min(rows, round(columns / ASPECT[0])), min(columns, round(rows * ASPECT[1]))
    top, left = (rows - height) // 2, (columns - width) // 2
    return (top, top + height), (left, left + width)


def rand_augment(picture: Picture, rng: np.random.Generator) -> Picture:
    """Change a picture by up to two of `OPERATIONS`.

    Args:
        picture: Gray or RGB.
        rng: Generator of random numbers.
    """
    for number in rng.integers(len(OPERATIONS), size=OPERATIONS_PER_IMAGE):
        applied, sign = rng.random() < 0.5, rng.choice((-1.0, 1.0))
        strength = float(np.clip(rng.normal(MAGNITUDE, DEVIATION), 0, 1))
        picture = OPERATIONS[number](picture, strength, sign) if applied else picture
    return picture


def _enhanced(enhancer: Any) -> Operation:
    """An operation that changes colour, contrast, brightness or sharpness by a factor of 0.1 to 1.9."""
    return lambda picture, strength, sign: enhancer(picture).enhance(1 + 0.9 * strength * sign)


def _moved(picture: Picture, *matrix: float) -> Picture:
    """Move a picture: its pixel `(x, y)` becomes the pixel `(a x + b y + c, d x + e y + f)`."""
    return picture.transform(
        picture.size,
        Image.Transform.AFFINE,
        matrix,
        Image.Resampling.BILINEAR,
        fillcolor=_outside(picture),
    )


def _outside(picture: Picture) -> int | tuple[int, int, int]:
    return MEAN if picture.mode == "RGB" else MEAN[1]


def _rotate(picture: Picture, strength: float, sign: float) -> Picture:
    angle = 30 * strength * sign
    return picture.rotate(angle, Image.Resampling.BILINEAR, fillcolor=_outside(picture))


def _solarize_add(picture: Picture, strength: float, sign: float) -> Picture:
    """Make dark pixels of a picture brighter."""
    added = min(128, int(110 * strength))
    levels = [min(255, n + added) if n < 128 else n for n in range(256)]
    return picture.point(levels * len(picture.getbands()))


OPERATIONS: Final[tuple[Operation, ...]] = (
    lambda picture, strength, sign: ImageOps.autocontrast(picture),
    lambda picture, strength, sign: ImageOps.equalize(picture),
    lambda picture, strength, sign: ImageOps.invert(picture),
    _rotate,
    lambda picture, strength, sign: ImageOps.posterize(picture, max(4 - int(4 * strength), 1)),
    lambda picture, strength, sign: ImageOps.solarize(picture, 256 - int(256 * strength)),
    _solarize_add,
    _enhanced(ImageEnhance.Color),
    _enhanced(ImageEnhance.Contrast),
    _enhanced(ImageEnhance.Brightness),
    _enhanced(ImageEnhance.Sharpness),
    lambda picture, strength, sign: _moved(picture, 1, 0.3 * strength * sign, 0, 0, 1, 0),
    lambda picture, strength, sign: _moved(picture, 1, 0, 0, 0.3 * strength * sign, 1, 0),
    lambda picture, strength, sign: _moved(
        picture, 1, 0, 0.45 * strength * sign * picture.width, 0, 1, 0
    ),
    lambda picture, strength, sign: _moved(
        picture, 1, 0, 0, 0, 1, 0.45 * strength * sign * picture.height
    ),
)
"""Automatic contrast, equalization, inversion, rotation, posterization, two kinds of solarization, colour, contrast,
brightness, sharpness, shears and shifts along both axes."""
