"""Datasets of HDF5 files from untrusted origins.

Their declared size is compared with the stored size before they are read, and links out of the file are not followed.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import h5py
import numpy as np
import numpy.typing as npt

from tfbig.errors import SourceError
from tfbig.sources import trial, trial_program
from tfbig.sources.files import PathLike
from tfbig.sources.untrusted import reading
from tfbig.units import format_bytes

MAX_TILES: Final = 10_000_000
"""Largest accepted number of tiles of a slide; it is checked before they are read."""
MAX_RATIO: Final = 2000
"""Largest accepted ratio of decompressed to stored bytes; deflate reaches 1032."""
MAX_CHUNK_RATIO: Final = 4
"""Largest accepted ratio of the bytes of a chunk to those of the dataset; a chunk is decompressed whole."""
_UNCHECKED_BYTES: Final = 2**24
"""Datasets up to this size are not checked."""


@contextmanager
def opened(name: str) -> Iterator[h5py.File]:
    """Open a file for reading, in a `with` block.

    Raises:
        SourceError: The file cannot be opened, or reading in the block failed.
    """
    trial.check("hdf5", name)
    with reading(name, "is not a readable HDF5 file"), h5py.File(name, "r") as file:
        yield file


class WrittenFile(io.RawIOBase):
    """A new file for HDF5, in which no write fails: HDF5 may end the process when one does.

    Raises:
        OSError: It cannot be created.
    """

    def __init__(self, path: PathLike) -> None:
        self._file = open(path, "w+b", buffering=0)  # noqa: SIM115
        self._errors: list[OSError] = []

    def check(self) -> None:
        """Raise the first error of a write, if there was one.

        Raises:
            OSError: The disk is full, or the file may not become longer.
        """
        if self._errors:
            raise self._errors[0]

    def seekable(self) -> bool:
        """Say that it can be written at any place."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Continue at another place, and return it."""
        return self._file.seek(offset, whence)

    def readinto(self, buffer: Any) -> int | None:
        """Read bytes into a buffer, and return their number."""
        return self._file.readinto(buffer)

    def write(self, data: Any) -> int:
        """Write bytes, or note why that cannot be done, and return their number."""
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
        except OSError as error:
            self._errors.append(error)
        return len(data)

    def truncate(self, size: int | None = None) -> int:
        """Set the length, or note why that cannot be done."""
        try:
            return self._file.truncate(size)
        except OSError as error:
            self._errors.append(error)
        return size or 0

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()


@contextmanager
def created(path: PathLike) -> Iterator[tuple[h5py.File, WrittenFile]]:
    """Create a file of HDF5.

    Yields:
        The file, and what is below it, whose `check` says whether all could be written so far.

    Raises:
        OSError: It cannot be written.
    """
    with WrittenFile(path) as written:
        with h5py.File(written, "w") as file:
            yield file, written
        written.check()


def dataset(file: h5py.File, key: str) -> h5py.Dataset:
    """Find a dataset that is stored in the file itself and has a plausible size.

    Raises:
        SourceError: The dataset does not exist, is stored elsewhere, or declares more bytes than the file can hold.
    """
    name = file.filename
    link: Any = file.get(key, getlink=True)
    if link is None:
        raise SourceError(
            f"{name}: is not an HDF5 file with '{key}', it has {sorted(file)}; expected a file of CLAM or TRIDENT."
        )
    if not isinstance(link, h5py.HardLink):
        raise SourceError(
            f"{name}: '{key}' is a link to another place ({type(link).__name__}), which is not followed. Copy what it "
            "points to into the file."
        )
    data: Any = file[key]
    if not isinstance(data, h5py.Dataset):
        raise SourceError(f"{name}: '{key}' is a group; expected an array.")
    check_stored(data, name, key)
    return data


def positions(file: h5py.File, key: str) -> npt.NDArray[Any]:
    """Read the positions of tiles, `[n, 2]`, after checking their number.

    Raises:
        SourceError: The dataset has another shape, no numbers, or more than `MAX_TILES` rows; or as `dataset`.
    """
    data = dataset(file, key)
    if data.ndim != 2 or data.shape[1] != 2 or not data.shape[0] or data.dtype.kind not in "fiu":
        raise SourceError(
            f"{file.filename}: is not an HDF5 file with '{key}' [n, 2], they are {data.shape} of {data.dtype}; "
            "expected a file of CLAM or TRIDENT. Write it again with tfbig tile."
        )
    if data.shape[0] > MAX_TILES:
        raise SourceError(
            f"{file.filename}: '{key}' has {data.shape[0]} tiles; expected 1 to {MAX_TILES}. Write it again, with "
            "larger tiles."
        )
    return np.asarray(data[:])


def check_stored(data: h5py.Dataset, name: str, key: str) -> None:
    """Check that a dataset is stored in the file itself and has a plausible size.

    Raises:
        SourceError: It is stored elsewhere, declares more bytes than the file can hold, or has huge chunks.
    """
    if data.external or data.is_virtual:
        raise SourceError(
            f"{name}: '{key}' is stored in other files, which are not read. Copy it into this one."
        )
    stored = data.id.get_storage_size()
    if data.nbytes > _UNCHECKED_BYTES and data.nbytes > MAX_RATIO * stored:
        raise SourceError(
            f"{name}: '{key}' {data.shape} declares {format_bytes(data.nbytes)}, but only "
            f"{format_bytes(stored)} are stored. The file is damaged or forged; write it again."
        )
    chunk_bytes = math.prod(data.chunks or ()) * data.dtype.itemsize
    if chunk_bytes > min(
        max(MAX_CHUNK_RATIO * data.nbytes, _UNCHECKED_BYTES), trial_program.MOST_CHUNK_BYTES
    ):
        raise SourceError(
            f"{name}: '{key}' {data.shape} is stored in chunks of {data.chunks}, {format_bytes(chunk_bytes)} for "
            f"{format_bytes(data.nbytes)} of data, and a chunk is decompressed whole. Write it again in smaller chunks."
        )
