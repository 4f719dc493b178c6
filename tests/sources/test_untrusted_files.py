"""Small files that claim to be huge, or that point elsewhere: one error, at once, and no memory."""

import resource
import struct
import time
import zlib
from contextlib import contextmanager

import h5py
import imagecodecs
import numpy as np
import pytest
import tifffile
from PIL import Image

import tfbig
from tfbig import sources
from tfbig.sources.slides import decoded_size

HUGE = 10**6  # by as much: 10**12 pixels


@pytest.fixture(scope="module", autouse=True)
def _codecs(tmp_path_factory):
    """Decoders are loaded when they are first used, which takes time and memory of its own."""
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


@contextmanager
def cheap():
    """What runs inside takes neither long nor memory."""
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    yield
    assert time.process_time() - began < 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # KiB


def tiff(path, tags, order="<"):
    """A TIFF of one page from `(tag, type, values)`; types 3 and 4 are of 2 and 4 bytes, 16 of 8."""
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


def page(width, height, *more):
    """Grey, 8 bits."""
    given = {tag for tag, *_ in more}
    base = [(256, 4, [width]), (257, 4, [height]), (258, 3, [8]), (259, 3, [1]), (262, 3, [1])]
    base += [(277, 3, [1])]
    return [entry for entry in base if entry[0] not in given] + list(more)


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
def test_a_tiff_that_claims_to_be_huge(name, tmp_path):
    path = tiff(tmp_path / "forged.tif", TIFFS[name])
    assert path.stat().st_size < 20_000
    with cheap(), pytest.raises(tfbig.SourceError, match=r"forged\.tif"):
        source = tfbig.open(path)
        source.read(0, 1)


def test_a_tile_that_is_larger_inside_than_the_file_says(tmp_path):
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


def test_sizes_that_compressed_tiles_say(tmp_path):
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


def test_a_strip_that_unpacks_to_more_than_the_file_says(tmp_path):
    """A gigabyte of zeros, deflated, in a strip of 4 KiB: no more than the strip is kept."""
    packed = zlib.compress(bytes(2**28), 9)
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


def test_a_picture_that_claims_to_be_huge(tmp_path):
    path = tmp_path / "forged.png"
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(path)
    data = bytearray(path.read_bytes())
    at = data.index(b"IHDR") + 4
    data[at : at + 8] = struct.pack(">II", 100_000, 100_000)
    data[at + 13 : at + 17] = struct.pack(">I", zlib.crc32(data[at - 4 : at + 13]))
    path.write_bytes(data)
    with cheap(), pytest.raises(tfbig.SourceError, match=r"forged\.png"):
        tfbig.open(path).read(0, 1)


def test_an_array_that_claims_to_be_huge(tmp_path):
    path = tmp_path / "forged.npy"
    np.save(path, np.zeros((4, 4, 1), np.uint8))
    path.write_bytes(path.read_bytes().replace(b"(4, 4, 1)", b"(%d, %d, 1)" % (HUGE, HUGE)))
    with cheap(), pytest.raises(tfbig.SourceError, match=r"forged\.npy"):
        tfbig.open(path).read(0, 1)


def forged(path, **options):
    """Features and coordinates of 10**10 tiles, none of them stored."""
    with h5py.File(path, "w") as file:
        file.create_dataset("features", (10**10, 64), "f4", chunks=(1024, 64), **options)
        data = file.create_dataset("coords", (10**7, 2), "i8", chunks=(1024, 2), **options)
        data.attrs.update({"patch_size": 256, "patch_level": 0})
    return path


@pytest.mark.parametrize("read", [sources.open_bag, sources.read_coords])
@pytest.mark.parametrize("options", [{}, {"compression": "gzip"}])
def test_tables_that_claim_to_be_huge(read, options, tmp_path):
    path = forged(tmp_path / "forged.h5", **options)
    assert path.stat().st_size < 20_000
    with cheap(), pytest.raises(tfbig.SourceError, match=r"forged\.h5: .* are stored"):
        read(path)


@pytest.mark.parametrize("kind", ["external link", "soft link", "external file", "virtual"])
def test_tables_that_lie_elsewhere_are_not_read(kind, tmp_path):
    other, path = tmp_path / "other.h5", tmp_path / "forged.h5"
    with h5py.File(other, "w") as file:
        file["coords"] = np.zeros((3, 2), np.int64)
        file["coords"].attrs.update({"patch_size": 256, "patch_level": 0})
    (tmp_path / "secret").write_bytes(bytes(48))
    with h5py.File(path, "w") as file:
        if kind == "external link":
            file["coords"] = h5py.ExternalLink(str(other), "coords")
        elif kind == "soft link":
            file["real"] = np.zeros((3, 2), np.int64)
            file["coords"] = h5py.SoftLink("/real")
        elif kind == "external file":
            parts = [(str(tmp_path / "secret"), 0, 48)]
            file.create_dataset("coords", (3, 2), "i8", external=parts)
        else:
            layout = h5py.VirtualLayout((3, 2), "i8")
            layout[:] = h5py.VirtualSource(str(other), "coords", shape=(3, 2))
            file.create_virtual_dataset("coords", layout)
        file["features"] = np.zeros((3, 4), np.float32)
    for read in (sources.read_coords, sources.open_bag):
        with pytest.raises(tfbig.SourceError, match=r"not followed|not read"):
            read(path)


def test_a_tiff_that_names_other_files_opens_none(tmp_path):
    """Parts of an OME-TIFF may be in others; what is in this one is read."""
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


def test_a_codestream_in_another_box_is_not_the_image():
    """A decoder follows the boxes: what is in `free` is skipped."""

    def coded(side):
        image = np.zeros((side, side), np.uint8)
        return imagecodecs.jpeg2k_encode(image, codecformat="JP2")

    def box(kind, content):
        return struct.pack(">I4s", 8 + len(content), kind) + content

    small, large = coded(16), coded(512)
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
