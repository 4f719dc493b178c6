"""Base class of slides: one image at several sizes, with the size of its pixels."""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import final

import numpy as np
import numpy.typing as npt

from tfbig.errors import Advice, SourceError
from tfbig.sources.intensity import Rescaled, percentiles
from tfbig.sources.names import title_of
from tfbig.sources.resolution import (
    COARSEST,
    FINEST,
    UM_TIMES_POWER,
    Resolution,
    is_plausible,
    one_size,
)
from tfbig.sources.slides.georeference import Georeference
from tfbig.sources.slides.stacks import chosen_channels
from tfbig.sources.source import RowArray, Source
from tfbig.sources.views import Channels, Scaled, scaled_mpp

TOLERANCE = 0.01
"""A level is used without scaling if its pixel size differs from the requested one by at most this fraction."""
ENLARGED = 1.25
"""How much finer than level 0 a requested pixel size may be: slides of one scanner differ by a few percent."""
MEASURED = 2**20
"""Percentiles are computed on the coarsest level with at least so many pixels, if there is one."""
_BLOCK_ROWS = 256


class Slide(ABC):
    """A pyramid of images of one specimen; level 0 is the finest.

    `open_slide` returns one for a file. Subclasses, for other formats, call `super().__init__` and
    define `_open(level)`, which returns the source of an existing level.

    Args:
        name: Name for error messages and results: the path.
        levels: `(rows, columns)` of each level.
        channels: Number of channels.
        dtype: Dtype of a sample.
        resolution: Resolution of level 0.
        reader: Name of the library that decodes it.

    Attributes:
        name: Name for error messages and results.
        levels: `(rows, columns)` of each level.
        reader: Name of the library that decodes it.
        shape: `(rows, columns, channels)` of level 0.
        dtype: NumPy dtype of a sample.
        mpp: Micrometres per pixel along rows and columns at level 0, or None if unknown.
        magnification: Magnification of the objective, or None if unknown.
        channel_names: Names of the channels, or an empty tuple if they have none.
        georeference: Georeference of level 0 of a GeoTIFF, or None.
        origin: Row and column of level 0 from which QuPath counts: where the scanned area begins, if the file says so
            (MRXS, SCN, BIF and others), else `(0, 0)`.

    Example:
        >>> np.save("slide.npy", np.full((64, 48, 3), 200, "uint8"))
        >>> slide = tfbig.open_slide("slide.npy", mpp=0.5)
        >>> slide.read((10, 12), (0, 5)).shape
        (2, 5, 3)
        >>> slide.at(magnification=5).shape  # 0.5 um per pixel is 20x
        (16, 12, 3)
        >>> slide.thumbnail(max_side=32).shape
        (32, 24, 3)
    """

    def __init__(
        self,
        name: str,
        levels: Sequence[tuple[int, int]],
        channels: int,
        dtype: npt.DTypeLike,
        resolution: Resolution,
        reader: str,
    ) -> None:
        self.name, self.reader = name, reader
        self.levels = tuple((int(rows), int(columns)) for rows, columns in levels)
        self.shape = (*self.levels[0], channels)
        self.dtype = np.dtype(dtype)
        self.mpp, self.magnification = resolution.mpp, resolution.magnification
        self.channel_names: tuple[str, ...] = ()
        self.georeference: Georeference | None = None
        self.origin = 0, 0
        self._sources: dict[int, Source] = {}
        self._closed = False
        self._lock = threading.Lock()

    @abstractmethod
    def _open(self, level: int) -> Source:
        """Open the source of an existing level."""

    def _open_channels(self, level: int, channels: tuple[int, ...]) -> Source:
        """Open the source of some channels of a level; readers that need not decode the others do not."""
        return Channels(self.level(level), channels)

    def channels(self, *channels: int | str) -> Slide:
        """Choose some of the channels of the slide, in the given order, without reading it.

        Args:
            *channels: Numbers, counted from 0, or names as in `channel_names`: their case does not matter, and the
                beginning of a name is enough if no other begins so.

        Returns:
            A slide with the same levels. Closing it closes this one.

        Raises:
            SourceError: There is no such channel, a name fits several, or a channel is repeated.
        """
        indices = chosen_channels(channels, self.channel_names, self.shape[2], self.name)
        names = tuple(self.channel_names[index] for index in indices if self.channel_names)
        return _Converted(
            self, lambda level: self._open_channels(level, indices), len(indices), self.dtype, names
        )

    def normalised(self, low: float = 1.0, high: float = 99.8) -> Slide:
        """Convert the slide to 8 bits: percentiles of each channel become 0 and 255, what lies beyond is clipped.

        The percentiles are those of the coarsest level with at least `MEASURED` pixels, which is read once, now; of a
        slide with one level, of that. They are exact for 8 and 16 bits; other dtypes are sampled on a regular grid of
        at most 4 million pixels.

        Args:
            low: Percentile that becomes 0, 0 to 100.
            high: Percentile that becomes 255, above `low`.

        Returns:
            A slide of uint8 with the same levels. Closing it closes this one.

        Raises:
            ValueError: The percentiles are not in increasing order within 0 and 100.
            SourceError: The level cannot be read.
        """
        fitting = [n for n, (h, w) in enumerate(self.levels) if h * w >= MEASURED]
        limits = percentiles(self.level(fitting[-1] if fitting else 0), low, high)
        convert = lambda level: Rescaled(self.level(level), limits)  # noqa: E731
        return _Converted(self, convert, self.shape[2], np.uint8, self.channel_names)

    @property
    def title(self) -> str:
        """Name of the file without its suffixes."""
        return title_of(self.name)

    @property
    def downsamples(self) -> tuple[float, ...]:
        """Width of a pixel of each level in pixels of level 0, the mean of rows and columns."""
        return tuple(sum(self._steps(level)) / 2 for level in range(len(self.levels)))

    def level(self, number: int = 0) -> Source:
        """The image of a level, without reading it.

        Args:
            number: The level.

        Returns:
            A source `[H, W, C]`.

        Raises:
            SourceError: The level does not exist or cannot be decoded, or the slide was closed.
        """
        if not 0 <= number < len(self.levels):
            sizes = ", ".join(f"{rows} x {columns}" for rows, columns in self.levels)
            raise SourceError(
                f"{self.name}: level {number} requested, but the slide has {len(self.levels)} ({sizes}), counted from "
                "0."
            )
        with self._lock:
            if self._closed:
                raise SourceError(f"{self.name}: was closed. Open the slide again to read from it.")
            if number not in self._sources:
                source = self._open(number)
                source.mpp = scaled_mpp(self.mpp, self._steps(number))
                source.origin = self.origin if number == 0 else (0, 0)
                self._sources[number] = source
            return self._sources[number]

    def read(self, rows: tuple[int, int], columns: tuple[int, int], level: int = 0) -> RowArray:
        """Read a rectangle of a level.

        Args:
            rows: `(start, stop)` in pixels of the level.
            columns: `(start, stop)` in pixels of the level.
            level: The level.

        Returns:
            Array `[rows, columns, C]` of `dtype`.

        Raises:
            IndexError: The rectangle is empty or reaches outside the level.
            SourceError: The level does not exist, or the file is damaged there.
        """
        return self.level(level).read_window(rows, columns)

    def at(
        self,
        *,
        mpp: float | None = None,
        magnification: float | None = None,
        level: int | None = None,
    ) -> Source:
        """The slide at one resolution, without reading it.

        The coarsest level that is fine enough is scaled down as it is read (bilinear, with Pillow's widened filter),
        or used unchanged if its pixel size differs by at most 1 %. Exactly one argument is required.

        Args:
            mpp: Micrometres per pixel.
            magnification: Magnification, such as 20 for 20x, which is 0.5 um per pixel on every slide whose pixel size
                is known, whatever its objective; else relative to the objective in the file.
            level: Pyramid level, used unchanged.

        Returns:
            A source `[H, W, C]`; its `mpp` is set if that of the slide is known.

        Raises:
            ValueError: Not exactly one argument is set, or it is not a positive number.
            SourceError: The pixel size of the slide is unknown, or coarser than requested.
        """
        if level is not None and mpp is None and magnification is None:
            return self.level(level)
        return self._scaled(*self._steps_at(mpp, magnification, level))

    def _steps_at(
        self, mpp: float | None, magnification: float | None, level: int | None
    ) -> tuple[float, float]:
        """The size of a pixel at a resolution in pixels of level 0, along rows and columns."""
        arguments = {"mpp": mpp, "magnification": magnification, "level": level}
        arguments = {key: value for key, value in arguments.items() if value is not None}
        values = [value for value in arguments.values() if value is not None]
        if len(values) != 1 or (level is None and not 0 < values[0] < math.inf):
            raise ValueError(
                f"{self.name}: received {arguments or 'no resolution'}; expected one of mpp, magnification and level, "
                "a positive number."
            )
        if level is not None:
            self.level(level)  # raises if it does not exist
            return self._steps(level)
        return self._steps_for(mpp, magnification)

    def step(
        self,
        *,
        mpp: float | None = None,
        magnification: float | None = None,
        level: int | None = None,
    ) -> float:
        """The side of a pixel at a resolution in pixels of level 0, for tiles that are square there.

        Args:
            mpp: Micrometres per pixel, as in `at`.
            magnification: Magnification, as in `at`.
            level: Pyramid level.

        Raises:
            ValueError: Not exactly one argument is set, or it is not a positive number.
            SourceError: The pixel size of the slide is unknown, the level does not exist, or rows and columns differ by
                more than 1 %: see `steps`.
        """
        rows, columns = self.steps(mpp=mpp, magnification=magnification, level=level)
        rounding = 0.0 if level is None else sum(1 / n for n in self.levels[level])
        step = one_size((rows, columns), rounding)
        if step is None:
            pixels = (
                f"its pixels are {self.mpp[0]:.4g} x {self.mpp[1]:.4g} um (rows x columns)"
                if self.mpp and level is None
                else f"level {level} is {self.levels[level or 0]}"
            )
            raise SourceError(
                f"{self.name}: {pixels}, so that a pixel of a tile would be {rows:.4g} x {columns:.4g} pixels of level "
                "0; expected squares, within 1 %.",
                Advice.STORED_PIXELS,
            )
        return step

    def steps(
        self,
        *,
        mpp: float | None = None,
        magnification: float | None = None,
        level: int | None = None,
    ) -> tuple[float, float]:
        """The height and width of a pixel at a resolution in pixels of level 0.

        Args:
            mpp: Micrometres per pixel, as in `at`.
            magnification: Magnification, as in `at`.
            level: Pyramid level.

        Raises:
            ValueError: Not exactly one argument is set, or it is not a positive number.
            SourceError: The pixel size of the slide is unknown, or the level does not exist.
        """
        return self._steps_at(mpp, magnification, level)

    def scaled(self, factor: float) -> Source:
        """The slide scaled down from level 0 by a factor, without reading it.

        It is read from the coarsest level that is fine enough.

        Args:
            factor: Width of a pixel in pixels of level 0.

        Raises:
            SourceError: The factor is below 1 and level 0 too coarse for it.
        """
        return self._scaled(factor, factor)

    def thumbnail(self, max_side: int = 1024) -> RowArray:
        """Read a small picture of the whole slide from the coarsest level that is large enough.

        Args:
            max_side: Largest number of rows and columns.

        Returns:
            Array `[rows, columns, C]`, uint8.

        Raises:
            SourceError: The slide is not uint8, or is damaged.
        """
        small = self.scaled(max(max(self.shape[:2]) / max_side, 1.0))
        strips = range(0, small.shape[0], _BLOCK_ROWS)
        return np.concatenate([small.read(i, min(i + _BLOCK_ROWS, small.shape[0])) for i in strips])

    def close(self) -> None:
        """Close the files; reading from the slide or its sources then raises SourceError."""
        with self._lock:
            self._closed = True
            for source in self._sources.values():
                source.close()
            self._sources.clear()

    def describe(self) -> str:
        """Describe the size, pixel size, levels and reader in one line."""
        size = " x ".join(map(str, self.shape))
        rows, columns = self.mpp or (0.0, 0.0)
        pixels = f"{rows:.4g} x {columns:.4g} um a pixel" if self.mpp else "size of pixels unknown"
        power = f", {self.magnification:g}x" if self.magnification else ""
        levels = ", ".join(f"{n:.4g}" for n in self.downsamples)
        return (
            f"{self.name}: {size} {self.dtype}, {pixels}{power}, levels {levels}, by {self.reader}"
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.describe()}>"

    def _steps(self, level: int) -> tuple[float, float]:
        """The size of a pixel of a level in pixels of level 0, along rows and columns."""
        (rows, columns), (level_rows, level_columns) = self.levels[0], self.levels[level]
        return rows / level_rows, columns / level_columns

    def _steps_for(self, mpp: float | None, magnification: float | None) -> tuple[float, float]:
        """The size of a pixel at `mpp` or `magnification` in pixels of level 0."""
        if self.mpp is None and magnification is not None and self.magnification is not None:
            step = self.magnification / magnification
            return step, step
        if self.mpp is None:
            raise SourceError(
                f"{self.name}: does not specify its pixel size; expected OpenSlide's mpp, TIFF's resolution tags or "
                "OME-XML.",
                Advice.PIXEL_SIZE,
                mpp=0.25,
            )
        target = UM_TIMES_POWER / magnification if magnification is not None else mpp
        assert target is not None
        if is_plausible((target, target)) and not is_plausible(self.mpp):
            raise SourceError(
                f"{self.name}: says that its pixels are {self.mpp[0]:.4g} x {self.mpp[1]:.4g} um, and {target:.4g} um "
                f"are asked for; expected pixels of a slide, {FINEST:g} to {COARSEST:g} um.",
                Advice.PIXEL_SIZE,
                mpp=0.25,
            )
        return target / self.mpp[0], target / self.mpp[1]

    def _scaled(self, down: float, across: float) -> Source:
        if min(down, across) * ENLARGED < 1:
            raise SourceError(
                f"{self.name}: its finest pixels are {1 / min(down, across):.3g} times as coarse as requested; "
                f"expected {ENLARGED} times at most. Use a coarser resolution, or exclude the slide."
            )
        fine_enough = [
            number
            for number in range(len(self.levels))
            if all(
                level_step <= step * (1 + TOLERANCE)
                for level_step, step in zip(self._steps(number), (down, across), strict=True)
            )
        ]
        number = fine_enough[-1] if fine_enough else 0
        source, level_steps = self.level(number), self._steps(number)
        ratios = down / level_steps[0], across / level_steps[1]
        if all(abs(ratio - 1) <= TOLERANCE for ratio in ratios):
            return source
        shape = [max(round(n / ratio), 1) for n, ratio in zip(source.shape, ratios, strict=False)]
        return Scaled(source, (shape[0], shape[1]))


@final
class _Converted(Slide):
    """A slide whose levels are computed from those of another one.

    Args:
        slide: The other slide.
        convert: Function from a level to its source.
        channels: Number of channels.
        dtype: Dtype of a sample.
        names: Names of the channels.
    """

    def __init__(
        self,
        slide: Slide,
        convert: Callable[[int], Source],
        channels: int,
        dtype: npt.DTypeLike,
        names: tuple[str, ...],
    ) -> None:
        resolution = Resolution(slide.mpp, slide.magnification)
        super().__init__(slide.name, slide.levels, channels, dtype, resolution, slide.reader)
        self.channel_names, self.georeference = names, slide.georeference
        self.origin = slide.origin
        self._slide, self._convert = slide, convert

    def _open(self, level: int) -> Source:
        return self._convert(level)

    def close(self) -> None:
        """Close the slide that this one is computed from."""
        super().close()
        self._slide.close()
