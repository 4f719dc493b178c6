"""Images in TIFF files, decoded tile by tile as rows are asked for."""

from __future__ import annotations

import math
import os
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import final

import numpy as np

from tfbig.errors import SourceError
from tfbig.sources.files import File, PathLike, still_open
from tfbig.sources.source import Rows, Source
from tfbig.sources.tiff_layout import read_layout


@final
class TiffSource(Source):
    """One level of a TIFF file or of a slide in a TIFF dialect (SVS, NDPI, OME-TIFF, ...).

    Only the tiles or strips that hold wanted rows are decoded. The rows of tiles decoded last are
    kept, so that strips which overlap, or which do not end where tiles do, decode nothing twice.
    Alpha is dropped. Tiles that the file leaves out get the page's nodata value (0 unless the file
    says otherwise), as in `tifffile.imread`; all rows equal its rows exactly.

    Args:
        path: The file.
        level: 0 for full resolution, 1 for the next level of the pyramid, ...
        cache_bytes: Bytes of decoded rows to keep; two rows of tiles are kept in any case.
        num_threads: Threads that decode for one `read`; by default one per core, 8 at most.

    Attributes:
        level: As given.
        num_levels: How many levels the file has.

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
        self.num_levels, layout = read_layout(file, level)
        super().__init__(layout.shape, layout.stored, file.path)
        self._file: File | None = file
        self._layout = layout
        self._num_threads = num_threads or min(8, os.cpu_count() or 1)
        self._max_cached = max(2, cache_bytes // layout.band_bytes)
        self._cached: OrderedDict[int, Rows] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def cache_bytes(self) -> int:
        """Bytes of decoded rows that are kept at most."""
        if self._layout.rows_at is not None:
            return 0
        return min(self._max_cached, self._layout.num_bands) * self._layout.band_bytes

    def describe(self) -> str:
        level = f"level {self.level} of {self.num_levels}"
        return f"{super().describe()}, {level}, {self._layout.facts}"

    def close(self) -> None:
        with self._lock:
            self._file = None
            self._cached.clear()

    def _read(self, start: int, stop: int) -> Rows:
        layout = self._layout
        if layout.rows_at is not None:
            file = still_open(self._file, self.name)
            shape = (stop - start, layout.shape[1], layout.samples)
            rows = file.read_rows(layout.rows_at, layout.stored, shape, start)
            return np.ascontiguousarray(rows[..., : self.shape[2]])
        out = np.empty((stop - start, *self.shape[1:]), self.dtype)
        height = layout.segment_shape[0]
        bands = range(start // height, math.ceil(stop / height))
        with self._lock:
            for at in range(0, len(bands), self._max_cached):
                for band, rows in self._decoded(bands[at : at + self._max_cached]).items():
                    first, after = layout.band_rows(band)
                    low, high = max(first, start), min(after, stop)
                    out[low - start : high - start] = rows[low - first : high - first]
        return out

    def _decoded(self, bands: range) -> dict[int, Rows]:
        """The bands, from the cache or decoded; they are then the youngest in the cache."""
        missing = {band: self._empty_band(band) for band in bands if band not in self._cached}
        self._decode(missing)
        self._cached.update(missing)
        wanted = {band: self._cached.pop(band) for band in bands}
        self._cached.update(wanted)
        while len(self._cached) > self._max_cached:
            self._cached.popitem(last=False)
        return wanted

    def _empty_band(self, band: int) -> Rows:
        first, after = self._layout.band_rows(band)
        return np.empty((after - first, *self.shape[1:]), self.dtype)

    def _decode(self, bands: dict[int, Rows]) -> None:
        """Decodes every segment of `bands` into its place."""
        fill = partial(self._decode_segment, still_open(self._file, self.name), bands)
        segments = [segment for band in bands for segment in self._layout.segments(band)]
        with ThreadPoolExecutor(self._num_threads) as pool:
            list(pool.map(fill, segments))

    def _decode_segment(self, file: File, bands: dict[int, Rows], segment: int) -> None:
        layout = self._layout
        plane, band, across = layout.place(segment)
        left = across * layout.segment_shape[1]
        target = bands[band][:, left : left + layout.segment_shape[1]]
        if layout.planes > 1:
            target = target[..., plane : plane + 1]
        if layout.counts[segment] == 0:
            target[...] = layout.nodata
            return
        data = file.read(layout.offsets[segment], layout.counts[segment])
        rows, columns, channels = target.shape
        try:
            tile = layout.decode(data, segment)[0]
            target[...] = tile[0, :rows, :columns, :channels]
        except Exception as error:  # each codec has exceptions of its own
            first, after = layout.band_rows(band)
            raise SourceError(
                f"{self.name}: tile or strip {segment}, rows {first}:{after} from column {left}, "
                f"cannot be decoded ({type(error).__name__}: {error}). The file is damaged there; "
                "copy it again, or crop these rows away."
            ) from error
