"""From a path or an array to the slide or the source that reads it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt
from PIL import Image

from tfbig.errors import SourceError
from tfbig.sources.arrays import ArraySource, from_array, from_memmap, map_npy
from tfbig.sources.files import File, PathLike
from tfbig.sources.resolution import Resolution
from tfbig.sources.slides.openslide import VendorSlide, vendor_of
from tfbig.sources.slides.slide import Slide
from tfbig.sources.slides.tiff import TiffSource
from tfbig.sources.slides.zarr import ZarrSlide
from tfbig.sources.source import Source

_TIFF_SUFFIXES: Final = frozenset(
    {".tif", ".tiff", ".btf", ".tf8", ".svs", ".ndpi", ".scn", ".bif", ".qptiff"}
)
_VENDOR_SUFFIXES: Final = frozenset({".mrxs", ".vms", ".vmu", ".czi", ".dcm", ".svslide"})
PICTURE_SUFFIXES: Final = frozenset({".png", ".jpg", ".jpeg", ".bmp"})
SLIDE_SUFFIXES: Final = _TIFF_SUFFIXES | _VENDOR_SUFFIXES | PICTURE_SUFFIXES | {".npy", ".zarr"}
"""Endings of files, or folders for zarr, that `open_slide` knows."""
_BY_TIFFFILE: Final = frozenset({None, "generic-tiff", "aperio"})
"""Formats, as OpenSlide calls them, of which the pages of TIFF are the image as it is."""
_CHANNELS: Final = {"L": 1, "LA": 1, "RGB": 3, "RGBA": 3, "P": 3, "CMYK": 3}
"""Of decoded pictures of 8 bits, by the mode of the file."""
_PICTURE_MODES: Final = frozenset({"1", "L", "LA", "RGB", "RGBA"})


def open(image: PathLike | npt.NDArray[Any] | Source, level: int = 0) -> Source:
    """The source of whatever image is given.

    Args:
        image: A path: `.npy` (read as it lies), TIFF and the formats of slides that `open_slide` takes
            (decoded by tiles), `.png`, `.jpg`, `.bmp` (decoded whole, so small ones). Or
            an array `[H, W]` or `[H, W, C]`; of a memory map the file is read. Or a source.
        level: Of the pyramid of a slide; 0 is full resolution.

    Returns:
        The source; a source itself.

    Raises:
        SourceError: The file is missing, damaged or of an unknown kind, or is not one image.
        TypeError: `image` is something else.
    """
    if isinstance(image, Source):
        return image
    if isinstance(image, np.ndarray):
        return from_array(image)
    if not isinstance(image, str | os.PathLike):
        raise TypeError(
            f"an image was given as {type(image).__name__}; expected a path, a NumPy array or a "
            "tfbig.sources.Source. Subclass Source to read another format."
        )
    return open_slide(image).level(level)


def open_slide(path: PathLike, *, mpp: float | None = None, reader: str | None = None) -> Slide:
    """The slide, with its levels and the size of its pixels, of a file.

    TIFF, OME-TIFF, GeoTIFF (its pixels) and SVS are read tile by tile from their pages with tifffile; NDPI, MRXS, SCN,
    BIF, Philips, CZI and DICOM, and SVS that tifffile's codecs do not turn into RGB, by OpenSlide; zarr and OME-Zarr
    by zarr; `.npy` and pictures have one level.

    Args:
        path: The file, or the folder of a zarr array.
        mpp: Micrometres per pixel at level 0; by default what the file says.
        reader: "tifffile", "openslide" or "zarr"; by default that of the format.

    Raises:
        SourceError: The file is missing, damaged or of an unknown kind, or is not one image.
        ValueError: There is no such reader, or `mpp` is no positive number.
    """
    if mpp is not None and not 0 < mpp < float("inf"):
        raise ValueError(f"{path}: was given mpp={mpp}; expected micrometres per pixel, above 0.")
    slide = _opened(os.fspath(path), reader)
    if mpp is not None:
        slide.mpp = (mpp, mpp)
    return slide


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


@final
class SourceSlide(Slide):
    """A slide of one level, or the pages of a TIFF file.

    Args:
        source: Level 0.
        reader: What decodes it.
    """

    def __init__(self, source: Source, reader: str) -> None:
        rows, columns, channels = source.shape
        pyramid = source.pyramid if isinstance(source, TiffSource) else None
        levels = pyramid.levels if pyramid else ((rows, columns),)
        known = pyramid.resolution if pyramid else Resolution()
        super().__init__(source.name, levels, channels, source.dtype, known, reader)
        self._first = source
        self.georeference = pyramid.georeference if pyramid else None

    def _open(self, level: int) -> Source:
        return self._first if level == 0 else TiffSource(self.name, level)


def _opened(path: str, reader: str | None) -> Slide:
    """The slide by the reader given, or that of the format."""
    by_name = {"tifffile": _by_tifffile, "openslide": VendorSlide, "zarr": ZarrSlide}
    if reader is not None:
        if reader not in by_name:
            raise ValueError(f"{path}: reader '{reader}'; expected one of {', '.join(by_name)}.")
        return by_name[reader](path)
    suffix = Path(path).suffix.lower()
    if suffix == ".zarr":
        return ZarrSlide(path)
    file = File(path)  # of whatever kind, it must be there
    if suffix == ".npy":
        return SourceSlide(from_memmap(map_npy(file)), "numpy")
    if suffix in PICTURE_SUFFIXES:
        return SourceSlide(_open_picture(path), "pillow")
    if suffix in _TIFF_SUFFIXES | _VENDOR_SUFFIXES:
        return _open_scanned(path, suffix)
    known = ", ".join(sorted(SLIDE_SUFFIXES))
    raise SourceError(
        f"{path}: files named '{suffix}' are not known; expected one of {known}. Use TiffSource or "
        "RawSource if it is such a file under another name, or convert it."
    )


def _open_scanned(path: str, suffix: str) -> Slide:
    """A TIFF file or a slide, by tifffile where its pages are the image, else by OpenSlide."""
    vendor = vendor_of(path)
    if vendor not in _BY_TIFFFILE or suffix in _VENDOR_SUFFIXES:
        return VendorSlide(path)
    try:
        return _by_tifffile(path)
    except SourceError:
        if vendor != "aperio":
            raise
        return VendorSlide(path)


def _by_tifffile(path: str) -> Slide:
    return SourceSlide(TiffSource(path), "tifffile")


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
