"""Host memory for whole images, reused from step to step.

Fresh pages are slow: the system zeroes each when it is first touched, one gigabyte in 0.6 s with huge pages and 3 s
without (measured), as long as the computation on it takes. So one range of addresses is reserved, and pages that were
touched are retained.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from tfbig.stores.address_ranges import Ranges
from tfbig.units import aligned, ceil_div

PAGE = mmap.PAGESIZE


class _Block:
    """Memory that returns to its pool with the last array that uses it."""

    def __init__(self, pool: Pool, size: int, wish: int | None) -> None:
        self.pool, self.size = pool, size
        self.start = pool.take(size, wish)
        self.__array_interface__ = {
            "version": 3,
            "shape": (size,),
            "typestr": "|u1",
            "data": (pool.address + self.start, False),
        }

    def __del__(self) -> None:
        if hasattr(self, "start"):
            self.pool.give(self.start, self.size)


class Pool:
    """Arrays in one reserved range of addresses.

    Args:
        reserved: Bytes of the range; only the used part needs memory. Default: twice the memory of the machine.
    """

    def __init__(self, reserved: int | None = None) -> None:
        self._lock = threading.Lock()
        # Freed parts wait here, because a garbage collection may free an array while the lock is held.
        self._returned: deque[tuple[int, int]] = deque()
        self._reserved = reserved or 2 * os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self._pages: mmap.mmap | None = None
        self._ranges = Ranges()
        self._used = 0
        self.address = 0

    @property
    def used_bytes(self) -> int:
        """Bytes in use."""
        with self._lock:
            self._settle()
            return self._used

    @property
    def free_bytes(self) -> int:
        """Bytes that were used before and can be reused."""
        return self.peak_bytes - self.used_bytes

    @property
    def peak_bytes(self) -> int:
        """Bytes up to the highest address that was ever in use."""
        return self._ranges.top

    def is_free(self, start: int, size: int) -> bool:
        """Return whether no array uses a part of the range.

        Args:
            start: First byte of the part.
            size: Bytes of the part.

        Returns:
            Whether `take` with this wish would return this start.
        """
        with self._lock:
            self._settle()
            return self._ranges.is_free(start, aligned(size))

    def array(self, shape: tuple[int, ...], dtype: Any, wish: int | None = None) -> np.ndarray:
        """Return an uninitialised array.

        Args:
            shape: Shape of the array.
            dtype: Element type.
            wish: Preferred first byte in the range; used if it is free.

        Returns:
            The array. Its memory returns to the pool with the last view of it.

        Raises:
            MemoryError: If the reserved range is full.
        """
        kind = np.dtype(dtype)
        need = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        block = np.asarray(_Block(self, aligned(need), wish))
        return block[:need].view(kind).reshape(shape)

    def take(self, size: int, wish: int | None = None) -> int:
        """Reserve a part of the range.

        Args:
            size: Bytes of the part.
            wish: Preferred first byte; used if it is free.

        Returns:
            The first byte of the part.
        """
        with self._lock:
            pages = self._open()
            self._settle()
            start = self._ranges.take(size, len(pages), wish)
            self._claim(start, size)
            self._used += size
            return start

    def give(self, start: int, size: int) -> None:
        """Free a part of the range.

        Args:
            start: First byte of the part.
            size: Bytes of the part.
        """
        self._returned.append((start, size))

    def trim(self) -> None:
        """Return unused memory to the system."""
        with self._lock:
            self._settle()
            for start, stop in self._ranges.gaps:
                self._advise("MADV_DONTNEED", start, stop)

    def _advise(self, advice: str, start: int, stop: int) -> None:
        """Advise the system about all whole pages between two bytes of the range, if it supports the advice."""
        first, last = ceil_div(start, PAGE) * PAGE, stop // PAGE * PAGE
        if self._pages is not None and hasattr(mmap, advice) and first < last:
            self._pages.madvise(getattr(mmap, advice), first, last - first)

    def _settle(self) -> None:
        while self._returned:
            start, size = self._returned.popleft()
            self._ranges.give(start, size)
            self._used -= size
            self._disclaim(start, size)

    def _open(self) -> mmap.mmap:
        """Return the reserved addresses; the first call reserves them."""
        if self._pages is None:
            self._pages = self._reserve()
            self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._pages))
        return self._pages

    def _reserve(self) -> mmap.mmap:
        """Reserve addresses without memory; fewer if the system refuses the full number."""
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        flags |= 0x4000 if sys.platform.startswith("linux") else 0  # MAP_NORESERVE
        pages = halving(self._reserved, lambda size: mmap.mmap(-1, size, flags=flags))
        if hasattr(mmap, "MADV_HUGEPAGE"):
            pages.madvise(mmap.MADV_HUGEPAGE)
        return pages

    def _claim(self, start: int, size: int) -> None:
        """Prepare a part of the range for use; called by `take`."""

    def _disclaim(self, start: int, size: int) -> None:
        """Clean up a part of the range that is no longer used."""


def halving(size: int, reserve: Callable[[int], mmap.mmap]) -> mmap.mmap:
    """Reserve `size` bytes in whole pages, or half of them, a quarter, ... if the system refuses.

    Args:
        size: Bytes to reserve.
        reserve: Function that reserves a number of bytes, or raises OSError.

    Returns:
        The result of `reserve`.

    Raises:
        OSError: If the system refuses even less than 256 MiB.
    """
    while True:
        try:
            return reserve(ceil_div(size, PAGE) * PAGE)
        except OSError:
            if size < 2**28:
                raise
            size //= 2


POOL = Pool()
"""Pool of the stores of this process."""

TILES = Pool()
"""Pool of the rectangles that are put together from stores, at addresses that TensorFlow uses without a copy."""


def share_heap() -> None:
    """Let all threads allocate from one heap (glibc only; no effect elsewhere).

    By default every thread has its own heap and retains what strips freed there, so that no other thread can use it:
    110 MB of 1.7 GB in `benchmarks/gigapixel_unet.py`. A thread that has a heap does not change it, so this runs on
    import. MALLOC_ARENA_MAX in the environment takes precedence.
    """
    if sys.platform.startswith("linux") and "MALLOC_ARENA_MAX" not in os.environ:
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(-8, 1)  # M_ARENA_MAX


share_heap()
