"""Rules for every reader of untrusted files: one kind of error, regular files, sizes first, files beside a header."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tfbig.errors import SourceError, TfbigError, reason_of
from tfbig.sources.files import PathLike, check_regular
from tfbig.units import format_bytes

ALWAYS_ALLOWED = 2**30
"""Bytes that any file may become in memory or on the disk."""

MOST_EXPANSION = 100
"""Bytes that each byte of a larger file may become: photographs and labels compress less."""


@contextmanager
def reading(path: PathLike, what: str = "cannot be read") -> Iterator[None]:
    """Turn every exception of a library in a `with` block into a SourceError of one line that names the file.

    `what` is wrong, before the words of the library.

    Raises:
        SourceError: The block raised any exception, apart from those of tfbig, which are left as they are.
    """
    try:
        yield
    except TfbigError:
        raise
    except MemoryError as error:
        raise SourceError(
            f"{path}: {what}: it needs more memory than there is. If the file is whole, give the process more memory."
        ) from error
    except Exception as error:
        reason = reason_of(error)
        raise SourceError(
            f"{path}: {what}: {reason}. The file is damaged, or of a kind that is not supported; write or copy it "
            "again."
        ) from error


def regular_file(path: PathLike) -> os.stat_result:
    """Check that a file is no folder, pipe or device, and get its status; symbolic links are followed.

    Raises:
        SourceError: There is no such file, or it is not a regular one: reading a pipe would wait for ever.
    """
    try:
        status = os.stat(path)
    except (OSError, ValueError) as error:  # ValueError: a null character
        reason = getattr(error, "strerror", None) or reason_of(error)
        raise SourceError(f"{path}: cannot be opened: {reason}. Check the path.") from error
    check_regular(path, status)
    return status


def check_size(path: PathLike, num_bytes: int, what: str, stored: int | None = None) -> None:
    """Refuse data that takes far more bytes than are stored, before any of it is read.

    `num_bytes` are those of the data once it is read, in memory or on the disk; `what` takes them, such as "its
    weights". `stored` is by default the length of the file.

    Raises:
        SourceError: More than `ALWAYS_ALLOWED`, and more than `MOST_EXPANSION` for each stored byte.
    """
    stored = regular_file(path).st_size if stored is None else stored
    limit = max(ALWAYS_ALLOWED, MOST_EXPANSION * stored)
    if num_bytes > limit:
        raise SourceError(
            f"{path}: {what} would take {format_bytes(num_bytes)}, but {format_bytes(stored)} are stored; at most "
            f"{format_bytes(limit)} are read from that. Write the file again with less compression."
        )


def is_inside(path: PathLike, folder: PathLike) -> bool:
    """Tell whether a file is in a folder, or in a folder inside it, after following links."""
    return os.path.realpath(path).startswith(os.path.realpath(folder) + os.sep)


def beside(header: PathLike, name: str) -> Path:
    """Find a file that a header names: in the folder of the header, or in a folder inside it.

    Raises:
        SourceError: The name is absolute or leads elsewhere, also through a symbolic link; or it is no regular file.
    """
    folder = Path(header).absolute().parent
    path = folder / name
    if not is_inside(path, folder):
        raise SourceError(
            f"{header}: names the file {reason_of(name)!r}, which is not in its own folder. Copy both into "
            "one folder, and name the file relative to it."
        )
    try:
        regular_file(path)
    except SourceError as error:
        raise SourceError(
            f"{header}: names a file that cannot be read: {reason_of(error, 1000)}."
        ) from error
    return path
