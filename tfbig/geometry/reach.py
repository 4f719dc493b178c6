"""Pixels of an input that a pixel deep in a network depends on, along one axis; exact arithmetic only."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm

import numpy as np

from tfbig.geometry.windows import Axis, Interval, Resize, Transposed, Window
from tfbig.units import ceil_div

NOTHING = Interval(0, 0)


@dataclass(frozen=True)
class Reach:
    """Rows of an input that the rows of an image depend on.

    Row r depends on rows `r * stride - before` to `r * stride + after` of the input, or on fewer. Where the input has
    one colour, so has the image, but for a pattern that repeats every `period` rows (behind a transposed convolution).

    Args:
        stride: Input rows between consecutive rows.
        before: Rows of the input before those of stride.
        after: Rows of the input after those.
        inside: Rows that depend on no padding; empty if where a row is makes a difference to all of them.
        period: Rows of the pattern.
    """

    stride: Fraction = Fraction(1)
    before: Fraction = Fraction(0)
    after: Fraction = Fraction(0)
    inside: Interval = NOTHING
    period: int = 1

    @classmethod
    def of_input(cls, size: int) -> Reach:
        """Return the reach of an input of `size` rows itself."""
        return cls(inside=Interval(0, size))

    def through(self, axis: Axis, size: int) -> Reach | None:
        """Return the reach of the output of a layer.

        Args:
            axis: Axis of the layer.
            size: Rows of its input, which has this reach.

        Returns:
            The reach; None if the layer is none that keeps one colour.
        """
        match getattr(axis, "window", axis):
            case Window() as window:
                return self._through_window(window, size, axis.extent(size))
            case Transposed() as transposed:
                return self._through_transposed(transposed, size)
            case Resize() as resize:
                return self._through_resize(resize, size)
        return None

    def _through_window(self, axis: Window, size: int, extent: int) -> Reach:
        before, low, high = axis.pads(size)[0], *self.inside
        first = ceil_div(low + before, axis.stride)
        last = (high + before - axis.span) // axis.stride
        after = axis.span - 1 - before
        period = self.period // gcd(self.period, axis.stride)
        inside = _within(first, last + 1, extent)
        return self._then(Fraction(axis.stride), Fraction(before), Fraction(after), inside, period)

    def _through_transposed(self, axis: Transposed, size: int) -> Reach:
        cut, stride, (low, high) = axis.cuts()[0], axis.stride, self.inside
        first, stop = (low - 1) * stride + axis.span - cut, high * stride - cut
        before, after = Fraction(axis.span - 1 - cut, stride), Fraction(cut, stride)
        inside = _within(first, stop, axis.extent(size))
        return self._then(Fraction(1, stride), before, after, inside, self.period * stride)

    def _through_resize(self, axis: Resize, size: int) -> Reach:
        # Row o reads the rows from c - taps to c + taps + 1 around c = floor((2 o + 1 - factor) / (2 factor)).
        factor, (low, high) = axis.factor, self.inside
        first = ceil_div(2 * factor * (low + axis.taps) + factor - 1, 2)
        stop = ceil_div(2 * factor * (high - axis.taps - 1) + factor - 1, 2)
        half = Fraction(factor - 1, 2 * factor)
        before, after = half + 1 + axis.taps, axis.taps + 1 - half
        inside = _within(first, stop, axis.extent(size))
        return self._then(Fraction(1, factor), before, after, inside, self.period * factor)

    def _then(
        self, stride: Fraction, before: Fraction, after: Fraction, inside: Interval, period: int
    ) -> Reach:
        """Return the reach of an image whose rows depend on rows of this image as given."""
        return Reach(
            self.stride * stride,
            self.before + before * self.stride,
            self.after + after * self.stride,
            inside,
            period,
        )

    def joined(self, other: Reach) -> Reach:
        """Return the reach of an image that depends on two images of one size, for the same input."""
        start = max(self.inside.start, other.inside.start)
        stop = max(min(self.inside.stop, other.inside.stop), start)
        return Reach(
            self.stride,
            max(self.before, other.before),
            max(self.after, other.after),
            NOTHING if self.stride != other.stride else Interval(start, stop),
            lcm(self.period, other.period),
        )

    def rows(self, interval: Interval) -> Interval:
        """Return the rows of the input that rows depend on.

        Args:
            interval: First row and row after the last, arrays `[n]`.
        """
        start = _floor(interval.start, self.stride, -self.before)
        return Interval(start, _floor(np.asarray(interval.stop) - 1, self.stride, self.after) + 1)


def _floor(rows: np.ndarray, factor: Fraction, offset: Fraction) -> np.ndarray:
    """Return `floor(rows * factor + offset)`, or less in no case."""
    common = lcm(factor.denominator, offset.denominator)
    numbers = np.asarray(rows, np.int64) * int(factor * common) + int(offset * common)
    return numbers // common


def _within(start: int, stop: int, size: int) -> Interval:
    """Return the part of an interval that lies in an image of `size` rows; `NOTHING` if it is empty."""
    start, stop = max(start, 0), min(stop, size)
    return Interval(start, stop) if start < stop else NOTHING
