"""Sources that change the rows of another source as they are read."""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple, final

import numpy as np
import numpy.typing as npt
from PIL import Image

from tfbig.errors import SourceError
from tfbig.sources.arrays import from_array
from tfbig.sources.resolution import Mpp
from tfbig.sources.source import Rows, Source, View

_LUMA_BLOCK: Final = 2**16  # pixels whose 32-bit sums stay in a core's cache


@final
class Grayscale(View):
    """The luma of an RGB image, as Pillow's mode "L" has it, or a gray image as it is.

    `gray = (19595 R + 38470 G + 7471 B + 32768) >> 16`: ITU-R BT.601 weights in 16-bit fixed
    point, rounded to nearest.

    Args:
        source: uint8, of 1 or 3 channels.
        invert: Give `255 - gray`, so that the white ground of a slide becomes 0.

    Raises:
        SourceError: The source has another dtype or another number of channels.
    """

    def __init__(self, source: Source, invert: bool = False) -> None:
        if source.dtype != np.uint8 or source.shape[2] not in (1, 3):
            raise SourceError(
                f"{source.name}: has {source.shape[2]} channels of {source.dtype}; Grayscale "
                "expects 1 or 3 channels of uint8. Convert it first."
            )
        name = f"{'inverted gray' if invert else 'gray'} {source.name}"
        super().__init__(source, (*source.shape[:2], 1), np.uint8, name)
        self._invert = invert

    def _read_window(self, start: int, stop: int, left: int, right: int) -> Rows:
        rows = self._inner.read_window((start, stop), (left, right))
        gray = rows if rows.shape[2] == 1 else _luma(rows)
        return np.invert(gray) if self._invert else gray  # ~g == 255 - g


def _luma(rows: Rows) -> Rows:
    """uint8 `[r, W, 3]` to uint8 `[r, W, 1]`."""
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
    """A small image enlarged: row `i`, column `j` is row `i // factor`, column `j // factor`.

    Made for labels that were computed on a smaller image; the large one never exists.

    Args:
        source: The small image, an array or a source.
        factor: How many rows and columns each pixel becomes.
        shape: `(rows, columns)` of the large image, which must not reach beyond the small one's.

    Raises:
        SourceError: The small image is too small, or `factor` is below 1.
    """

    def __init__(
        self, source: Source | npt.NDArray[Any], factor: int, shape: tuple[int, int]
    ) -> None:
        small = source if isinstance(source, Source) else from_array(source)
        covered = (small.shape[0] * factor, small.shape[1] * factor)
        if factor < 1 or covered[0] < shape[0] or covered[1] < shape[1]:
            raise SourceError(
                f"{small.name}: {small.shape[0]} x {small.shape[1]} times {factor} was asked to "
                f"cover {shape[0]} x {shape[1]}. Give a factor of at least 1 and an image of at "
                "least ceil(rows / factor) x ceil(columns / factor)."
            )
        name = f"{small.name} enlarged {factor} times"
        super().__init__(small, (shape[0], shape[1], small.shape[2]), small.dtype, name)
        self._factor = factor
        self.mpp = scaled_mpp(small.mpp, (1 / factor, 1 / factor))

    def _read_window(self, start: int, stop: int, left: int, right: int) -> Rows:
        factor = self._factor
        top, side = start // factor, left // factor
        ends = math.ceil(stop / factor), math.ceil(right / factor)
        small = self._inner.read_window((top, ends[0]), (side, ends[1]))
        wide = np.repeat(small, factor, axis=1)[:, left - side * factor : right - side * factor]
        return wide[np.arange(start, stop) // factor - top]


@final
class Padded(View):
    """A source with rows at the bottom and columns at the right, so that strides divide it.

    Args:
        source: The image.
        multiple: Both sides become the next multiple of it.
        value: What every added sample is.

    Raises:
        SourceError: `multiple` is below 1, or the dtype cannot hold `value`.
    """

    def __init__(self, source: Source, multiple: int, value: float = 0) -> None:
        if multiple < 1 or not _holds(source.dtype, value):
            raise SourceError(
                f"{source.name}: cannot be padded with {value} to a multiple of {multiple}; "
                f"expected a value that {source.dtype} can hold and a multiple of at least 1."
            )
        rows, columns = (math.ceil(extent / multiple) * multiple for extent in source.shape[:2])
        name = f"padded {source.name}"
        super().__init__(source, (rows, columns, source.shape[2]), source.dtype, name)
        self._value = value

    def _read_window(self, start: int, stop: int, left: int, right: int) -> Rows:
        num_rows, num_columns = self._inner.shape[:2]
        out = np.full((stop - start, right - left, self.shape[2]), self._value, self.dtype)
        if start < num_rows and left < num_columns:
            rows, columns = (start, min(stop, num_rows)), (left, min(right, num_columns))
            inside = self._inner.read_window(rows, columns)
            out[: inside.shape[0], : inside.shape[1]] = inside
        return out


@final
class Scaled(View):
    """An image of another size, bilinear, with the filter as wide as shrinking asks (as Pillow's `resize`).

    A window reads what its pixels need and no more; it equals that part of the whole to a grey level, as Pillow rounds
    the weights of its filter.

    Args:
        source: uint8.
        shape: `(rows, columns)` of the result.

    Raises:
        SourceError: The source has another dtype, or a side is below 1.
    """

    def __init__(self, source: Source, shape: tuple[int, int]) -> None:
        if source.dtype != np.uint8 or min(shape) < 1:
            raise SourceError(
                f"{source.name}: is {source.dtype} and was to become {shape[0]} x {shape[1]}; expected uint8 and "
                "sides of at least 1."
            )
        name = f"{source.name} as {shape[0]} x {shape[1]}"
        super().__init__(source, (*shape, source.shape[2]), source.dtype, name)
        rows, columns = (n / m for n, m in zip(source.shape[:2], shape, strict=True))
        self._scale = rows, columns
        self.mpp = scaled_mpp(source.mpp, self._scale)

    def _read_window(self, start: int, stop: int, left: int, right: int) -> Rows:
        ranges = (start, stop), (left, right)
        axes = zip(ranges, self.shape, self._inner.shape, self._scale, strict=False)
        rows, columns = (_needed(*axis) for axis in axes)
        part = self._inner.read_window(rows.read, columns.read)
        size = (columns.made[1] - columns.made[0], rows.made[1] - rows.made[0])
        corners = [
            axis.made[end] * axis.scale - axis.read[0] for end in (0, 1) for axis in (columns, rows)
        ]
        box = (corners[0], corners[1], corners[2], corners[3])
        channels = [
            np.asarray(Image.fromarray(part[..., c]).resize(size, Image.Resampling.BILINEAR, box))
            for c in range(part.shape[2])
        ]
        whole = np.stack(channels, axis=-1)
        top, side = rows.made[0], columns.made[0]
        return np.ascontiguousarray(whole[start - top : stop - top, left - side : right - side])


@final
class Channels(View):
    """Some channels of an image.

    Args:
        source: The image `[H, W, C]`.
        first: The first one.
        after: The one after the last; by default all that follow.

    Raises:
        SourceError: The image has none of them.
    """

    def __init__(self, source: Source, first: int, after: int | None = None) -> None:
        rows, columns, channels = source.shape
        self._part = slice(first, channels if after is None else after)
        if not 0 <= self._part.start < self._part.stop <= channels:
            raise SourceError(
                f"{source.name}: channels {first} to {after} were asked for, it has {channels}, counted from 0."
            )
        shape = (rows, columns, self._part.stop - self._part.start)
        super().__init__(source, shape, source.dtype, source.name)

    def _read_window(self, start: int, stop: int, left: int, right: int) -> Rows:
        rows = self._inner.read_window((start, stop), (left, right))
        return np.ascontiguousarray(rows[..., self._part])


class _Needed(NamedTuple):
    """Of one axis: pixels to make, with a margin that is cut off again, and pixels to read for them."""

    made: tuple[int, int]
    read: tuple[int, int]
    scale: float


def _needed(wanted: tuple[int, int], made: int, given: int, scale: float) -> _Needed:
    """The filter of a pixel reaches one pixel of the result, or one of the source, to each side."""
    margin = math.ceil(1 / min(scale, 1.0)) + 1
    first, last = max(wanted[0] - margin, 0), min(wanted[1] + margin, made)
    begin, end = math.floor(first * scale), math.ceil(last * scale)
    return _Needed((first, last), (max(begin, 0), min(end, given)), scale)


def scaled_mpp(mpp: Mpp | None, steps: tuple[float, float]) -> Mpp | None:
    """Micrometres per pixel where each pixel becomes `steps` of rows and columns."""
    return None if mpp is None else (mpp[0] * steps[0], mpp[1] * steps[1])


def _holds(dtype: np.dtype[Any], value: float) -> bool:
    """Whether `dtype` holds `value`; a real dtype holds any, rounded."""
    if dtype.kind == "f":
        return True
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    return low <= value <= high and float(value).is_integer()
