"""Files that get their name only when they are complete, and `.npy` files written by rows."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, final

import numpy as np
import numpy.typing as npt

from tfbig.errors import BudgetError, SourceError, reason_of
from tfbig.sources.files import PathLike, cannot_open
from tfbig.sources.source import RowArray
from tfbig.system import output_folder
from tfbig.units import format_bytes


@contextmanager
def atomic_write(path: PathLike) -> Iterator[Path]:
    """Yield a temporary path in the same folder; rename it to `path` unless the block raises.

    Args:
        path: The file to write. An existing file is replaced, or kept if the block raises.

    Yields:
        The temporary path `.part-...-NAME`, with the same suffix, which no other process and no other call uses. It is
            deleted if the block raises.

    Raises:
        SourceError: The file cannot be written, or it is in a folder of results and tfbig did not write it, see
            `output_folder`.
    """
    path = Path(path)
    part = output_folder.part_of(path)
    _delete(part)
    try:
        yield part
        output_folder.record(path)
        part.replace(path)
    except SourceError:
        raise
    except OSError as error:
        reason = error.strerror or reason_of(error)
        raise SourceError(
            f"{path}: cannot be written: {reason}. Free space, or write to another folder."
        ) from error
    finally:
        _delete(part)


def _delete(part: Path) -> None:
    """Delete a file, or a link itself."""
    if part.is_symlink() or (part.exists() and not part.is_dir()):
        part.unlink()


def resumable_folder(folder: PathLike, identity: Mapping[str, Any]) -> Path:
    """Create a folder for parts of a result, or keep that of an interrupted process if the result would be the same.

    `identity` is what the parts depend on, such as the model and the image; it is saved in `identity.json`. Files
    of a folder that was made for another identity are removed.

    Raises:
        SourceError: The folder cannot be written to, or holds what this function did not put there.
    """
    folder = Path(folder)
    text = json.dumps(dict(identity), indent=1, sort_keys=True, default=str)
    saved = folder / "identity.json"
    if folder.is_dir() and any(folder.iterdir()) and not saved.exists():
        raise SourceError(
            f"{folder}: was not written by tfbig, and is not replaced. Move it elsewhere."
        )
    output_folder.record(folder, is_folder=True)
    try:
        if saved.exists() and saved.read_text() != text:
            shutil.rmtree(folder)
        folder.mkdir(exist_ok=True)
        if not saved.exists():
            with atomic_write(saved) as part:
                part.write_text(text)
    except SourceError:
        raise
    except OSError as error:
        raise SourceError(f"{folder}: cannot be written: {error}.") from error
    return folder


@final
class NpyWriter:
    """Writer of the rows of a `.npy` file, in any order; returned by `write_npy`.

    Args:
        file: The file, open for writing in binary mode. Its header is written at once.
        shape: Shape of the array; the first axis is the rows.
        dtype: Dtype of the array.
        axis: Axis along which bands are written: 0 for rows.

    Attributes:
        path: Path of the file.
        shape: Shape of the array.
        dtype: Dtype of the array.

    Example:
        >>> with tfbig.sources.write_npy("ramp.npy", (4, 2), "int32") as writer:
        ...     for start in (2, 0):
        ...         writer.write(start, np.full((2, 2), start, "int32"))
        >>> np.load("ramp.npy")[:, 0].tolist()
        [0, 0, 2, 2]
    """

    def __init__(
        self, file: BinaryIO, shape: tuple[int, ...], dtype: np.dtype[Any], axis: int = 0
    ) -> None:
        self.path = file.name
        self.shape = shape
        self.dtype = dtype
        self._axis = axis
        self._row_bytes = math.prod(shape[axis + 1 :]) * dtype.itemsize
        self._is_written = np.zeros(shape[axis], bool)
        self._file = file
        descr = np.lib.format.dtype_to_descr(dtype)
        header = {"descr": descr, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        file.flush()
        self._offset = file.tell()
        file.truncate(self._offset + math.prod(shape) * dtype.itemsize)

    def write(self, start: int, rows: RowArray) -> None:
        """Write a band of rows.

        Args:
            start: Index of the first row to write.
            rows: `[r, ...]`, with the dtype of the file and its shape but for the number of rows.

        Raises:
            ValueError: The dtype or shape of `rows` differs, or the rows end outside the file.
            SourceError: The disk is full, or writing failed.
        """
        axis, extent = self._axis, self.shape[self._axis]
        stop = start + rows.shape[axis]
        expected = (*self.shape[:axis], rows.shape[axis], *self.shape[axis + 1 :])
        if rows.dtype != self.dtype or rows.shape != expected or start < 0 or stop > extent:
            raise ValueError(
                f"{self.path}: rows {start}:{stop} of shape {rows.shape} and dtype {rows.dtype} do "
                f"not fit shape {self.shape} and dtype {self.dtype}. Convert or crop the rows."
            )
        for number, band in enumerate(rows.reshape(-1, *rows.shape[axis:])):
            place = self._offset + (number * extent + start) * self._row_bytes
            self._write_bytes(np.ascontiguousarray(band), place)
        self._is_written[start:stop] = True

    def _write_bytes(self, rows: RowArray, offset: int) -> None:
        view = rows.view(np.uint8).reshape(-1).data
        try:
            while view:
                count = os.pwrite(self._file.fileno(), view, offset)
                view, offset = view[count:], offset + count
        except OSError as error:
            raise SourceError(f"{self.path}: writing at byte {offset} failed: {error}.") from error

    def _check_complete(self) -> None:
        missing = np.flatnonzero(~self._is_written)
        if missing.size:
            raise SourceError(
                f"{self.path}: {missing.size} of {len(self._is_written)} rows were not written, the first "
                f"is row {missing[0]}. Write every row before leaving write_npy."
            )


@contextmanager
def write_npy(
    path: PathLike, shape: Sequence[int], dtype: npt.DTypeLike, axis: int = 0
) -> Iterator[NpyWriter]:
    """Write a `.npy` file by rows; it gets its name only when it is complete.

    Args:
        path: The file, `*.npy`. An existing file is replaced at the end; until then the rows are in
            `.part-...-NAME` in the same folder, which is deleted if anything fails.
        shape: Shape of the array; the first axis is the rows.
        dtype: Dtype of the array.
        axis: Axis along which bands are written: 0 for rows.

    Yields:
        An `NpyWriter`, whose `write(start, rows)` accepts bands of rows in any order.

    Raises:
        BudgetError: The disk has less free space than the file needs.
        SourceError: The path does not end in `.npy`, the folder cannot be written to, or a row
            was not written.

    Example:
        >>> with tfbig.sources.write_npy("mask.npy", (4, 3, 1), "uint8") as writer:
        ...     writer.write(2, np.ones((2, 3, 1), "uint8"))
        ...     writer.write(0, np.zeros((2, 3, 1), "uint8"))
        >>> tfbig.open("mask.npy").read(1, 3)[:, 0, 0].tolist()
        [0, 1]
    """
    target, extents = Path(path), tuple(int(extent) for extent in shape)
    if target.suffix.lower() != ".npy":
        raise SourceError(
            f"{target}: cannot be written as a .npy file; expected a path that ends in .npy. Change the suffix."
        )
    _check_free_space(target, math.prod(extents) * np.dtype(dtype).itemsize)
    with atomic_write(target) as part:
        try:
            file = part.open("wb")
        except OSError as error:
            raise cannot_open(target, error) from error
        with file:
            writer = NpyWriter(file, extents, np.dtype(dtype), axis)
            writer.path = os.fspath(target)  # the name in errors
            yield writer
            writer._check_complete()


def _check_free_space(path: Path, num_bytes: int) -> None:
    folder = path.parent
    try:
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise SourceError(
            f"{path}: its folder cannot be written to: {error.strerror}. Create {folder} first."
        ) from error
    if num_bytes > free:
        raise BudgetError(
            f"{path}: needs {format_bytes(num_bytes)} on disk, but {format_bytes(free)} are free in "
            f"{folder}. Free disk space, or write to another disk."
        )
