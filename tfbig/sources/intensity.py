"""Intensities brought to 8 bits: percentiles of an image, and the image between them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, final

import numpy as np
import numpy.typing as npt

from tfbig.errors import SourceError
from tfbig.sources.source import Pointwise, RowArray, Source
from tfbig.units import counted

Limits = npt.NDArray[np.float64]
"""Intensities that become 0 and 255, `[2, C]`."""
_SAMPLED: Final = 2**22
"""Most pixels of which percentiles are computed if their dtype is not an integer of 8 or 16 bits."""
_BLOCK_BYTES: Final = 2**25


def percentiles(image: Source, low: float, high: float) -> Limits:
    """Compute two percentiles of each channel, in one pass over an image.

    They are exact for integers of 8 and 16 bits, which are counted. Other dtypes are sampled: every n-th row and
    column, about 4 million pixels. A percentile is a value that occurs: the smallest one that at least this share of
    the pixels does not exceed (`method="inverted_cdf"` of `numpy.percentile`).

    Args:
        image: Image `[H, W, C]`.
        low: First percentile, 0 to 100.
        high: Second percentile, above the first.

    Returns:
        `[2, C]`.

    Raises:
        ValueError: The percentiles are not in increasing order within 0 and 100.
        SourceError: The image cannot be read, or a channel has no finite value.

    Example:
        >>> image = tfbig.open(np.arange(100, dtype="uint16").reshape(10, 10))
        >>> tfbig.sources.percentiles(image, 1, 90).ravel().tolist()
        [0.0, 89.0]
    """
    if not 0 <= low < high <= 100:
        raise ValueError(
            f"{image.name}: received percentiles {low} and {high}; expected two in increasing order, 0 to 100."
        )
    counted = image.dtype.kind in "bui" and image.dtype.itemsize <= 2
    return _counted(image, low, high) if counted else _sampled(image, low, high)


def _counted(image: Source, low: float, high: float) -> Limits:
    first = 0 if image.dtype.kind in "bu" else np.iinfo(image.dtype).min
    counts = np.zeros((image.shape[2], 256**image.dtype.itemsize), np.int64)
    for rows in _strips(image):
        for channel in range(image.shape[2]):
            values = rows[..., channel].astype(np.int64).ravel() - first
            counts[channel] += np.bincount(values, minlength=counts.shape[1])
    total = math.prod(image.shape[:2])
    ranks = [max(math.ceil(total * share / 100), 1) for share in (low, high)]
    cumulated = counts.cumsum(1)
    places = [[np.searchsorted(line, rank) for line in cumulated] for rank in ranks]
    return np.array(places, np.float64) + first


def _sampled(image: Source, low: float, high: float) -> Limits:
    step = max(math.ceil(math.sqrt(math.prod(image.shape[:2]) / _SAMPLED)), 1)
    chosen, start = [], 0
    for rows in _strips(image):
        chosen.append(rows[-start % step :: step, ::step].copy())
        start += len(rows)
    values = np.concatenate(chosen).reshape(-1, image.shape[2]).astype(np.float64)
    limits = np.empty((2, image.shape[2]))
    for channel in range(image.shape[2]):
        finite = values[np.isfinite(values[:, channel]), channel]
        if not finite.size:
            raise SourceError(f"{image.name}: channel {channel} has no finite value. Leave it out.")
        limits[:, channel] = np.percentile(finite, [low, high], method="inverted_cdf")
    return limits


def _strips(image: Source) -> Iterator[RowArray]:
    height = max(_BLOCK_BYTES // max(image.nbytes // image.shape[0], 1), 1)
    for start in range(0, image.shape[0], height):
        yield image.read(start, min(start + height, image.shape[0]))


@final
class Rescaled(Pointwise):
    """An image in 8 bits: `255 * (x - low) / (high - low)` of each channel, rounded and clipped to 0 to 255.

    A channel whose limits are equal is 0 up to them, and 255 above. NaN becomes 0.

    Args:
        source: Image `[H, W, C]`.
        limits: Intensities that become 0 and 255, `[2, C]`, as of `percentiles`.

    Raises:
        SourceError: There are not two finite limits for each channel.

    Example:
        >>> image = tfbig.open(np.array([[100, 200, 500, 900]], "uint16"))
        >>> tfbig.sources.Rescaled(image, [[100], [500]]).read(0, 1)[..., 0].tolist()
        [[0, 64, 255, 255]]
    """

    def __init__(self, source: Source, limits: npt.ArrayLike) -> None:
        super().__init__(source, source.shape, np.uint8, source.name)
        self.limits = np.asarray(limits, np.float64)
        if self.limits.shape != (2, source.shape[2]) or not np.isfinite(self.limits).all():
            raise SourceError(
                f"{source.name}: limits {self.limits.tolist()}; expected two finite numbers for each of its "
                f"{counted(source.shape[2], 'channel')}."
            )

    def _convert(self, pixels: RowArray) -> RowArray:
        low, high = self.limits
        span = np.where(high > low, high - low, np.finfo(np.float64).tiny)
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = (pixels.astype(np.float64) - low) * (255 / span)
        clipped: RowArray = np.clip(np.nan_to_num(scaled, nan=0.0), 0, 255)
        return np.floor(clipped + 0.5).astype(np.uint8)
