"""How memory of one range of addresses is given out: integers only, so that a plan can say what a step will hold."""

from __future__ import annotations

from bisect import bisect, insort
from math import inf


class Ranges:
    """Which parts of the numbers from 0 on are in use.

    A request takes the smallest gap that is large enough, the lowest of equal ones, or what follows the last part in
    use. Neighbouring gaps are one.

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

    def take(self, size: int, limit: float = inf) -> int:
        """The start of a part of `size` that is in use from now on.

        Raises:
            MemoryError: no part below `limit` is large enough.
        """
        fitting = [(stop - start, start) for start, stop in self._gaps if stop - start >= size]
        if fitting:
            length, start = min(fitting)
            self._gaps.remove((start, start + length))
            if length > size:
                insort(self._gaps, (start + size, start + length))
            return start
        at_top = bool(self._gaps) and self._gaps[-1][1] == self.top
        start = self._gaps[-1][0] if at_top else self.top
        if start + size > limit:
            raise MemoryError(
                f"no {size} bytes in a row are left of {limit} for stored images; use smaller "
                "images or a smaller batch."
            )
        if at_top:
            self._gaps.pop()
        self.top = start + size
        return start

    def give(self, start: int, size: int) -> None:
        """Ends the use of a part that `take` gave."""
        stop = start + size
        place = bisect(self._gaps, (start, stop))
        if place < len(self._gaps) and self._gaps[place][0] == stop:
            stop = self._gaps.pop(place)[1]
        if place and self._gaps[place - 1][1] == start:
            start = self._gaps.pop(place - 1)[0]
        insort(self._gaps, (start, stop))
