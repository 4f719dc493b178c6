"""Host memory for whole images, used again from step to step.

Fresh pages are slow: the system zeroes each when first touched, one gigabyte in 0.6 s with huge pages and 3 s without
(measured), as long as computing on it takes. So blocks that nobody uses any more are kept for the next request.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import threading
from typing import Any

import numpy as np


class _Block:
    """Memory that goes back to its pool with the last array over it."""

    def __init__(self, pool: Pool, pages: mmap.mmap) -> None:
        self.pool, self.pages = pool, pages
        address = np.frombuffer(pages, np.uint8).__array_interface__["data"]
        self.__array_interface__ = {
            "version": 3,
            "shape": (len(pages),),
            "typestr": "|u1",
            "data": address,
        }

    def __del__(self) -> None:
        self.pool.give(self.pages)


class Pool:
    """Blocks of anonymous memory, free ones kept.

    A request takes the smallest free block that is large enough and not twice too large. Where none is, free blocks
    go back to the system before a new one is made, so that the pool never holds more than was once in use.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # garbage collected inside it may give blocks back
        self._free: list[mmap.mmap] = []
        self.used_bytes = 0
        self.peak_bytes = 0

    @property
    def free_bytes(self) -> int:
        """Bytes kept for later."""
        with self._lock:
            return sum(len(pages) for pages in self._free)

    def array(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """An array with any content, page aligned."""
        kind = np.dtype(dtype)
        need = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        block = np.asarray(_Block(self, self._take(max(need, 1))))
        return block[:need].view(kind).reshape(shape)

    def give(self, pages: mmap.mmap) -> None:
        """Takes a block back."""
        with self._lock:
            size = len(pages)
            self.used_bytes -= size
            self._free.append(pages)

    def trim(self) -> None:
        """Returns free blocks to the system."""
        with self._lock:
            self._free.clear()

    def _take(self, need: int) -> mmap.mmap:
        with self._lock:
            fitting = [p for p in self._free if need <= len(p) <= 2 * need]
            if fitting:
                pages = min(fitting, key=len)
                self._free.remove(pages)
            else:
                self._make_room(need)
                pages = _map(need)
            size = len(pages)
            self.used_bytes += size
            self.peak_bytes = max(self.peak_bytes, self.used_bytes)
            return pages

    def _make_room(self, need: int) -> None:
        """Drops free blocks, largest first, until used and free together stay within the peak."""
        self._free.sort(key=len)
        held = self.used_bytes + sum(len(p) for p in self._free)
        while self._free and held + need > self.peak_bytes:
            held -= len(self._free.pop())


def _map(need: int) -> mmap.mmap:
    pages = mmap.mmap(-1, need)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    return pages


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
