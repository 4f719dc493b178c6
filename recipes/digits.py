"""Handwritten digits from the files of MNIST and QMNIST, and rendered digits as a substitute."""

from __future__ import annotations

import gzip
from math import prod
from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from tfbig.errors import SourceError
from tfbig.sources import ArrayBag, Bag

SIDE = 28
FONTS = (
    "DejaVuSans",
    "DejaVuSans-Oblique",
    "DejaVuSerif",
    "DejaVuSansMono",
    "STIXGeneral",
    "cmr10",
    "cmss10",
    "cmtt10",
)
"""Fonts that every installation of Matplotlib includes."""


def read_digits(folder: str | Path, part: str) -> tuple[Bag, np.ndarray]:
    """Read handwritten digits and their classes from the IDX files of MNIST or QMNIST.

    Args:
        folder: Folder with `train-images-idx3-ubyte` and so on, gzipped or not; names of QMNIST start with `qmnist-`.
        part: "train" or "test" (named t10k in MNIST).

    Returns:
        The digits, uint8 `[m, 28, 28, 1]`, and their classes, int64 `[m]`.

    Raises:
        SourceError: A file is missing or damaged.
    """
    names = {"train": ("train", "qmnist-train"), "test": ("t10k", "qmnist-test")}[part]
    for name in names:
        images = _find(folder, f"{name}-images-idx3-ubyte")
        if images is not None:
            break
    else:
        raise SourceError(
            f"{folder}: has no {names[0]}-images-idx3-ubyte(.gz), the IDX file of MNIST. Check the folder."
        )
    labels = _find(folder, f"{name}-labels-idx1-ubyte") or _find(folder, f"{name}-labels-idx2-int")
    if labels is None:
        raise SourceError(f"{folder}: has {images.name} but no {name}-labels-idx1-ubyte(.gz).")
    pixels, classes = _read_idx(images), _read_idx(labels)
    if classes.ndim > 1:  # QMNIST: the class is the first of eight columns
        classes = classes[:, 0]
    if pixels.ndim != 3 or len(classes) != len(pixels):
        raise SourceError(
            f"{images}: has shape {pixels.shape} for {len(classes)} labels; expected one 2-D image per label."
        )
    return ArrayBag(pixels[..., None], str(images)), classes.astype(np.int64)


def drawn_digits(count: int, seed: int = 0) -> tuple[Bag, np.ndarray]:
    """Render digits in eight fonts, each randomly rotated, sheared, stretched and shifted, as a substitute for MNIST.

    Args:
        count: Number of digits.
        seed: Seed; the same seed gives the same digits.

    Returns:
        The digits, uint8 `[count, 28, 28, 1]`, bright on black, and their classes, `[count]`.
    """
    rng = np.random.default_rng(seed)
    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    fonts = [ImageFont.truetype(str(folder / f"{name}.ttf"), 4 * SIDE) for name in FONTS]
    classes = rng.integers(10, size=count)
    tiles = [_drawn(str(digit), fonts[rng.integers(len(fonts))], rng) for digit in classes]
    return ArrayBag(np.stack(tiles)[..., None], "drawn digits"), classes


def _drawn(text: str, font: ImageFont.FreeTypeFont, rng: np.random.Generator) -> np.ndarray:
    """Render one digit, its ink in the middle 20 rows as in MNIST."""
    large = Image.new("L", (8 * SIDE, 8 * SIDE))
    ImageDraw.Draw(large).text((4 * SIDE, 4 * SIDE), text, 255, font, "mm", stroke_width=2)
    angle, shear = rng.uniform(-0.25, 0.25), rng.uniform(-0.25, 0.25)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    matrix = turn @ np.array([[1, shear], [0, 1]]) @ np.diag(rng.uniform(0.85, 1.15, 2))
    middle = np.array([4 * SIDE, 4 * SIDE])
    offset = middle - matrix @ middle
    affine = (matrix[0, 0], matrix[0, 1], offset[0], matrix[1, 0], matrix[1, 1], offset[1])
    large = large.transform(large.size, Image.Transform.AFFINE, affine, Image.Resampling.BILINEAR)
    ink = large.crop(large.getbbox())
    scale = 20 / max(ink.size)
    width, height = (max(round(n * scale), 1) for n in ink.size)
    tile = np.zeros((SIDE, SIDE), np.uint8)
    top, left = ((SIDE - n) // 2 + int(rng.integers(-2, 3)) for n in (height, width))
    small = ink.resize((width, height), Image.Resampling.BOX)
    tile[top : top + height, left : left + width] = np.asarray(small)
    return tile


def _find(folder: str | Path, name: str) -> Path | None:
    """The path of a file or of its gzipped version, or None."""
    return next((p for p in (Path(folder, name), Path(folder, f"{name}.gz")) if p.exists()), None)


_IDX_TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def _read_idx(path: Path) -> np.ndarray:
    """Read an IDX file: two zeros, dtype, number of axes, lengths, samples, all big-endian."""
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError) as error:
        raise SourceError(f"{path}: cannot be read: {error}.") from error
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] not in _IDX_TYPES:
        raise SourceError(f"{path}: is not an IDX file, which starts with two zeros and a dtype.")
    kind, begin = np.dtype(_IDX_TYPES[data[2]]), 4 + 4 * data[3]
    shape = [int.from_bytes(data[i : i + 4], "big") for i in range(4, begin, 4)]
    expected = begin + prod(shape) * kind.itemsize
    if len(data) != expected:
        raise SourceError(
            f"{path}: has {len(data)} bytes; expected {expected} for the shape {shape}."
        )
    array = np.frombuffer(data, kind, offset=begin).reshape(shape)
    return array.astype(kind.newbyteorder("="))
