"""Base classes of data read by rows: images and rectangles of them, with handles to find them by."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, final

import numpy as np
import numpy.typing as npt

from tfbig.errors import SourceError
from tfbig.geometry import cells
from tfbig.geometry.background import Background
from tfbig.geometry.windows import Interval
from tfbig.sources import boxes
from tfbig.sources.boxes import Range
from tfbig.units import format_bytes

RowArray = npt.NDArray[Any]
"""Consecutive rows of an image, or instances of a bag: `[rows, ...]`."""

_numbers = itertools.count()
_registered: dict[str, Readable] = {}
"""Sources and bags by handle. Each access is one operation, which threads cannot interrupt."""


class Readable(ABC):
    """An array `[rows, ...]` that is read by ranges of rows, from any thread.

    Base class of `Source` and `Bag`. Subclasses call `super().__init__(shape, dtype, name)` and
    define `_read(start, stop)`, which is only called with valid, non-empty ranges.

    Args:
        shape: Shape of the whole array, rows first.
        dtype: Dtype of one sample: boolean, integer or real.
        name: Name for error messages: a path or a short description.

    Attributes:
        shape: Shape of the whole array.
        dtype: NumPy dtype in native byte order.
        name: Name for error messages.

    Raises:
        SourceError: The dtype is not boolean, integer or real.

    Example:
        >>> class Ramp(tfbig.sources.Readable):
        ...     def _read(self, start, stop):
        ...         return np.arange(start, stop, dtype="int32")[:, None]
        >>> Ramp((1000, 1), "int32", "ramp").read(998, 1000).tolist()
        [[998], [999]]
    """

    # words for error messages, which bags replace
    what = "image"
    rows = "rows"

    def __init__(self, shape: Sequence[int], dtype: npt.DTypeLike, name: str) -> None:
        self.shape: tuple[int, ...] = tuple(shape)
        self.dtype: np.dtype[Any] = _sample_dtype(dtype, name)
        self.name = name
        self._handle = f"tfbig:{next(_numbers)}"

    @abstractmethod
    def _read(self, start: int, stop: int) -> RowArray:
        """Read rows `start` to `stop` as `[stop - start, ...]`; the range is valid, not empty."""

    def read(self, start: int, stop: int) -> RowArray:
        """Read a band of rows, or a slice of a bag.

        Args:
            start: First row.
            stop: Row after the last, `start <= stop <= shape[0]`.

        Returns:
            C-contiguous array `[stop - start, ...]` of `dtype`. It may be a read-only view of an
            array in memory: copy it before changing it.

        Raises:
            IndexError: The range is reversed or out of bounds.
            SourceError: The file is damaged in this range, was closed, or has become shorter.
        """
        num_rows = self.shape[0]
        if not 0 <= start <= stop <= num_rows:
            raise IndexError(
                f"{self.name}: {self.rows} {start}:{stop} requested, but the {self.what} has "
                f"{self.rows} 0:{num_rows}. Request 0 <= start <= stop <= {num_rows}."
            )
        if start == stop:
            return np.empty((0, *self.shape[1:]), self.dtype)
        return self._read(start, stop)

    @property
    def nbytes(self) -> int:
        """Size of the whole array in bytes, decoded."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def handle(self) -> str:
        """Handle, like `'tfbig:7'`, by which `resolve` returns this source.

        The first use registers the source, which then lives until `release` is called.
        """
        _registered[self._handle] = self
        return self._handle

    def release(self) -> None:
        """Remove the source from the registry; `resolve` then raises for its handle."""
        _registered.pop(self._handle, None)

    @contextmanager
    def lent(self) -> Iterator[str]:
        """Register the source for the duration of a `with` block.

        A source that was registered before stays registered afterwards.

        Yields:
            The handle.
        """
        was_registered = self._handle in _registered
        try:
            yield self.handle
        finally:
            if not was_registered:
                self.release()

    def close(self) -> None:
        """Close the file, if there is one; reading then raises SourceError."""
        return

    def describe(self) -> str:
        """Describe the kind, name, shape, dtype and decoded size in one line."""
        size = " x ".join(map(str, self.shape))
        kind = type(self).__name__
        return f"{kind} of {self.name}: {size} {self.dtype}, {format_bytes(self.nbytes)}"

    def __repr__(self) -> str:
        return f"<{self.describe()}>"


class Source(Readable):
    """An image `[H, W, C]` that is read by bands of rows or by rectangles.

    Subclasses define `_read(start, stop)`, or `_read_window(start, stop, left, right)` if they can read
    columns without the whole rows, or both. Those that know areas of one colour without reading them
    define `_colour(start, stop, left, right)` and `_find_background()` too.

    Args:
        shape: `(rows, columns)` or `(rows, columns, channels)`.
        dtype: Dtype of one sample: boolean, integer or real.
        name: Name for error messages: a path or a short description.

    Attributes:
        shape: `(rows, columns, channels)`.
        mpp: Micrometres per pixel along rows and columns, or None if unknown. Sources that
            resample another source adjust it.
        origin: Row and column from which outlines count: `Slide.origin` for level 0 of a slide, else `(0, 0)`.

    Raises:
        SourceError: The shape does not have two or three axes, an axis has size 0, or the dtype is
            not boolean, integer or real.

    Example:
        >>> class Checkerboard(tfbig.Source):
        ...     def _read(self, start, stop):
        ...         rows, columns = np.ogrid[start:stop, : self.shape[1]]
        ...         return ((rows + columns) % 2).astype("uint8")[..., None]
        >>> board = Checkerboard((100_000, 100_000), "uint8", "board")
        >>> board.read_window((50_000, 50_002), (7, 10))[..., 0].tolist()
        [[1, 0, 1], [0, 1, 0]]
        >>> board
        <Checkerboard of board: 100000 x 100000 x 1 uint8, 9.4 GiB>
    """

    def __init__(self, shape: Sequence[int], dtype: npt.DTypeLike, name: str) -> None:
        super().__init__(_image_shape(shape, name), dtype, name)
        self.mpp: tuple[float, float] | None = None
        self.origin = 0, 0

    def read_window(self, rows: tuple[int, int], columns: tuple[int, int]) -> RowArray:
        """Read a rectangle, decoding no more than it needs.

        Args:
            rows: `(start, stop)`.
            columns: `(start, stop)`.

        Returns:
            C-contiguous array `[rows, columns, C]` of `dtype`; like the result of `read`, it may
            be a read-only view.

        Raises:
            IndexError: The rectangle is empty or out of bounds.
            SourceError: The file is damaged there, was closed, or has become shorter.
        """
        return self._read_window(*self._window(rows, columns))

    def colour(self, rows: tuple[int, int], columns: tuple[int, int]) -> RowArray | None:
        """The colour of a rectangle that is known to have only one, without decoding anything.

        Files know it where they store no pixels: missing tiles of a sparse TIFF, and padding.

        Args:
            rows: `(start, stop)`.
            columns: `(start, stop)`.

        Returns:
            Array `[C]` of `dtype`, which every pixel of the rectangle equals, or None if the
            pixels have to be read to know.

        Raises:
            IndexError: The rectangle is empty or out of bounds.
        """
        return self._colour(*self._window(rows, columns))

    @property
    def background(self) -> Background | None:
        """The part of the image that has one colour, found without decoding anything; None if that is not known.

        Every pixel outside the cells of its foreground has the same colour. It is known of masked
        images, of tiles and areas that files do not store, and of most views of these.
        """
        return self._background

    @cached_property
    def _background(self) -> Background | None:
        return self._find_background()

    def _find_background(self) -> Background | None:
        """Find the background, or None; called once."""
        return None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if cls._read is Source._read and cls._read_window is Source._read_window:
            raise TypeError(
                f"{cls.__name__}: defines neither _read nor _read_window; expected one of them, by which it is read."
            )

    def _read(self, start: int, stop: int) -> RowArray:
        return self._read_window(start, stop, 0, self.shape[1])

    def _read_window(self, start: int, stop: int, left: int, right: int) -> RowArray:
        """Read the rectangle `[stop - start, right - left, C]`, which is valid."""
        return np.ascontiguousarray(self._read(start, stop)[:, left:right])

    def _colour(self, start: int, stop: int, left: int, right: int) -> RowArray | None:
        """The colour `[C]` of the rectangle, which is valid, or None."""
        return None

    def _window(self, rows: tuple[int, int], columns: tuple[int, int]) -> tuple[int, int, int, int]:
        """Check a rectangle, and give it as `start, stop, left, right`."""
        height, width = self.shape[:2]
        down, across = (
            interval(self.name, "rows", rows, height),
            interval(self.name, "columns", columns, width),
        )
        return (*down, *across)

    def crop(
        self, rows: tuple[int, int] | None = None, columns: tuple[int, int] | None = None
    ) -> Source:
        """Show a rectangle of the image as a source, without reading anything.

        Args:
            rows: `(start, stop)`, or None for all rows.
            columns: `(start, stop)`, or None for all columns.

        Returns:
            A source with the shape of the rectangle.

        Raises:
            IndexError: The rectangle is empty or out of bounds.
        """
        return Cropped(self, rows, columns)

    def changed_handle(self, seed: int, augmented: bool = True, jitter: float = 0.0) -> str:
        """Make a handle of the image augmented by `Augmentation.draw(seed)`.

        The image is augmented as it is read; no augmented source has to be kept.

        Args:
            seed: Seed of the augmentation.
            augmented: Whether to augment it by more than `jitter`.
            jitter: Sigma of `Augmentation.with_jitter`, which changes the stains.
        """
        return f"{self.handle}?seed={seed}&augmented={int(augmented)}&jitter={jitter}"


class View(Source):
    """A source computed from another one as it is read; subclasses define `_read_window`.

    Args:
        inner: The source to read from.
        shape: Shape of the view.
        dtype: Dtype of the view.
        name: Name for error messages.
    """

    def __init__(
        self, inner: Source, shape: Sequence[int], dtype: npt.DTypeLike, name: str
    ) -> None:
        super().__init__(shape, dtype, name)
        self._inner = inner
        self.mpp = inner.mpp

    @abstractmethod
    def _read_window(self, start: int, stop: int, left: int, right: int) -> RowArray:
        """Read the rectangle `[stop - start, right - left, C]`, which is valid."""

    def close(self) -> None:
        """Close the source that this view reads from."""
        self._inner.close()


class Pointwise(View):
    """A view whose pixels each depend on the same pixel of the other source; subclasses define `_convert`."""

    @abstractmethod
    def _convert(self, pixels: RowArray) -> RowArray:
        """Convert pixels of the other source to pixels `[rows, columns, C]` of this view."""

    def _read_window(self, start: int, stop: int, left: int, right: int) -> RowArray:
        return self._convert(self._inner.read_window((start, stop), (left, right)))

    def _colour(self, start: int, stop: int, left: int, right: int) -> RowArray | None:
        colour = self._inner.colour((start, stop), (left, right))
        return None if colour is None else self._convert(colour[None, None])[0, 0]

    def _find_background(self) -> Background | None:
        return self._inner.background


@final
class Cropped(View):
    """A rectangle of a source; returned by `Source.crop`.

    Args:
        source: The image.
        rows: `(start, stop)`, or None for all rows.
        columns: `(start, stop)`, or None for all columns.
    """

    def __init__(
        self, source: Source, rows: tuple[int, int] | None, columns: tuple[int, int] | None
    ) -> None:
        self._top, bottom = interval(source.name, "rows", rows, source.shape[0])
        self._left, right = interval(source.name, "columns", columns, source.shape[1])
        shape = (bottom - self._top, right - self._left, source.shape[2])
        where = f"[{self._top}:{bottom}, {self._left}:{right}]"
        super().__init__(source, shape, source.dtype, source.name + where)

    def _read_window(self, start: int, stop: int, left: int, right: int) -> RowArray:
        return self._inner.read_window(*self._inside(start, stop, left, right))

    def _colour(self, start: int, stop: int, left: int, right: int) -> RowArray | None:
        return self._inner.colour(*self._inside(start, stop, left, right))

    def _find_background(self) -> Background | None:
        background = self._inner.background
        if background is None:
            return None
        top, left = self._top, self._left
        cell = cells.side_between(self.shape[:2], background.cell, (top, left))
        rows, columns = (cells.intervals(n, cell) for n in self.shape[:2])
        inside = (
            Interval(rows.start + top, rows.stop + top),
            Interval(columns.start + left, columns.stop + left),
        )
        return Background(background.touches(*inside), cell)

    def _inside(self, start: int, stop: int, left: int, right: int) -> list[Range]:
        """The rows and columns of the image that a rectangle of this view covers."""
        return boxes.moved(((start, stop), (left, right)), (self._top, self._left))


def registered(handle: str) -> Readable:
    """Find the source or bag registered under a handle, without a query.

    Raises:
        SourceError: Nothing is registered under this handle in this process.
    """
    try:
        return _registered[handle]
    except KeyError:
        raise SourceError(
            f"{handle}: no source is registered under this handle; it was released, or created "
            "in another process. Keep the source registered, or pass the path of the file."
        ) from None


def _image_shape(shape: Sequence[int], name: str) -> tuple[int, int, int]:
    """Give `shape` a channel axis."""
    extents = tuple(int(extent) for extent in shape)
    if len(extents) not in (2, 3) or 0 in extents:
        raise SourceError(
            f"{name}: has shape {extents}; expected [rows, columns] or [rows, columns, channels], "
            "none of them 0. Take one image out of a stack, and put the channels last."
        )
    rows, columns, channels = (*extents, 1)[:3]
    return rows, columns, channels


def _sample_dtype(dtype: npt.DTypeLike, name: str) -> np.dtype[Any]:
    """Check a dtype, and give it in native byte order."""
    native = np.dtype(dtype).newbyteorder("=")
    if native.kind not in "buif":
        raise SourceError(
            f"{name}: has dtype {native}; expected a boolean, integer or real dtype. Convert it, to uint8 if you can."
        )
    return native


def interval(
    name: str, axis: str, interval: tuple[int, int] | None, extent: int
) -> tuple[int, int]:
    """Check an interval `(start, stop)` of an axis, where None is the whole axis.

    `name` and `axis` are for the error.

    Raises:
        IndexError: It is empty or out of bounds.
    """
    start, stop = (0, extent) if interval is None else interval
    if not 0 <= start < stop <= extent:
        raise IndexError(
            f"{name}: {axis} {start}:{stop} requested, but the image has {axis} 0:{extent}. Request 0 <= start < stop "
            f"<= {extent}."
        )
    return start, stop
