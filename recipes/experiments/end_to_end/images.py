"""Tasks of one label for each image, whose truth is known: pure functions from a seed to images, labels and truth.

An image is a mosaic of 8 x 8 tiles of 32 x 32 pixels. Each tile is a piece of real tissue, and some of them have a real
handwritten digit or the relief of a real texture. All of it is packaged with scikit-image and scikit-learn:

- tissue: `skimage.data.immunohistochemistry`, 512 x 512;
- digits: `sklearn.datasets.load_digits`, 1797 of 8 x 8, shown at 24 x 24;
- textures: `skimage.data.grass` and `gravel`, 512 x 512, with a flat histogram, so that no grey value tells them apart.

Training, validation and test are made of different digits, and of different regions of the tissue and the textures.

    needle    four of the tiles have a digit; is one of them a zero?
    texture   all tiles have a faint relief; is it grass on eight of them, or gravel on all?
    relation  three pairs of tiles have a digit, with a tile between the two: do they lie side by side, or one above the
              other? The tiles of both labels have the same distribution, so no model of tiles without places tells
              them apart.
    count     half of the tiles have a digit; are there more zeros than other digits?
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

GRID, TILE, DIGIT = 8, 32, 24
"""Tiles along a side of an image, and pixels along a side of a tile and of a digit."""
TILES = GRID**2
PARTS = ("train", "validation", "test")
KEY = 0
"""The digit that is looked for."""
INK = (70, 50, 120)
OPACITY = 0.85
RELIEF = 0.25
"""Share by which a texture changes the brightness of the tissue, at most."""
NEEDLES, COUNTED, PAIRS, PATCHES = 4, 32, 3, 8
"""Tiles with a digit in the tasks needle and count, pairs of them in the task relation, and tiles with grass."""
MARGIN = 3
"""The share of keys is never as near to a half as this many digits, in the task count."""

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Images:
    """Images with a label each.

    Args:
        pixels: uint8 `[m, 256, 256, 3]`.
        labels: float32 `[m, 1]`, 0 or 1, in turn.
        marked: What each tile has, int8 `[m, 8, 8]`: 2 if it is what the label asks for (a key, grass, a digit of the
            relation), 1 for another digit, 0 for neither.
    """

    pixels: Array
    labels: Array
    marked: Array

    @property
    def tiles(self) -> Array:
        """The tiles of every image, row by row, `[m, 64, 32, 32, 3]`."""
        cut = self.pixels.reshape(-1, GRID, TILE, GRID, TILE, 3).swapaxes(2, 3)
        return cut.reshape(-1, TILES, TILE, TILE, 3)


@dataclass(frozen=True)
class Material:
    """Material of the tiles of a part: training, validation or test.

    Args:
        tissue: uint8 `[h, w, 3]`.
        keys: Ink of digits, float32 `[n, 24, 24]` from 0 to 1.
        others: The same of all other digits.
        grass: float32 `[h, w]` from -1 to 1.
        gravel: The same.
    """

    tissue: Array
    keys: Array
    others: Array
    grass: Array
    gravel: Array


# --------------------------------------------------------------------------------------- material


@functools.cache
def material(part: str) -> Material:
    """Return the material of a part, which shares no pixel with that of another."""
    from skimage import data
    from skimage.transform import resize
    from sklearn.datasets import load_digits

    bunch = load_digits()
    mine = np.arange(len(bunch.target)) % 5  # of five, three are for training
    chosen = {"train": mine < 3, "validation": mine == 3, "test": mine == 4}[part]
    ink = np.stack([resize(d / 16, (DIGIT, DIGIT), order=1) for d in bunch.images[chosen]])
    is_key = bunch.target[chosen] == KEY
    ink = ink.astype("float32")
    return Material(
        region(data.immunohistochemistry(), part),
        ink[is_key],
        ink[~is_key],
        region(flat(data.grass()), part),
        region(flat(data.gravel()), part),
    )


def region(image: Array, part: str) -> Array:
    """Return the left 5/8 of an image for training, or the upper or lower half of what remains."""
    rows, columns = image.shape[0] // 2, image.shape[1] * 5 // 8
    if part == "train":
        return image[:, :columns]
    return image[:rows, columns:] if part == "validation" else image[rows:, columns:]


def flat(image: Array) -> Array:
    """Return the rank of each grey value, from -1 to 1: every value occurs as often as every other."""
    _, places, counts = np.unique(image, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - counts / 2
    return (2 * ranks / image.size - 1)[places].reshape(image.shape).astype("float32")


# ------------------------------------------------------------------------------------------ tiles


def piece(image: Array, rng: np.random.Generator) -> Array:
    """Return 32 x 32 pixels of an image, turned and mirrored at random."""
    row, column = (rng.integers(n - TILE + 1) for n in image.shape[:2])
    part = np.rot90(image[row : row + TILE, column : column + TILE], rng.integers(4))
    return part[::-1] if rng.integers(2) else part


def written(tile: Array, digits: Array, rng: np.random.Generator) -> Array:
    """Return a tile with one of the digits at a random place, all of it within the tile."""
    row, column = rng.integers(TILE - DIGIT + 1, size=2)
    opacity = np.zeros((TILE, TILE, 1), "float32")
    drawn = OPACITY * digits[rng.integers(len(digits))]
    opacity[row : row + DIGIT, column : column + DIGIT, 0] = drawn
    return np.rint(tile * (1 - opacity) + opacity * np.array(INK)).astype("uint8")


def embossed(tile: Array, texture: Array, rng: np.random.Generator) -> Array:
    """Return a tile whose brightness follows a piece of a texture."""
    relief = 1 + RELIEF * piece(texture, rng)[..., None]
    return np.clip(np.rint(tile * relief), 0, 255).astype("uint8")


def tissue_tiles(of: Material, rng: np.random.Generator) -> Array:
    """Return as many tiles of tissue as an image has, `[64, 32, 32, 3]`."""
    return np.stack([piece(of.tissue, rng) for _ in range(TILES)])


ANNOTATIONS = ("tissue", "key", "other digit", "grass", "gravel")
"""What a tile may have."""


def annotated(of: Material, number: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return tiles `[number, 32, 32, 3]`, and the place of what each has among `ANNOTATIONS`, `[number]`."""
    classes = rng.integers(len(ANNOTATIONS), size=number)
    drawn = {
        "tissue": lambda tile: tile,
        "key": lambda tile: written(tile, of.keys, rng),
        "other digit": lambda tile: written(tile, of.others, rng),
        "grass": lambda tile: embossed(tile, of.grass, rng),
        "gravel": lambda tile: embossed(tile, of.gravel, rng),
    }
    return np.stack([drawn[ANNOTATIONS[c]](piece(of.tissue, rng)) for c in classes]), classes


# ------------------------------------------------------------------------------------------ tasks

Drawn = tuple[Array, Array]
"""Tiles `[64, 32, 32, 3]`, row by row, and what each of them has `[64]`."""


def digits_among(of: Material, keys: int, digits: int, rng: np.random.Generator) -> Drawn:
    """Return tiles of tissue, of which so many have a digit, and so many of these a key, at random places."""
    tiles, marks = tissue_tiles(of, rng), np.zeros(TILES, "int8")
    for number, place in enumerate(rng.choice(TILES, digits, replace=False)):
        marks[place] = 2 if number < keys else 1
        tiles[place] = written(tiles[place], of.keys if number < keys else of.others, rng)
    return tiles, marks


def needle(of: Material, label: int, rng: np.random.Generator) -> Drawn:
    """Return tiles of which four have a digit; for label 1 one of them is a key."""
    return digits_among(of, label, NEEDLES, rng)


def count(of: Material, label: int, rng: np.random.Generator) -> Drawn:
    """Return tiles of which half have a digit; for label 1 most of them are keys, for label 0 most are not."""
    half = COUNTED // 2
    excess = rng.integers(MARGIN, half // 2 + 1)
    return digits_among(of, half + (excess if label else -excess), COUNTED, rng)


def texture(of: Material, label: int, rng: np.random.Generator) -> Drawn:
    """Return tiles with a faint relief of gravel; for label 1 that of eight is of grass."""
    tiles, marks = tissue_tiles(of, rng), np.zeros(TILES, "int8")
    marks[rng.choice(TILES, PATCHES, replace=False)] = 2 * label
    textures = [of.grass if mark else of.gravel for mark in marks]
    pairs = zip(tiles, textures, strict=True)
    return np.stack([embossed(tile, each, rng) for tile, each in pairs]), marks


def relation(of: Material, label: int, rng: np.random.Generator) -> Drawn:
    """Return tiles of which three pairs have a digit: side by side for label 1, one above the other for label 0.

    The label decides only where the tiles lie, after all of them are drawn.
    """
    tiles, marks = digits_among(of, 0, 2 * PAIRS, rng)
    marks *= 2
    with_digit, without = np.flatnonzero(marks), np.flatnonzero(marks == 0)
    across = pairs_across(rng)
    places = np.flatnonzero(across if label else across.T)
    order = np.empty(TILES, int)
    order[places] = rng.permutation(with_digit)
    order[np.setdiff1d(np.arange(TILES), places)] = rng.permutation(without)
    return tiles[order], marks[order]


def pairs_across(rng: np.random.Generator) -> Array:
    """Return three pairs of places with one between the two, in a row, bool `[8, 8]`.

    Between places of different pairs there are at least two others, along the rows or along the columns.
    """
    while True:
        rows, columns = rng.integers(GRID, size=PAIRS), rng.integers(GRID - 2, size=PAIRS)
        left = np.stack([rows, columns], axis=1)
        ends = np.stack([left, left + np.array([0, 2])], axis=1)  # [pairs, 2, 2]
        apart = abs(ends[:, None, :, None] - ends[None, :, None]).max(-1).min((-1, -2))
        if (apart + 3 * np.eye(PAIRS) >= 3).all():
            places = np.zeros((GRID, GRID), bool)
            places[tuple(ends.reshape(-1, 2).T)] = True
            return places


TASKS: dict[str, Callable[[Material, int, np.random.Generator], Drawn]] = {
    "needle": needle,
    "texture": texture,
    "relation": relation,
    "count": count,
}


def make(task: str, part: str, number: int, seed: int) -> Images:
    """Return images of a task; every second has label 1.

    Args:
        task: A key of `TASKS`.
        part: One of `PARTS`.
        number: How many images.
        seed: The same seed gives the same images. Parts of the same seed share nothing.
    """
    rng = np.random.default_rng([seed, PARTS.index(part), zlib.crc32(task.encode())])
    labels = np.arange(number) % 2
    drawn = [TASKS[task](material(part), int(label), rng) for label in labels]
    tiles = np.stack([tiles for tiles, _ in drawn]).reshape(-1, GRID, GRID, TILE, TILE, 3)
    pixels = tiles.swapaxes(2, 3).reshape(number, GRID * TILE, GRID * TILE, 3)
    marked = np.stack([marks for _, marks in drawn]).reshape(number, GRID, GRID)
    return Images(pixels, labels[:, None].astype("float32"), marked)


# ------------------------------------------------------------------------------------------ stain

OTHER_STAIN = (0.6, 1.0, 1.5)
"""Factors of haematoxylin, eosin and diaminobenzidine in images of another laboratory."""
JITTER = 0.25
"""Deviation of the logarithm of the factors that augmentation draws."""


def stained(pixels: Array, factors: Sequence[float] | Array) -> Array:
    """Return images whose stains are stronger or weaker by the given factors.

    The density of each stain is multiplied (Ruifrok and Johnston 2001): with the optical density `d = -log(rgb / 255)`
    and the matrix S of the stains, `d S^-1 diag(factors) S`.

    Args:
        pixels: uint8 `[..., 3]`.
        factors: Factors of haematoxylin, eosin and diaminobenzidine.
    """
    from skimage.color import hed_from_rgb, rgb_from_hed

    change = (hed_from_rgb * np.asarray(factors)) @ rgb_from_hed
    density = -np.log(np.maximum(np.arange(256), 1) / 255).astype("float32")[pixels]
    changed = 255 * np.exp(-density @ change.astype("float32"))
    return np.clip(np.rint(changed), 0, 255).astype("uint8")


def jittered(pixels: Array, rng: np.random.Generator) -> Array:
    """Return images `[m, ..., 3]`, each with stains of its own: factors are log-normal with deviation `JITTER`."""
    factors = np.exp(rng.normal(0, JITTER, (len(pixels), 3)))
    return np.stack([stained(image, each) for image, each in zip(pixels, factors, strict=True)])
