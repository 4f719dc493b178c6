"""What is read by rows: an image, a rectangle of it; and the handle by which it is found."""

from __future__ import annotations

import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, final

import numpy as np
import numpy.typing as npt

from tfbig.errors import SourceError
from tfbig.units import format_bytes

Rows = npt.NDArray[Any]

_numbers = itertools.count()
_registered: dict[
    str, Readable
] = {}  # each access is one operation, which threads cannot interrupt


class Readable(ABC):
    """An array `[rows, ...]` of which any range of rows can be read, by any thread.

    Subclasses call `super().__init__(shape, dtype, name)` and define `_read`.

    Args:
        shape: All axes, rows first.
        dtype: Type of one sample: boolean, integer or real.
        name: What error messages call it: a path, or a few words.

    Attributes:
        shape: As given.
        dtype: NumPy dtype in native byte order.
        name: As given.

    Raises:
        SourceError: The dtype is not numeric.
    """

    what = "image"
    rows = "rows"

    def __init__(self, shape: Sequence[int], dtype: npt.DTypeLike, name: str) -> None:
        self.shape: tuple[int, ...] = tuple(shape)
        self.dtype: np.dtype[Any] = _sample_dtype(dtype, name)
        self.name = name
        self._handle = f"tfbig:{next(_numbers)}"

    @abstractmethod
    def _read(self, start: int, stop: int) -> Rows:
        """Rows `start` to `stop` as `[stop - start, ...]`; the range is valid and not empty."""

    def read(self, start: int, stop: int) -> Rows:
        """Reads a band of rows, or a slice of a bag.

        Args:
            start: First row.
            stop: Row after the last, `start <= stop <= shape[0]`.

        Returns:
            C-contiguous array `[stop - start, ...]` of `dtype`. It may be a read-only view of an
            array in memory: copy it before changing it.

        Raises:
            IndexError: The rows are not all inside.
            SourceError: The file is damaged there, was closed, or has become shorter.
        """
        num_rows = self.shape[0]
        if not 0 <= start <= stop <= num_rows:
            raise IndexError(
                f"{self.name}: {self.rows} {start}:{stop} were asked for, the {self.what} has "
                f"{self.rows} 0:{num_rows}. Ask for 0 <= start <= stop <= {num_rows}."
            )
        if start == stop:
            return np.empty((0, *self.shape[1:]), self.dtype)
        return self._read(start, stop)

    @property
    def nbytes(self) -> int:
        """Bytes of all of it, decoded."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def handle(self) -> str:
        """The name, like `'tfbig:7'`, under which `resolve` gives this source.

        The first use registers the source, which then lives until `release` is called.
        """
        _registered[self._handle] = self
        return self._handle

    def release(self) -> None:
        """Takes the source out of the registry; `resolve` no longer knows its handle."""
        _registered.pop(self._handle, None)

    @contextmanager
    def lent(self) -> Iterator[str]:
        """The handle, registered for as long as the block lasts; for longer if it was before."""
        was_registered = self._handle in _registered
        try:
            yield self.handle
        finally:
            if not was_registered:
                self.release()

    def close(self) -> None:
        """Lets go of the open file; reading then raises SourceError. Without a file, nothing."""
        return

    def describe(self) -> str:
        """One line: what it is, its shape, dtype, size decoded."""
        size = " x ".join(map(str, self.shape))
        kind = type(self).__name__
        return f"{kind} of {self.name}: {size} {self.dtype}, {format_bytes(self.nbytes)}"

    def __repr__(self) -> str:
        return f"<{self.describe()}>"


class Source(Readable):
    """An image `[H, W, C]` of which any band of rows, or any rectangle, can be read.

    Subclasses define `_read`; those that find columns without the whole rows define `_read_window` too.

    Args:
        shape: `(rows, columns)` or `(rows, columns, channels)`.
        dtype, name: As in `Readable`.

    Attributes:
        mpp: Micrometres per pixel, of rows and of columns; None where nobody said it. Sources that change another one
            keep it true.

    Raises:
        SourceError: The shape has another number of axes or an empty one, or the dtype is not
            numeric.
    """

    def __init__(self, shape: Sequence[int], dtype: npt.DTypeLike, name: str) -> None:
        super().__init__(_image_shape(shape, name), dtype, name)
        self.mpp: tuple[float, float] | None = None

    def read_window(self, rows: tuple[int, int], columns: tuple[int, int]) -> Rows:
        """Reads a rectangle, decoding no more than it needs.

        Args:
            rows: `(first, after the last)`.
            columns: The same.

        Returns:
            C-contiguous array `[rows, columns, C]` of `dtype`, as `read` gives it.

        Raises:
            IndexError: The rectangle is empty or reaches outside the image.
            SourceError: As `read`.
        """
        start, stop = _interval(self.name, "rows", rows, self.shape[0])
        left, right = _interval(self.name, "columns", columns, self.shape[1])
        return self._read_window(start, stop, left, right)

    def _read_window(self, start: int, stop: int, left: int, right: int) -> Rows:
        """As `read_window`; the rectangle is valid."""
        return np.ascontiguousarray(self._read(start, stop)[:, left:right])

    def crop(
        self, rows: tuple[int, int] | None = None, columns: tuple[int, int] | None = None
    ) -> Source:
        """A rectangle of the image, nothing being read.

        Args:
            rows: `(first, after the last)`, or None for all.
            columns: The same.

        Returns:
            A source with the shape of the rectangle.

        Raises:
            IndexError: The rectangle is empty or reaches outside the image.
        """
        return Cropped(self, rows, columns)

    def changed_handle(self, seed: int) -> str:
        """The handle of the image changed as `Augmentation.draw(seed)` says, as it is read; none has to be kept."""
        return f"{self.handle}?seed={seed}"


class View(Source):
    """A source that reads another one; subclasses define `_read_window`."""

    def __init__(
        self, inner: Source, shape: Sequence[int], dtype: npt.DTypeLike, name: str
    ) -> None:
        super().__init__(shape, dtype, name)
        self._inner = inner
        self.mpp = inner.mpp

    def _read(self, start: int, stop: int) -> Rows:
        return self._read_window(start, stop, 0, self.shape[1])

    @abstractmethod
    def _read_window(self, start: int, stop: int, left: int, right: int) -> Rows:
        """Rows `start` to `stop` of columns `left` to `right`, which are valid."""

    def close(self) -> None:
        self._inner.close()


@final
class Cropped(View):
    """A rectangle of a source, as `Source.crop` makes it."""

    def __init__(
        self, source: Source, rows: tuple[int, int] | None, columns: tuple[int, int] | None
    ) -> None:
        self._top, bottom = _interval(source.name, "rows", rows, source.shape[0])
        self._left, right = _interval(source.name, "columns", columns, source.shape[1])
        shape = (bottom - self._top, right - self._left, source.shape[2])
        where = f"[{self._top}:{bottom}, {self._left}:{right}]"
        super().__init__(source, shape, source.dtype, source.name + where)

    def _read_window(self, start: int, stop: int, left: int, right: int) -> Rows:
        rows = (self._top + start, self._top + stop)
        return self._inner.read_window(rows, (self._left + left, self._left + right))


def registered(handle: str) -> Readable:
    """The source or bag that has this handle.

    Raises:
        SourceError: There is none in this process.
    """
    try:
        return _registered[handle]
    except KeyError:
        raise SourceError(
            f"{handle}: no source is registered under this handle; it was released, or made "
            "in another process. Keep the source registered, or pass the path of the file."
        ) from None


def _image_shape(shape: Sequence[int], name: str) -> tuple[int, int, int]:
    """`shape` with a channel axis."""
    extents = tuple(int(extent) for extent in shape)
    if len(extents) not in (2, 3) or 0 in extents:
        raise SourceError(
            f"{name}: has shape {extents}; expected [rows, columns] or [rows, columns, channels], "
            "none of them 0. Take one image out of a stack, and put the channels last."
        )
    rows, columns, channels = (*extents, 1)[:3]
    return rows, columns, channels


def _sample_dtype(dtype: npt.DTypeLike, name: str) -> np.dtype[Any]:
    """`dtype` in native byte order."""
    native = np.dtype(dtype).newbyteorder("=")
    if native.kind not in "buif":
        raise SourceError(
            f"{name}: has dtype {native}; expected a boolean, integer or real one. "
            "Convert it, to uint8 if you can."
        )
    return native


def _interval(
    name: str, what: str, interval: tuple[int, int] | None, extent: int
) -> tuple[int, int]:
    start, stop = (0, extent) if interval is None else interval
    if not 0 <= start < stop <= extent:
        raise IndexError(
            f"{name}: {what} {start}:{stop} were asked for, the image has {what} "
            f"0:{extent}. Ask for 0 <= start < stop <= {extent}."
        )
    return start, stop
