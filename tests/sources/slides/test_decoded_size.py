"""Sizes declared in the headers of compressed tiles."""

from __future__ import annotations

import struct
from pathlib import Path

import imagecodecs
import numpy as np
import tifffile

from tfbig.sources.slides import decoded_size


def test_declared_size(tmp_path: Path) -> None:
    for compression, size in (
        ("jpeg", decoded_size.jpeg_size),
        ("jpeg2000", decoded_size.jpeg2000_size),
    ):
        path = tmp_path / f"{compression}.tif"
        image = np.random.default_rng(0).integers(0, 255, (48, 80), np.uint8)
        tifffile.imwrite(path, image, tile=(48, 80), compression=compression)
        with tifffile.TiffFile(path) as file:
            page = file.pages[0]
            at, count = page.dataoffsets[0], page.databytecounts[0]
        data = path.read_bytes()[at : at + count]
        assert size(data) == (48, 80)
        assert size(data[:3]) is None
        assert size(b"") is None


def test_codestream_in_skipped_box() -> None:
    """Decoders skip the box `free`, so its codestream is not the image."""

    def encode(side: int) -> bytes:
        image = np.zeros((side, side), np.uint8)
        return imagecodecs.jpeg2k_encode(image, codecformat="JP2")

    def box(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I4s", 8 + len(content), kind) + content

    small, large = encode(16), encode(512)
    at = large.index(b"jp2c") - 4
    forged = large[:at] + box(b"free", small[small.index(b"\xff\x4f\xff\x51") :]) + large[at:]
    assert imagecodecs.jpeg2k_decode(forged).shape == (512, 512)
    assert decoded_size.jpeg2000_size(forged) == (512, 512)
    assert decoded_size.jpeg2000_size(small) == (16, 16)
    long = struct.pack(">I4sQ", 1, b"jp2c", 0) + large[at + 8 :]
    assert decoded_size.jpeg2000_size(large[:at] + long) == (512, 512)
    assert decoded_size.jpeg2000_size(large[:at]) is None
    assert (
        decoded_size.jpeg2000_size(large[:12] + struct.pack(">I4s", 0, b"free") + large[at:])
        is None
    )
