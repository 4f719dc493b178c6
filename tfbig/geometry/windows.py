"""Which input rows an output row needs: integers only, one axis at a time.

Everything the engine knows about halos follows from two questions that each axis of a layer answers:
how long its output is, and which input interval an output interval needs. Intervals are half open,
`[start, stop)`. A needed interval may reach outside the input; what lies outside is padding. An interval may hold
arrays, a number for every strip: all strips are then worked out at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

Number = Any
"""An integer, or an array of integers: one for every strip."""

Size = tuple[int, ...]
"""Rows, columns, ... of an image."""


class Interval(NamedTuple):
    """Rows `start <= row < stop`."""

    start: Number
    stop: Number

    @property
    def size(self) -> Number:
        return self.stop - self.start

    def clip(self, extent: int) -> Interval:
        """The part inside `[0, extent)`; never negative in size."""
        start = np.clip(self.start, 0, extent)
        return Interval(start, np.clip(self.stop, start, extent))

    def hull(self, other: Interval) -> Interval:
        """The smallest interval that contains both."""
        return Interval(np.minimum(self.start, other.start), np.maximum(self.stop, other.stop))


class Axis(Protocol):
    """One spatial axis of a local operation."""

    def extent(self, size: int) -> int:
        """Length of the output for an input of length `size`."""
        ...

    def needs(self, rows: Interval, size: int) -> Interval:
        """Input interval, padding included, that the output interval `rows` needs."""
        ...


@dataclass(frozen=True)
class Window:
    """A sliding window: convolution, pooling, padding, cropping.

    `output[o]` reads `input[o * stride - before + t * dilation]` for `0 <= t < kernel`.

    Args:
        kernel, stride, dilation: positive integers.
        padding: `"valid"`, `"same"` (as TensorFlow: the odd row goes after, the amount depends on the
            whole extent), or `(before, after)`; negative amounts crop.
    """

    kernel: int = 1
    stride: int = 1
    dilation: int = 1
    padding: str | tuple[int, int] = "valid"

    @property
    def span(self) -> int:
        """Rows from the first to the last tap, both included."""
        return (self.kernel - 1) * self.dilation + 1

    def pads(self, size: int) -> tuple[int, int]:
        """Rows of padding before and after an input of length `size`."""
        if isinstance(self.padding, tuple):
            return self.padding
        if self.padding == "same":
            total = max((-(-size // self.stride) - 1) * self.stride + self.span - size, 0)
            return total // 2, total - total // 2
        return 0, 0

    def extent(self, size: int) -> int:
        return max((size + sum(self.pads(size)) - self.span) // self.stride + 1, 0)

    def needs(self, rows: Interval, size: int) -> Interval:
        before = self.pads(size)[0]
        return Interval(
            rows.start * self.stride - before,
            (rows.stop - 1) * self.stride - before + self.span,
        )


@dataclass(frozen=True)
class Transposed:
    """The adjoint of a window: transposed convolution, upsampling, unfolding.

    `input[i]` adds to `output[i * stride - before + t * dilation]` for `0 <= t < kernel`.

    Args:
        kernel, stride, dilation: positive integers.
        padding: `"valid"`, `"same"` or `(before, after)`: rows cut off the full output.
        output_padding: rows added after, or None for the Keras default.
    """

    kernel: int
    stride: int = 1
    dilation: int = 1
    padding: str | tuple[int, int] = "valid"
    output_padding: int | None = None

    @property
    def span(self) -> int:
        return (self.kernel - 1) * self.dilation + 1

    def cuts(self) -> tuple[int, int]:
        """Rows cut off before the output starts, and the change of length after.

        Keras on TensorFlow computes the transposed convolution as the gradient of a convolution over
        the output length that `extent` gives; TensorFlow then splits the padding of that convolution,
        `max((size - 1) * stride + span - extent, 0)`, with the odd row after.
        """
        if self.padding == "same":
            if self.output_padding is None:
                return max(self.span - self.stride, 0) // 2, 0
            return max(2 * (self.span // 2) - self.output_padding, 0) // 2, 0
        return self.padding if isinstance(self.padding, tuple) else (0, 0)

    def extent(self, size: int) -> int:
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
        before = self.cuts()[0]
        first = -(-(rows.start + before - self.span + 1) // self.stride)
        last = (rows.stop - 1 + before) // self.stride
        first = np.clip(
            first, 0, size - 1
        )  # rows that no input reaches still need one to start from
        last = np.clip(last, first, size - 1)
        return Interval(first, last + 1)


@dataclass(frozen=True)
class Resize:
    """Interpolation to `factor` times the length with half-pixel centres and `taps` taps a side."""

    factor: int
    taps: int = 1

    def extent(self, size: int) -> int:
        return size * self.factor

    def needs(self, rows: Interval, size: int) -> Interval:
        def centre(row: Number) -> Number:  # floor((row + 1/2) / factor - 1/2)
            return (2 * row + 1 - self.factor) // (2 * self.factor)

        # One row more than exact arithmetic needs: TensorFlow computes the centre in float32.
        start = centre(rows.start) - self.taps
        stop = centre(rows.stop - 1) + self.taps + 2
        return Interval(np.maximum(start, 0), np.clip(stop, 1, size))


@dataclass(frozen=True)
class Fixed:
    """An axis of one length alone, as a layer has that reads the image whole."""

    size: int

    def extent(self, size: int) -> int:
        if size != self.size:
            raise ValueError(
                f"the model was built for {self.size} rows or columns here, the image has {size}; "
                "give it an image of the size that it was built for."
            )
        return size

    def needs(self, rows: Interval, size: int) -> Interval:
        return rows


SAME = Window()
"""The axis of everything pixelwise: output row `i` needs input row `i`."""


def partition(extent: int, num_strips: int, index: Number) -> Interval:
    """Rows that strip `index` of `num_strips` owns: disjoint, complete, sizes differ by one at most."""
    return Interval(extent * index // num_strips, extent * (index + 1) // num_strips)


@dataclass(frozen=True)
class ReceptiveField:
    """Receptive field of a chain of windows.

    Equations: `size += (span - 1) * stride`, `padding += before * stride`, `stride *= s`
    (Araujo, Norris, Sim: "Computing receptive fields of convolutional neural networks", Distill 2019).
    """

    size: int = 1
    stride: int = 1
    padding: int = 0

    def then(self, window: Window, size: int) -> ReceptiveField:
        """The field after one more window on an axis of length `size`."""
        return ReceptiveField(
            self.size + (window.span - 1) * self.stride,
            self.stride * window.stride,
            self.padding + window.pads(size)[0] * self.stride,
        )
