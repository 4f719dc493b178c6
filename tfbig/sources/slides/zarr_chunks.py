"""Decoded size of the chunks of a zarr array, found before zarr decodes them.

zarr decompresses a chunk to whatever size its bytes have or declare, far more than the array holds by mistake or on
purpose.
"""

from __future__ import annotations

import bz2
import gzip
import io
import itertools
import lzma
import math
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import imagecodecs
import numpy as np
import numpy.typing as npt

from tfbig.errors import SourceError
from tfbig.sources import untrusted
from tfbig.units import ceil_div, format_bytes

MAX_CHUNK_BYTES: Final = 2**28
"""Largest accepted size of a decoded chunk; zarr decodes about ten at a time."""
MIN_CHUNK_BYTES: Final = 2**12
"""Smallest accepted size of a decoded chunk, if there are more than `MAX_SMALL_CHUNKS`: each takes zarr some 0.1 ms."""
MAX_SMALL_CHUNKS: Final = 10**6
MAX_LISTED: Final = 2**17
"""Most chunks that are looked for one by one, which takes about two seconds."""
_SLACK: Final = 2**16
"""Bytes by which a decoded chunk may exceed its array: some codecs add checksums."""
_FILTERS: Final = frozenset(
    {
        *("adler32", "crc32", "crc32c", "fletcher32", "jenkins_lookup3"),
        *("astype", "cast_value", "scale_offset", "fixedscaleoffset", "quantize", "bitround"),
        *("delta", "packbits", "shuffle", "transpose"),
    }
)
"""Filters that change numbers or add checksums; 'pickle' would run code of the file."""
_C_CODECS: Final = frozenset({"blosc", "lz4", "zstd"})
"""Compressors in C that are not part of Python; "blosc" has read beyond the end of damaged chunks."""
_CHECKSUM: Final = "crc32c"
_CHECKSUM_BYTES: Final = 4
_PIECE: Final = 2**20
_NO_CHUNK: Final = 2**64 - 1


def check_array(array: Any, name: str) -> None:
    """Raise SourceError for codecs that are not known to be safe, and for chunks of an unsuitable size.

    Raises:
        SourceError: A codec is unknown, a chunk takes too much memory, or chunks are tiny and far too many.
    """
    unknown = {_name(codec) for codec in array.filters} - _FILTERS
    compressors = [_name(codec) for codec in array.compressors if _name(codec) != _CHECKSUM]
    unknown |= set(compressors) - _DECODED_BYTES.keys()
    if unknown or len(compressors) > 1:
        stored = ", ".join(sorted(unknown) or compressors)
        raise SourceError(
            f"{name}: its chunks are stored with {stored}, which is not decoded here; expected one of "
            f"{', '.join(sorted(_DECODED_BYTES))}. Write it again with one of these."
        )
    if 0 in (*array.chunks, *(array.shards or ())):
        raise SourceError(
            f"{name}: is stored in chunks of {array.chunks}, which hold nothing. Write it again."
        )
    size = math.prod(array.chunks) * array.dtype.itemsize
    if size > MAX_CHUNK_BYTES:
        raise SourceError(
            f"{name}: is stored in chunks of {array.chunks}, {format_bytes(size)}, each of which is "
            f"decoded at once; {format_bytes(MAX_CHUNK_BYTES)} are allowed. Write it again in smaller chunks."
        )
    count = math.prod(ceil_div(n, m) for n, m in zip(array.shape, array.chunks, strict=True))
    if size < MIN_CHUNK_BYTES and count > MAX_SMALL_CHUNKS:
        raise SourceError(
            f"{name}: is stored in {count} chunks of {array.chunks}, {format_bytes(size)}, which would "
            f"take hours to read. Write it again in chunks of at least {format_bytes(MIN_CHUNK_BYTES)}."
        )


def decoded_by_c(array: Any) -> bool:
    """Tell whether a C library decodes the chunks that damage may make end its process."""
    return any(_name(codec) in _C_CODECS for codec in array.compressors)


def check_chunk(array: Any, place: tuple[int, ...], name: str) -> None:
    """Raise SourceError if a chunk in a folder is elsewhere, or decodes to more than the array declares.

    `place` is the number of the chunk, or of the shard, along each axis.

    Raises:
        SourceError: The file of the chunk is a link to another folder, a pipe or a device; or the chunk, or a chunk in
            the shard, decodes to too many bytes.
        Exception: The chunk is damaged; each library raises its own.
    """
    names = [_name(codec) for codec in array.compressors]
    compressors = [each for each in names if each != _CHECKSUM]
    file = Path(array.store.root) / array.path / array.metadata.encode_chunk_key(place)
    if not file.exists():
        return
    untrusted.regular_file(file)
    if not untrusted.is_inside(file, array.store.root):
        raise SourceError(
            f"{name}: the chunk {file.name} is a link to {os.path.realpath(file)}, which is not in its folder. Copy it "
            "there."
        )
    if not compressors:
        return
    expected = math.prod(array.chunks) * array.dtype.itemsize
    limit = (
        8 * expected + _SLACK if array.filters else expected + _SLACK
    )  # filters may store wider numbers
    for stored in _chunks(array, file):
        data = stored[:-_CHECKSUM_BYTES] if names[-1] == _CHECKSUM else stored
        size = _DECODED_BYTES[compressors[0]](data, limit)
        if size > limit:
            raise SourceError(
                f"{name}: the chunk {file.name} decodes to more than {format_bytes(expected)}, the size of a chunk. "
                "The array is damaged or forged; write it again."
            )


def stored_chunks(array: Any) -> npt.NDArray[np.bool_] | None:
    """Find the chunks, or shards, of an array in a folder that are stored, `[chunks along each axis]`.

    zarr stores none of the fill value. The result is None if there are more than `MAX_LISTED` chunks.
    """
    sizes = array.shards or array.chunks
    counts = [ceil_div(n, m) for n, m in zip(array.shape, sizes, strict=True)]
    if math.prod(counts) > MAX_LISTED:
        return None
    folder, key = Path(array.store.root) / array.path, array.metadata.encode_chunk_key
    found = [os.path.exists(folder / key(place)) for place in np.ndindex(*counts)]
    return np.array(found, bool).reshape(counts)


def chunks_of_window(array: Any, window: tuple[slice | int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield the numbers along each axis of the chunks, or shards, that a window reads.

    The window has a slice or a place along each axis.
    """
    ranges = []
    for part, extent, size in zip(window, array.shape, array.shards or array.chunks, strict=True):
        start, stop = (part, part + 1) if isinstance(part, int) else part.indices(extent)[:2]
        ranges.append(range(start // size, (stop - 1) // size + 1))
    yield from itertools.product(*ranges)


def _name(codec: Any) -> str:
    """The name of a codec of either version of zarr, such as 'zlib'."""
    name = getattr(codec, "codec_id", None) or codec.to_dict()["name"]
    return str(name).removeprefix("numcodecs.")


def _chunks(array: Any, file: Path) -> Iterator[bytes]:
    """Yield the stored chunks of a file: one, or those that the index of a shard lists."""
    if array.shards is None:
        yield file.read_bytes()
        return
    ratios = zip(array.shards, array.chunks, strict=True)
    index_bytes = 16 * math.prod(shard // chunk for shard, chunk in ratios)
    at_end = array.metadata.codecs[0].index_location.value == "end"
    size = file.stat().st_size
    with file.open("rb") as shard:
        shard.seek(max(size - index_bytes - _CHECKSUM_BYTES, 0) if at_end else 0)
        index = np.frombuffer(shard.read(index_bytes), "<u8").reshape(-1, 2).tolist()
        for at, length in index:
            if at != _NO_CHUNK:
                if at + length > size:
                    raise ValueError(
                        f"the index of the shard {file.name} lists bytes after its end"
                    )
                shard.seek(at)
                yield shard.read(length)


def _blosc(data: bytes, limit: int) -> int:
    """Read the decoded size in the header of Blosc 1, which its library enforces.

    The header states the stored size too. The library believes it: it reads beyond the end of data that is shorter.
    """
    if struct.unpack("<I", data[12:16])[0] > len(data):
        raise ValueError("a chunk is shorter than its header states")
    return int(struct.unpack("<I", data[4:8])[0])


def _lz4(data: bytes, limit: int) -> int:
    """Read the decoded size that numcodecs writes before the data."""
    return int(struct.unpack("<I", data[:4])[0])


def _zstd(data: bytes, limit: int) -> int:
    """Read the decoded size in the header of a frame (RFC 8878, 3.1.1.1) if it is the only one, or else count it."""
    descriptor = data[4]
    flag, single = descriptor >> 6, descriptor >> 5 & 1
    length = (single, 2, 4, 8)[flag]
    first = 6 - single + (0, 1, 2, 4)[descriptor & 3]
    end = _end_of_blocks(data, first + length) + 4 * (descriptor >> 2 & 1)  # a checksum
    if not length or end != len(data):
        return _count_zstd(data, limit)
    return int.from_bytes(data[first : first + length], "little") + (256 if length == 2 else 0)


def _end_of_blocks(data: bytes, place: int) -> int:
    """Find where the blocks of a frame of zstd end (RFC 8878, 3.1.1.2); the first begins at `place`."""
    is_last = False
    while not is_last:
        head = int.from_bytes(data[place : place + 3], "little")
        is_last, repeats = bool(head & 1) or place >= len(data), head >> 1 & 3 == 1
        place += 3 + (1 if repeats else head >> 3)
    return place


def _count_zstd(data: bytes, limit: int) -> int:
    return len(imagecodecs.zstd_decode(data, out=limit))  # raises if it has more bytes


def _counted(open_stream: Callable[[io.BytesIO], Any]) -> Callable[[bytes, int], int]:
    """A function that decompresses a stream in pieces, up to the limit, and counts the bytes."""

    def count(data: bytes, limit: int) -> int:
        total = 0
        stream = open_stream(io.BytesIO(data))
        while total <= limit and (piece := stream.read(_PIECE)):
            total += len(piece)
        return total

    return count


def _zlib(data: bytes, limit: int) -> int:
    """The decoded size, or more than the limit."""
    stream = zlib.decompressobj()
    return len(stream.decompress(data, limit + 1))


_DECODED_BYTES: Final[Mapping[str, Callable[[bytes, int], int]]] = {
    "blosc": _blosc,
    "bz2": _counted(bz2.BZ2File),
    "gzip": _counted(lambda data: gzip.GzipFile(fileobj=data)),
    "lz4": _lz4,
    "lzma": _counted(lzma.LZMAFile),
    "zlib": _zlib,
    "zstd": _zstd,
}
"""Function by codec that returns the decoded size, at most a little over the limit."""
