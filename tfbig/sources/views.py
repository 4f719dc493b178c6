"""Sources that transform another source as it is read."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, final

import numpy as np
import numpy.typing as npt

from tfbig.errors import SourceError
from tfbig.geometry import cells
from tfbig.geometry.background import Background
from tfbig.geometry.windows import Interval
from tfbig.sources import bilinear, boxes
from tfbig.sources.arrays import from_array
from tfbig.sources.background import SMALLEST, colour_of
from tfbig.sources.resolution import Mpp
from tfbig.sources.source import Pointwise, Readable, RowArray, Source, View
from tfbig.units import counted

_LUMA_BLOCK: Final = 2**16  # pixels whose 32-bit sums stay in a core's cache
_BLOCK_BYTES: Final = 2**25
"""Bytes of an image that are scaled at once."""
_FINER: Final = 4
"""How much smaller than scaled ones cells are, if these are not too many: the filter reaches beyond their borders."""
_LOWEST_BAND: Final = 8
"""Fewest rows of a scaled band of full width; if fewer fit, square blocks read fewer rows twice."""


@final
class Grayscale(Pointwise):
    """The luma of an RGB image, equal to Pillow's mode "L"; a gray image passes unchanged.

    `gray = (19595 R + 38470 G + 7471 B + 32768) >> 16`: ITU-R BT.601 weights in 16-bit fixed
    point, rounded to nearest.

    Args:
        source: Image `[H, W, 1]` or `[H, W, 3]`, uint8.
        invert: Whether to return `255 - gray`, which turns the white background of a slide into 0.

    Raises:
        SourceError: The source has another dtype or number of channels.

    Example:
        >>> rgb = tfbig.open(np.full((2, 2, 3), (255, 0, 0), "uint8"))
        >>> gray = tfbig.sources.Grayscale(rgb)
        >>> gray.shape, int(gray.read(0, 2)[0, 0, 0])
        ((2, 2, 1), 76)
    """

    def __init__(self, source: Source, invert: bool = False) -> None:
        if source.dtype != np.uint8 or source.shape[2] not in (1, 3):
            raise SourceError(
                f"{source.name}: has {counted(source.shape[2], 'channel')} of {source.dtype}; Grayscale "
                "expects 1 or 3 channels of uint8. Convert it first."
            )
        name = f"{'inverted gray' if invert else 'gray'} {source.name}"
        super().__init__(source, (*source.shape[:2], 1), np.uint8, name)
        self._invert = invert

    def _convert(self, pixels: RowArray) -> RowArray:
        gray = pixels if pixels.shape[2] == 1 else _luma(pixels)
        return np.invert(gray) if self._invert else gray  # ~g == 255 - g


@final
class RGB(Pointwise):
    """An image of 8 bits in red, green and blue: gray is repeated, black and white become 0 and 255, RGB is unchanged.

    Args:
        source: Image `[H, W, 1]` or `[H, W, 3]`, uint8 or bool.

    Raises:
        SourceError: The source has another dtype or number of channels.

    Example:
        >>> gray = tfbig.open(np.array([[0, 7]], "uint8"))
        >>> tfbig.sources.RGB(gray).read(0, 1).tolist()
        [[[0, 0, 0], [7, 7, 7]]]
    """

    def __init__(self, source: Source) -> None:
        if not can_be_rgb(source):
            raise SourceError(
                f"{source.name}: has {counted(source.shape[2], 'channel')} of {source.dtype}; expected 1 or 3 channels "
                "of 8 bits (uint8). Convert it, with the range of values that you want to see, or remove it."
            )
        super().__init__(source, (*source.shape[:2], 3), np.uint8, source.name)

    def _convert(self, pixels: RowArray) -> RowArray:
        return as_rgb(pixels)


def can_be_rgb(source: Readable) -> bool:
    """Tell whether an image `[H, W, C]`, or tiles `[n, H, W, C]`, are gray or RGB of 8 bits, or black and white."""
    return source.dtype in (np.uint8, np.bool_) and source.shape[-1] in (1, 3)


def as_rgb(pixels: RowArray) -> RowArray:
    """Convert pixels `[..., 1 or 3]`, uint8 or bool, to `[..., 3]`, uint8."""
    levels = pixels * np.uint8(255) if pixels.dtype == np.bool_ else pixels
    return levels if levels.shape[-1] == 3 else np.repeat(levels, 3, axis=-1)


def _luma(rows: RowArray) -> RowArray:
    """Compute the luma of uint8 `[r, W, 3]` as uint8 `[r, W, 1]`."""
    pixels = rows.reshape(-1, 3)
    gray = np.empty(len(pixels), np.uint8)
    for start in range(0, len(pixels), _LUMA_BLOCK):
        block = pixels[start : start + _LUMA_BLOCK]
        total = block[:, 0] * np.uint32(19595)
        total += block[:, 1] * np.uint32(38470)
        total += block[:, 2] * np.uint32(7471)
        total += np.uint32(32768)
        total >>= np.uint32(16)
        gray[start : start + _LUMA_BLOCK] = total
    return gray.reshape(*rows.shape[:2], 1)


@final
class Upsampled(View):
    """A small image enlarged by repeating pixels, without ever holding the large one.

    Pixel `(i, j)` is pixel `(i // factor, j // factor)` of the small image. Useful for labels that
    were computed on a smaller image.

    Args:
        source: The small image, an array or a source.
        factor: Number of rows and columns that each pixel becomes.
        shape: `(rows, columns)` of the large image, at most `factor` times the small one.

    Raises:
        SourceError: The small image is too small, or `factor` is below 1.

    Example:
        >>> labels = np.array([[0, 1]], "uint8")
        >>> tfbig.sources.Upsampled(labels, 2, (2, 3)).read(0, 2)[..., 0].tolist()
        [[0, 0, 1], [0, 0, 1]]
    """

    def __init__(
        self, source: Source | npt.NDArray[Any], factor: int, shape: tuple[int, int]
    ) -> None:
        small = source if isinstance(source, Source) else from_array(source)
        covered = (small.shape[0] * factor, small.shape[1] * factor)
        if factor < 1 or covered[0] < shape[0] or covered[1] < shape[1]:
            raise SourceError(
                f"{small.name}: {small.shape[0]} x {small.shape[1]} enlarged {factor} times does not "
                f"cover {shape[0]} x {shape[1]}. Use a factor of at least 1 and an image of at "
                "least ceil(rows / factor) x ceil(columns / factor)."
            )
        name = f"{small.name} enlarged {factor} times"
        super().__init__(small, (shape[0], shape[1], small.shape[2]), small.dtype, name)
        self._factor = factor
        self.mpp = scaled_mpp(small.mpp, (1 / factor, 1 / factor))

    def _read_window(self, start: int, stop: int, left: int, right: int) -> RowArray:
        factor = self._factor
        top, side = start // factor, left // factor
        ends = math.ceil(stop / factor), math.ceil(right / factor)
        small = self._inner.read_window((top, ends[0]), (side, ends[1]))
        wide = np.repeat(small, factor, axis=1)[:, left - side * factor : right - side * factor]
        return wide[np.arange(start, stop) // factor - top]

    def _colour(self, start: int, stop: int, left: int, right: int) -> RowArray | None:
        rows, columns = (
            (first // self._factor, math.ceil(after / self._factor))
            for first, after in ((start, stop), (left, right))
        )
        return self._inner.colour(rows, columns)

    def _find_background(self) -> Background | None:
        background = self._inner.background
        if background is None:
            return None
        cell = background.cell * self._factor
        rows, columns = cells.num_cells(self.shape[:2], cell)
        return Background(background.foreground[:rows, :columns], cell)


@final
class Padded(View):
    """A source padded at the bottom and right to a multiple of some size, so that strides divide it.

    Args:
        source: The image.
        multiple: Rows and columns are padded to the next multiple of this number.
        value: Value of the added samples.

    Raises:
        SourceError: `multiple` is below 1, or the dtype cannot hold `value`.

    Example:
        >>> padded = tfbig.sources.Padded(tfbig.open(np.ones((3, 5), "uint8")), 4, value=9)
        >>> padded.shape, padded.read(2, 4)[:, 3:6, 0].tolist()
        ((4, 8, 1), [[1, 1, 9], [9, 9, 9]])
    """

    def __init__(self, source: Source, multiple: int, value: float = 0) -> None:
        if multiple < 1 or not holds(source.dtype, value):
            raise SourceError(
                f"{source.name}: cannot be padded with {value} to a multiple of {multiple}; "
                f"expected a value that {source.dtype} can hold and a multiple of at least 1."
            )
        rows, columns = (math.ceil(extent / multiple) * multiple for extent in source.shape[:2])
        name = f"padded {source.name}"
        super().__init__(source, (rows, columns, source.shape[2]), source.dtype, name)
        self._value = value

    def _read_window(self, start: int, stop: int, left: int, right: int) -> RowArray:
        window, inner = ((start, stop), (left, right)), self._inner
        return boxes.padded(inner.read_window, window, inner.shape, self._value, self.dtype)

    def _colour(self, start: int, stop: int, left: int, right: int) -> RowArray | None:
        num_rows, num_columns = self._inner.shape[:2]
        if start >= num_rows or left >= num_columns:
            return np.full(self.shape[2], self._value, self.dtype)
        if stop > num_rows or right > num_columns:
            return None
        return self._inner.colour((start, stop), (left, right))

    def _find_background(self) -> Background | None:
        background, shape = self._inner.background, self.shape[:2]
        if background is None or background.foreground.all():
            return self._padding()
        num_rows, num_columns = self._inner.shape[:2]
        cell = cells.side_between(shape, background.cell, (num_rows, num_columns))
        down, across = (cells.intervals(n, cell) for n in shape)
        rows, columns = down.start < num_rows, across.start < num_columns
        foreground = np.zeros((len(rows), len(columns)), bool)
        foreground[np.ix_(rows, columns)] = background.touches(
            Interval(down.start[rows], np.minimum(down.stop[rows], num_rows)),
            Interval(across.start[columns], np.minimum(across.stop[columns], num_columns)),
        )
        if (colour_of(self._inner, background) != self._value).any():
            foreground |= np.logical_or.outer(down.stop > num_rows, across.stop > num_columns)
        return Background(foreground, cell)

    def _padding(self) -> Background | None:
        """The padding as background, unless it or the image is small."""
        inside, shape = self._inner.shape[:2], self.shape[:2]
        if shape == inside or math.prod(shape) < SMALLEST:
            return None
        cell = cells.side_between(shape, 2**20, inside)
        found = cells.rectangle(shape, cell, (0, inside[0]), (0, inside[1]))
        return None if found.foreground.all() else found


@final
class Scaled(View):
    """An image resized with a bilinear filter, which widens when it shrinks an image, as in Pillow.

    A window reads only the pixels it needs, and equals the same window of the whole image bitwise. Pillow also rounds
    between rows and columns, so its pixels may differ by one grey level.

    Args:
        source: Image of uint8.
        shape: `(rows, columns)` of the result.

    Raises:
        SourceError: The source has another dtype, or a side is below 1.

    Example:
        >>> ramp = tfbig.open(np.repeat(np.arange(0, 80, 10, dtype="uint8")[:, None], 4, 1))
        >>> tfbig.sources.Scaled(ramp, (4, 2)).read(1, 3)[:, 0, 0].tolist()
        [25, 45]
    """

    def __init__(self, source: Source, shape: tuple[int, int]) -> None:
        if source.dtype != np.uint8 or min(shape) < 1:
            raise SourceError(
                f"{source.name}: cannot scale {source.dtype} to {shape[0]} x {shape[1]}; expected uint8 and sides of "
                "at least 1."
            )
        name = f"{source.name} as {shape[0]} x {shape[1]}"
        super().__init__(source, (*shape, source.shape[2]), source.dtype, name)
        self._rows, self._columns = map(bilinear.Axis, source.shape[:2], shape)
        self.mpp = scaled_mpp(source.mpp, (self._rows.scale, self._columns.scale))

    def _read_window(self, start: int, stop: int, left: int, right: int) -> RowArray:
        out = np.empty((stop - start, right - left, self.shape[2]), self.dtype)
        height, width = self._block_shape(right - left)
        for top in range(start, stop, height):
            for side in range(left, right, width):
                rows, columns = (top, min(top + height, stop)), (side, min(side + width, right))
                target = slice(top - start, rows[1] - start), slice(side - left, columns[1] - left)
                out[target] = self._block(rows, columns)
        return out

    def _block_shape(self, num_columns: int) -> tuple[int, int]:
        """Choose rows and columns of the result that are computed at once, bands if these are not too low."""
        bytes_per_pixel = self.shape[2] * self._rows.scale * self._columns.scale
        rows = int(_BLOCK_BYTES / (bytes_per_pixel * num_columns))
        if rows >= _LOWEST_BAND:
            return rows, num_columns
        side = max(math.isqrt(int(_BLOCK_BYTES / bytes_per_pixel)), 1)
        return side, side

    def _colour(self, start: int, stop: int, left: int, right: int) -> RowArray | None:
        return self._inner.colour(
            self._rows.reads((start, stop)), self._columns.reads((left, right))
        )

    def _find_background(self) -> Background | None:
        background, shape = self._inner.background, self.shape[:2]
        if background is None:
            return None
        side = cells.power_of_two(background.cell / max(self._rows.scale, self._columns.scale))
        fine = cells.side_of_cells(shape, max(side // _FINER, 1), cells.FEWER_CELLS)
        cell = min(fine, cells.side_of_cells(shape, side))
        rows, columns = (
            axis.support(cells.intervals(axis.size, cell)) for axis in (self._rows, self._columns)
        )
        return Background(background.touches(rows, columns), cell)

    def _block(self, rows: tuple[int, int], columns: tuple[int, int]) -> RowArray:
        """Compute a rectangle of the result at once; one of a single colour is not computed."""
        window = self._rows.reads(rows), self._columns.reads(columns)
        colour = self._inner.colour(*window)
        if colour is not None:
            return np.broadcast_to(
                colour, (rows[1] - rows[0], columns[1] - columns[0], len(colour))
            )
        part = self._inner.read_window(*window)
        return bilinear.scaled(part, self._rows, self._columns, rows, columns)


@final
class CenterCropped(Pointwise):
    """The square in the middle of an image that is scaled with its aspect kept.

    The evaluation of ImageNet, as in Wightman et al., "ResNet strikes back" (2021).

    Args:
        source: Image of uint8.
        side: Rows and columns of the square.
        share: Side of the square, as a share of the shorter side of the image.

    Attributes:
        whole: The image, before it is scaled.
        scaled_size: Rows and columns of the image after it is scaled.
        corner: Row and column of the square in that.

    Raises:
        SourceError: The source has another dtype, or `side` is below 1.

    Example:
        >>> image = tfbig.open(np.zeros((300, 600, 3), "uint8"))
        >>> tfbig.sources.CenterCropped(image, 190).shape
        (190, 190, 3)
    """

    def __init__(self, source: Source, side: int, share: float = 0.95) -> None:
        rows, columns = source.shape[:2]
        factor = side / share / min(rows, columns)
        scaled = Scaled(
            source, (max(round(rows * factor), side), max(round(columns * factor), side))
        )
        self.scaled_size = scaled.shape[:2]
        self.corner = top, left = (scaled.shape[0] - side) // 2, (scaled.shape[1] - side) // 2
        square = scaled.crop((top, top + side), (left, left + side))
        name = f"{side} x {side} in the middle of {source.name}"
        super().__init__(square, square.shape, square.dtype, name)
        self.whole = source

    def _convert(self, pixels: RowArray) -> RowArray:
        return pixels


@final
class Channels(Pointwise):
    """Some channels of an image.

    Args:
        source: Image `[H, W, C]`.
        first: First channel, or a sequence of the numbers of all channels.
        after: Channel after the last; by default C.

    Raises:
        SourceError: The range is empty or reaches outside the channels of the image.

    Example:
        >>> image = tfbig.open(np.arange(4, dtype="uint8").reshape(1, 1, 4))
        >>> tfbig.sources.Channels(image, 1, 3).read(0, 1).tolist()
        [[[1, 2]]]
        >>> tfbig.sources.Channels(image, (3, 0)).read(0, 1).tolist()
        [[[3, 0]]]
    """

    def __init__(
        self, source: Source, first: int | Sequence[int], after: int | None = None
    ) -> None:
        rows, columns, channels = source.shape
        last = channels if after is None else after
        self._chosen = list(range(first, last) if isinstance(first, int) else first)
        if not self._chosen or not all(0 <= each < channels for each in self._chosen):
            requested = f"{first} to {after}" if isinstance(first, int) else self._chosen
            raise SourceError(
                f"{source.name}: channels {requested} requested, but it has {channels}, counted from 0."
            )
        super().__init__(source, (rows, columns, len(self._chosen)), source.dtype, source.name)

    def _convert(self, pixels: RowArray) -> RowArray:
        return np.ascontiguousarray(pixels[..., self._chosen])


def scaled_mpp(mpp: Mpp | None, steps: tuple[float, float]) -> Mpp | None:
    """The pixel size of an image whose pixels are `steps` times as large along rows and columns."""
    return None if mpp is None else (mpp[0] * steps[0], mpp[1] * steps[1])


def holds(dtype: np.dtype[Any], value: float) -> bool:
    """Tell whether a dtype can hold a value; a real dtype holds any value, rounded."""
    if dtype.kind == "f":
        return True
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return low <= value <= high and float(value).is_integer()
