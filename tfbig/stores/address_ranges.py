"""Allocator of parts of one address range. Integers only."""

from __future__ import annotations

from bisect import bisect, insort
from math import inf


class Ranges:
    """Allocator of parts of the numbers from 0 upwards.

    A request gets the place that it prefers if that is free; else the smallest gap that is large enough (the lowest
    of equal ones), or the numbers after the last part in use. Adjacent gaps are merged.

    Attributes:
        top: End of the highest part that was ever in use.
    """

    def __init__(self) -> None:
        self.top = 0
        self._gaps: list[tuple[int, int]] = []  # (start, stop), sorted, below the top

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """Unused parts below the top, as `(start, stop)`."""
        return list(self._gaps)

    def take(self, size: int, limit: float = inf, wish: int | None = None) -> int:
        """Reserve a part and return its start.

        Args:
            size: Length of the part.
            limit: End of the range.
            wish: Preferred start.

        Returns:
            The start of the part.

        Raises:
            MemoryError: If no part below `limit` is large enough.
        """
        start = wish
        if start is None or start + size > limit or not self.is_free(start, size):
            start = self._best_start(size)
        if start + size > limit:
            raise MemoryError(
                f"stored images need {size} contiguous bytes, but the range of {limit} bytes has no such gap. Use "
                "smaller images or a smaller batch."
            )
        self._grow(start + size)
        begin, end = next(g for g in self._gaps if g[0] <= start and start + size <= g[1])
        self._gaps.remove((begin, end))
        for part in ((begin, start), (start + size, end)):
            if part[0] < part[1]:
                insort(self._gaps, part)
        return start

    def is_free(self, start: int, size: int) -> bool:
        """Return whether nothing in a part is in use.

        Args:
            start: Start of the part.
            size: Length of the part.

        Returns:
            Whether `take` with this wish would return this start.
        """
        tail = self._tail_start()
        stop = start + size
        return start >= tail or any(a <= start and stop <= b for a, b in self._gaps)

    def _tail_start(self) -> int:
        """Return the number from which on nothing is in use."""
        at_top = bool(self._gaps) and self._gaps[-1][1] == self.top
        return self._gaps[-1][0] if at_top else self.top

    def _best_start(self, size: int) -> int:
        fitting = [(stop - start, start) for start, stop in self._gaps if stop - start >= size]
        return min(fitting)[1] if fitting else self._tail_start()

    def _grow(self, stop: int) -> None:
        if stop > self.top:
            tail = self._tail_start()
            if tail < self.top:
                self._gaps.pop()
            insort(self._gaps, (tail, stop))
            self.top = stop

    def give(self, start: int, size: int) -> None:
        """Free a part that `take` returned.

        Args:
            start: Start of the part.
            size: Length of the part.
        """
        stop = start + size
        place = bisect(self._gaps, (start, stop))
        if place < len(self._gaps) and self._gaps[place][0] == stop:
            stop = self._gaps.pop(place)[1]
        if place and self._gaps[place - 1][1] == start:
            start = self._gaps.pop(place - 1)[0]
        insort(self._gaps, (start, stop))
