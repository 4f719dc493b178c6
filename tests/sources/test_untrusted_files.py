"""Small images that declare a huge size, or refer to other files, raise an error at once and use no memory."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image
from resource_limits import cheap

import tfbig

HUGE = 10**6  # for each side: 10**12 pixels


@pytest.fixture(scope="module", autouse=True)
def _codecs(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Load the decoders, which takes time and memory when they are first used."""
    folder = tmp_path_factory.mktemp("good")
    image = np.zeros((64, 64), np.uint8)
    for compression in (None, "deflate", "jpeg", "jpeg2000"):
        path = folder / f"{compression}.tif"
        tifffile.imwrite(path, image, tile=(64, 64), compression=compression)
        tfbig.open(path).read(0, 1)
    Image.fromarray(image).save(folder / "a.png")
    np.save(folder / "a.npy", image)
    for name in ("a.png", "a.npy"):
        tfbig.open(folder / name).read(0, 1)


def tiff(path: Path, tags: list[Any], order: str = "<") -> Path:
    """Write a TIFF of one page from `(tag, type, values)`; types 3, 4 and 16 have 2, 4 and 8 bytes."""
    sizes = {3: "H", 4: "I", 16: "Q"}
    entries, rest = b"", b""
    at = 8 + 2 + 12 * len(tags) + 4
    for tag, kind, values in sorted(tags):
        data = struct.pack(f"{order}{len(values)}{sizes[kind]}", *values)
        if len(data) <= 4:
            value = data.ljust(4, b"\0")
        else:
            value, rest = struct.pack(f"{order}I", at + len(rest)), rest + data
        entries += struct.pack(f"{order}HHI", tag, kind, len(values)) + value
    head = struct.pack(f"{order}2sHI", b"II", 42, 8) + struct.pack(f"{order}H", len(tags))
    path.write_bytes(head + entries + bytes(4) + rest + bytes(100))
    return path


def page(width: int, height: int, *more: Any) -> list[Any]:
    """Tags of a gray image of 8 bits."""
    replaced = {tag for tag, *_ in more}
    base = [(256, 4, [width]), (257, 4, [height]), (258, 3, [8]), (259, 3, [1]), (262, 3, [1])]
    base += [(277, 3, [1])]
    return [entry for entry in base if entry[0] not in replaced] + list(more)


TIFFS = {
    "one strip": page(HUGE, HUGE, (273, 4, [8]), (278, 4, [HUGE]), (279, 4, [100])),
    "one deflated strip": page(
        *(HUGE, HUGE, (259, 3, [8])), (273, 4, [8]), (278, 4, [HUGE]), (279, 4, [100])
    ),
    "a strip left out": page(HUGE, HUGE, (273, 4, [0]), (278, 4, [HUGE]), (279, 4, [0])),
    "one huge tile": page(
        HUGE, HUGE, (322, 4, [HUGE]), (323, 4, [HUGE]), (324, 4, [8]), (325, 4, [100])
    ),
    "small tiles, few offsets": page(
        HUGE, HUGE, (322, 3, [256]), (323, 3, [256]), (324, 4, [8] * 9), (325, 4, [9] * 9)
    ),
    "rows of one pixel": page(1, 2**31, (273, 4, [8]), (278, 4, [2**31]), (279, 4, [100])),
    "many samples": page(
        *(4096, 4096, (277, 3, [65535]), (258, 3, [8])),
        *((273, 4, [8]), (278, 4, [4096]), (279, 4, [100])),
    ),
}


@pytest.mark.parametrize("name", TIFFS)
def test_tiff_with_huge_size(name: str, tmp_path: Path) -> None:
    path = tiff(tmp_path / "forged.tif", TIFFS[name])
    assert path.stat().st_size < 20_000
    with cheap(), pytest.raises(tfbig.SourceError, match=r"forged\.tif"):
        source = tfbig.open(path)
        source.read(0, 1)


def test_tile_with_huge_declared_size(tmp_path: Path) -> None:
    """A JPEG of 30,000 x 30,000 in a tile of 64 x 64."""
    good = tmp_path / "good.tif"
    image = np.zeros((64, 64), np.uint8)
    tifffile.imwrite(good, image, tile=(64, 64), compression="jpeg")
    data = bytearray(good.read_bytes())
    frame = data.index(b"\xff\xc0")
    data[frame + 5 : frame + 9] = struct.pack(">HH", 30_000, 30_000)
    path = tmp_path / "forged.tif"
    path.write_bytes(data)
    with cheap(), pytest.raises(tfbig.SourceError, match=r"forged\.tif"):
        tfbig.open(path).read(0, 64)


def deflated_zeros(num_mib: int) -> bytes:
    """Zeros as a zlib stream: one MiB is compressed, and its block repeated."""
    compressor = zlib.compressobj(9)
    first = compressor.compress(bytes(2**20)) + compressor.flush(zlib.Z_FULL_FLUSH)
    block = compressor.compress(bytes(2**20)) + compressor.flush(zlib.Z_FULL_FLUSH)
    checksum = (num_mib * 2**20 % 65521) << 16 | 1  # Adler-32 of zeros
    end = b"\x03\x00" + checksum.to_bytes(4, "big")  # an empty last block
    return first + block * (num_mib - 1) + end


def test_deflated_zeros() -> None:
    assert zlib.decompress(deflated_zeros(3)) == bytes(3 * 2**20)


def test_strip_that_unpacks_to_more_than_declared(tmp_path: Path) -> None:
    """256 MiB of zeros, deflated, in a strip of 4 KiB: no more than the strip is kept."""
    packed = deflated_zeros(256)
    tags = page(64, 64, (259, 3, [8]), (278, 4, [64]), (279, 4, [len(packed)]), (273, 4, [8]))
    path = tiff(tmp_path / "bomb.tif", tags)
    start = path.stat().st_size
    tags = [entry for entry in tags if entry[0] != 273] + [(273, 4, [start])]
    tiff(path, tags)
    path.write_bytes(path.read_bytes() + packed)
    with cheap():
        try:
            rows = tfbig.open(path).read(0, 64)
        except tfbig.SourceError:
            return
        np.testing.assert_array_equal(rows, 0)


def test_picture_with_huge_size(tmp_path: Path) -> None:
    path = tmp_path / "forged.png"
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(path)
    data = bytearray(path.read_bytes())
    at = data.index(b"IHDR") + 4
    data[at : at + 8] = struct.pack(">II", 100_000, 100_000)
    data[at + 13 : at + 17] = struct.pack(">I", zlib.crc32(data[at - 4 : at + 13]))
    path.write_bytes(data)
    with cheap(), pytest.raises(tfbig.SourceError, match=r"forged\.png"):
        tfbig.open(path).read(0, 1)


def test_array_with_huge_shape(tmp_path: Path) -> None:
    path = tmp_path / "forged.npy"
    np.save(path, np.zeros((4, 4, 1), np.uint8))
    path.write_bytes(path.read_bytes().replace(b"(4, 4, 1)", b"(%d, %d, 1)" % (HUGE, HUGE)))
    with cheap(), pytest.raises(tfbig.SourceError, match=r"forged\.npy"):
        tfbig.open(path).read(0, 1)


def test_tiff_that_refers_to_other_files(tmp_path: Path) -> None:
    """Parts of an OME-TIFF may be in other files; only those in this file are read."""
    tifffile.imwrite(tmp_path / "secret.tif", np.full((64, 64), 7, np.uint8))
    xml = (
        '<?xml version="1.0"?><OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06" '
        'UUID="urn:uuid:1"><Image ID="Image:0"><Pixels ID="Pixels:0" DimensionOrder="XYCZT" Type="uint8" '
        'SizeX="64" SizeY="64" SizeC="1" SizeZ="1" SizeT="1"><TiffData IFD="0" PlaneCount="1">'
        '<UUID FileName="../secret.tif">urn:uuid:2</UUID></TiffData></Pixels></Image></OME>'
    )
    folder = tmp_path / "data"
    folder.mkdir()
    path = folder / "a.ome.tif"
    tifffile.imwrite(path, np.full((64, 64), 1, np.uint8), description=xml, metadata=None)
    try:
        rows = tfbig.open(path).read(0, 64)
    except tfbig.SourceError:
        return
    assert not (rows == 7).any()
