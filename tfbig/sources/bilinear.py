"""Bilinear scaling of images of 8 bits, in which no pixel depends on the rectangle that is computed.

A weight is a multiple of 2**-22, and those of a pixel sum to exactly 1 along each axis. So every sum of `weight along
rows * weight along columns * pixel` is a multiple of 2**-44 of at most 255, which float64 holds exactly, in whatever
order it is summed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tfbig.geometry.windows import Interval
from tfbig.sources.source import RowArray

Weights = npt.NDArray[np.float64]
Range = tuple[int, int]

_ONE: Final = 2.0**22
"""Units of a weight in 1; two factors of 22 bits and a pixel of 8 bits have 52, float64 has 53."""
_BAND: Final = 32
"""Pixels along an axis that one matrix product reads or computes, about; fewer waste less, more are quicker."""
_LOWEST_BAND: Final = 4
"""Fewest pixels of the result in a matrix product."""
_GROUP: Final = 512
"""Columns that are computed at once, or read if the image shrinks, about: they stay in a core's cache."""
_PRODUCT: Final = 2**13
"""Elements of a factor of a product up to which OpenBLAS starts no threads, which wait for others on busy cores."""


class Band(NamedTuple):
    """Pixels of an axis that are computed by one matrix product.

    Args:
        made: Their places in a range of the result.
        read: Places of the pixels of the image that they are computed from, in those of the range.
        weights: The matrix `[made, read]`.
    """

    made: slice
    read: slice
    weights: Weights


@dataclass(frozen=True)
class Axis:
    """An axis that is scaled.

    Args:
        extent: Pixels of the image.
        size: Pixels of the result.
    """

    extent: int
    size: int

    @property
    def scale(self) -> float:
        """Pixels of the image for each pixel of the result."""
        return self.extent / self.size

    def support(self, wanted: Interval) -> Interval:
        """Return the pixels of the image from which pixels of the result are computed."""
        first, last = self._centres(wanted.start), self._centres(wanted.stop - 1)
        ends = np.floor(first - self._reach + 0.5), np.floor(last + self._reach + 0.5)
        return Interval(*(end.astype(int) for end in ends)).clip(self.extent)

    def reads(self, wanted: Range) -> Range:
        """Return the range of pixels of the image from which a range of the result is computed."""
        found = self.support(Interval(*(np.asarray(each) for each in wanted)))
        return int(found.start), int(found.stop)

    def weights(self, wanted: Range) -> Weights:
        """Compute the weights `[wanted, read]` of the pixels that are read for a range of the result.

        A triangle around the centre of each pixel, as wide as two pixels of the coarser of both images, cut off at the
        border. Rounding its running sum, and not each weight, keeps the sum at 1.
        """
        read = np.arange(*self.reads(wanted)) + 0.5
        distance = abs(read - self._centres(np.arange(*wanted))[:, None]) / self._reach
        total = np.cumsum(np.maximum(1 - distance, 0), axis=1)
        weights: Weights = np.diff(np.rint(total / total[:, -1:] * _ONE), axis=1, prepend=0) / _ONE
        return weights

    def bands(self, wanted: Range) -> list[Band]:
        """Cut a range of the result into bands."""
        (start, _), (first, _) = wanted, self.reads(wanted)
        bands = []
        for band in self.ranges(wanted, _BAND):
            read = slice(*(i - first for i in self.reads(band)))
            bands.append(Band(slice(band[0] - start, band[1] - start), read, self.weights(band)))
        return bands

    def ranges(self, wanted: Range, about: int) -> list[Range]:
        """Cut a range of the result into ranges that are computed, or read if it shrinks, from about so many pixels."""
        step = max(int(about / max(self.scale, 0.5)), _LOWEST_BAND)
        return [(i, min(i + step, wanted[1])) for i in range(*wanted, step)]

    @property
    def _reach(self) -> float:
        """Half the width of the triangle, in pixels of the image."""
        return max(self.scale, 1.0)

    def _centres(self, pixels: npt.NDArray[Any]) -> Weights:
        """The centres of pixels of the result, in pixels of the image."""
        centres: Weights = (pixels + 0.5) * self.scale
        return centres


def scaled(pixels: RowArray, rows: Axis, columns: Axis, down: Range, across: Range) -> RowArray:
    """Compute a rectangle of a scaled image.

    Args:
        pixels: What it needs of the image, uint8 `[rows.reads(down), columns.reads(across), C]`.
        rows: Axis of the rows.
        columns: Axis of the columns.
        down: Rows of the rectangle.
        across: Columns of the rectangle.

    Returns:
        uint8 `[down, across, C]`, rounded to nearest, halves up.
    """
    out = np.empty((down[1] - down[0], across[1] - across[0], pixels.shape[2]), np.uint8)
    bands, left = rows.bands(down), columns.reads(across)[0]
    for group in columns.ranges(across, _GROUP):
        made = slice(*(i - across[0] for i in group))
        read = slice(*(i - left for i in columns.reads(group)))
        matrices = columns.bands(group)
        for band in bands:
            out[band.made, made] = _wide(_high(pixels[band.read, read], band.weights), matrices)
    return out


def _high(pixels: RowArray, weights: Weights) -> Weights:
    """Scale the rows of `[r, W, C]`: `[C, h, W]`, columns in pieces, with some columns of 0 after the last."""
    num_rows, num_columns, channels = pixels.shape
    width = max(_PRODUCT // (num_rows * channels), 1)
    pieces = math.ceil(num_columns / width)
    values = np.zeros((num_rows, pieces * width, channels))
    values[:, :num_columns] = pixels
    products = np.matmul(weights, values.reshape(num_rows, pieces, -1).swapaxes(0, 1))
    high = products.reshape(pieces, -1, width, channels).transpose(3, 1, 0, 2)
    reshaped: Weights = high.reshape(channels, len(weights), -1)
    return reshaped


def _wide(high: Weights, bands: list[Band]) -> RowArray:
    """Scale the columns of `[C, h, W]` and round: `[h, w, C]`, uint8."""
    wide = np.empty((*high.shape[:2], bands[-1].made.stop))
    for made, read, weights in bands:
        np.matmul(high[:, :, read], weights.T, out=wide[:, :, made])
    wide += 0.5
    return wide.astype(np.uint8).transpose(1, 2, 0)
