"""Images in TIFF files, decoded tile by tile as rows are read."""

from __future__ import annotations

import math
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import final

import numpy as np

from tfbig.errors import SourceError, reason_of
from tfbig.geometry import cells
from tfbig.geometry.background import Background
from tfbig.sources.background import SMALLEST
from tfbig.sources.files import File, PathLike, still_open
from tfbig.sources.slides.cache_limit import CacheLimit
from tfbig.sources.slides.tiff_layout import TiffLayout, TiffPyramid, read_layout
from tfbig.sources.source import RowArray, Source

CACHES = CacheLimit(512 * 2**20)
"""Limit of the decoded tiles of all open files."""


@final
class TiffSource(Source):
    """One level of a TIFF file or of a slide in a TIFF dialect (SVS, NDPI, OME-TIFF, ...).

    Only the tiles or strips that contain requested pixels are decoded. The most recent ones are
    cached, so that windows which overlap, or do not end at tile borders, decode nothing twice.
    Alpha is dropped. Tiles missing from the file get the page's nodata value (0 unless the file
    specifies another), as in `tifffile.imread`; all rows equal its rows exactly.

    Args:
        path: The file.
        level: Level of the pyramid; 0 is full resolution.
        cache_bytes: Size of the cache of decoded tiles in bytes; two rows of tiles are cached in
            any case.
        num_threads: Number of threads that decode for one `read`; by default one per core, at
            most 8.

    Attributes:
        level: Level of the pyramid.
        pyramid: Size of every level, and resolution and georeference of level 0.

    Raises:
        SourceError: The file or level does not exist; the file is not a TIFF, is truncated, is a
            stack of images, is neither gray nor RGB, or has a compression that cannot be decoded,
            or not in strips.

    Example:
        >>> import tifffile
        >>> image = np.arange(64 * 48 * 3, dtype="uint8").reshape(64, 48, 3)
        >>> tifffile.imwrite("slide.tif", image, photometric="rgb", tile=(16, 16), compression="deflate")
        >>> source = tfbig.sources.TiffSource("slide.tif")
        >>> bool((source.read_window((10, 40), (5, 9)) == image[10:40, 5:9]).all())
        True
        >>> source
        <TiffSource of slide.tif: 64 x 48 x 3 uint8, 9.0 KiB, level 0 of 1, tiles of 16 x 16, DEFLATE>
    """

    def __init__(
        self,
        path: PathLike,
        level: int = 0,
        *,
        cache_bytes: int = 64 * 2**20,
        num_threads: int | None = None,
    ) -> None:
        file = File(path)
        pyramid, layout = read_layout(file, level)
        self._start(file, pyramid, layout, level, cache_bytes, num_threads)

    @classmethod
    def of_page(
        cls, file: File, pyramid: TiffPyramid, layout: TiffLayout, level: int, cache_bytes: int
    ) -> TiffSource:
        """The image of one page of a stack.

        Args:
            file: The open file.
            pyramid: Levels of the stack.
            layout: Layout of the page.
            level: Level of the page.
            cache_bytes: As above.
        """
        source = cls.__new__(cls)
        source._start(file, pyramid, layout, level, cache_bytes, None)
        return source

    def _start(
        self,
        file: File,
        pyramid: TiffPyramid,
        layout: TiffLayout,
        level: int,
        cache_bytes: int,
        num_threads: int | None,
    ) -> None:
        super().__init__(layout.shape, layout.stored, file.path)
        self.level, self.pyramid = level, pyramid
        self._file: File | None = file
        self._layout = layout
        self._num_threads = num_threads or min(8, os.cpu_count() or 1)
        self._max_bytes = max(2 * layout.band_bytes, cache_bytes)
        self._cached: OrderedDict[int, RowArray] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def cache_bytes(self) -> int:
        """Largest size of the cache of decoded tiles in bytes."""
        if self._layout.rows_at is not None:
            return 0
        return min(self._max_bytes, self.nbytes)

    def describe(self) -> str:
        """Describe the name, shape, dtype, level and storage in one line."""
        level = f"level {self.level} of {len(self.pyramid.levels)}"
        return f"{super().describe()}, {level}, {self._layout.facts}"

    def close(self) -> None:
        """Close the file and empty the cache; reading then raises SourceError."""
        with self._lock:
            self._file = None
            self._cached.clear()
            CACHES.used(self, 0)

    def empty(self) -> bool:
        """Empty the cache of decoded tiles, unless a thread is reading; return whether it is empty."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            self._cached.clear()
        finally:
            self._lock.release()
        return True

    def _read_window(self, start: int, stop: int, left: int, right: int) -> RowArray:
        layout = self._layout
        if layout.rows_at is not None:
            file = still_open(self._file, self.name)
            shape, window = (*layout.shape[:2], layout.samples), (start, stop, left, right)
            rows = file.read_window(layout.rows_at, layout.stored, shape, window)
            return np.ascontiguousarray(rows[..., : self.shape[2]])
        out = np.empty((stop - start, right - left, self.shape[2]), self.dtype)
        with self._lock:
            for segments in self._groups(start, stop, left, right):
                for segment, tile in self._decoded(segments).items():
                    plane, top, side = layout.corner(segment)
                    planes = slice(plane, plane + tile.shape[2])
                    inside, outside = zip(
                        _overlap(top, tile.shape[0], start, stop),
                        _overlap(side, tile.shape[1], left, right),
                        strict=True,
                    )
                    out[*outside, planes] = tile[inside]
        return out

    def _colour(self, start: int, stop: int, left: int, right: int) -> RowArray | None:
        bands, across = self._places(start, stop, left, right)
        segments = (s for band in bands for s in self._layout.segments(band, across))
        if any(self._layout.counts[segment] for segment in segments):
            return None
        return np.full(self.shape[2], self._layout.nodata, self.dtype)

    def _find_background(self) -> Background | None:
        """Find the tiles that the file does not store; their size is known without decoding them."""
        layout, shape = self._layout, self.shape[:2]
        if math.prod(shape) < SMALLEST or not math.isfinite(layout.nodata):
            return None
        stored = layout.stored_segments()
        if stored.all() or layout.rows_at is not None:
            return None
        return cells.of_tiles(stored, layout.segment_shape, shape)

    def _places(self, start: int, stop: int, left: int, right: int) -> tuple[range, range]:
        """The bands that a rectangle touches, and the places of its segments in each."""
        height, width = self._layout.segment_shape
        return (
            range(start // height, math.ceil(stop / height)),
            range(left // width, math.ceil(right / width)),
        )

    def _groups(self, start: int, stop: int, left: int, right: int) -> Iterator[list[int]]:
        """Yield the segments of a rectangle in groups of whole bands, as many as the cache holds."""
        layout = self._layout
        bands, across = self._places(start, stop, left, right)
        at_once = max(1, self._max_bytes // (layout.band_bytes * len(across) // layout.num_across))
        for at in range(0, len(bands), at_once):
            yield [s for band in bands[at : at + at_once] for s in layout.segments(band, across)]

    def _decoded(self, segments: list[int]) -> dict[int, RowArray]:
        """Get segments from the cache or decode them, and make them the most recent in the cache."""
        missing = [segment for segment in segments if segment not in self._cached]
        decode = partial(self._decode, still_open(self._file, self.name))
        with ThreadPoolExecutor(self._num_threads) as pool:
            self._cached.update(zip(missing, pool.map(decode, missing), strict=True))
        tiles = {segment: self._cached.pop(segment) for segment in segments}
        self._cached.update(tiles)
        cached_bytes = sum(tile.nbytes for tile in self._cached.values())
        while cached_bytes > self._max_bytes:
            cached_bytes -= self._cached.popitem(last=False)[1].nbytes
        CACHES.used(self, cached_bytes)
        return tiles

    def _decode(self, file: File, segment: int) -> RowArray:
        """Decode the part of a segment inside the image, `[rows, columns, C]`, C = 1 if planes are separate."""
        layout = self._layout
        _, top, left = layout.corner(segment)
        rows, columns = layout.inside(segment)
        channels = self.shape[2] if layout.planes == 1 else 1
        if layout.counts[segment] == 0:
            return np.full((rows, columns, channels), layout.nodata, self.dtype)
        data = file.read(layout.offsets[segment], layout.counts[segment])
        height, width = layout.segment_shape
        declared = layout.declared_size(data) or (0, 0)
        try:
            if declared[0] > height or declared[1] > width:
                raise ValueError(
                    f"declares a size of {declared[0]} x {declared[1]}, larger than the {height} x {width} of the file"
                )
            tile = layout.decode(data, segment)[0][0, :rows, :columns, :channels]
            return np.ascontiguousarray(
                np.broadcast_to(tile, (rows, columns, channels)), self.dtype
            )
        except Exception as error:  # each codec raises its own exceptions
            raise SourceError(
                f"{self.name}: tile or strip {segment}, rows {top}:{top + rows} from column {left}, "
                f"cannot be decoded ({type(error).__name__}: {reason_of(error)}). The file is damaged there; "
                "copy it again, or crop these rows away."
            ) from error


def _overlap(first: int, size: int, start: int, stop: int) -> tuple[slice, slice]:
    """The intersection of `[first, first + size)` and `[start, stop)`, relative to `first` and to `start`."""
    low, high = max(first, start), min(first + size, stop)
    return slice(low - first, high - first), slice(low - start, high - start)
