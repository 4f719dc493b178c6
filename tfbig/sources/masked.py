"""Images whose background has one colour, by a mask."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from tfbig.errors import SourceError
from tfbig.geometry import cells
from tfbig.geometry.background import Background, BoolArray
from tfbig.geometry.windows import Interval
from tfbig.sources.arrays import from_array
from tfbig.sources.background import cells_of_window, colour_of, read_foreground
from tfbig.sources.source import Pointwise, RowArray, Source, View
from tfbig.sources.views import holds
from tfbig.units import ceil_div

Colour = float | Sequence[float] | npt.NDArray[Any]
"""One number for all channels, or one for each."""

SAMPLES: Final = 64
"""Cells of the background of which the colour is sampled."""
SAMPLE_SIDE: Final = 16
"""Most rows and columns of a sample."""
_STRIP_SAMPLES: Final = 2**24


@final
class Masked(View):
    """An image whose background has one colour: `where(foreground, image, colour)`.

    The background is not read, so that windows of it cost nothing, and streamed models compute one pixel of it.

    Args:
        source: The image.
        background: Where the background is. Its cells cover the image.
        colour: Colour of the background, one number for all channels or one for each. Default: the median of some of
            its pixels, see `sampled_colour`.

    Attributes:
        fill: Colour of the background, `[C]`.

    Raises:
        SourceError: The cells do not cover the image, none of them is foreground, or the image cannot have the colour.

    Example:
        >>> image = tfbig.open(np.arange(8, dtype="uint8").reshape(2, 4))
        >>> masked = tfbig.sources.Masked.by(image, np.array([[0, 1]]), colour=9)
        >>> masked.read(0, 2)[..., 0].tolist()
        [[9, 9, 2, 3], [9, 9, 6, 7]]
        >>> masked.background.share
        0.5
    """

    def __init__(
        self, source: Source, background: Background, colour: Colour | None = None
    ) -> None:
        shape, expected = (
            background.foreground.shape,
            cells.num_cells(source.shape[:2], background.cell),
        )
        if shape != expected:
            raise SourceError(
                f"{source.name}: a mask of {_size(shape)} cells of {background.cell} pixels for an image of "
                f"{_size(source.shape[:2])}; expected {_size(expected)} cells. Use the mask of this image."
            )
        _check_not_empty(source.name, background.foreground)
        super().__init__(source, source.shape, source.dtype, f"masked {source.name}")
        self._own = background
        chosen = sampled_colour(source, background) if colour is None else colour
        self.fill = _checked_colour(source, chosen)

    @classmethod
    def by(
        cls,
        source: Source,
        mask: Source | npt.NDArray[Any],
        colour: Colour | None = None,
        cell: int | None = None,
    ) -> Masked:
        """Mask an image by another one.

        Args:
            source: The image.
            mask: `[h, w]` or `[h, w, C]` over the whole image; what is not 0 is foreground. It may have any size with
                the ratio of rows to columns of the image.
            colour: Colour of the background. Default: the median of some of its pixels, see `sampled_colour`.
            cell: Side of a cell in pixels. A cell that touches any foreground is foreground. Default: a pixel of the
                mask, rounded down to a power of two if it is not a whole number of pixels, and doubled until there are
                at most 2**22 cells.

        Raises:
            SourceError: The mask has another shape or no foreground, `cell` is not a multiple of its pixels, or the
                image cannot have the colour.
        """
        return cls(source, background_of_mask(source, mask, cell), colour)

    @classmethod
    def without(cls, source: Source, colour: Colour, cell: int | None = None) -> Masked:
        """Leave out where an image has a colour, which changes none of its pixels.

        The image is read once, by rows. Background is what is exactly of the colour, in whole cells.

        Args:
            source: The image.
            colour: The colour, one number for all channels or one for each.
            cell: Side of a cell in pixels. Default: 1, doubled until there are at most 2**22 cells.

        Raises:
            SourceError: No cell has the colour, or all of them have.
        """
        fill = _checked_colour(source, colour)
        background = background_of_mask(source, _OtherColours(source, fill), cell)
        if background.foreground.all():
            pixels = _samples(source, background)
            distances = np.abs(pixels.astype(np.float64) - fill).sum(-1)
            nearest, side = pixels[distances.argmin()], background.cell
            raise SourceError(
                f"{source.name}: has no cell of {side} x {side} pixels with the colour {fill.tolist()}; the nearest "
                f"colour of the {len(pixels)} pixels sampled is {nearest.tolist()}. Leave that out, smaller cells, or "
                "pass a mask."
            )
        return cls(source, background, fill)

    @property
    def weights(self) -> Masked:
        """1 on the foreground and 0 on the background, `[H, W, 1]`, for pooling that leaves background out.

        It has the dtype and the background of the image, which is computed once here too.
        """
        ones = np.broadcast_to(np.ones((), self.dtype), (*self.shape[:2], 1))
        return Masked(from_array(ones), self._own, 0)

    def _read_window(self, start: int, stop: int, left: int, right: int) -> RowArray:
        return read_foreground(self._read_inner, self._own, self.fill, (start, stop, left, right))

    def _read_inner(self, start: int, stop: int, left: int, right: int) -> RowArray:
        return self._inner.read_window((start, stop), (left, right))

    def _colour(self, start: int, stop: int, left: int, right: int) -> RowArray | None:
        foreground = cells_of_window(self._own, (start, stop, left, right))
        if not foreground.any():
            return self.fill.copy()
        colour = self._inner.colour((start, stop), (left, right))
        if colour is None or foreground.all() or (colour == self.fill).all():
            return colour
        return None

    def _find_background(self) -> Background:
        """The background of the mask, and that of the image where it has the same colour."""
        own, other = self._own, self._inner.background
        if other is None or other.foreground.all():
            return own
        if own.foreground.all():
            return other
        if (colour_of(self._inner, other) != self.fill).any():
            return own
        places = (cells.intervals(n, own.cell) for n in self.shape[:2])
        return Background(own.foreground & other.touches(*places), own.cell)


@final
class _OtherColours(Pointwise):
    """An image that is 1 where the pixels of another one have another colour than `[C]`."""

    def __init__(self, source: Source, colour: RowArray) -> None:
        super().__init__(source, (*source.shape[:2], 1), np.bool_, source.name)
        self._other = colour

    def _convert(self, pixels: RowArray) -> RowArray:
        return np.asarray((pixels != self._other).any(-1, keepdims=True))


def background_of_mask(
    source: Source, mask: Source | npt.NDArray[Any], cell: int | None = None
) -> Background:
    """Find the background of an image by a mask, with cells as in `Masked.by`.

    Raises:
        SourceError: The mask has another shape, or `cell` is not a multiple of its pixels.
    """
    small = mask if isinstance(mask, Source) else from_array(np.asarray(mask))
    shape, size = source.shape[:2], small.shape[:2]
    if cell is not None and cell < 1:
        raise SourceError(f"{source.name}: cells of {cell} pixels requested; expected at least 1.")
    if cell is not None and cells.num_cells(shape, cell) == size:
        return Background(_any_of_blocks(small, 1), cell)
    factor = max(math.ceil(n / m) for n, m in zip(shape, size, strict=True))
    if cells.num_cells(shape, factor) == size:
        side = cells.side_of_cells(shape, factor) if cell is None else cell
        if side % factor:
            raise SourceError(
                f"{source.name}: cells of {cell} pixels requested, but a pixel of the mask covers {factor} of the "
                f"image; expected a multiple of {factor}. Leave `cell` out, or pass a finer mask."
            )
        return Background(_any_of_blocks(small, side // factor), side)
    errors = (
        abs(size[a] - size[b] * shape[a] / shape[b]) / max(size[a] / shape[a], 1)
        for a, b in ((0, 1), (1, 0))
    )  # in pixels of the mask or of the image, whichever are larger
    if min(errors) >= 1:
        raise SourceError(
            f"{source.name}: a mask of {_size(size)} for an image of {_size(shape)}; expected a mask "
            "of the whole image with the same ratio of rows to columns. Use the mask of this image."
        )
    return _stretched(small, shape, cell)


def _stretched(mask: Source, shape: Sequence[int], cell: int | None) -> Background:
    """Find the background by a mask whose pixels are not a whole number of the pixels of the image."""
    size = mask.shape[:2]
    group = cells.side_of_cells(size)
    coarse = Background(_any_of_blocks(mask, group), group)
    if cell is None:
        scale = group * min(n / m for n, m in zip(shape, size, strict=True))
        cell = cells.side_of_cells(shape, cells.power_of_two(scale))
    rows, columns = (
        Interval(pixels.start * m // n, ceil_div(pixels.stop * m, n))
        for pixels, n, m in (
            (cells.intervals(n, cell), n, m) for n, m in zip(shape, size, strict=True)
        )
    )
    return Background(coarse.touches(rows, columns), cell)


def _any_of_blocks(mask: Source, side: int) -> BoolArray:
    """Tell whether blocks of a mask have anything but 0, `[ceil(h / side), ceil(w / side)]`."""
    num_rows, num_columns, channels = mask.shape
    at_once = max(_STRIP_SAMPLES // (num_columns * channels * side), 1) * side
    blocks = []
    for start in range(0, num_rows, at_once):
        rows = (mask.read(start, min(start + at_once, num_rows)) != 0).any(-1)
        tall = np.logical_or.reduceat(rows, np.arange(0, len(rows), side), axis=0)
        blocks.append(np.logical_or.reduceat(tall, np.arange(0, num_columns, side), axis=1))
    return np.concatenate(blocks)


def sampled_colour(source: Source, background: Background) -> RowArray:
    """The median colour of the background, `[C]`, channel by channel, of the same samples each time.

    The samples are up to 16 x 16 pixels in the middle of each of 64 cells, or of all if there are fewer, evenly spaced
    in the order of rows. A median between two whole numbers is rounded down. Without background it is 0.
    """
    if background.foreground.all():
        return np.zeros(source.shape[2], source.dtype)
    median = np.asarray(np.median(_samples(source, background), axis=0))
    return (median if source.dtype.kind == "f" else np.floor(median)).astype(source.dtype)


def _samples(source: Source, background: Background) -> RowArray:
    """Read pixels `[n, C]` of the background, or of the whole image if there is no background."""
    is_sampled = background.foreground == background.foreground.all()
    rows, columns = np.nonzero(is_sampled)
    chosen = np.unique(np.linspace(0, len(rows) - 1, SAMPLES).astype(int))
    height, width, channels = source.shape
    samples = [
        source.read_window(
            _middle(rows[n], background.cell, height), _middle(columns[n], background.cell, width)
        )
        for n in chosen
    ]
    return np.concatenate([sample.reshape(-1, channels) for sample in samples])


def _middle(number: int, cell: int, extent: int) -> tuple[int, int]:
    """The pixels of a sample in the middle of a cell along one axis."""
    first, after = int(number) * cell, min((int(number) + 1) * cell, extent)
    size = min(after - first, SAMPLE_SIDE)
    start = first + (after - first - size) // 2
    return start, start + size


def _checked_colour(source: Source, colour: Colour) -> RowArray:
    """Check a colour, and give it as `[C]` of the dtype of an image."""
    channels, given = source.shape[2], np.asarray(colour)
    fits = given.dtype.kind in "buif" and given.shape in ((), (channels,))
    if not fits or not all(holds(source.dtype, value) for value in given.ravel().tolist()):
        numbers = "one number" if channels == 1 else f"one number, or {channels} of them,"
        raise SourceError(
            f"{source.name}: cannot have the colour {given.tolist()}; expected {numbers} that {source.dtype} can hold."
        )
    with np.errstate(over="ignore"):
        fill = np.broadcast_to(given.astype(source.dtype), channels).copy()
    if source.dtype.kind == "f" and not np.isfinite(fill).all():
        raise SourceError(
            f"{source.name}: cannot have the colour {given.tolist()} as {source.dtype}; expected finite numbers."
        )
    return fill


def _check_not_empty(name: str, foreground: BoolArray) -> None:
    if not foreground.any():
        raise SourceError(
            f"{name}: its mask is 0 everywhere; expected some foreground. Use the mask of this image, or leave this "
            "image out."
        )


def _size(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))
