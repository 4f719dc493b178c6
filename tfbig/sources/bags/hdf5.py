"""Datasets of HDF5 files, which may be anybody's: what they claim is compared with what is stored before it is read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import h5py

from tfbig.errors import SourceError
from tfbig.units import format_bytes

MAX_RATIO: Final = 2000
"""Bytes that one stored byte may stand for; deflate reaches 1032."""
_FREE_BYTES: Final = 2**24
"""Up to so many are not worth a look."""


@contextmanager
def opened(name: str) -> Iterator[h5py.File]:
    """The file, to be read.

    Raises:
        SourceError: it cannot be, then or within.
    """
    try:
        with h5py.File(name, "r") as file:
            yield file
    except OSError as error:
        if isinstance(error, SourceError):
            raise
        raise SourceError(f"{name}: is not a readable HDF5 file: {error}.") from error


def dataset(file: h5py.File, key: str) -> h5py.Dataset:
    """A dataset that is in the file itself, and about as large as it says.

    Raises:
        SourceError: it points elsewhere, or claims more than the file can hold.
    """
    name = file.filename
    link: Any = file.get(key, getlink=True)
    if link is None:
        raise SourceError(
            f"{name}: is no HDF5 file with '{key}', it has {sorted(file)}; expected one of CLAM or TRIDENT."
        )
    if not isinstance(link, h5py.HardLink):
        raise SourceError(
            f"{name}: '{key}' is a link to somewhere else ({type(link).__name__}), which is not followed. Copy what it "
            "points to into the file."
        )
    data: Any = file[key]
    if not isinstance(data, h5py.Dataset):
        raise SourceError(f"{name}: '{key}' is a group; expected an array.")
    if data.external or data.is_virtual:
        raise SourceError(
            f"{name}: '{key}' lies in other files, which are not read. Copy it into this one."
        )
    stored = data.id.get_storage_size()
    if data.nbytes > _FREE_BYTES and data.nbytes > MAX_RATIO * stored:
        raise SourceError(
            f"{name}: '{key}' {data.shape} claims {format_bytes(data.nbytes)}, of which "
            f"{format_bytes(stored)} are stored. The file is damaged, or made up; make it again."
        )
    return data
