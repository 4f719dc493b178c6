"""Images that are arrays: in memory, in a file of plain samples, or memory-mapped from one."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from typing import Any, TypeGuard, final

import numpy as np
import numpy.typing as npt

from tfbig.errors import SourceError
from tfbig.sources.files import File, PathLike, still_open
from tfbig.sources.source import RowArray, Source
from tfbig.units import ceil_div


@final
class ArraySource(Source):
    """An image in memory.

    Args:
        array: `[H, W]` or `[H, W, C]`. It is not copied, so later changes to it are seen. Memory
            maps are refused, because their pages would count as memory: pass them to `open`.
        name: Name for error messages.

    Raises:
        SourceError: The array is a memory map, is not numeric, or does not have two or three axes.

    Example:
        >>> source = tfbig.sources.ArraySource(np.eye(4, dtype="uint8"))
        >>> source.shape, source.read(1, 2)[0, :, 0].tolist()
        ((4, 4, 1), [0, 1, 0, 0])
    """

    def __init__(self, array: npt.NDArray[Any], name: str = "array") -> None:
        if is_mapped(array):
            raise SourceError(
                f"{name}: is a memory map; expected an array in memory. "
                "Use tfbig.sources.open(array), which reads the file behind it."
            )
        super().__init__(array.shape, array.dtype, name)
        self._array = array.reshape(self.shape)

    def _read_window(self, start: int, stop: int, left: int, right: int) -> RowArray:
        rows = np.ascontiguousarray(self._array[start:stop, left:right], self.dtype).view()
        rows.flags.writeable = False
        return rows


@final
class PackedMask(Source):
    """A mask in memory, of one bit for each pixel.

    Args:
        mask: Boolean `[H, W]`, which is copied.
        name: Name for error messages.

    Raises:
        SourceError: The mask does not have two axes, or is empty.

    Example:
        >>> mask = tfbig.sources.PackedMask(np.eye(4, dtype=bool))
        >>> mask.shape, mask.read(1, 2)[0, :, 0].tolist()
        ((4, 4, 1), [0, 1, 0, 0])
    """

    def __init__(self, mask: npt.NDArray[np.bool_], name: str = "mask") -> None:
        if mask.ndim != 2:
            raise SourceError(f"{name}: has shape {mask.shape}; expected [H, W].")
        super().__init__(mask.shape, np.uint8, name)
        self._bits = np.packbits(mask, axis=1)

    def _read_window(self, start: int, stop: int, left: int, right: int) -> RowArray:
        first = left // 8
        bits = self._bits[start:stop, first : ceil_div(right, 8)]
        pixels = np.unpackbits(bits, axis=1)
        return np.ascontiguousarray(pixels[:, left - 8 * first : right - 8 * first, None])


@final
class RawSource(Source):
    """An image stored uncompressed in a file, row after row (C order).

    Args:
        path: The file.
        offset: Byte at which the first sample starts.
        dtype: Dtype of a stored sample, including its byte order.
        shape: `(rows, columns)` or `(rows, columns, channels)`.

    Raises:
        SourceError: The file does not exist or is too short, or dtype or shape are not valid for
            an image.

    Example:
        >>> image = np.arange(12, dtype=">u2").reshape(3, 4)
        >>> with open("scan.raw", "wb") as file:
        ...     _ = file.write(b"header" + image.tobytes())
        >>> tfbig.sources.RawSource("scan.raw", 6, ">u2", (3, 4)).read(1, 2)[0, :, 0].tolist()
        [4, 5, 6, 7]
    """

    def __init__(
        self, path: PathLike, offset: int, dtype: npt.DTypeLike, shape: Sequence[int]
    ) -> None:
        super().__init__(shape, dtype, os.fspath(path))
        self._stored = np.dtype(dtype)
        self._offset = offset
        self._file: File | None = File(path)
        self._file.check_length(offset + self.nbytes)

    def _read(self, start: int, stop: int) -> RowArray:
        shape = (stop - start, *self.shape[1:])
        file = still_open(self._file, self.name)
        return file.read_rows(self._offset, self._stored, shape, start)

    def _read_window(self, start: int, stop: int, left: int, right: int) -> RowArray:
        file = still_open(self._file, self.name)
        window = (start, stop, left, right)
        return file.read_window(self._offset, self._stored, self.shape, window)

    def close(self) -> None:
        """Close the file; reading then raises SourceError."""
        self._file = None


def from_array(array: npt.NDArray[Any]) -> Source:
    """Make a source of an array `[H, W]` or `[H, W, C]`, in memory or memory-mapped.

    Raises:
        SourceError: The array is not an image, or its file does not store it row after row.
    """
    return from_memmap(array) if is_mapped(array) else ArraySource(array)


def is_mapped(array: npt.NDArray[Any]) -> TypeGuard[np.memmap[Any, Any]]:
    """Tell whether the samples of an array are pages of a file.

    Arithmetic on a memory map returns an `np.memmap` in memory, for which this is False.
    """
    return isinstance(array, np.memmap) and getattr(array, "_mmap", None) is not None


def map_npy(file: File) -> np.memmap[Any, Any]:
    """Map the array of a `.npy` file into memory.

    Raises:
        SourceError: The file is not a `.npy` file, is truncated, or holds objects.
    """
    try:
        return np.lib.format.open_memmap(file.path, mode="r")
    except Exception as error:  # its header may also raise SyntaxError, tokenize.TokenError, ...
        raise SourceError(
            f"{file.path}: is not a readable .npy file ({error}; {file.num_bytes} bytes). If it "
            "is truncated, write or copy it again; if it holds objects, save a numeric array."
        ) from error


def from_memmap(array: np.memmap[Any, Any]) -> RawSource:
    """Open the file behind a memory map, or behind rows of one, as a source.

    Raises:
        SourceError: The file does not hold the samples, or not row after row.
    """
    name = str(array.filename or "memory map")
    if array.filename is None or array.mode == "c":
        raise SourceError(
            f"{name}: the memory map has no file name, or is copy-on-write (mode 'c'), so the file "
            "may not hold its samples. Map it by name with mode 'r', or copy it into memory."
        )
    if not array.flags.c_contiguous:
        raise SourceError(
            f"{name}: the memory map is not stored row after row (strides {array.strides} for "
            f"shape {array.shape}); expected C order. Map the whole file and use Source.crop, or "
            "save it again with numpy.ascontiguousarray."
        )
    return RawSource(array.filename, file_offset(array), array.dtype, array.shape)


def file_offset(array: np.memmap[Any, Any]) -> int:
    """Find the byte of the file at which a memory map, or rows of one, starts.

    `array.offset` is the offset of the whole map, not of rows taken from it.
    """
    mapped = np.frombuffer(array._mmap, np.uint8)  # type: ignore[attr-defined]
    mapped_from = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY
    return int(mapped_from + array.ctypes.data - mapped.ctypes.data)
