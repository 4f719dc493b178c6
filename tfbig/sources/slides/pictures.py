"""Pictures, PNG, JPEG and BMP, which are decoded whole."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

import imagecodecs
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFile, ImageOps

from tfbig.errors import SourceError, reason_of
from tfbig.sources.arrays import ArraySource
from tfbig.sources.files import PathLike
from tfbig.units import format_bytes

PICTURE_SUFFIXES: Final = frozenset({".png", ".jpg", ".jpeg", ".bmp"})
_FORMATS: Final = {
    ".png": ["PNG"],
    ".jpg": ["JPEG", "MPO"],
    ".jpeg": ["JPEG", "MPO"],
    ".bmp": ["BMP", "DIB"],
}
"""Formats that Pillow may open, by suffix: it starts Ghostscript for PostScript, whatever the suffix."""
_MAX_BYTES: Final = 2**30
"""Largest accepted size of a decoded picture."""
_STRIP_ROWS: Final = 512
_CHANNELS: Final = {"L": 1, "LA": 1, "RGB": 3, "RGBA": 3, "P": 3, "CMYK": 3}
"""Channels of a decoded 8-bit picture, by the mode of the file."""
_WIDE_PNG: Final = frozenset({"LA;16B", "RGB;16B", "RGBA;16B"})
"""Pillow's names of PNG files with 16 bits a sample and several channels, which it reduces to 8 bits."""
_ORIENTATION: Final = 274
"""Number of the EXIF tag; 5 to 8 exchange rows and columns."""
_UNCHANGED_MODES: Final = frozenset({"1", "L", "LA", "RGB", "RGBA"})


def read_picture(path: PathLike, labels: bool = False) -> ArraySource:
    """Decode a PNG, JPEG or BMP file, and turn it as its EXIF data say.

    Palettes and CMYK are converted to RGB, alpha is dropped.

    Args:
        path: The file.
        labels: Whether its samples are numbers of classes or instances: a palette colours them, and is left out; three
            equal channels are one.

    Raises:
        SourceError: The file is damaged, too large, or in another format than its suffix says.
    """
    name = os.fspath(path)
    try:
        with _opened(path) as picture:
            _check_size(picture, name)
            array = _decoded(picture, labels)
            if labels:
                array = _numbers(array, name)
    except SourceError:
        raise
    except Exception as error:  # each format raises its own exceptions
        advice = (
            "Pictures are read whole; convert a large one to a tiled TIFF."
            if isinstance(error, MemoryError | Image.DecompressionBombError)
            else "The file is damaged or in another format; copy or export it again."
        )
        raise SourceError(
            f"{name}: cannot be decoded as a picture ({reason_of(error)}). {advice}"
        ) from error
    return ArraySource(array, name)


def shape_of_picture(path: PathLike, labels: bool = False) -> tuple[int, int, int] | None:
    """Read rows, columns and channels of a picture of 8 bits from its header, or None if they are unknown.

    `labels` is as in `read_picture`; the header does not say whether three channels are equal.
    """
    try:
        with _opened(path) as picture:
            channels = _CHANNELS.get(picture.mode)
            if labels and channels == 3:
                channels = 1 if picture.mode == "P" else None
            if channels is None or _has_16_bits(picture):
                return None
            sides = picture.height, picture.width
            turned = picture.getexif().get(_ORIENTATION, 1) > 4
            rows, columns = sides[::-1] if turned else sides
            return rows, columns, channels
    except Exception:  # `read_picture` raises an error with the reason
        return None


def _opened(path: PathLike) -> ImageFile.ImageFile:
    """Open a picture in the format of its suffix, and decode nothing yet."""
    return Image.open(path, formats=_FORMATS[Path(path).suffix.lower()])


def _has_16_bits(picture: ImageFile.ImageFile) -> bool:
    """Tell whether a picture has 16 bits a sample and several channels."""
    return any(tile.args in _WIDE_PNG for tile in picture.tile)


def _check_size(picture: ImageFile.ImageFile, name: str) -> None:
    bytes_per_sample = 2 if _has_16_bits(picture) else 1
    size = picture.width * picture.height * len(picture.getbands()) * bytes_per_sample
    if size > _MAX_BYTES:
        raise SourceError(
            f"{name}: is a picture of {picture.height} x {picture.width}, which is read whole and takes "
            f"{format_bytes(size)}; {format_bytes(_MAX_BYTES)} are allowed. Convert it to a tiled TIFF."
        )


def _numbers(array: npt.NDArray[Any], name: str) -> npt.NDArray[Any]:
    """Take one channel of three that are equal, as programs save a gray picture in colour.

    Raises:
        SourceError: They are colours.
    """
    if array.ndim == 3 and (array != array[..., :1]).any():
        raise SourceError(
            f"{name}: is a picture of colours; expected numbers of classes or instances, in gray or with a palette. "
            "Export the labels themselves, not colours drawn for them."
        )
    return np.ascontiguousarray(array[..., 0]) if array.ndim == 3 else array


def _decoded(picture: ImageFile.ImageFile, labels: bool = False) -> npt.NDArray[Any]:
    """Decode the pixels of a picture without alpha, `[H, W]` or `[H, W, C]`."""
    if _has_16_bits(picture):
        file = Path(os.fsdecode(picture.filename))
        return np.ascontiguousarray(_without_alpha(imagecodecs.png_decode(file.read_bytes())))
    ImageOps.exif_transpose(picture, in_place=True)
    unchanged = {*_UNCHANGED_MODES, "P"} if labels else _UNCHANGED_MODES
    first = _strip(picture, 0, unchanged)
    array = np.empty((picture.height, *first.shape[1:]), first.dtype)
    for top in range(0, picture.height, _STRIP_ROWS):  # Pillow copies what becomes an array twice
        array[top : top + _STRIP_ROWS] = _strip(picture, top, unchanged)
    return array


def _strip(picture: Image.Image, top: int, unchanged: Collection[str]) -> npt.NDArray[Any]:
    """Read 512 rows of a picture, or those that are left; RGB unless its mode is to stay unchanged."""
    strip = picture.crop((0, top, picture.width, min(top + _STRIP_ROWS, picture.height)))
    stays = strip.mode in unchanged or strip.mode.startswith("I")
    return _without_alpha(np.asarray(strip if stays else strip.convert("RGB")))


def _without_alpha(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Drop the last channel of `[H, W, 2]` and `[H, W, 4]`."""
    return array[..., :-1] if array.ndim == 3 and array.shape[2] in (2, 4) else array
