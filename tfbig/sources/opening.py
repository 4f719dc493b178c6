"""From a path or an array to the source that reads it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from PIL import Image

from tfbig.errors import SourceError
from tfbig.sources.arrays import ArraySource, from_memmap, is_mapped, map_npy
from tfbig.sources.files import File, PathLike
from tfbig.sources.source import Source
from tfbig.sources.tiff import TiffSource

_TIFF_SUFFIXES: Final = frozenset(
    {".tif", ".tiff", ".btf", ".tf8", ".svs", ".ndpi", ".scn", ".bif", ".qptiff"}
)
PICTURE_SUFFIXES: Final = frozenset({".png", ".jpg", ".jpeg", ".bmp"})
_CHANNELS: Final = {"L": 1, "LA": 1, "RGB": 3, "RGBA": 3, "P": 3, "CMYK": 3}
"""Of decoded pictures of 8 bits, by the mode of the file."""
_PICTURE_MODES: Final = frozenset({"1", "L", "LA", "RGB", "RGBA"})


def open(image: PathLike | npt.NDArray[Any] | Source, level: int = 0) -> Source:
    """The source of whatever image is given.

    Args:
        image: A path: `.npy` (read as it lies), `.tif`, `.svs`, `.ndpi` and other TIFF dialects
            (decoded by tiles, level 0), `.png`, `.jpg`, `.bmp` (decoded whole, so small ones). Or
            an array `[H, W]` or `[H, W, C]`; of a memory map the file is read. Or a source.
        level: Of the pyramid of a TIFF file; 0 is full resolution.

    Returns:
        The source; a source itself.

    Raises:
        SourceError: The file is missing, damaged or of an unknown kind, or is not one image.
        TypeError: `image` is something else.
    """
    if isinstance(image, Source):
        return image
    if isinstance(image, np.ndarray):
        return from_memmap(image) if is_mapped(image) else ArraySource(image)
    if not isinstance(image, str | os.PathLike):
        raise TypeError(
            f"an image was given as {type(image).__name__}; expected a path, a NumPy array or a "
            "tfbig.sources.Source. Subclass Source to read another format."
        )
    return _open_path(image, level)


def shape_of_file(path: PathLike, level: int = 0) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Shape and element type of the source of a file; a picture is not decoded for it.

    Raises:
        SourceError: As `open`.
    """
    if Path(path).suffix.lower() in PICTURE_SUFFIXES and level == 0:
        try:
            with Image.open(path) as picture:
                if picture.mode in _CHANNELS:
                    size = (picture.height, picture.width, _CHANNELS[picture.mode])
                    return size, np.dtype(np.uint8)
        except Exception:  # `open` says what is wrong
            pass
    source = open(path, level)
    source.close()
    return source.shape, source.dtype


def _open_path(path: PathLike, level: int) -> Source:
    file = File(path)  # of whatever kind, it must be there
    suffix = Path(path).suffix.lower()
    if level and suffix not in _TIFF_SUFFIXES:
        raise SourceError(
            f"{path}: level {level} was asked for; a '{suffix}' file has one, level 0. Use 0."
        )
    if suffix == ".npy":
        return from_memmap(map_npy(file))
    if suffix in _TIFF_SUFFIXES:
        return TiffSource(path, level)
    if suffix in PICTURE_SUFFIXES:
        return _open_picture(file.path)
    known = ", ".join(sorted({".npy"} | _TIFF_SUFFIXES | PICTURE_SUFFIXES))
    raise SourceError(
        f"{path}: files named '{suffix}' are not known; expected one of {known}. Use TiffSource or "
        "RawSource if it is such a file under another name, or convert it."
    )


def _open_picture(path: str) -> ArraySource:
    """A PNG, JPEG or BMP file, decoded whole; palettes and CMYK become RGB, alpha is dropped."""
    try:
        with Image.open(path) as picture:
            stored_as_it_is = picture.mode in _PICTURE_MODES or picture.mode.startswith("I")
            array = np.asarray(picture if stored_as_it_is else picture.convert("RGB"))
    except Exception as error:  # each format has exceptions of its own
        raise SourceError(
            f"{path}: cannot be decoded as a picture ({error}). Pictures are read whole; convert "
            "a large one to a tiled TIFF."
        ) from error
    if array.ndim == 3 and array.shape[2] in (2, 4):
        array = np.ascontiguousarray(array[..., :-1])
    return ArraySource(array, path)
