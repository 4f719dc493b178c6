"""How memory of one range of addresses is given out: integers only, so that a plan can say what a step will hold."""

from __future__ import annotations

from bisect import bisect, insort
from math import inf

ALIGNMENT = 64
"""Bytes: TensorFlow copies an array that starts anywhere else."""


def aligned(size: int) -> int:
    """The bytes that an array of `size` bytes takes of a range, one alignment at least."""
    return max(-(-size // ALIGNMENT), 1) * ALIGNMENT


class Ranges:
    """Which parts of the numbers from 0 on are in use.

    A request takes the place that it wishes for if that is free; else the smallest gap that is large enough, the
    lowest of equal ones, or what follows the last part in use. Neighbouring gaps are one.

    Attributes:
        top: end of the highest part that was ever in use.
    """

    def __init__(self) -> None:
        self.top = 0
        self._gaps: list[tuple[int, int]] = []  # (start, stop), sorted, below the top

    @property
    def gaps(self) -> list[tuple[int, int]]:
        """Parts below the top that are not in use, `(start, stop)`."""
        return list(self._gaps)

    def take(self, size: int, limit: float = inf, wish: int | None = None) -> int:
        """The start of a part of `size` that is in use from now on.

        Args:
            size: of the part.
            limit: where the numbers end.
            wish: where it should start.

        Raises:
            MemoryError: no part below `limit` is large enough.
        """
        start = wish
        if start is None or start + size > limit or not self._is_free(start, size):
            start = self._best(size)
        if start + size > limit:
            raise MemoryError(
                f"no {size} bytes in a row are left of {limit} for stored images; use smaller "
                "images or a smaller batch."
            )
        self._grow(start + size)
        begin, end = next(g for g in self._gaps if g[0] <= start and start + size <= g[1])
        self._gaps.remove((begin, end))
        for part in ((begin, start), (start + size, end)):
            if part[0] < part[1]:
                insort(self._gaps, part)
        return start

    def _is_free(self, start: int, size: int) -> bool:
        tail = self._tail()
        stop = start + size
        return start >= tail or any(a <= start and stop <= b for a, b in self._gaps)

    def _tail(self) -> int:
        """From here on nothing is in use."""
        at_top = bool(self._gaps) and self._gaps[-1][1] == self.top
        return self._gaps[-1][0] if at_top else self.top

    def _best(self, size: int) -> int:
        fitting = [(stop - start, start) for start, stop in self._gaps if stop - start >= size]
        return min(fitting)[1] if fitting else self._tail()

    def _grow(self, stop: int) -> None:
        if stop > self.top:
            tail = self._tail()
            if tail < self.top:
                self._gaps.pop()
            insort(self._gaps, (tail, stop))
            self.top = stop

    def give(self, start: int, size: int) -> None:
        """Ends the use of a part that `take` gave."""
        stop = start + size
        place = bisect(self._gaps, (start, stop))
        if place < len(self._gaps) and self._gaps[place][0] == stop:
            stop = self._gaps.pop(place)[1]
        if place and self._gaps[place - 1][1] == start:
            start = self._gaps.pop(place - 1)[0]
        insort(self._gaps, (start, stop))
