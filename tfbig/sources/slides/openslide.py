"""Slides in the formats of scanners, decoded by OpenSlide."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from tfbig.errors import SourceError, reason_of
from tfbig.geometry import cells
from tfbig.geometry.background import Background
from tfbig.sources import trial
from tfbig.sources.background import SMALLEST, cells_of_window, read_foreground
from tfbig.sources.files import File, Package, PathLike
from tfbig.sources.resolution import resolution_from_openslide
from tfbig.sources.slides.slide import Slide
from tfbig.sources.source import RowArray, Source
from tfbig.sources.untrusted import reading

openslide = Package("openslide")

MARGIN: Final = 2
"""Pixels around the scanned area that are read too: the borders of tiles are interpolated."""
COARSE_MARGIN: Final = 1024
"""The same at coarser levels, whose tiles may reach beyond what was scanned at level 0 (MRXS)."""
CACHE_BYTES: Final = 256 * 2**20
"""Size of OpenSlide's cache of decoded tiles, shared by all slides."""
_BLOCK: Final = 1024
_shared_cache: list[Any] = []
_cache_lock = threading.Lock()


def vendor_of(path: PathLike) -> str | None:
    """OpenSlide's name for the format of a file, such as 'aperio' or 'generic-tiff'.

    It is None if OpenSlide is not installed or cannot read the file.
    """
    if openslide.missing:
        return None
    try:
        vendor: str | None = openslide.OpenSlide.detect_format(os.fspath(path))
    except openslide.OpenSlideError:
        return None
    return vendor


@final
class VendorSlide(Slide):
    """A slide read by OpenSlide: SVS, NDPI, MRXS, SCN, BIF, Philips TIFF, CZI or DICOM.

    All slides share one cache of 256 MiB.

    Args:
        path: The file.

    Raises:
        SourceError: OpenSlide is not installed, or cannot open the file.
    """

    def __init__(self, path: PathLike) -> None:
        File(path)  # raises if it does not exist
        name = os.fspath(path)
        if not openslide.missing:
            trial.check("openslide", name)
        self._handle = _Handle(name)
        with reading(name, "cannot be read by OpenSlide"):
            slide = self._handle.slide()
            levels = [(rows, columns) for columns, rows in slide.level_dimensions]
            properties = dict(slide.properties)
            resolution = resolution_from_openslide(properties)
            self.vendor = str(properties.get("openslide.vendor"))
        super().__init__(name, levels, 3, np.uint8, resolution, f"OpenSlide ({self.vendor})")
        self.channel_names = _channel_names(properties)
        self.origin = _origin(properties)

    def _open(self, level: int) -> Source:
        return _VendorLevel(self._handle, self.levels[level], level)

    def close(self) -> None:
        """Close the slide and the sources of its levels."""
        super().close()
        self._handle.close()


class _Handle:
    """An open slide, opened again after an error: OpenSlide refuses all reads of a slide that had one."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._slide: Any = _open(name)
        self._closed = False
        self._lock = threading.Lock()

    def slide(self) -> Any:
        """The open slide."""
        with self._lock:
            if self._closed:
                raise SourceError(f"{self.name}: was closed. Open the slide again to read from it.")
            if self._slide is None:
                self._slide = _open(self.name)
            return self._slide

    def forget(self) -> None:
        """Open the file again for the next read; reads in progress keep the old slide."""
        with self._lock:
            self._slide = None

    def close(self) -> None:
        """Close the slide."""
        with self._lock:
            self._slide, self._closed = None, True


@final
class _VendorLevel(Source):
    """A level of a slide, RGB; transparent pixels get the background colour of the slide.

    What lies outside the area that was scanned is transparent. Where OpenSlide knows that area (`openslide.bounds-x`
    and others, of MRXS, SCN and some TIFF files), the rest is filled without reading it.

    OpenSlide addresses a region by whole pixels of level 0. If the start of a block is not a whole
    number of them, the block is shifted by up to half such a pixel, and interpolated.
    """

    def __init__(self, handle: _Handle, size: tuple[int, int], level: int) -> None:
        super().__init__((*size, 3), np.uint8, handle.name)
        self._slide, self._level = handle, level
        with reading(handle.name, "cannot be read by OpenSlide"):
            slide = handle.slide()
            self._step = float(slide.level_downsamples[level])
            self._properties = dict(
                slide.properties
            )  # a copy: after an error in a thread, the original raises
            self._blank = np.array(_background(self._properties), np.uint8)
        self._threads = min(8, os.cpu_count() or 1)

    def _read_window(self, start: int, stop: int, left: int, right: int) -> RowArray:
        if self.background is None:
            return self._decoded(start, stop, left, right)
        window = (start, stop, left, right)
        return read_foreground(self._decoded, self.background, self._blank, window)

    def _colour(self, start: int, stop: int, left: int, right: int) -> RowArray | None:
        window, background = (start, stop, left, right), self.background
        if background is None or cells_of_window(background, window).any():
            return None
        return self._blank.copy()

    def _find_background(self) -> Background | None:
        shape = self.shape[:2]
        cell = cells.side_of_cells(shape, most_cells=cells.FEWER_CELLS)
        scanned = _scanned(self._properties, self._step)
        if scanned is None or math.prod(shape) < SMALLEST:
            return None
        found = cells.rectangle(shape, cell, *scanned)
        return None if found.foreground.all() else found

    def _decoded(self, start: int, stop: int, left: int, right: int) -> RowArray:
        """Decode a window, read in blocks by several threads."""
        slide = self._slide.slide()
        out = np.empty((stop - start, right - left, 3), np.uint8)
        corners = list(product(range(start, stop, _BLOCK), range(left, right, _BLOCK)))

        def read_block(corner: tuple[int, int]) -> None:
            top, side = corner
            size = min(_BLOCK, stop - top), min(_BLOCK, right - side)
            target = out[top - start :, side - left :][: size[0], : size[1]]
            target[...] = self._block(slide, corner, size)

        if len(corners) == 1:
            read_block(corners[0])
        else:
            with ThreadPoolExecutor(self._threads) as pool:
                list(pool.map(read_block, corners))
        return out

    def _block(self, slide: Any, corner: tuple[int, int], size: tuple[int, int]) -> RowArray:
        """Read `size` rows and columns from `corner`, which OpenSlide expects in pixels of level 0."""
        row, column = (round(n * self._step) for n in corner)
        try:
            region = slide.read_region((column, row), self._level, (size[1], size[0]))
            return _opaque(np.asarray(region), self._blank)
        except Exception as error:  # an error of OpenSlide, perhaps in another thread, or of memory
            self._slide.forget()
            where = f"rows {corner[0]}:{corner[0] + size[0]} from column {corner[1]}"
            raise SourceError(
                f"{self.name}: level {self._level}, {where}, cannot be decoded ({reason_of(error)}). The file is "
                "damaged there; copy it again, or exclude the slide."
            ) from error

    def close(self) -> None:
        """Close the slide."""
        self._slide.close()


def _open(name: str) -> Any:
    if openslide.missing:
        raise SourceError(
            f"{name}: needs OpenSlide, which cannot be imported ({openslide.missing}). Install openslide-bin too."
        )
    try:
        slide = openslide.OpenSlide(name)
    except Exception as error:
        size = File(name).num_bytes
        raise SourceError(
            f"{name}: cannot be read by OpenSlide ({reason_of(error)}; {size} bytes). Check that it is a slide and was "
            "copied completely, with the folder next to it if its format has one."
        ) from error
    with _cache_lock:
        if not _shared_cache:
            _shared_cache.append(openslide.OpenSlideCache(CACHE_BYTES))
        slide.set_cache(_shared_cache[0])
    return slide


def _bounds(properties: Mapping[str, str]) -> tuple[int, ...] | None:
    """Read x, y, width and height of the scanned area at level 0; None if the file does not specify them."""
    try:
        return tuple(
            int(properties[f"openslide.bounds-{name}"]) for name in ("x", "y", "width", "height")
        )
    except (KeyError, ValueError):
        return None


def _origin(properties: Mapping[str, str]) -> tuple[int, int]:
    """The row and column of level 0 that QuPath calls 0: where the scanned area begins, if it is known."""
    x, y, *_ = _bounds(properties) or (0, 0)
    return y, x


def _scanned(
    properties: Mapping[str, str], step: float
) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """The rows and columns of a level that were scanned, or None if the file does not specify them."""
    bounds = _bounds(properties)
    if bounds is None:
        return None
    x, y, width, height = bounds
    margin = MARGIN if step == 1 else COARSE_MARGIN
    rows, columns = (
        (math.floor(first / step) - margin, math.ceil((first + size) / step) + margin)
        for first, size in ((y, height), (x, width))
    )
    return rows, columns


def _channel_names(properties: Mapping[str, str]) -> tuple[str, ...]:
    """Names of the channels. Fluorescence by Hamamatsu has one filter, which names the one channel that was exposed."""
    names = ["red", "green", "blue"]
    shading = next((value for key, value in properties.items() if "Shading Data" in key), "")
    facts = dict(line.strip().partition("=")[::2] for line in shading.split(";"))
    used = [
        n for n, colour in enumerate("RGB") if facts.get(f"ShadingAve{colour}_2048", "0") != "0"
    ]
    if len(used) == 1 and facts.get("Name", "").strip():
        names[used[0]] = facts["Name"].strip()
    return tuple(names)


def _background(properties: Mapping[str, str]) -> tuple[int, int, int]:
    """Read the RGB of the property `openslide.background-color` (`'FFFFFF'`); white by default."""
    digits = properties.get("openslide.background-color", "FFFFFF")
    red, green, blue = (int(digits[i : i + 2], 16) for i in (0, 2, 4))
    return red, green, blue


def _opaque(pixels: RowArray, background: npt.ArrayLike) -> RowArray:
    """Blend RGBA `[r, c, 4]`, not premultiplied, over the background `[3]`; `[r, c, 3]`."""
    alpha = pixels[..., 3:]
    if alpha.min(initial=255) == 255:
        return pixels[..., :3]
    weight = alpha.astype(np.uint16)
    mixed = pixels[..., :3] * weight + np.array(background, np.uint16) * (255 - weight) + 127
    return (mixed // 255).astype(np.uint8)
