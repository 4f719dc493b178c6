"""What a compressed tile says of its own size, before anything is made of it: it may say more than its file does."""

from __future__ import annotations

import struct

_FRAMES = frozenset(range(0xC0, 0xD0)) - {
    0xC4,
    0xC8,
    0xCC,
}  # SOF0 to SOF15; DHT, JPG and DAC are none
_ALONE = frozenset({0x01, *range(0xD0, 0xD9)})  # markers without a length


def jpeg_size(data: bytes | bytearray) -> tuple[int, int] | None:
    """Rows and columns of the frame of a JPEG, None where it has none (ITU-T T.81, B.2.2)."""
    at = 0
    while (at := data.find(0xFF, at)) >= 0 and at + 4 <= len(data):
        marker = data[at + 1]
        if marker == 0xFF:
            at += 1
        elif marker in _ALONE or marker == 0:
            at += 2
        elif marker in _FRAMES:
            if at + 9 > len(data):
                return None
            rows, columns = struct.unpack(">HH", data[at + 5 : at + 9])
            return rows, columns
        else:
            (length,) = struct.unpack(">H", data[at + 2 : at + 4])
            at += 2 + length
    return None


def jpeg2000_size(data: bytes | bytearray) -> tuple[int, int] | None:
    """The same of a codestream of JPEG 2000, alone or in its box (ISO 15444-1, A.5.1 and I.4)."""
    at = _codestream(data)
    if at is None or data[at : at + 4] != b"\xff\x4f\xff\x51" or at + 24 > len(data):
        return None
    right, bottom, left, top = struct.unpack(">IIII", data[at + 8 : at + 24])
    return bottom - top, right - left


def _codestream(data: bytes | bytearray) -> int | None:
    """Where it begins: at once, or in the box `jp2c`."""
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
