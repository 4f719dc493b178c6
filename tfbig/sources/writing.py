"""Files that appear under their names when they are complete, and `.npy` files written by rows."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, final

import numpy as np
import numpy.typing as npt

from tfbig.errors import BudgetError, SourceError
from tfbig.sources.files import PathLike, cannot_open
from tfbig.sources.source import Rows
from tfbig.units import format_bytes


@contextmanager
def beside(path: PathLike) -> Iterator[Path]:
    """Gives a path in the same folder to write to; renames it to `path` if nothing was raised.

    Args:
        path: The file. One that exists is replaced, or kept if writing fails.

    Yields:
        A path with the same ending.
    """
    path = Path(path)
    part = path.with_name(f".part-{path.name}")
    try:
        yield part
        part.replace(path)
    finally:
        if part.is_file():
            part.unlink()


@final
class NpyWriter:
    """Writes rows of a `.npy` file in any order; `write_npy` makes it."""

    def __init__(self, file: BinaryIO, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.path = file.name
        self.shape = shape
        self.dtype = dtype
        self._row_bytes = math.prod(shape[1:]) * dtype.itemsize
        self._written = np.zeros(shape[0], bool)
        self._file = file
        descr = np.lib.format.dtype_to_descr(dtype)
        header = {"descr": descr, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        file.flush()
        self._offset = file.tell()
        file.truncate(self._offset + shape[0] * self._row_bytes)

    def write(self, start: int, rows: Rows) -> None:
        """Writes a band of rows.

        Args:
            start: First row of the file that `rows` replaces.
            rows: `[r, ...]` with the file's dtype and the file's shape after the first axis.

        Raises:
            ValueError: `rows` has another dtype or shape, or reaches outside the file.
            SourceError: The disk is full, or failed.
        """
        stop = start + len(rows)
        fits = rows.shape[1:] == self.shape[1:] and start >= 0 and stop <= self.shape[0]
        if rows.dtype != self.dtype or not fits:
            raise ValueError(
                f"{self.path}: rows {start}:{stop} of shape {rows.shape} and dtype {rows.dtype} do "
                f"not fit shape {self.shape} and dtype {self.dtype}. Convert or crop the rows."
            )
        self._write_bytes(np.ascontiguousarray(rows), self._offset + start * self._row_bytes)
        self._written[start:stop] = True

    def _write_bytes(self, rows: Rows, offset: int) -> None:
        view = rows.view(np.uint8).reshape(-1).data
        try:
            while view:
                count = os.pwrite(self._file.fileno(), view, offset)
                view, offset = view[count:], offset + count
        except OSError as error:
            raise SourceError(f"{self.path}: writing at byte {offset} failed: {error}.") from error

    def _check_complete(self) -> None:
        missing = np.flatnonzero(~self._written)
        if missing.size:
            raise SourceError(
                f"{self.path}: {missing.size} of {self.shape[0]} rows were not written, the first "
                f"is row {missing[0]}. Write every row before leaving write_npy."
            )


@contextmanager
def write_npy(path: PathLike, shape: Sequence[int], dtype: npt.DTypeLike) -> Iterator[NpyWriter]:
    """Writes a `.npy` file by rows; it appears under its name only when it is complete.

    Args:
        path: The file, `*.npy`; one that exists is replaced in the end. Until then the rows are in
            `.part-NAME` in the same folder, which is deleted if anything fails.
        shape: Shape of the array; the first axis is that of the rows.
        dtype: Its dtype.

    Yields:
        An `NpyWriter`, whose `write(start, rows)` takes bands of rows in any order.

    Raises:
        BudgetError: The disk has less room than the file needs.
        SourceError: The path does not end in `.npy`, the folder cannot be written to, or some row
            was not written.
    """
    target, extents = Path(path), tuple(int(extent) for extent in shape)
    if target.suffix.lower() != ".npy":
        raise SourceError(
            f"{target}: cannot be written as a .npy file; expected a path that ends in .npy, "
            "by which tfbig.open knows the kind. Change the ending."
        )
    _check_room(target, math.prod(extents) * np.dtype(dtype).itemsize)
    with beside(target) as part:
        try:
            file = part.open("wb")
        except OSError as error:
            raise cannot_open(part, error) from error
        with file:
            writer = NpyWriter(file, extents, np.dtype(dtype))
            yield writer
            writer._check_complete()


def _check_room(path: Path, num_bytes: int) -> None:
    folder = path.parent
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise SourceError(
            f"{path}: its folder cannot be written to: {error.strerror}. Create {folder} first."
        ) from error
    if num_bytes > free:
        raise BudgetError(
            f"{path}: needs {format_bytes(num_bytes)} on disk, {format_bytes(free)} are free in "
            f"{folder}. Make room, or write it to another disk."
        )
