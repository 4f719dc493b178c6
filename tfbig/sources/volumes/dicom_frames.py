"""Compressed frames of DICOM: whether each holds the rows and columns that the header of its file says."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tfbig.errors import SourceError
from tfbig.sources.files import Package
from tfbig.sources.slides.decoded_size import jpeg2000_size, jpeg_size

pydicom = Package("pydicom")

_STARTS: Final = (
    (b"\xff\xd8", jpeg_size),
    (b"\xff\x4f\xff\x51", jpeg2000_size),
    (b"\x00\x00\x00\x0cjP  ", jpeg2000_size),
)
"""First bytes of JPEG and JPEG-LS, and of JPEG 2000 with and without boxes, and what reads their size."""


def check(path: Path, data: Any, offset: int, frames: int, rows: int, columns: int) -> None:
    """Check the size of the compressed frames of a file, of which decoders take a part, or make another image.

    Args:
        path: The file.
        data: Its data set, of which the pixels need not be read.
        offset: First byte of the pixels in the file: of their table of offsets.
        frames: Number of frames, by the header.
        rows: Rows of a frame, by the header.
        columns: Columns of a frame, by the header.

    Raises:
        SourceError: A frame has another size, or there are more frames.
    """
    is_rle = data.file_meta.get("TransferSyntaxUID", "") == pydicom.uid.RLELossless
    expected = (
        f"expected {rows} x {columns}, by its header. Correct Rows and Columns, or copy it again."
    )
    for number, frame in enumerate(_encoded(path, data, offset, frames)):
        if number == frames:
            raise SourceError(
                f"{path}: holds more than {frames} frames; expected {frames}, by its header. Correct NumberOfFrames, "
                "or copy it again."
            )
        found = next((size(frame) for start, size in _STARTS if frame.startswith(start)), None)
        if found not in (None, (rows, columns)):
            raise SourceError(
                f"{path}: frame {number} is an image of {found[0]} x {found[1]} pixels; {expected}"
            )
        longest = max(_segment_lengths(frame), default=0) if is_rle else 0
        if longest >= rows * columns + max(columns, 2):  # one byte more is padding
            raise SourceError(f"{path}: frame {number} has {longest} pixels; {expected}")


def _encoded(path: Path, data: Any, offset: int, frames: int) -> Iterator[bytes]:
    """Yield the frames of a file as they are stored, one at a time."""
    tables = [data.get(f"ExtendedOffsetTable{kind}") for kind in ("", "Lengths")]
    with path.open("rb") as file:
        file.seek(offset)
        yield from pydicom.encaps.generate_frames(
            file, number_of_frames=frames, extended_offsets=tuple(tables) if all(tables) else None
        )


def _segment_lengths(frame: bytes) -> Iterator[int]:
    """Yield the number of bytes in each segment of a frame of run lengths (PackBits, DICOM PS3.5 annex G)."""
    if len(frame) < 64:
        return  # an error of the decoder
    count = min(struct.unpack("<L", frame[:4])[0], 15)
    begins = struct.unpack(f"<{count}L", frame[4 : 4 + 4 * count])
    for begin, end in zip(begins, (*begins[1:], len(frame)), strict=True):
        length, at = 0, begin
        while at < min(end, len(frame)):
            code = frame[at]
            at += 2 if code > 128 else code + 2 if code < 128 else 1
            length += 257 - code if code > 128 else code + 1 if code < 128 else 0
        yield length - max(at - end, 0)  # a last literal run may be cut off
