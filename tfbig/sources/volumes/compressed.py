"""Compressed streams of bytes, read in chunks, and always to the check sum at their end."""

from __future__ import annotations

import bz2
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from tfbig.sources import untrusted
from tfbig.sources.files import PathLike

CHUNK = 2**22
"""Most bytes that are decompressed at once."""
STORED_CHUNK = 2**13
"""Compressed bytes that are read at once."""
DECOMPRESSORS: dict[str, Callable[[], Any]] = {
    "gzip": lambda: zlib.decompressobj(16 + zlib.MAX_WBITS),
    "bzip2": bz2.BZ2Decompressor,
}


def beginning(path: PathLike, count: int, kind: str = "gzip", start: int = 0) -> bytes:
    """Decompress the first `count` bytes of a file, or fewer if there are no more; they are not checked.

    `kind` is one of `DECOMPRESSORS`; `start` is the first byte of the file that is compressed.

    Raises:
        SourceError: They cannot be decompressed.
    """
    found = b""
    for part in _parts(path, kind, start, count):
        found += part
        if len(found) >= count:
            break
    return found[:count]


def length(path: PathLike, kind: str = "gzip", start: int = 0) -> int:
    """Count the decompressed bytes of a file, which are all decompressed for it, as by `beginning`.

    Raises:
        SourceError: They cannot be decompressed, or are too many.
    """
    return sum(len(part) for part in _parts(path, kind, start, CHUNK))


def chunks(
    path: PathLike, num_bytes: int, kind: str = "gzip", start: int = 0, skip: int = 0
) -> Iterator[memoryview]:
    """Decompress `num_bytes` of a file as `beginning` does, and then the rest, because the check sum is behind it.

    There may be fewer bytes; `skip` decompressed bytes are left out first.

    Raises:
        SourceError: They are too many; while they are read, that they cannot be decompressed, or their check sum is
            another one.
    """
    _check_size(path, skip + num_bytes)
    return _between(_parts(path, kind, start, CHUNK), skip, skip + num_bytes)


def _between(parts: Iterator[bytes], first: int, last: int) -> Iterator[memoryview]:
    """Yield the bytes from `first` to `last`, which is exclusive, and read on to the end."""
    place = 0
    for part in parts:
        wanted = memoryview(part)[max(first - place, 0) : max(last - place, 0)]
        place += len(part)
        if wanted:
            yield wanted


def _parts(path: PathLike, kind: str, start: int, size: int) -> Iterator[bytes]:
    """Yield all decompressed bytes of a file, at most `size` at a time."""
    stored, place = untrusted.regular_file(path).st_size, 0
    with (
        untrusted.reading(path, f"is damaged or truncated: its {kind} data cannot be decompressed"),
        open(path, "rb") as file,
    ):
        file.seek(start)
        for part in _streams(file, DECOMPRESSORS[kind], size):
            place += len(part)
            _check_size(path, place, stored)
            yield part


def _streams(file: BinaryIO, decompressor: Callable[[], Any], size: int) -> Iterator[bytes]:
    """Yield the bytes of all streams of a file; zeros may follow each.

    Raises:
        EOFError: The file ends within a stream.
    """
    rest = file.read(STORED_CHUNK)
    while rest:
        rest = rest.lstrip(b"\0")
        if rest:
            stream = decompressor()
            while not stream.eof:
                rest = rest or file.read(STORED_CHUNK)
                part = stream.decompress(rest, size)
                if not (rest or part):
                    raise EOFError("the file ends before the stream")
                rest = getattr(stream, "unconsumed_tail", b"")  # bzip2 keeps it
                if part:
                    yield part
            rest = stream.unused_data
        rest = rest or file.read(STORED_CHUNK)


def _check_size(path: PathLike, num_bytes: int, stored: int | None = None) -> None:
    untrusted.check_size(path, num_bytes, "its decompressed data", stored)
