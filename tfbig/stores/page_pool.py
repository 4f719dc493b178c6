"""Host memory for whole images, used again from step to step.

Fresh pages are slow: the system zeroes each when first touched, one gigabyte in 0.6 s with huge pages and 3 s without
(measured), as long as computing on it takes. So one range of addresses is reserved and pages once touched are kept.
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

from tfbig.plan.address_ranges import Ranges, aligned

PAGE = mmap.PAGESIZE


class _Block:
    """Memory that goes back to its pool with the last array over it."""

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
        reserved: bytes of the range; only what is used takes memory. By default twice what the machine has.
    """

    def __init__(self, reserved: int | None = None) -> None:
        self._lock = threading.Lock()
        self._given: deque[tuple[int, int]] = (
            deque()
        )  # a garbage collection may add to it at any moment
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
        """Bytes kept for later."""
        return self.peak_bytes - self.used_bytes

    @property
    def peak_bytes(self) -> int:
        """Bytes up to the highest that was ever in use."""
        return self._ranges.top

    def array(self, shape: tuple[int, ...], dtype: Any, wish: int | None = None) -> np.ndarray:
        """An array with any content.

        Args:
            shape: of the array.
            dtype: of its elements.
            wish: the first byte of the range that it should take, if that is free.

        Raises:
            MemoryError: the reserved range is full.
        """
        kind = np.dtype(dtype)
        need = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        block = np.asarray(_Block(self, aligned(need), wish))
        return block[:need].view(kind).reshape(shape)

    def take(self, size: int, wish: int | None = None) -> int:
        """The first byte of a part of the range."""
        with self._lock:
            if self._pages is None:
                self._pages = self._reserve()
                self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._pages))
            self._settle()
            start = self._ranges.take(size, len(self._pages), wish)
            self._claim(start, size)
            self._used += size
            return start

    def give(self, start: int, size: int) -> None:
        """Takes a part back."""
        self._given.append((start, size))

    def trim(self) -> None:
        """Returns the memory of what is not in use to the system."""
        with self._lock:
            self._settle()
            for start, stop in self._ranges.gaps:
                self._advise("MADV_DONTNEED", start, stop)

    def _advise(self, advice: str, start: int, stop: int) -> None:
        """Tells the system about all pages between two bytes of the range, where it knows the advice."""
        first, last = -(-start // PAGE) * PAGE, stop // PAGE * PAGE
        if self._pages is not None and hasattr(mmap, advice) and first < last:
            self._pages.madvise(getattr(mmap, advice), first, last - first)

    def _settle(self) -> None:
        while self._given:
            start, size = self._given.popleft()
            self._ranges.give(start, size)
            self._used -= size
            self._disclaim(start, size)

    def _reserve(self) -> mmap.mmap:
        """Addresses without memory behind them; fewer where the system does not give so many."""
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        flags |= 0x4000 if sys.platform.startswith("linux") else 0  # MAP_NORESERVE
        pages = halving(self._reserved, lambda size: mmap.mmap(-1, size, flags=flags))
        if hasattr(mmap, "MADV_HUGEPAGE"):
            pages.madvise(mmap.MADV_HUGEPAGE)
        return pages

    def _claim(self, start: int, size: int) -> None:
        """Called before a part comes into use."""

    def _disclaim(self, start: int, size: int) -> None:
        """Called when a part is no longer in use."""


def halving(size: int, reserve: Callable[[int], mmap.mmap]) -> mmap.mmap:
    """What `reserve` gives for whole pages of `size`, or of half of it where the system refuses, or of a quarter..."""
    while True:
        try:
            return reserve(-(-size // PAGE) * PAGE)
        except OSError:
            if size < 2**28:
                raise
            size //= 2


POOL = Pool()
"""The pool of this process."""


def share_heap() -> None:
    """Lets all threads allocate from one heap (glibc; elsewhere nothing happens).

    By default every thread has an own one, keeps what strips freed there, and no other thread can use it:
    110 MB of 1.7 GB in `benchmarks/gigapixel_unet.py`. Threads that have one already keep it, so this runs on import.
    MALLOC_ARENA_MAX in the environment wins.
    """
    if sys.platform.startswith("linux") and "MALLOC_ARENA_MAX" not in os.environ:
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
        if mallopt is not None:
            mallopt(-8, 1)  # M_ARENA_MAX


share_heap()
