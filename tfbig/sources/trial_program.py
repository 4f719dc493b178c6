"""Program of `tfbig.sources.trial`: opens files whose names it reads as lines of JSON.

It answers with a line of JSON for each: what is wrong with the file, or an empty string.
"""

from __future__ import annotations

import io
import json
import math
import resource
import struct
import sys
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

MOST_BYTES = 2**31
"""Memory that a file may take, beyond that of the process."""
MOST_CHUNK_BYTES = 2**29
"""Largest chunk of a dataset that is read; HDF5 decompresses it whole, and holds both forms at once."""
MOST_OUTLINES = 1000
"""Outlines that are read at the beginning and at the end of a file."""
NO_FILTER = ("can't open directory", "plugin", "not registered")
"""Words of errors of HDF5 about a filter that is not installed."""


class Part(io.RawIOBase):
    """Part of a file from byte `start` on, as a file."""

    def __init__(self, file: BinaryIO, start: int, size: int) -> None:
        self._file, self._start, self._size, self._place = file, start, size, 0

    def readable(self) -> bool:
        """Say that it can be read."""
        return True

    def seekable(self) -> bool:
        """Say that it can be read from any place."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Continue at another place, and return it."""
        self._place = offset + (0, self._place, self._size)[whence]
        return self._place

    def readinto(self, buffer: Any) -> int:
        """Read bytes into a buffer, and return their number."""
        count = max(min(len(buffer), self._size - self._place), 0)
        self._file.seek(self._start + self._place)
        data = self._file.read(count)
        buffer[: len(data)] = data
        self._place += len(data)
        return len(data)


def open_keras(name: str) -> str:
    """Open the weights in a `.keras` file as HDF5, and compare their sizes with that of the file."""
    import h5py

    with zipfile.ZipFile(name) as archive, open(name, "rb") as file:
        info = archive.getinfo("model.weights.h5")
        if info.compress_type:  # Keras does not compress it
            weights: Any = io.BytesIO(archive.read(info))
        else:
            file.seek(info.header_offset + 26)
            lengths = struct.unpack("<2H", file.read(4))
            weights = Part(file, info.header_offset + 30 + sum(lengths), info.file_size)
        if reason := open_hdf5(weights):
            return reason
        sizes: list[int] = []

        def add(_: str, item: Any) -> None:
            if isinstance(item, h5py.Dataset):
                sizes.append(2**60 if item.external or item.is_virtual else item.nbytes)

        with h5py.File(weights, "r") as opened:
            opened.visititems(add)
    if sum(sizes) > 2 * info.file_size + MOST_CHUNK_BYTES:
        return "has weights that take far more bytes than it, or that are in other files"
    return ""


def open_hdf5(name: Any) -> str:
    """Read all attributes, and the first and the last row of all datasets in the file with chunks of a usual size.

    Where a file is damaged, HDF5 raises an error but may also write to memory that it has freed: the other process must
    not open such a file. Attributes of types that NumPy does not have, and filters that are not installed, are no
    damage.
    """
    import h5py

    def is_read(item: Any) -> bool:
        """Tell whether the item is a dataset that readers accept."""
        if not isinstance(item, h5py.Dataset) or not item.ndim or not item.shape[0]:
            return False
        numbers = max(math.prod(item.chunks or ()), math.prod(item.shape[1:]))
        is_small = numbers * item.dtype.itemsize <= MOST_CHUNK_BYTES
        return is_small and not item.external and not item.is_virtual

    def read(_: str, item: Any) -> None:
        with suppress(TypeError):
            dict(item.attrs)
        if is_read(item):
            for row in (0, item.shape[0] - 1):
                try:
                    item[row]
                except TypeError:
                    continue
                except OSError as error:
                    if not any(words in str(error) for words in NO_FILTER):
                        raise

    try:
        with h5py.File(name, "r") as file:
            read("/", file)
            file.visititems(read)
    except Exception as error:
        return f"is not a readable HDF5 file: {str(error) or type(error).__name__}"
    return ""


def open_slide(name: str) -> str:
    """Decode three pixels of each level; errors are left to the other process."""
    import openslide

    with suppress(Exception), openslide.OpenSlide(name) as slide:
        columns, rows = slide.dimensions
        for level in range(slide.level_count):
            for share in (0, 0.5, 1):
                corner = int((columns - 1) * share), int((rows - 1) * share)
                slide.read_region(corner, level, (1, 1))
    return ""


def open_raster(name: str) -> str:
    """Decode three pixels of each level of an image, or of the text of a VRT file.

    Errors are left to the other process.
    """
    import rasterio
    from rasterio.windows import Window

    options = {"driver": "VRT"} if name.startswith("<") else {}
    with suppress(Exception), rasterio.Env(GDAL_CACHEMAX=2**26):
        with rasterio.open(name, **options) as image:
            levels = len(image.overviews(1))
        for level in (None, *range(levels)):
            chosen = {} if level is None else {"overview_level": level}
            with rasterio.open(name, **options, **chosen) as image:
                for share in (0, 0.5, 1):
                    left, top = (int((n - 1) * share) for n in (image.width, image.height))
                    window = Window(left, top, 1, 1)
                    image.read(window=window)
                    image.read_masks(1, window=window)
    return ""


def open_zarr(name: str) -> str:
    """Decode the first and the last chunk of an array; errors are left to the other process."""
    import zarr

    with suppress(Exception):
        array = zarr.open_array(name, mode="r")
        for place in (0, -1):
            array[(place,) * array.ndim]
    return ""


def open_outlines(name: str) -> str:
    """Read the first and the last outlines of a file; errors are left to the other process."""
    import pyogrio

    with suppress(Exception):
        count = pyogrio.read_info(name, force_feature_count=True)["features"]
        for start in {0, max(count - MOST_OUTLINES, 0)}:
            pyogrio.raw.read(name, skip_features=start, max_features=MOST_OUTLINES)
    return ""


def limit_memory() -> None:
    """Limit the memory to `MOST_BYTES` above what the process holds."""
    with suppress(ValueError, OSError):  # the system has a lower limit, or none of this kind
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + MOST_BYTES
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


def main() -> None:
    """Open files until there are no more names."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    functions = {
        "hdf5": open_hdf5,
        "keras": open_keras,
        "openslide": open_slide,
        "outlines": open_outlines,
        "raster": open_raster,
        "zarr": open_zarr,
    }
    for line in sys.stdin:
        kind, name = json.loads(line)
        limit_memory()
        try:
            reason = functions[kind](name)
        except Exception as error:
            reason = f"cannot be read: {error or type(error).__name__}"
        print(json.dumps(reason), flush=True)


if __name__ == "__main__":
    main()
