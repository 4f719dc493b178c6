"""Choice of the reader of a file, by its suffix and content."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple, final

import numpy as np
import numpy.typing as npt

from tfbig.errors import SourceError
from tfbig.sources.arrays import from_array, from_memmap, map_npy
from tfbig.sources.files import File, PathLike
from tfbig.sources.resolution import Mpp, Resolution
from tfbig.sources.scenes.raster import RasterSlide
from tfbig.sources.slides.openslide import VendorSlide, vendor_of
from tfbig.sources.slides.pictures import PICTURE_SUFFIXES, read_picture, shape_of_picture
from tfbig.sources.slides.slide import Slide
from tfbig.sources.slides.stacks import Plane, chosen_planes
from tfbig.sources.slides.tiff import TiffSource
from tfbig.sources.slides.tiff_layout import StackError, UndecodableError
from tfbig.sources.slides.tiff_stack import TiffStack
from tfbig.sources.slides.tiff_tags import ScaledError
from tfbig.sources.slides.zarr import ZarrSlide
from tfbig.sources.source import Source
from tfbig.sources.volumes.opening import is_volume, open_volume
from tfbig.sources.volumes.raw import volume_of

_TIFF_SUFFIXES: Final = frozenset(
    {".tif", ".tiff", ".btf", ".tf8", ".svs", ".ndpi", ".scn", ".bif", ".qptiff"}
)
_VENDOR_SUFFIXES: Final = frozenset({".mrxs", ".vms", ".vmu", ".czi", ".dcm", ".svslide"})
_SCENE_SUFFIXES: Final = frozenset({".jp2", ".vrt"})
SLIDE_SUFFIXES: Final = (
    _SCENE_SUFFIXES | _TIFF_SUFFIXES | _VENDOR_SUFFIXES | PICTURE_SUFFIXES | {".npy", ".zarr"}
)
"""Suffixes of the files, and for zarr of the folders, that `open_slide` reads."""
LABELS: Final = "labels"
"""Reader of images whose samples are numbers of classes or instances."""
_TIFFFILE_FORMATS: Final = frozenset({None, "generic-tiff", "aperio"})
"""Formats, by OpenSlide's names, whose TIFF pages hold the image unchanged."""


def open(image: PathLike | npt.NDArray[Any] | Source, level: int = 0) -> Source:
    """Open an image, read by rows.

    Args:
        image: A path, an array or a source. Of paths, `.npy` files are read in place, TIFF and the other slide formats
            of `open_slide` are decoded tile by tile, and `.png`, `.jpg` and `.bmp` are decoded whole, so should be
            small. Volumes are NIfTI, NRRD and DICOM (a file, or the folder of a series): what is not compressed is read
            in place, the rest is decoded once into a file without a name in the temporary folder (TMPDIR). Arrays are
            `[H, W]`, `[H, W, C]` or `[D, H, W, C]`; for a memory map the file behind it is read.
        level: Level of the pyramid of a slide; 0 is full resolution.

    Returns:
        The source `[H, W, C]`, or the volume `[D, H, W, C]`, a `tfbig.sources.Volume`. A source is returned unchanged.

    Raises:
        SourceError: The file does not exist, is damaged or has an unknown format, or is not a single image.
        TypeError: `image` is neither a path, an array nor a source.

    Example:
        >>> np.save("image.npy", np.arange(12, dtype="uint8").reshape(3, 4))
        >>> source = tfbig.open("image.npy")
        >>> source.shape, source.read(1, 2)[0, :, 0].tolist()
        ((3, 4, 1), [4, 5, 6, 7])
    """
    if isinstance(image, Source):
        return image
    if isinstance(image, np.ndarray):
        return volume_of(image) if image.ndim == 4 else from_array(image)
    if not isinstance(image, str | os.PathLike):
        raise TypeError(
            f"received an image of type {type(image).__name__}; expected a path, a NumPy array or a "
            "tfbig.sources.Source. Subclass Source to read another format."
        )
    if is_volume(image):
        return open_volume(image)
    if Path(image).suffix.lower() == ".npy":
        array = map_npy(File(image))
        return volume_of(array) if array.ndim == 4 else open_slide(image).level(level)
    return open_slide(image).level(level)


def open_slide(
    path: PathLike,
    *,
    mpp: float | None = None,
    reader: str | None = None,
    channels: Sequence[int | str] | None = None,
    z: Plane = None,
    percentiles: tuple[float, float] | None = None,
) -> Slide:
    """Open a slide, with its pyramid levels and pixel size.

    TIFF, OME-TIFF, GeoTIFF (its pixels) and SVS are read tile by tile from their pages with tifffile, and so are stacks
    of OME-TIFF and ImageJ. OpenSlide reads NDPI, MRXS, SCN, BIF, Philips, CZI and DICOM, and SVS that tifffile's codecs
    cannot convert to RGB. zarr reads zarr and OME-Zarr. rasterio reads JPEG 2000 and VRT files of satellite scenes, and
    GeoTIFF on request. `.npy` files and pictures have one level.

    Args:
        path: The file, or the folder of a zarr array.
        mpp: Micrometres per pixel at level 0; by default as specified in the file.
        reader: "tifffile", "openslide", "zarr" or "rasterio"; by default the reader for the format. With "labels" too,
            and the samples are numbers of classes or instances, as in `open_labels`.
        channels: Numbers or names of channels, as in `Slide.channels`; by default all.
        z: Plane of a stack, counted from 0, or "max" for the largest value of all planes at each pixel.
        percentiles: Percentiles of each channel that become 0 and 255, such as (1, 99.8), as in `Slide.normalised`; by
            default the samples of the file.

    Returns:
        The slide.

    Raises:
        SourceError: The file does not exist, is damaged or has an unknown format, or is not a single image; there is
            no such channel or plane.
        ValueError: `reader` is unknown, `mpp` is not a positive number, or the percentiles are not in increasing order
            within 0 and 100.

    Example:
        >>> np.save("slide.npy", np.zeros((64, 48, 3), "uint8"))
        >>> slide = tfbig.open_slide("slide.npy", mpp=0.25)
        >>> slide.shape, slide.levels, slide.mpp
        ((64, 48, 3), ((64, 48),), (0.25, 0.25))
        >>> slide.at(mpp=0.5).shape
        (32, 24, 3)
    """
    if mpp is not None and not 0 < mpp < float("inf"):
        raise ValueError(
            f"{path}: received mpp={mpp}; expected micrometres per pixel, a number above 0."
        )
    slide = _open_with_reader(os.fspath(path), reader, z)
    if mpp is not None:
        slide.mpp = (mpp, mpp)
    if channels is not None:
        slide = slide.channels(*channels)
    return slide if percentiles is None else slide.normalised(*percentiles)


def open_labels(path: PathLike) -> Source:
    """Open an image whose samples are numbers of classes or instances, such as a mask.

    A palette is left out, as it colours the numbers, and a picture of three equal channels has one. Else as `open`.

    Args:
        path: The file.

    Raises:
        SourceError: As in `open_slide`.

    Example:
        >>> from PIL import Image
        >>> mask = Image.fromarray(np.array([[0, 2]], "uint8"))
        >>> mask.putpalette([0, 0, 0, 255, 0, 0, 0, 255, 0])
        >>> mask.save("mask.png")
        >>> tfbig.sources.open_labels("mask.png").read(0, 1)[0, :, 0].tolist()
        [0, 2]
    """
    return open_slide(path, reader=LABELS).level(0)


class Header(NamedTuple):
    """What is known of the source of a file before it is read."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    mpp: Mpp | None


def header_of_file(path: PathLike, level: int = 0, labels: bool = False) -> Header:
    """Find the shape and dtype of the source of a file, and the size of its pixels, without decoding pictures.

    With `labels`, the file is opened as by `open_labels`.

    Raises:
        SourceError: The file cannot be opened, as in `open`.
    """
    if Path(path).suffix.lower() in PICTURE_SUFFIXES and level == 0:
        shape = shape_of_picture(path, labels)
        if shape is not None:
            return Header(shape, np.dtype(np.uint8), None)
    source = open_slide(path, reader=LABELS).level(level) if labels else open(path, level)
    source.close()
    return Header(source.shape, source.dtype, source.mpp)


@final
class SourceSlide(Slide):
    """A slide with one level, or the pages of a TIFF file.

    Args:
        source: Level 0.
        reader: Name of the library that decodes it.
    """

    def __init__(self, source: Source, reader: str) -> None:
        rows, columns, channels = source.shape
        pyramid = source.pyramid if isinstance(source, TiffSource) else None
        levels = pyramid.levels if pyramid else ((rows, columns),)
        resolution = pyramid.resolution if pyramid else Resolution()
        super().__init__(source.name, levels, channels, source.dtype, resolution, reader)
        self._first = source
        self.georeference = pyramid.georeference if pyramid else None
        if pyramid and len(pyramid.channel_names) == channels:
            self.channel_names = pyramid.channel_names

    def _open(self, level: int) -> Source:
        return self._first if level == 0 else TiffSource(self.name, level)


def _open_with_reader(path: str, reader: str | None, z: Plane) -> Slide:
    """Open a slide by a reader; None chooses it by the format."""
    readers: dict[str, Callable[[str], Slide]] = {
        "tifffile": partial(_open_by_tifffile, z=z),
        "openslide": partial(_one_plane, VendorSlide, z=z),
        "zarr": partial(ZarrSlide, z=z),
        "rasterio": partial(_one_plane, RasterSlide, z=z),
        LABELS: partial(_one_plane, _open_numbers, z=z),
    }
    if reader is not None:
        if reader not in readers:
            raise ValueError(f"{path}: reader '{reader}'; expected one of {', '.join(readers)}.")
        return readers[reader](path)
    suffix = Path(path).suffix.lower()
    if suffix == ".zarr":
        return ZarrSlide(path, z)
    file = File(path)  # raises if it does not exist, whatever its format
    if suffix in _TIFF_SUFFIXES | _VENDOR_SUFFIXES:
        return _open_scanned(path, suffix, z)
    chosen_planes(z, 1, path)
    if suffix in _SCENE_SUFFIXES:
        return RasterSlide(path)
    if suffix == ".npy":
        return SourceSlide(from_memmap(map_npy(file)), "numpy")
    if suffix in PICTURE_SUFFIXES:
        return SourceSlide(read_picture(path), "pillow")
    suffixes = ", ".join(sorted(SLIDE_SUFFIXES))
    raise SourceError(
        f"{path}: has the unknown suffix '{suffix}'; expected one of {suffixes}. Rename it if it has one of these "
        "formats under another name, or convert it."
    )


def _open_numbers(path: str) -> Slide:
    """Open a slide whose samples are numbers; GDAL, unlike tifffile's codecs, reads those below a palette."""
    suffix = Path(path).suffix.lower()
    if suffix in PICTURE_SUFFIXES:
        File(path)  # raises if it does not exist
        return SourceSlide(read_picture(path, labels=True), "pillow")
    try:
        return _open_with_reader(path, None, None)
    except UndecodableError:
        if suffix not in _TIFF_SUFFIXES:
            raise
        return RasterSlide(path)


def _one_plane(open_file: Callable[[str], Slide], path: str, z: Plane) -> Slide:
    """Open a slide of a format without stacks."""
    slide = open_file(path)
    chosen_planes(z, 1, path)
    return slide


def _open_scanned(path: str, suffix: str, z: Plane) -> Slide:
    """Open a slide with tifffile if its TIFF pages hold the image unchanged, else with OpenSlide."""
    vendor = vendor_of(path)
    if vendor not in _TIFFFILE_FORMATS or suffix in _VENDOR_SUFFIXES:
        return _one_plane(VendorSlide, path, z)
    try:
        return _open_by_tifffile(path, z)
    except ScaledError:
        return _one_plane(RasterSlide, path, z)
    except UndecodableError:
        if vendor != "aperio":
            raise
        return _one_plane(VendorSlide, path, z)


def _open_by_tifffile(path: str, z: Plane) -> Slide:
    try:
        return _one_plane(_of_one_page, path, z)
    except StackError:
        return TiffStack(path, z)


def _of_one_page(path: str) -> Slide:
    return SourceSlide(TiffSource(path), "tifffile")
