"""Input rows needed by output rows, one axis at a time; integer arithmetic only.

Everything the engine knows about halos follows from two properties of each axis of a layer: the length of its
output, and the input interval that an output interval needs. Intervals are half open, `[start, stop)`. A needed
interval may reach outside the input; rows outside are padding. The bounds of an interval may be arrays with one
number per strip, so that all strips are computed at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple, Protocol

import numpy as np

from tfbig.units import ceil_div

Number = Any
"""An integer, or an array with one integer per strip."""

Size = tuple[int, ...]
"""Spatial size of an image: rows, columns, ..."""


def clip(number: Number, low: Number, high: Number) -> Number:
    """Return `np.clip(number, low, high)` of integers, in half the time: planning calls it a million times."""
    return np.minimum(np.maximum(number, low), high)


class Interval(NamedTuple):
    """Half-open interval of rows, `start <= row < stop`."""

    start: Number
    stop: Number

    @property
    def size(self) -> Number:
        """Number of rows."""
        return self.stop - self.start

    def clip(self, extent: int) -> Interval:
        """Return the intersection with `[0, extent)`; its size is never negative."""
        start = clip(self.start, 0, extent)
        return Interval(start, clip(self.stop, start, extent))

    def hull(self, other: Interval) -> Interval:
        """Return the smallest interval that contains both."""
        return Interval(np.minimum(self.start, other.start), np.maximum(self.stop, other.stop))

    def not_empty(self, extent: int) -> Interval:
        """Return the interval, or one row where it has none, inside `[0, extent)`."""
        start = np.minimum(self.start, extent - 1)
        return Interval(
            np.where(self.size > 0, self.start, start), np.maximum(self.stop, start + 1)
        )

    def even(self, extent: int) -> Interval:
        """Return intervals of the length of the longest one that contain these, inside `[0, extent)`.

        Args:
            extent: Number of rows, at least the longest length.
        """
        size = np.max(self.size, axis=0, keepdims=True)
        start = np.minimum(self.start, extent - size)
        return Interval(start, start + size)


class Axis(Protocol):
    """One spatial axis of a local operation."""

    def extent(self, size: int) -> int:
        """Return the output length for an input of length `size`."""
        ...

    def needs(self, rows: Interval, size: int) -> Interval:
        """Return the input interval, padding included, that the output interval `rows` needs."""
        ...


def is_pixelwise(axis: Axis) -> bool:
    """Return whether output row `i` depends on input row `i` only."""
    return isinstance(axis, Window) and axis.kernel == axis.stride == 1 and not any(axis.pads(1))


def may_be_empty(axis: Axis) -> bool:
    """Return whether some output rows of an axis may need no input row, because they lie in the padding alone."""
    if isinstance(axis, Window):
        return isinstance(axis.padding, tuple) and max(axis.padding) >= axis.span
    return not isinstance(axis, (Transposed, Resize, Fixed, Everything))


@dataclass(frozen=True)
class Window:
    """Sliding window of a convolution, pooling, padding or cropping layer along one axis.

    `output[o]` reads `input[o * stride - before + t * dilation]` for `0 <= t < kernel`.

    Args:
        kernel: Number of taps.
        stride: Input rows between consecutive output rows.
        dilation: Input rows between consecutive taps.
        padding: `"valid"`, `"same"` (as in TensorFlow: an odd row is added after, and the amount depends on the
            whole extent), or `(before, after)`; negative amounts crop.
    """

    kernel: int = 1
    stride: int = 1
    dilation: int = 1
    padding: str | tuple[int, int] = "valid"

    @property
    def rate(self) -> Fraction | None:
        """Input rows for each output row."""
        return Fraction(self.stride)

    @property
    def span(self) -> int:
        """Number of rows from the first to the last tap, inclusive."""
        return (self.kernel - 1) * self.dilation + 1

    def pads(self, size: int) -> tuple[int, int]:
        """Return the rows of padding before and after an input of length `size`."""
        if isinstance(self.padding, tuple):
            return self.padding
        if self.padding == "same":
            total = max((ceil_div(size, self.stride) - 1) * self.stride + self.span - size, 0)
            return total // 2, total - total // 2
        return 0, 0

    def extent(self, size: int) -> int:
        """Return the output length for an input of length `size`."""
        return max((size + sum(self.pads(size)) - self.span) // self.stride + 1, 0)

    def needs(self, rows: Interval, size: int) -> Interval:
        """Return the input interval that the output interval `rows` needs."""
        before = self.pads(size)[0]
        return Interval(
            rows.start * self.stride - before,
            (rows.stop - 1) * self.stride - before + self.span,
        )


@dataclass(frozen=True)
class Transposed:
    """Adjoint of a window along one axis: transposed convolution, upsampling, unfolding.

    `input[i]` adds to `output[i * stride - before + t * dilation]` for `0 <= t < kernel`.

    Args:
        kernel: Number of taps.
        stride: Output rows between consecutive input rows.
        dilation: Output rows between consecutive taps.
        padding: `"valid"`, `"same"` or `(before, after)`: rows cut off the full output.
        output_padding: Rows added after, or None for the Keras default.
    """

    kernel: int
    stride: int = 1
    dilation: int = 1
    padding: str | tuple[int, int] = "valid"
    output_padding: int | None = None

    @property
    def rate(self) -> Fraction:
        """Input rows for each output row."""
        return Fraction(1, self.stride)

    @property
    def span(self) -> int:
        """Number of rows from the first to the last tap, inclusive."""
        return (self.kernel - 1) * self.dilation + 1

    def cuts(self) -> tuple[int, int]:
        """Return the rows cut off before the output starts, and the change of length after it.

        Keras on TensorFlow computes the transposed convolution as the gradient of a convolution over
        an output of length `extent`; TensorFlow then splits the padding of that convolution,
        `max((size - 1) * stride + span - extent, 0)`, with the odd row after.
        """
        if self.padding == "same":
            if self.output_padding is None:
                return max(self.span - self.stride, 0) // 2, 0
            return max(2 * (self.span // 2) - self.output_padding, 0) // 2, 0
        return self.padding if isinstance(self.padding, tuple) else (0, 0)

    def extent(self, size: int) -> int:
        """Return the output length for an input of length `size`."""
        full = (size - 1) * self.stride + self.span
        if self.padding == "same":
            if self.output_padding is None:
                return size * self.stride
            return full - 2 * (self.span // 2) + self.output_padding
        if self.padding == "valid":
            if self.output_padding is None:
                return size * self.stride + max(self.span - self.stride, 0)
            return full + self.output_padding
        return full - sum(self.cuts())

    def needs(self, rows: Interval, size: int) -> Interval:
        """Return the input interval that the output interval `rows` needs."""
        before = self.cuts()[0]
        first = ceil_div(rows.start + before - self.span + 1, self.stride)
        last = (rows.stop - 1 + before) // self.stride
        # Output rows that no input row reaches still need one input row to start from.
        first = clip(first, 0, size - 1)
        last = clip(last, first, size - 1)
        return Interval(first, last + 1)


@dataclass(frozen=True)
class Resize:
    """Interpolation along one axis, with half-pixel centres.

    Args:
        factor: Output length divided by input length.
        taps: Input rows read on each side of a centre.
    """

    factor: int
    taps: int = 1

    @property
    def rate(self) -> Fraction | None:
        """Input rows for each output row; None where centres in float32 are rounded otherwise at other rows."""
        return None if self.factor & (self.factor - 1) else Fraction(1, self.factor)

    def extent(self, size: int) -> int:
        """Return the output length for an input of length `size`."""
        return size * self.factor

    def needs(self, rows: Interval, size: int) -> Interval:
        """Return the input interval that the output interval `rows` needs."""

        def centre(row: Number) -> Number:  # floor((row + 1/2) / factor - 1/2)
            return (2 * row + 1 - self.factor) // (2 * self.factor)

        # One row more than exact arithmetic needs: TensorFlow computes the centre in float32.
        start = centre(rows.start) - self.taps
        stop = centre(rows.stop - 1) + self.taps + 2
        return Interval(np.maximum(start, 0), clip(stop, 1, size))


@dataclass(frozen=True)
class Fixed:
    """Axis of a layer that reads the whole image, and so requires one length.

    Args:
        size: The required length.
    """

    size: int

    def extent(self, size: int) -> int:
        """Return `size`.

        Raises:
            ValueError: `size` is not the required length.
        """
        if size != self.size:
            raise ValueError(
                f"the image has {size} rows or columns, but this layer was built for {self.size}. "
                "Use an image of the size that the model was built for."
            )
        return size

    def needs(self, rows: Interval, size: int) -> Interval:
        """Return the input interval that the output interval `rows` needs."""
        return rows


@dataclass(frozen=True)
class Everything:
    """Axis of an input that every output row reads in full, such as the keys of an attention.

    It does not determine the length of the output.

    Args:
        causal: Whether an output row reads no input row after its own.
    """

    causal: bool = False

    def extent(self, size: int) -> int:
        """Return the length of the input."""
        return size

    def needs(self, rows: Interval, size: int) -> Interval:
        """Return the input interval that the output interval `rows` needs."""
        stop = clip(rows.stop, 1, size) if self.causal else 0 * rows.stop + size
        return Interval(0 * rows.start, stop)


SAME = Window()
"""Window of pixelwise layers: output row `i` needs input row `i`."""


def partition(extent: int, num_strips: int, index: Number, step: int = 1) -> Interval:
    """Return the rows that strip `index` of `num_strips` owns.

    The strips are disjoint, cover all rows, and differ by at most `step` rows in size, but for the last.

    Args:
        extent: Rows of the image.
        num_strips: Number of strips.
        index: Index of the strip.
        step: Strips begin at multiples of this number.
    """
    steps = ceil_div(extent, step)
    start, stop = (steps * i // num_strips * step for i in (index, index + 1))
    return Interval(start, stop if step == 1 else np.minimum(stop, extent))


@dataclass(frozen=True)
class ReceptiveField:
    """Receptive field of a chain of windows along one axis.

    Equations: `size += (span - 1) * stride`, `padding += before * stride`, `stride *= s`
    (Araujo, Norris, Sim: "Computing receptive fields of convolutional neural networks", Distill 2019).

    Args:
        size: Input rows that one output row depends on.
        stride: Input rows between the fields of consecutive output rows.
        padding: Rows by which the first field starts before the input.
    """

    size: int = 1
    stride: int = 1
    padding: int = 0

    def then(self, window: Window, size: int) -> ReceptiveField:
        """Return the field after one more window on an axis of length `size`."""
        return ReceptiveField(
            self.size + (window.span - 1) * self.stride,
            self.stride * window.stride,
            self.padding + window.pads(size)[0] * self.stride,
        )
