"""Files whose bytes can be read at any offset from any thread.

They are read with `pread`, not through mapped pages: the pages of a memory map count as resident
memory of the process, the kernel's page cache does not. (`pread` is POSIX: Linux and macOS.)
"""

from __future__ import annotations

import importlib
import math
import os
import stat
import weakref
from functools import cached_property
from typing import Any

import numpy as np

from tfbig.errors import SourceError
from tfbig.sources.source import RowArray

PathLike = str | os.PathLike[str]


class File:
    """A file open for reading; it is closed when the last reference to it disappears.

    Args:
        path: The file.

    Attributes:
        path: The path as a string.
        num_bytes: Length of the file when it was opened.

    Raises:
        SourceError: The file does not exist or cannot be opened, or is a folder, a pipe or a device.
    """

    def __init__(self, path: PathLike) -> None:
        self.path = os.fspath(path)
        try:
            self._descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe would wait
        except OSError as error:
            raise cannot_open(path, error) from error
        weakref.finalize(self, os.close, self._descriptor)
        status = os.fstat(self._descriptor)
        check_regular(path, status)
        self.num_bytes = status.st_size

    @classmethod
    def of_descriptor(cls, descriptor: int, name: str) -> File:
        """Take over an open file of the system, and close it in the end; `name` is for error messages."""
        file = cls.__new__(cls)
        file.path, file._descriptor = name, descriptor
        weakref.finalize(file, os.close, descriptor)
        file.num_bytes = os.fstat(descriptor).st_size
        return file

    def check_length(self, end: int) -> None:
        """Raise SourceError if the file ends before byte `end`, which is the one after the last that is needed."""
        if end > self.num_bytes:
            raise SourceError(
                f"{self.path}: is truncated: its image data ends at byte {end}, the file at byte "
                f"{self.num_bytes}. Write or copy the file again."
            )

    def read(self, offset: int, count: int) -> bytearray:
        """Read `count` bytes from the byte `offset` on."""
        data = bytearray(count)
        self._read_into(memoryview(data), offset)
        return data

    def read_rows(
        self, offset: int, dtype: np.dtype[Any], shape: tuple[int, ...], start: int
    ) -> RowArray:
        """Read rows of an array stored in C order, in native byte order.

        Row 0 of the array is at byte `offset`; `dtype` is that stored, including its byte order. `shape` is that of
        the rows to read, `(rows, ...)`, of which the first is `start`.
        """
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
    ) -> RowArray:
        """Read a rectangle of an image stored in C order, row by row, in native byte order.

        The image, of `shape` `(rows, columns, ...)`, is at byte `offset`; `dtype` is that stored, including its
        byte order. The rectangle `(start, stop, left, right)` is `[stop - start, right - left, ...]`.
        """
        start, stop, left, right = window
        if right - left == shape[1]:
            return self.read_rows(offset, dtype, (stop - start, *shape[1:]), start)
        rows = np.empty((stop - start, right - left, *shape[2:]), dtype)
        pixel_bytes = math.prod(shape[2:]) * dtype.itemsize
        for row, target in enumerate(rows, start):
            row_offset = offset + (row * shape[1] + left) * pixel_bytes
            self._read_into(target.view(np.uint8).reshape(-1).data, row_offset)
        return rows if dtype.isnative else rows.astype(dtype.newbyteorder("="))

    def _read_into(self, view: memoryview, offset: int) -> None:
        """Fill `view` with bytes from `offset`; one system call returns at most 2 GiB."""
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
    """Check that the file of a source is open: it is None once the source is closed."""
    if file is None:
        raise SourceError(f"{name}: was closed. Open the source again to read from it.")
    return file


class Package:
    """A package or module that reads some files, and is imported when the first of them is read.

    Its attributes are those of the module.

    Args:
        name: Dotted name of the module.

    Example:
        >>> math = Package("math")
        >>> math.missing or math.pi > 3
        True
        >>> Package("tfbig.nothing").missing
        "No module named 'tfbig.nothing'"
    """

    def __init__(self, name: str) -> None:
        self._name = name

    @cached_property
    def missing(self) -> str:
        """Why the module cannot be imported; empty if it can."""
        try:
            importlib.import_module(self._name)
        except (ImportError, OSError) as error:  # OSError: a missing system library
            return str(error)
        return ""

    def __getattr__(self, attribute: str) -> Any:
        """Import the module for an attribute of it; not for what Python asks of every object."""
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)


def check_regular(path: PathLike, status: os.stat_result) -> None:
    """Raise SourceError if a path is no regular file: reading a pipe would wait for ever."""
    if not stat.S_ISREG(status.st_mode):
        raise SourceError(
            f"{path}: cannot be read: it is not a regular file, but a folder, a pipe or a device. Check the path."
        )


def cannot_open(path: PathLike, error: OSError) -> SourceError:
    """Make the error to raise when the system refuses a path."""
    if isinstance(error, FileNotFoundError):
        return SourceError(
            f"{path}: there is no such file. Check the path (working directory: {os.getcwd()})."
        )
    return SourceError(f"{path}: cannot be opened: {error.strerror or error}.")
