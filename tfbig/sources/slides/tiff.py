"""Images in TIFF files, decoded tile by tile as rows are asked for."""

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

from tfbig.errors import SourceError
from tfbig.sources.files import File, PathLike, still_open
from tfbig.sources.slides.tiff_layout import read_layout
from tfbig.sources.source import Rows, Source


@final
class TiffSource(Source):
    """One level of a TIFF file or of a slide in a TIFF dialect (SVS, NDPI, OME-TIFF, ...).

    Only the tiles or strips that hold wanted pixels are decoded. Those decoded last are kept, so
    that strips and patches which overlap, or do not end where tiles do, decode nothing twice.
    Alpha is dropped. Tiles that the file leaves out get the page's nodata value (0 unless the file
    says otherwise), as in `tifffile.imread`; all rows equal its rows exactly.

    Args:
        path: The file.
        level: 0 for full resolution, 1 for the next level of the pyramid, ...
        cache_bytes: Bytes of decoded tiles to keep; two rows of tiles may be kept in any case.
        num_threads: Threads that decode for one `read`; by default one per core, 8 at most.

    Attributes:
        level: As given.
        pyramid: Sizes of all levels, and the resolution of level 0.

    Raises:
        SourceError: There is no such file or level, it is no TIFF, is truncated, is a stack of
            images, is neither gray nor RGB, or is compressed in a way that cannot be decoded or
            not by strips.
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
        self.level = level
        self.pyramid, layout = read_layout(file, level)
        super().__init__(layout.shape, layout.stored, file.path)
        self._file: File | None = file
        self._layout = layout
        self._num_threads = num_threads or min(8, os.cpu_count() or 1)
        self._max_bytes = max(2 * layout.band_bytes, cache_bytes)
        self._cached: OrderedDict[int, Rows] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def cache_bytes(self) -> int:
        """Bytes of decoded tiles that are kept at most."""
        if self._layout.rows_at is not None:
            return 0
        return min(self._max_bytes, self.nbytes)

    def describe(self) -> str:
        level = f"level {self.level} of {len(self.pyramid.levels)}"
        return f"{super().describe()}, {level}, {self._layout.facts}"

    def close(self) -> None:
        with self._lock:
            self._file = None
            self._cached.clear()

    def _read(self, start: int, stop: int) -> Rows:
        return self._read_window(start, stop, 0, self.shape[1])

    def _read_window(self, start: int, stop: int, left: int, right: int) -> Rows:
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

    def _groups(self, start: int, stop: int, left: int, right: int) -> Iterator[list[int]]:
        """The segments of a rectangle, whole bands of them together, as many as may be kept."""
        layout = self._layout
        height, width = layout.segment_shape
        across = range(left // width, math.ceil(right / width))
        bands = range(start // height, math.ceil(stop / height))
        at_once = max(1, self._max_bytes // (layout.band_bytes * len(across) // layout.num_across))
        for at in range(0, len(bands), at_once):
            yield [s for band in bands[at : at + at_once] for s in layout.segments(band, across)]

    def _decoded(self, segments: list[int]) -> dict[int, Rows]:
        """The segments, from the cache or decoded; they are then the youngest in the cache."""
        missing = [segment for segment in segments if segment not in self._cached]
        decode = partial(self._decode, still_open(self._file, self.name))
        with ThreadPoolExecutor(self._num_threads) as pool:
            self._cached.update(zip(missing, pool.map(decode, missing), strict=True))
        wanted = {segment: self._cached.pop(segment) for segment in segments}
        self._cached.update(wanted)
        kept = sum(tile.nbytes for tile in self._cached.values())
        while kept > self._max_bytes:
            kept -= self._cached.popitem(last=False)[1].nbytes
        return wanted

    def _decode(self, file: File, segment: int) -> Rows:
        """The part of a segment that is inside the image, `[rows, columns, C]`; of one plane where they are apart."""
        layout = self._layout
        _, top, left = layout.corner(segment)
        rows, columns = layout.inside(segment)
        channels = self.shape[2] if layout.planes == 1 else 1
        if layout.counts[segment] == 0:
            return np.full((rows, columns, channels), layout.nodata, self.dtype)
        data = file.read(layout.offsets[segment], layout.counts[segment])
        height, width = layout.segment_shape
        claimed = layout.claimed(data) or (0, 0)
        try:
            if claimed[0] > height or claimed[1] > width:
                raise ValueError(f"says it is {claimed[0]} x {claimed[1]}, in {height} x {width}")
            tile = layout.decode(data, segment)[0][0, :rows, :columns, :channels]
            return np.ascontiguousarray(
                np.broadcast_to(tile, (rows, columns, channels)), self.dtype
            )
        except Exception as error:  # each codec has exceptions of its own
            raise SourceError(
                f"{self.name}: tile or strip {segment}, rows {top}:{top + rows} from column {left}, "
                f"cannot be decoded ({type(error).__name__}: {error}). The file is damaged there; "
                "copy it again, or crop these rows away."
            ) from error


def _overlap(first: int, size: int, start: int, stop: int) -> tuple[slice, slice]:
    """What `[first, first + size)` and `[start, stop)` share: as part of the one, and of the other."""
    low, high = max(first, start), min(first + size, stop)
    return slice(low - first, high - first), slice(low - start, high - start)
