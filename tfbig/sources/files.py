"""Files whose bytes are read from any place by any thread.

They are read with `pread`, not through mapped pages: the pages of a memory map count as resident
memory of the process, the kernel's page cache does not. (`pread` is POSIX: Linux and macOS.)
"""

from __future__ import annotations

import importlib
import math
import os
import weakref
from typing import Any

import numpy as np

from tfbig.errors import SourceError
from tfbig.sources.source import Rows

PathLike = str | os.PathLike[str]


class File:
    """A file open for reading; it closes when nothing refers to it any more.

    Attributes:
        path: As given.
        num_bytes: Its length when it was opened.

    Raises:
        SourceError: There is no such file, or it cannot be opened.
    """

    def __init__(self, path: PathLike) -> None:
        self.path = os.fspath(path)
        try:
            self._descriptor = os.open(self.path, os.O_RDONLY)
        except OSError as error:
            raise cannot_open(path, error) from error
        weakref.finalize(self, os.close, self._descriptor)
        self.num_bytes = os.fstat(self._descriptor).st_size

    def check_length(self, end: int) -> None:
        """Refuses a file that ends before byte `end`."""
        if end > self.num_bytes:
            raise SourceError(
                f"{self.path}: is truncated: its image data ends at byte {end}, the file at byte "
                f"{self.num_bytes}. Write or copy the file again."
            )

    def read(self, offset: int, count: int) -> bytearray:
        data = bytearray(count)
        self._read_into(memoryview(data), offset)
        return data

    def read_rows(
        self, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...], start: int
    ) -> Rows:
        """Reads `shape` samples stored from `offset`, row `start` first; in native byte order."""
        rows = np.empty(shape, dtype)
        row_bytes = math.prod(shape[1:]) * dtype.itemsize
        self._read_into(rows.view(np.uint8).reshape(-1).data, offset + start * row_bytes)
        return rows if dtype.isnative else rows.astype(dtype.newbyteorder("="))

    def read_window(
        self,
        offset: int,
        dtype: np.dtype[Any],
        shape: tuple[int, ...],
        window: tuple[int, int, int, int],
    ) -> Rows:
        """Reads `(start, stop, left, right)` of an image `shape` stored from `offset`, row by row."""
        start, stop, left, right = window
        if right - left == shape[1]:
            return self.read_rows(offset, dtype, (stop - start, *shape[1:]), start)
        rows = np.empty((stop - start, right - left, *shape[2:]), dtype)
        pixel_bytes = math.prod(shape[2:]) * dtype.itemsize
        for row, target in enumerate(rows, start):
            at = offset + (row * shape[1] + left) * pixel_bytes
            self._read_into(target.view(np.uint8).reshape(-1).data, at)
        return rows if dtype.isnative else rows.astype(dtype.newbyteorder("="))

    def _read_into(self, view: memoryview, offset: int) -> None:
        """Fills `view`, of bytes, from `offset`; one call of the system gives 2 GiB at most."""
        while view:
            try:
                count = os.preadv(self._descriptor, [view], offset)
            except OSError as error:
                raise SourceError(
                    f"{self.path}: reading {len(view)} bytes at {offset} failed: {error}."
                ) from error
            if count == 0:
                raise SourceError(
                    f"{self.path}: ends {len(view)} bytes before the image data does; it became "
                    "shorter after it was opened. Write or copy the file again."
                )
            view, offset = view[count:], offset + count


def still_open(file: File | None, name: str) -> File:
    """`file`; None is what a closed source has in its place."""
    if file is None:
        raise SourceError(f"{name}: was closed. Open the source again to read from it.")
    return file


def optional(module: str) -> tuple[Any, str]:
    """A module that may not be installed, or None, and why not."""
    try:
        return importlib.import_module(module), ""
    except (ImportError, OSError) as error:  # OSError: a library of the system that it needs
        return None, str(error)


def cannot_open(path: PathLike, error: OSError) -> SourceError:
    """What to raise when the system refuses a path."""
    if isinstance(error, FileNotFoundError):
        return SourceError(
            f"{path}: there is no such file. Check the path (working directory: {os.getcwd()})."
        )
    return SourceError(f"{path}: cannot be opened: {error.strerror or error}.")
