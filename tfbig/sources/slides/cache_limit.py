"""Limit of the memory that the caches of all open files take together."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from typing import Protocol


class Cache(Protocol):
    """Something with a cache that can be emptied."""

    def empty(self) -> bool:
        """Empty the cache, unless it is being used; return whether it is empty."""


class CacheLimit:
    """Limit of the bytes of several caches together; the least recently used are emptied first.

    The cache that was used last may take more alone. A cache that is in use is not emptied.

    Args:
        max_bytes: Largest number of bytes of all caches.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._sizes: OrderedDict[weakref.ref[Cache], int] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def num_bytes(self) -> int:
        """Bytes of all caches."""
        with self._lock:
            return sum(size for cache, size in self._sizes.items() if cache() is not None)

    def used(self, cache: Cache, num_bytes: int) -> None:
        """Note the size of a cache that was just used, and empty others while all together are too large."""
        with self._lock:
            last = weakref.ref(cache)
            self._sizes.pop(last, None)
            self._sizes = OrderedDict((c, n) for c, n in self._sizes.items() if c() is not None)
            total = num_bytes + sum(self._sizes.values())
            for other in list(self._sizes):
                if total <= self.max_bytes:
                    break
                if (found := other()) is None or found.empty():
                    total -= self._sizes.pop(other)
            if num_bytes:
                self._sizes[last] = num_bytes
