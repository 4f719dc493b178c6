"""Slides in the formats of scanners, decoded by OpenSlide."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Any, Final, final

import numpy as np

from tfbig.errors import SourceError
from tfbig.sources.files import File, PathLike, optional
from tfbig.sources.resolution import of_openslide
from tfbig.sources.slides.slide import Slide
from tfbig.sources.source import Rows, Source

openslide, _why_not = optional("openslide")

CACHE_BYTES: Final = 256 * 2**20
"""Decoded tiles that OpenSlide keeps, of all slides together."""
_BLOCK: Final = 1024
_shared: list[Any] = []
_sharing = threading.Lock()


def vendor_of(path: PathLike) -> str | None:
    """The format that OpenSlide sees in a file, as 'aperio' or 'generic-tiff'; None if it reads no such file."""
    if openslide is None:
        return None
    try:
        found: str | None = openslide.OpenSlide.detect_format(os.fspath(path))
    except openslide.OpenSlideError:
        return None
    return found


@final
class VendorSlide(Slide):
    """A slide that OpenSlide reads: SVS, NDPI, MRXS, SCN, BIF, Philips TIFF, CZI, DICOM.

    All slides share one cache of 256 MiB.

    Args:
        path: the file.

    Raises:
        SourceError: OpenSlide is not there, or cannot open the file.
    """

    def __init__(self, path: PathLike) -> None:
        File(path)  # it must be there
        name = os.fspath(path)
        self._handle = _Handle(name)
        slide = self._handle.slide()
        levels = [(rows, columns) for columns, rows in slide.level_dimensions]
        known = of_openslide(slide.properties)
        self.vendor = str(slide.properties.get("openslide.vendor"))
        super().__init__(name, levels, 3, np.uint8, known, f"OpenSlide ({self.vendor})")

    def _open(self, level: int) -> Source:
        return _VendorLevel(self._handle, self.levels[level], level)

    def close(self) -> None:
        super().close()
        self._handle.close()


class _Handle:
    """An open slide, opened again after an error: OpenSlide refuses all reads of one that had any."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._slide: Any = _opened(name)
        self._closed = False
        self._lock = threading.Lock()

    def slide(self) -> Any:
        with self._lock:
            if self._closed:
                raise SourceError(f"{self.name}: was closed. Open the slide again to read from it.")
            if self._slide is None:
                self._slide = _opened(self.name)
            return self._slide

    def forget(self) -> None:
        """The next read opens the file anew; one that goes on keeps what it has."""
        with self._lock:
            self._slide = None

    def close(self) -> None:
        with self._lock:
            self._slide, self._closed = None, True


@final
class _VendorLevel(Source):
    """A level of a slide, RGB; transparent pixels have the colour of the slide's background.

    OpenSlide finds a place by whole pixels of level 0. Where those are no multiple of the level's, blocks lie up to
    half such a pixel beside their place, and are interpolated.
    """

    def __init__(self, handle: _Handle, size: tuple[int, int], level: int) -> None:
        super().__init__((*size, 3), np.uint8, handle.name)
        self._slide, self._level = handle, level
        self._step = float(handle.slide().level_downsamples[level])
        self._threads = min(8, os.cpu_count() or 1)

    def _read(self, start: int, stop: int) -> Rows:
        return self._read_window(start, stop, 0, self.shape[1])

    def _read_window(self, start: int, stop: int, left: int, right: int) -> Rows:
        slide = self._slide.slide()
        out = np.empty((stop - start, right - left, 3), np.uint8)
        corners = list(product(range(start, stop, _BLOCK), range(left, right, _BLOCK)))

        def block(corner: tuple[int, int]) -> None:
            top, side = corner
            size = min(_BLOCK, stop - top), min(_BLOCK, right - side)
            target = out[top - start :, side - left :][: size[0], : size[1]]
            target[...] = self._block(slide, corner, size)

        if len(corners) == 1:
            block(corners[0])
        else:
            with ThreadPoolExecutor(self._threads) as pool:
                list(pool.map(block, corners))
        return out

    def _block(self, slide: Any, corner: tuple[int, int], size: tuple[int, int]) -> Rows:
        """Rows and columns `size` from `corner`, which OpenSlide takes in pixels of level 0."""
        row, column = (round(n * self._step) for n in corner)
        try:
            region = slide.read_region((column, row), self._level, (size[1], size[0]))
        except openslide.OpenSlideError as error:
            self._slide.forget()
            where = f"rows {corner[0]}:{corner[0] + size[0]} from column {corner[1]}"
            raise SourceError(
                f"{self.name}: level {self._level}, {where}, cannot be decoded ({error}). The file is damaged there; "
                "copy it again, or leave the slide out."
            ) from error
        return _opaque(np.asarray(region), _background(slide))

    def close(self) -> None:
        self._slide.close()


def _opened(name: str) -> Any:
    if openslide is None:
        raise SourceError(
            f"{name}: needs OpenSlide, which is not there ({_why_not}). Install openslide-bin too."
        )
    try:
        slide = openslide.OpenSlide(name)
    except openslide.OpenSlideError as error:
        size = File(name).num_bytes
        raise SourceError(
            f"{name}: cannot be read by OpenSlide ({error}; {size} bytes). Check that it is a slide and was copied "
            "whole, with the folder beside it if its format has one."
        ) from error
    with _sharing:
        if not _shared:
            _shared.append(openslide.OpenSlideCache(CACHE_BYTES))
        slide.set_cache(_shared[0])
    return slide


def _background(slide: Any) -> tuple[int, int, int]:
    """Of the slide's `openslide.background-color`, `'FFFFFF'`; white by default."""
    digits = slide.properties.get("openslide.background-color", "FFFFFF")
    red, green, blue = (int(digits[i : i + 2], 16) for i in (0, 2, 4))
    return red, green, blue


def _opaque(pixels: Rows, background: tuple[int, int, int]) -> Rows:
    """RGBA `[r, c, 4]`, not premultiplied, over the background; `[r, c, 3]`."""
    alpha = pixels[..., 3:]
    if alpha.min(initial=255) == 255:
        return pixels[..., :3]
    part = alpha.astype(np.uint16)
    mixed = pixels[..., :3] * part + np.array(background, np.uint16) * (255 - part) + 127
    return (mixed // 255).astype(np.uint8)
