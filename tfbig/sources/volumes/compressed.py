"""Compressed streams of bytes, read in chunks."""

from __future__ import annotations

import bz2
import gzip
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from tfbig.errors import SourceError
from tfbig.sources.files import PathLike

CHUNK = 2**22
"""Bytes that are decompressed at once."""
OPENERS: dict[str, Callable[[BinaryIO], Any]] = {
    "gzip": lambda file: gzip.GzipFile(fileobj=file),
    "bzip2": bz2.BZ2File,
}


def beginning(path: PathLike, count: int, kind: str = "gzip", start: int = 0) -> bytes:
    """Return the first decompressed bytes of a file.

    Args:
        path: The file.
        count: Number of bytes; there may be fewer.
        kind: One of `OPENERS`.
        start: First byte of the file that is compressed.

    Raises:
        SourceError: They cannot be decompressed.
    """
    return next(chunks(path, count, kind, start), b"")[:count]


def chunks(
    path: PathLike, num_bytes: int, kind: str = "gzip", start: int = 0, skip: int = 0
) -> Iterator[bytes]:
    """Yield decompressed bytes, and check the sum at the end of the file, unless it holds much more.

    Args:
        path: The file.
        num_bytes: Number of bytes to yield; there may be fewer.
        kind: One of `OPENERS`.
        start: First byte of the file that is compressed.
        skip: Decompressed bytes to leave out first.

    Raises:
        SourceError: They cannot be decompressed.
    """
    read = 0
    try:
        with open(path, "rb") as raw:
            raw.seek(start)
            with OPENERS[kind](raw) as stream:
                while skip > 0 and (part := stream.read(min(CHUNK, skip))):
                    skip -= len(part)
                while read < num_bytes and (part := stream.read(min(CHUNK, num_bytes - read))):
                    read += len(part)
                    yield part
                stream.read(1)  # reaches the check sum
    except (EOFError, gzip.BadGzipFile, zlib.error, ValueError) as error:
        raise SourceError(_damaged(path, kind, read, error)) from error
    except OSError as error:
        if kind == "bzip2" and error.errno is None:
            raise SourceError(_damaged(path, kind, read, error)) from error
        raise


def _damaged(path: PathLike, kind: str, read: int, error: Exception) -> str:
    return (
        f"{path}: is damaged or truncated: its {kind} data cannot be decompressed after {read} bytes ({error}). "
        "Write or "
        "copy the file again."
    )
