"""Axes of operations that copy rows: output row `o` is input row `index(o)`.

`index` and `extent` use operators only, so that they take integers, arrays and tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tfbig.geometry.windows import Interval, Number, Window, clip
from tfbig.units import ceil_div


@dataclass(frozen=True)
class Mirror:
    """Padding with the rows at the border in reverse order.

    Args:
        before: Rows added before the first.
        after: Rows added after the last.
        edge: Whether the row at the border is repeated too (`"symmetric"`, not `"reflect"`).
    """

    before: int
    after: int
    edge: bool = False

    @property
    def window(self) -> Window:
        """Window that reads the same rows, but for those added."""
        return Window(padding=(self.before, self.after))

    def extent(self, size: int) -> int:
        """Return the output length for an input of length `size`.

        Raises:
            ValueError: The input has fewer rows than are added.
        """
        most = size - (not self.edge)
        if max(self.before, self.after) > most:
            raise ValueError(
                f"an axis of {size} pixels is padded by ({self.before}, {self.after}) of its own; expected at most "
                f"{most} on each side. Use a larger image, or pad less."
            )
        return size + self.before + self.after

    def length(self, size: Any) -> Any:
        """Return the output length, unchecked, for an integer or tensor."""
        return size + self.before + self.after

    def index(self, row: Any, size: Any) -> Any:
        """Return the input row of an output row."""
        first = self._folded(row - self.before)
        return size - 1 - self._folded(size - 1 - first)

    def _folded(self, row: Any) -> Any:
        """Return row -1 as 1, or as 0 if the row at the border is repeated."""
        return abs(2 * row + 1) // 2 if self.edge else abs(row)

    def needs(self, rows: Interval, size: int) -> Interval:
        """Return an input interval that holds what the output interval `rows` needs.

        Its ends never decrease from one interval to the next, so tiles can be joined to one that reads from the start
        of the first to the stop of the last. Intervals at a border therefore read all rows that it repeats.
        """
        first_rows = self.before + (not self.edge) if self.before else 1
        last_rows = self.after + (not self.edge) if self.after else 1
        start = np.minimum(np.maximum(rows.start - self.before, 0), size - last_rows)
        stop = np.maximum(np.minimum(rows.stop - self.before, size), first_rows)
        return Interval(start, stop)


@dataclass(frozen=True)
class Flip:
    """Reversed order of the rows."""

    def extent(self, size: int) -> int:
        """Return the output length for an input of length `size`."""
        return size

    def length(self, size: Any) -> Any:
        """Return the output length for an integer or tensor."""
        return size

    def index(self, row: Any, size: Any) -> Any:
        """Return the input row of an output row."""
        return size - 1 - row

    def needs(self, rows: Interval, size: int) -> Interval:
        """Return the input interval that the output interval `rows` needs."""
        return Interval(size - rows.stop, size - rows.start)


@dataclass(frozen=True)
class Slice:
    """Every `step`-th row from `start` to `stop`, as `x[start:stop:step]` in Python.

    Args:
        start: First row; negative numbers count from the end, None is 0.
        stop: Row after the last, as `start`; None is the end.
        step: Positive number of rows from one to the next.
    """

    start: int | None = None
    stop: int | None = None
    step: int = 1

    @property
    def window(self) -> Any:
        """Window that reads the same rows, if both ends are counted from the border next to them; else self."""
        start, stop = self.start or 0, self.stop if self.stop is not None else 0
        if start < 0 or stop > 0 or (self.stop == 0):
            return self
        return Window(stride=self.step, padding=(-start, stop))

    def _slice(self) -> slice:
        return slice(self.start, self.stop, self.step)

    def extent(self, size: int) -> int:
        """Return the output length for an input of length `size`."""
        return len(range(*self._slice().indices(size)))

    def needs(self, rows: Interval, size: int) -> Interval:
        """Return the input interval that the output interval `rows` needs."""
        first = self._slice().indices(size)[0]
        return Interval(first + rows.start * self.step, first + (rows.stop - 1) * self.step + 1)


@dataclass(frozen=True)
class Centre:
    """The rows in the middle of an image; of two middles the first.

    Args:
        rows: Their number.
    """

    rows: int

    def extent(self, size: int) -> int:
        """Return the output length for an input of length `size`.

        Raises:
            ValueError: The input has fewer rows.
        """
        if size < self.rows:
            raise ValueError(
                f"the {self.rows} pixels in the middle of an axis of {size} pixels do not exist, and Keras would "
                "enlarge the image. Use a larger image, or a Resizing layer before."
            )
        return self.rows

    def needs(self, rows: Interval, size: int) -> Interval:
        """Return the input interval that the output interval `rows` needs."""
        first = (size - self.rows) // 2
        return Interval(first + rows.start, first + rows.stop)


@dataclass(frozen=True)
class Scale:
    """Interpolation along one axis to a fixed length, with half-pixel centres.

    Args:
        size: Output length.
        radius: Input rows from a centre to the farthest that counts, if the output is not smaller than the input.
        antialias: Whether the radius grows with the input, if the output is smaller.
    """

    size: int
    radius: int
    antialias: bool = False

    def extent(self, size: int) -> int:
        """Return the output length for an input of length `size`."""
        return self.size

    def needs(self, rows: Interval, size: int) -> Interval:
        """Return the input interval that the output interval `rows` needs."""
        scale = max(ceil_div(size, self.size), 1) if self.antialias else 1
        # TensorFlow computes centres in float32: they are wrong by one row in images of 2**22 rows.
        around = self.radius * scale + 2 + (size >> 21)

        def centre(row: Number) -> Number:
            return ((2 * np.asarray(row, np.int64) + 1) * size) // (2 * self.size)

        start = np.maximum(centre(rows.start) - around, 0)
        return Interval(
            np.minimum(start, size - 1), clip(centre(rows.stop - 1) + around + 1, 1, size)
        )
