"""Images that are arrays: in memory, in a file of plain samples, or mapped from one."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from typing import Any, TypeGuard, final

import numpy as np
import numpy.typing as npt

from tfbig.errors import SourceError
from tfbig.sources.files import File, PathLike, still_open
from tfbig.sources.source import Rows, Source


@final
class ArraySource(Source):
    """An image that is an array in memory.

    Args:
        array: `[H, W]` or `[H, W, C]`; not copied, so changes to it are seen. Not a memory map,
            whose pages would count as memory: `open` takes one.
        name: What error messages call it.

    Raises:
        SourceError: The array is a memory map, is not numeric, or has another number of axes.
    """

    def __init__(self, array: npt.NDArray[Any], name: str = "array") -> None:
        if is_mapped(array):
            raise SourceError(
                f"{name}: is a memory map; expected an array in memory. "
                "Use tfbig.sources.open(array), which reads the file behind it."
            )
        super().__init__(array.shape, array.dtype, name)
        self._array = array.reshape(self.shape)

    def _read(self, start: int, stop: int) -> Rows:
        return self._read_window(start, stop, 0, self.shape[1])

    def _read_window(self, start: int, stop: int, left: int, right: int) -> Rows:
        rows = np.ascontiguousarray(self._array[start:stop, left:right], self.dtype).view()
        rows.flags.writeable = False
        return rows


@final
class RawSource(Source):
    """An image stored as plain samples in a file, row after row (C order).

    Args:
        path: The file.
        offset: Byte of the first sample.
        dtype: Type of a sample, byte order included.
        shape: `(rows, columns)` or `(rows, columns, channels)`.

    Raises:
        SourceError: There is no such file, it is too short, or dtype or shape are no image's.
    """

    def __init__(
        self, path: PathLike, offset: int, dtype: npt.DTypeLike, shape: Sequence[int]
    ) -> None:
        super().__init__(shape, dtype, os.fspath(path))
        self._stored = np.dtype(dtype)
        self._offset = offset
        self._file: File | None = File(path)
        self._file.check_length(offset + self.nbytes)

    def _read(self, start: int, stop: int) -> Rows:
        shape = (stop - start, *self.shape[1:])
        file = still_open(self._file, self.name)
        return file.read_rows(self._offset, self._stored, shape, start)

    def _read_window(self, start: int, stop: int, left: int, right: int) -> Rows:
        file = still_open(self._file, self.name)
        window = (start, stop, left, right)
        return file.read_window(self._offset, self._stored, self.shape, window)

    def close(self) -> None:
        self._file = None


def from_array(array: npt.NDArray[Any]) -> Source:
    """The source of an array, in memory or mapped from a file.

    Raises:
        SourceError: It is no image, or its file does not hold it row after row.
    """
    return from_memmap(array) if is_mapped(array) else ArraySource(array)


def is_mapped(array: npt.NDArray[Any]) -> TypeGuard[np.memmap[Any, Any]]:
    """Whether the samples of `array` are pages of a file: arithmetic on a map gives no map."""
    return isinstance(array, np.memmap) and getattr(array, "_mmap", None) is not None


def map_npy(file: File) -> np.memmap[Any, Any]:
    """The array of a `.npy` file.

    Raises:
        SourceError: It holds none that is whole.
    """
    try:
        return np.lib.format.open_memmap(file.path, mode="r")
    except Exception as error:  # of its header also SyntaxError, tokenize.TokenError, ...
        raise SourceError(
            f"{file.path}: is not a readable .npy file ({error}; {file.num_bytes} bytes). If it "
            "is truncated, write or copy it again; if it holds objects, save a numeric array."
        ) from error


def from_memmap(array: np.memmap[Any, Any]) -> RawSource:
    """The file behind a memory map, or behind rows of one.

    Raises:
        SourceError: The file does not hold the samples, or not row after row.
    """
    name = str(array.filename or "memory map")
    if array.filename is None or array.mode == "c":
        raise SourceError(
            f"{name}: the memory map has no file name, or is copy-on-write (mode 'c'), so the file "
            "does not tell what it holds. Map it by name with mode 'r', or copy it into memory."
        )
    if not array.flags.c_contiguous:
        raise SourceError(
            f"{name}: the memory map is not stored row after row (strides {array.strides} for "
            f"shape {array.shape}); expected C order. Map the whole file and use Source.crop, or "
            "save it again with numpy.ascontiguousarray."
        )
    return RawSource(array.filename, file_offset(array), array.dtype, array.shape)


def file_offset(array: np.memmap[Any, Any]) -> int:
    """Byte of the file where `array` begins; `array.offset` is only that of the whole map."""
    mapped = np.frombuffer(array._mmap, np.uint8)  # type: ignore[attr-defined]
    mapped_from = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY
    return int(mapped_from + array.ctypes.data - mapped.ctypes.data)
