"""Image size declared in the header of a compressed tile, read before the tile is decoded.

The declared size may be larger than the tile that the file lists, by mistake or on purpose; decoding
such a tile could use far more memory than the slide.
"""

from __future__ import annotations

import struct

# SOF0 to SOF15, of which DHT, JPG and DAC are no frames, and SOF55 of JPEG-LS
_FRAME_MARKERS = (frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}) | {0xF7}
_MARKERS_WITHOUT_LENGTH = frozenset({0x01, *range(0xD0, 0xD9)})


def jpeg_size(data: bytes | bytearray) -> tuple[int, int] | None:
    """Read `(rows, columns)` in the frame header of a JPEG (ITU-T T.81, B.2.2) or JPEG-LS (T.87); None without one."""
    at = 0
    while (at := data.find(0xFF, at)) >= 0 and at + 4 <= len(data):
        marker = data[at + 1]
        if marker == 0xFF:
            at += 1
        elif marker in _MARKERS_WITHOUT_LENGTH or marker == 0:
            at += 2
        elif marker in _FRAME_MARKERS:
            if at + 9 > len(data):
                return None
            rows, columns = struct.unpack(">HH", data[at + 5 : at + 9])
            return rows, columns
        else:
            (length,) = struct.unpack(">H", data[at + 2 : at + 4])
            at += 2 + length
    return None


def jpeg2000_size(data: bytes | bytearray) -> tuple[int, int] | None:
    """Read `(rows, columns)` in a JPEG 2000 codestream, bare or in a JP2 file (ISO 15444-1, A.5.1 and I.4).

    It is None if there is no header of a codestream.
    """
    at = _codestream_offset(data)
    if at is None or data[at : at + 4] != b"\xff\x4f\xff\x51" or at + 24 > len(data):
        return None
    right, bottom, left, top = struct.unpack(">IIII", data[at + 8 : at + 24])
    return bottom - top, right - left


def _codestream_offset(data: bytes | bytearray) -> int | None:
    """Find the offset of the codestream: 0 if it is bare, else inside the box `jp2c`."""
    if data[4:8] != b"jP  ":
        return 0
    at = 0
    while at + 16 <= len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        header = 8
        if length == 1:
            (length,) = struct.unpack(">Q", data[at + 8 : at + 16])
            header = 16
        if kind == b"jp2c":
            return at + header
        if length < header:
            return None
        at += length
    return None
