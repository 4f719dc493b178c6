"""Stacks of pages in TIFF files: channels and planes along z, as OME-TIFF and ImageJ write them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, final

import numpy as np
import tifffile

from tfbig.errors import SourceError
from tfbig.sources.files import File, PathLike
from tfbig.sources.slides.slide import Slide
from tfbig.sources.slides.stacks import Plane, chosen_planes
from tfbig.sources.slides.tiff import TiffSource
from tfbig.sources.slides.tiff_layout import (
    TiffLayout,
    TiffPyramid,
    layout_of_page,
    opened,
    pyramid_of,
    unreadable,
)
from tfbig.sources.source import RowArray, Source

CACHE_BYTES: Final = 64 * 2**20
"""Size of the caches of decoded tiles of all pages of a level."""
_DEPTH: Final = "ZQI"
"""Axes that count as z: pages of an unknown kind are planes too."""


@dataclass(frozen=True)
class _Stack:
    """Pages of a stack.

    Attributes:
        pyramid: Sizes of the levels.
        layouts: Layouts by level, plane and channel.
    """

    pyramid: TiffPyramid
    layouts: Sequence[Sequence[Sequence[TiffLayout]]]


@final
class TiffStack(Slide):
    """Channels of one plane, or of a projection, of a stack of pages in a TIFF file.

    Axes of the stack are channels and z, in any order; pages whose axis has no name count as planes along z.

    Args:
        path: The file.
        z: Plane of the stack, counted from 0, or "max" for the largest value of all planes at each pixel.

    Raises:
        SourceError: The stack has other axes, `z` names none of its planes, or it cannot be read in strips.
    """

    def __init__(self, path: PathLike, z: Plane = None) -> None:
        self._file = File(path)
        stack = _read_stack(self._file)
        name, pyramid = self._file.path, stack.pyramid
        self._layouts = [
            [level[plane] for plane in chosen_planes(z, len(level), name)]
            for level in stack.layouts
        ]
        first = self._layouts[0][0]
        channels = sum(layout.shape[2] for layout in first)
        dtype = first[0].stored.newbyteorder("=")
        super().__init__(name, pyramid.levels, channels, dtype, pyramid.resolution, "tifffile")
        names = pyramid.channel_names
        self.channel_names = names if len(names) == channels else ()
        self.georeference = pyramid.georeference
        self._pyramid = pyramid

    def _open(self, level: int) -> Source:
        return self._open_channels(level, tuple(range(self.shape[2])))

    def _open_channels(self, level: int, channels: tuple[int, ...]) -> Source:
        planes = self._layouts[level]
        pages = [
            (page, sample)
            for page in range(len(planes[0]))
            for sample in range(planes[0][page].shape[2])
        ]
        chosen = [pages[channel] for channel in channels]
        used = sorted({page for page, _ in chosen})
        cache_bytes = CACHE_BYTES // (len(used) * len(planes))
        sources = [
            {
                n: TiffSource.of_page(self._file, self._pyramid, plane[n], level, cache_bytes)
                for n in used
            }
            for plane in planes
        ]
        return _Stacked(sources, chosen)


@final
class _Stacked(Source):
    """Samples of pages side by side, each the maximum over planes.

    Args:
        planes: Page sources by number, for each plane.
        chosen: Page and sample of each channel.
    """

    def __init__(
        self, planes: Sequence[Mapping[int, TiffSource]], chosen: Sequence[tuple[int, int]]
    ) -> None:
        first = next(iter(planes[0].values()))
        super().__init__((*first.shape[:2], len(chosen)), first.dtype, first.name)
        self._planes, self._chosen = planes, chosen

    def _read_window(self, start: int, stop: int, left: int, right: int) -> RowArray:
        out = np.empty((stop - start, right - left, self.shape[2]), self.dtype)
        for page in self._planes[0]:
            largest: RowArray | None = None
            for plane in self._planes:
                rows = plane[page].read_window((start, stop), (left, right))
                largest = rows if largest is None else np.maximum(largest, rows)
            assert largest is not None
            for channel, (number, sample) in enumerate(self._chosen):
                if number == page:
                    out[..., channel] = largest[..., sample]
        return out

    def close(self) -> None:
        """Close the pages."""
        for plane in self._planes:
            for page in plane.values():
                page.close()


def _read_stack(file: File) -> _Stack:
    """Read the layouts of all pages of a stack.

    Raises:
        SourceError: It has other axes than channels and z, a page is missing, or cannot be decoded.
    """
    try:
        with opened(file) as (tiff, series):
            levels = list(series.levels)
            layouts = [_layouts(file, level) for level in levels]
            return _Stack(pyramid_of(tiff, levels), layouts)
    except SourceError:
        raise
    except Exception as error:  # tifffile's exceptions, struct.error, ValueError, IndexError, ...
        raise unreadable(file, error) from error


def _layouts(file: File, series: tifffile.TiffPageSeries) -> list[list[TiffLayout]]:
    """Read the layouts of the pages of a level, by plane and channel."""
    page = series.keyframe
    inside = len(page.axes)
    axes = series.axes[:-inside] if series.axes.endswith(page.axes) else "?"
    sizes = dict(zip(axes, series.shape, strict=False))
    depth = [axis for axis in axes if axis in _DEPTH]
    if len(sizes) != len(axes) or set(axes) - {*_DEPTH, "C"} or len(depth) > 1:
        raise SourceError(
            f"{file.path}: holds a stack of images, shape {series.shape} with axes '{series.axes}'; expected channels "
            "(C) and planes (Z) of Y and X at most. Save one point in time, or one part of it, in a separate file."
        )
    count, channels = math.prod(sizes.values()), sizes.get("C", 1)
    numbers = np.arange(count).reshape([sizes[axis] for axis in axes])
    by_plane = (
        numbers
        if "C" not in axes or axes.endswith("C")
        else np.moveaxis(numbers, axes.index("C"), -1)
    )
    layouts = _all_layouts(file, series, count)
    return [[layouts[number] for number in line] for line in by_plane.reshape(-1, channels)]


def _all_layouts(file: File, series: tifffile.TiffPageSeries, count: int) -> list[TiffLayout]:
    """Read the layouts of the pages of a level, in order; ImageJ may write one page for all of them."""
    pages = list(series.pages)
    present = [page for page in pages if page is not None]
    if len(present) == count:
        return [layout_of_page(file, page) for page in present]
    first = layout_of_page(file, series.keyframe)
    if series.dataoffset is None or first.rows_at is None:
        raise SourceError(
            f"{file.path}: holds {len(present)} of the {count} pages of its stack; the rest "
            "is missing, or in other files. Save the stack in one file."
        )
    size = math.prod(first.shape[:2]) * first.samples * first.stored.itemsize
    file.check_length(series.dataoffset + count * size)
    return [replace(first, rows_at=series.dataoffset + number * size) for number in range(count)]
