"""Layout of TIFF pages, and the files that cannot be decoded in strips."""

from __future__ import annotations

import os
import re
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from samples import ROOT
from slide_files import SMALL_SVS, image, read_all, write_pyramid

from tfbig import sources
from tfbig.errors import SourceError
from tfbig.sources import TiffSource
from tfbig.sources.files import File
from tfbig.sources.slides import tiff_layout
from tfbig.sources.slides.tiff_layout import read_layout


def test_tiles(tiffs: dict[str, Path]) -> None:
    """67 x 101 pixels in tiles of 16 x 32: five bands of four tiles."""
    pyramid, layout = read_layout(File(tiffs["deflate_tiles"]), 0)
    assert pyramid.levels == ((67, 101),)
    assert (layout.shape, layout.samples, layout.planes) == ((67, 101, 3), 3, 1)
    assert (layout.num_bands, layout.num_across) == (5, 4)
    assert layout.band_bytes == 16 * 128 * 3
    assert layout.rows_at is None
    assert layout.corner(0) == (0, 0, 0)
    assert layout.corner(6) == (0, 16, 64)
    assert [layout.inside(segment) for segment in (0, 3, 16, 19)] == [
        (16, 32),
        (16, 5),
        (3, 32),
        (3, 5),
    ]
    assert layout.segments(1, range(1, 3)) == [5, 6]


def test_planes(tiffs: dict[str, Path]) -> None:
    """The fourth plane is alpha, which is never decoded."""
    _, layout = read_layout(File(tiffs["rgba_planes"]), 0)
    assert (layout.shape, layout.samples, layout.planes) == ((67, 101, 3), 4, 4)
    assert layout.corner(20 + 6) == (1, 16, 64)
    assert layout.segments(1, [2]) == [6, 26, 46]


def test_uncompressed_rows(tiffs: dict[str, Path]) -> None:
    array = image(67, 101, dtype="uint16")
    _, layout = read_layout(File(tiffs["plain_uint16_big_endian"]), 0)
    assert layout.stored == np.dtype(">u2")
    assert layout.rows_at is not None
    data = tiffs["plain_uint16_big_endian"].read_bytes()[layout.rows_at :][: array.nbytes]
    np.testing.assert_array_equal(np.frombuffer(data, layout.stored), array.ravel())


def test_levels(tmp_path: Path) -> None:
    write_pyramid(tmp_path / "a.tif", resolution=(20000, 20000), resolutionunit="CENTIMETER")
    file = File(tmp_path / "a.tif")
    pyramid, layout = read_layout(file, 2)
    assert pyramid.levels == ((400, 300), (200, 150), (100, 75))
    assert pyramid.resolution.mpp == pytest.approx((0.5, 0.5))
    assert layout.shape == (100, 75, 3)
    for level in (3, -1):
        with pytest.raises(SourceError, match=rf"level {level} requested, but the file has 3"):
            read_layout(file, level)


@pytest.mark.parametrize(
    ("photometric", "extra", "num_bands", "num_kept"),
    [
        ("minisblack", ["unassalpha"], 2, 1),
        ("minisblack", ["assocalpha"], 2, 1),
        ("minisblack", ["unspecified"] * 4, 5, 5),  # a multispectral image keeps all its bands
        ("rgb", ["unspecified"], 4, 4),  # near infrared
        ("rgb", ["unassalpha"], 4, 3),
        ("rgb", ["unspecified", "unassalpha"], 5, 4),
    ],
)
def test_only_alpha_is_dropped(
    tmp_path: Path, photometric: str, extra: list[str], num_bands: int, num_kept: int
) -> None:
    path, array = tmp_path / "bands.tif", image(33, 40, num_bands)
    options = {"photometric": photometric, "extrasamples": extra, "planarconfig": "contig"}
    tifffile.imwrite(path, array, tile=(16, 16), compression="deflate", **options)
    np.testing.assert_array_equal(read_all(TiffSource(path)), array[..., :num_kept])


@pytest.mark.parametrize("name", ["deflate_tiles", "plain_rgb", "jpeg_strips"])
@pytest.mark.parametrize("missing", [1, 500])
def test_truncated_file(tiffs: dict[str, Path], tmp_path: Path, name: str, missing: int) -> None:
    path = tmp_path / "cut.tif"
    path.write_bytes(tiffs[name].read_bytes()[:-missing])
    with pytest.raises(SourceError, match=r"cut\.tif: is truncated: .* Write or copy the file"):
        TiffSource(path)


def test_file_truncated_to_header(tiled: Path) -> None:
    os.truncate(tiled, 6)
    with pytest.raises(SourceError, match=r"tiled\.tif: cannot be read as TIFF .*6 bytes"):
        TiffSource(tiled)


def test_not_a_tiff(tmp_path: Path) -> None:
    path = tmp_path / "noise.svs"
    path.write_bytes(b"neither II nor MM" * 10)
    with pytest.raises(SourceError, match=r"noise\.svs: cannot be read as TIFF .*expected a TIFF"):
        sources.open(path)


@pytest.mark.parametrize(
    ("shape", "options", "axes"),
    [
        ((5, 20, 30), {"photometric": "minisblack"}, "QYX"),
        ((20, 30, 3), {"photometric": "minisblack", "metadata": {"axes": "ZYX"}}, "ZYX"),
        ((4, 20, 30, 3), {"photometric": "rgb"}, "QYXS"),
    ],
)
def test_stacks(tmp_path: Path, shape: tuple[int, ...], options: dict[str, Any], axes: str) -> None:
    path = tmp_path / "stack.tif"
    tifffile.imwrite(path, image(*shape), **options)
    message = (
        rf"stack.tif: holds a stack of images, shape {re.escape(str(shape))} with axes '{axes}'"
    )
    with pytest.raises(SourceError, match=message + ".*photometric='rgb'"):
        TiffSource(path)


@pytest.mark.parametrize(
    ("photometric", "stored"),
    [("miniswhite", "MINISWHITE"), ("palette", "PALETTE"), ("cfa", "CFA")],
)
def test_unsupported_colours(tmp_path: Path, photometric: str, stored: str) -> None:
    path, options = tmp_path / "colours.tif", {}
    if photometric == "palette":
        options["colormap"] = np.zeros((3, 256), np.uint16)
    tifffile.imwrite(path, image(20, 30), photometric=photometric, **options)
    with pytest.raises(SourceError, match=rf"stored as {stored}; expected gray .* Convert it"):
        TiffSource(path)


def set_tag(path: Path, code: int, value: Any) -> None:
    with tifffile.TiffFile(path, mode="r+b") as tiff:
        tiff.pages[0].tags[code].overwrite(value)


@pytest.mark.parametrize(
    ("compression", "name"), [(33003, "APERIO_JP2000_YCBC"), (34661, "JBIG"), (50000, "ZSTD")]
)
def test_unsupported_compressions(
    tiled: Path, compression: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class WithoutCodecs(dict[int, Any]):
        def __missing__(self, key: int) -> Any:
            raise KeyError(f"{key} requires the 'imagecodecs' package")

    monkeypatch.setattr(tifffile.TIFF, "DECOMPRESSORS", WithoutCodecs())
    set_tag(tiled, 259, compression)
    with pytest.raises(SourceError, match=rf"compressed with {name}, .*Install the imagecodecs"):
        TiffSource(tiled)


def test_strip_too_large(tiffs: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiff_layout, "_MAX_BAND_BYTES", 5000)
    TiffSource(tiffs["plain_gray"])  # also one strip, but uncompressed rows are read one by one
    with pytest.raises(
        SourceError, match=r"strips of 67 x 101, .*: one must .* such as of 512 x 512"
    ):
        TiffSource(tiffs["one_strip"])


def test_missing_offsets(tiled: Path, tiffs: dict[str, Path], tmp_path: Path) -> None:
    set_tag(tiled, 257, 500)  # ImageLength
    with pytest.raises(SourceError, match=r"lists 20 offsets and 20 sizes for 128 tiles"):
        TiffSource(tiled)
    strips = Path(shutil.copy(tiffs["one_row_strips"], tmp_path / "strips.tif"))
    set_tag(strips, 257, 68)
    with pytest.raises(SourceError, match=r"lists 67 offsets and 67 sizes for 68 tiles"):
        TiffSource(strips)


def set_type(path: Path, tag: int, kind: int) -> None:
    """Change the type of the numbers of a tag of the first page."""
    with tifffile.TiffFile(path) as tiff:
        place = tiff.pages.first.tags[tag].offset + 2
    content = bytearray(path.read_bytes())
    content[place : place + 2] = struct.pack("<H", kind)
    path.write_bytes(content)


@pytest.mark.parametrize("tag", [324, 325])
@pytest.mark.parametrize("kind", [11, 9])
def test_offsets_that_are_fractions_or_negative(tiled: Path, tag: int, kind: int) -> None:
    """The bytes of whole numbers, read as numbers of type FLOAT, and negative ones of type SLONG."""
    if kind == 9:
        with tifffile.TiffFile(tiled) as tiff:
            place = tiff.pages.first.tags[tag].valueoffset
        content = bytearray(tiled.read_bytes())
        content[place : place + 4] = struct.pack("<i", -8)
        tiled.write_bytes(content)
    set_type(tiled, tag, kind)
    with pytest.raises(SourceError, match=tiled.name):
        read_all(TiffSource(tiled))


def test_more_alpha_than_channels(tmp_path: Path) -> None:
    path = tmp_path / "alpha.tif"
    options = {"photometric": "minisblack", "extrasamples": ["unassalpha"]}
    tifffile.imwrite(path, image(33, 40, 2), planarconfig="contig", **options)
    set_tag(path, 277, 1)  # SamplesPerPixel
    with pytest.raises(SourceError, match=r"declares 1 samples a pixel, but the bits of 2"):
        TiffSource(path)


def test_tile_larger_than_the_image(tmp_path: Path) -> None:
    path = tmp_path / "tile.tif"
    tifffile.imwrite(path, image(64, 64), tile=(64, 64), compression="deflate")
    set_tag(path, 322, 2**16)
    set_tag(path, 323, 2**16)
    with pytest.raises(SourceError, match=r"65536 x 65536, .*: one must be decoded at"):
        TiffSource(path)


def test_row_of_large_tiles(tmp_path: Path) -> None:
    path = tmp_path / "row.tif"
    tifffile.imwrite(path, image(64, 128), tile=(64, 64), compression="deflate")
    set_tag(path, 322, 2**15)
    set_tag(path, 323, 2**15)
    set_tag(path, 256, 2**16)
    with pytest.raises(SourceError, match=r"32768 x 32768, .*: a row of 2 must be decoded at once"):
        TiffSource(path)


@pytest.mark.parametrize("orientation", [3, 6])
def test_rotated_image(tmp_path: Path, orientation: int) -> None:
    path = tmp_path / "turned.tif"
    tifffile.imwrite(path, image(20, 30), extratags=[(274, "H", 1, orientation, True)])
    with pytest.raises(SourceError, match=r"turned\.tif: is stored rotated or mirrored .* Rotate"):
        TiffSource(path)


def test_reduced_copy_first(tmp_path: Path) -> None:
    path = tmp_path / "reduced.tif"
    with tifffile.TiffWriter(path) as file:
        file.write(image(20, 30), subfiletype=1)
        file.write(image(40, 60))
    assert TiffSource(path).shape == (40, 60, 1)  # which is an image of its own
    tifffile.imwrite(path, image(20, 30), subfiletype=1)  # nothing larger is in the file
    assert TiffSource(path).shape == (20, 30, 1)


def test_level_larger_than_the_image(tmp_path: Path) -> None:
    """Tifffile takes the first page of an SVS for level 0, and later ones for its levels."""
    path = tmp_path / "a.svs"
    with tifffile.TiffWriter(path) as file:
        for shape in ((32, 48), (16, 16), (64, 96)):
            file.write(
                image(*shape, 3), tile=(16, 16), description="Aperio Image Library", metadata=None
            )
    with pytest.raises(SourceError, match=r"image, 32 x 48, is a reduced copy of level 1, 64 x 96"):
        TiffSource(path)


@pytest.mark.parametrize("axis", ["SizeZ", "SizeC", "SizeT"])
def test_stack_of_more_images_than_bytes(tmp_path: Path, axis: str) -> None:
    path = tmp_path / "stack.ome.tif"
    tifffile.imwrite(path, image(20, 30), ome=True, metadata={"axes": "YX"})
    text = tifffile.tiffcomment(path).replace(f'{axis}="1"', f'{axis}="{10**9}"')
    tifffile.tiffcomment(path, text)
    with pytest.raises(SourceError, match=r"stack\.ome\.tif: its OME-XML declares 1000000000 im"):
        TiffSource(path)


def test_one_bit_and_complex_samples(tmp_path: Path) -> None:
    path, bits = tmp_path / "bits.tif", image(20, 30) > 60
    tifffile.imwrite(path, bits, photometric="minisblack")
    np.testing.assert_array_equal(read_all(TiffSource(path))[..., 0], bits)
    tifffile.imwrite(path, np.zeros((20, 30), np.complex64), photometric="minisblack")
    with pytest.raises(SourceError, match="has dtype complex64; expected a boolean, integer"):
        TiffSource(path)


def test_real_svs_that_is_not_tiff() -> None:
    path = SMALL_SVS.with_name("broken_not_a_tiff.svs")
    if not path.exists():
        pytest.skip(f"{path.relative_to(ROOT)} is not here")
    with pytest.raises(SourceError, match=r"broken_not_a_tiff\.svs: cannot be read as TIFF"):
        sources.open(path)


@pytest.mark.parametrize("header", [b"II*\0\x08\0\0\0", b"II+\0\x08\0\0\0\x10\0\0\0\0\0\0\0"])
def test_file_whose_first_page_was_not_written(tmp_path: Path, header: bytes) -> None:
    path = tmp_path / "begun.tif"
    path.write_bytes(header)
    with pytest.raises(SourceError, match=r"begun\.tif: is a TIFF file without a complete image"):
        TiffSource(path)


@pytest.mark.parametrize("compression", [None, "zlib"])
def test_strips_in_the_header(compression: str | None, tmp_path: Path) -> None:
    """A strip of no bytes is missing by convention; one at byte 0 would show the header."""
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, np.ones((32, 32), np.uint8), compression=compression, rowsperstrip=16)
    with tifffile.TiffFile(path, mode="r+") as tiff:
        tiff.pages[0].tags[273].overwrite((0, 0))
    with pytest.raises(SourceError, match=r"a\.tif: has a tile or strip at byte 0"):
        sources.open(path)


@pytest.mark.parametrize(("tag", "where"), [(259, "is compressed with"), (262, "are stored as")])
def test_values_of_tags_that_are_texts_are_one_line(tag: int, where: str, tmp_path: Path) -> None:
    """A tag of a damaged file may hold any text in place of a number."""
    path = tmp_path / "a.tif"
    tifffile.imwrite(path, np.zeros((32, 32), np.uint8))
    with tifffile.TiffFile(path) as tiff:
        place = tiff.pages.first.tags[tag].offset
    data = bytearray(path.read_bytes())
    data[place + 2 : place + 12] = struct.pack("<HI", 2, 4) + b"a\n\x01b"  # ASCII, four letters
    path.write_bytes(data)
    with pytest.raises(SourceError, match=rf"a\.tif: .*{where} a \?b") as raised:
        sources.open(path)
    assert str(raised.value).isprintable()
