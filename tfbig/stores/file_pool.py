"""Spilled stores: arrays in a scratch file, for images that do not fit host memory.

The file is one range of addresses mapped into memory, like that of `tfbig.stores.page_pool`, which has no file. The
system writes changes later and reads rows ahead, and its cache of the file counts as free memory. The file has no name,
so it disappears with the process, however that ends.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import tempfile

import numpy as np

from tfbig.errors import Advice, BudgetError
from tfbig.stores.page_pool import Pool, halving
from tfbig.system.budget import check_scratch

CLEARED_BYTES = 2**24
"""Bytes of an array that are filled with zeros at a time."""


class FilePool(Pool):
    """Arrays in a nameless file.

    Args:
        folder: Directory of the file.
    """

    def __init__(self, folder: str) -> None:
        super().__init__(shutil.disk_usage(folder).total)
        self.folder = folder
        self._file = -1
        self._keeps_blocks = False

    @property
    def reusable_bytes(self) -> int:
        """Bytes on disk that the file does not use."""
        return self.free_bytes if self._keeps_blocks else 0

    def _reserve(self) -> mmap.mmap:
        """Create a sparse file as large as the disk, and map it."""
        with tempfile.TemporaryFile(dir=self.folder) as file:
            self._file = os.dup(file.fileno())

        def reserve(size: int) -> mmap.mmap:
            os.truncate(self._file, size)
            return mmap.mmap(self._file, size)

        return halving(self._reserved, reserve)

    def __del__(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)

    def _claim(self, start: int, size: int) -> None:
        """Allocate disk blocks; without them, the first write to a full disk would kill the process."""
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._file, start, size)
        except OSError as error:
            self._ranges.give(start, size)
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise _full(self.folder, size, free_bytes(self.folder)) from error

    def _disclaim(self, start: int, size: int) -> None:
        """Free the disk blocks, so that the system does not write data that is no longer needed."""
        try:
            self._advise("MADV_REMOVE", start, start + size)
        except OSError:
            self._keeps_blocks = True  # not supported by this file system; blocks are reused

    def holds(self, array: np.ndarray) -> bool:
        """Return whether an array is in the file."""
        return self.address <= _address(array) < self.address + self.peak_bytes

    def visit(self, array: np.ndarray, start: int, stop: int) -> None:
        """Tell the system that rows are about to be read in order: it loads the next rows and drops earlier ones.

        Args:
            array: `[N, H, ...]`, an array in the file.
            start: First row.
            stop: End of the rows.
        """
        size = stop - start
        for image in array:
            self._rows("MADV_WILLNEED", image, stop, stop + size)
            self._rows("MADV_DONTNEED", image, start - 2 * size, start)

    def forget(self, array: np.ndarray, start: int, stop: int) -> None:
        """Let the system write rows to the file and reuse their memory.

        Args:
            array: `[N, H, ...]`, an array in the file.
            start: First row.
            stop: End of the rows.
        """
        for image in array:
            self._rows("MADV_DONTNEED", image, start, stop)

    def clear(self, array: np.ndarray) -> None:
        """Fill an array with zeros, of which few are in memory at a time.

        Args:
            array: `[N, H, ...]`, an array in the file.
        """
        rows = max(CLEARED_BYTES // max(array.nbytes // max(array.shape[1], 1), 1), 1)
        for start in range(0, array.shape[1], rows):
            array[:, start : start + rows] = 0
            self.forget(array, start, start + rows)

    def drop(self, part: np.ndarray) -> None:
        """Let the system write a contiguous part of an array to the file and reuse its memory.

        Args:
            part: The part.
        """
        start = _address(part) - self.address
        self._advise("MADV_DONTNEED", start, start + part.nbytes)

    def forget_all(self) -> None:
        """Let the system write all arrays to the file and reuse their memory."""
        with self._lock:
            self._advise("MADV_DONTNEED", 0, self.peak_bytes)

    def _rows(self, advice: str, image: np.ndarray, start: int, stop: int) -> None:
        first, row = _address(image) - self.address, image.strides[0]
        start, stop = (min(max(int(r), 0), len(image)) for r in (start, stop))
        self._advise(advice, first + start * row, first + stop * row)


def _address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


_POOLS: dict[str, FilePool] = {}


def pool(folder: str) -> FilePool:
    """Return the pool of this process in a directory; it is created on the first call."""
    key = os.path.realpath(folder)
    if key not in _POOLS:
        _POOLS[key] = FilePool(folder)
    return _POOLS[key]


def pool_of(array: np.ndarray) -> FilePool | None:
    """Return the pool that holds an array, or None."""
    return next((p for p in _POOLS.values() if p.holds(array)), None)


def forget_all() -> None:
    """Free the memory of all files; their content remains."""
    for each in [*_POOLS.values()]:  # another thread may open a file
        each.forget_all()


def free_bytes(folder: str) -> int:
    """Return the free bytes of the disk of a directory, for this user."""
    return shutil.disk_usage(folder).free


def check(folder: str, need: int) -> None:
    """Check that a step finds enough disk space.

    Args:
        folder: The scratch directory.
        need: Bytes that the step needs.

    Raises:
        BudgetError: If the directory has fewer than `need` free bytes, or does not exist.
    """
    check_scratch(folder)
    free = free_bytes(folder) + pool(folder).reusable_bytes
    if need > free:
        raise _full(folder, need, free)


def _full(folder: str, need: int, free: int) -> BudgetError:
    return BudgetError(
        f"scratch directory '{folder}' is too full: {need} bytes are needed, {free} are free.",
        Advice.CLEAR_SCRATCH,
    )
