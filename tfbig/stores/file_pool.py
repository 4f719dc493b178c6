"""Stores in files, for what host memory does not hold.

A file is one range of addresses mapped into memory, as `tfbig.stores.page_pool` is one without a file: the system
writes behind and reads ahead, and what is in its cache counts as free memory. The file has no name, so
nothing of it can be left: it goes with the process, however that ends.
"""

from __future__ import annotations

import errno
import mmap
import os
import shutil
import tempfile

import numpy as np

from tfbig.errors import BudgetError
from tfbig.stores.page_pool import Pool, halving


class FilePool(Pool):
    """Arrays in a nameless file of a directory.

    Args:
        folder: the directory.
    """

    def __init__(self, folder: str) -> None:
        super().__init__(shutil.disk_usage(folder).total)
        self.folder = folder
        self._file = -1
        self._keeps_blocks = False

    @property
    def reusable_bytes(self) -> int:
        """Bytes that the file has and does not use."""
        return self.free_bytes if self._keeps_blocks else 0

    def _reserve(self) -> mmap.mmap:
        """A file as large as the disk, without blocks."""
        with tempfile.TemporaryFile(dir=self.folder) as file:
            self._file = os.dup(file.fileno())

        def reserve(size: int) -> mmap.mmap:
            os.truncate(self._file, size)
            return mmap.mmap(self._file, size)

        return halving(self._reserved, reserve)

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)

    def _claim(self, start: int, size: int) -> None:
        """Blocks for a part: without, a full disk would kill the process on the first write."""
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._file, start, size)
        except OSError as error:
            self._ranges.give(start, size)
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise BudgetError(_full(self.folder, size, free_bytes(self.folder))) from error

    def _disclaim(self, start: int, size: int) -> None:
        """Gives the blocks back, so that nobody writes what nobody reads."""
        try:
            self._advise("MADV_REMOVE", start, start + size)
        except OSError:
            self._keeps_blocks = True  # this file system cannot: they are used again

    def holds(self, array: np.ndarray) -> bool:
        """Whether an array lies in the file."""
        return self.address <= _address(array) < self.address + self.peak_bytes

    def visit(self, array: np.ndarray, start: int, stop: int) -> None:
        """Rows of `[N, H, ...]` are about to be read, in order: has the next ones read, and forgets those before."""
        size = stop - start
        for image in array:
            self._rows("MADV_WILLNEED", image, stop, stop + size)
            self._rows("MADV_DONTNEED", image, start - 2 * size, start)

    def forget(self, array: np.ndarray, start: int, stop: int) -> None:
        """Rows have been written: the system may write them to the file and use their memory."""
        for image in array:
            self._rows("MADV_DONTNEED", image, start, stop)

    def forget_all(self) -> None:
        """As `forget`, for all that there is."""
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
    """The file of this process in a directory."""
    key = os.path.realpath(folder)
    if key not in _POOLS:
        _POOLS[key] = FilePool(folder)
    return _POOLS[key]


def pool_of(array: np.ndarray) -> FilePool | None:
    """The file in which an array lies."""
    return next((p for p in _POOLS.values() if p.holds(array)), None)


def forget_all() -> None:
    """Lets go of the memory of all files; their content stays."""
    for each in _POOLS.values():
        each.forget_all()


def free_bytes(folder: str) -> int:
    """Bytes that a user may still write to a directory."""
    return shutil.disk_usage(folder).free


def check(folder: str, need: int) -> None:
    """Makes sure that a step finds room.

    Raises:
        BudgetError: the directory has fewer than `need` bytes, or does not exist.
    """
    if not os.path.isdir(folder):
        raise BudgetError(
            f"scratch directory '{folder}' does not exist; create it or choose another with Budget(scratch=...)."
        )
    free = free_bytes(folder) + pool(folder).reusable_bytes
    if need > free:
        raise BudgetError(_full(folder, need, free))


def _full(folder: str, need: int, free: int) -> str:
    return (
        f"scratch directory '{folder}' is too full: {need} bytes are needed, {free} are free. Free some, or choose "
        "another with Budget(scratch=...), or less of it with Budget(disk=...)."
    )
