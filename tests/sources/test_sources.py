"""Sources give exactly the rows that a reader of the whole image gives, and hold none of it."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import subprocess
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from samples import ROOT

from tfbig import sources
from tfbig.errors import BudgetError, SourceError
from tfbig.sources import (
    ArraySource,
    Grayscale,
    OnDisk,
    Padded,
    RawSource,
    Scaled,
    Source,
    TiffSource,
    Upsampled,
    views,
)
from tfbig.sources.slides import opening, tiff_layout

SMALL_SVS = ROOT / "tests" / "data" / "CMU-1-Small-Region.svs"
EXAMPLES = ROOT / "examples" / "data"
SLIDES = ("esophagus_eosinophilic.tif", "gastritis_lymphocytic.tif", "pancreas_pdac_1.tif")

SHARED_FILES = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def image(*shape: int, dtype: str = "uint8", seed: int = 0) -> np.ndarray:
    """A picture with a smooth part, which JPEG likes, and noise."""
    rows, columns = np.ogrid[: shape[0], : shape[1]]
    smooth = (rows * 3 + columns * 2).reshape(shape[0], shape[1], *[1] * (len(shape) - 2))
    noise = np.random.default_rng(seed).integers(0, 40, shape)
    scale = 1 if dtype == "uint8" else 250
    return ((smooth % 200 + noise) * scale).astype(dtype)


# Odd sizes on purpose: 67 and 101 are no multiples of any tile.
TIFFS: dict[str, tuple[np.ndarray, dict[str, Any]]] = {
    "plain_rgb": (image(67, 101, 3), {"photometric": "rgb"}),
    "plain_gray": (image(67, 101), {}),
    "plain_uint16_big_endian": (image(67, 101, dtype="uint16"), {"byteorder": ">"}),
    "plain_rgba": (image(67, 101, 4), {"photometric": "rgb", "rowsperstrip": 5}),
    "plain_tiles": (image(67, 101, 3), {"photometric": "rgb", "tile": (16, 32)}),
    "plain_planes": (image(3, 67, 101), {"photometric": "rgb", "planarconfig": "separate"}),
    "one_row_strips": (
        image(67, 101, 3),
        {"photometric": "rgb", "rowsperstrip": 1, "compression": "deflate"},
    ),
    "lzw_predictor": (
        image(67, 101, 3),
        {"photometric": "rgb", "rowsperstrip": 7, "compression": "lzw", "predictor": True},
    ),
    "one_strip": (image(67, 101), {"compression": "deflate", "rowsperstrip": 1000}),
    "deflate_tiles": (
        image(67, 101, 3),
        {"photometric": "rgb", "tile": (16, 32), "compression": "deflate"},
    ),
    "uint16_tiles": (
        image(67, 101, dtype="uint16"),
        {"tile": (32, 16), "compression": "zstd", "predictor": True},
    ),
    "uint16_big_endian_tiles": (
        image(67, 101, 3, dtype="uint16"),
        {"photometric": "rgb", "tile": (16, 16), "compression": "deflate", "byteorder": ">"},
    ),
    "rgba_tiles": (
        image(67, 101, 4),
        {"photometric": "rgb", "tile": (16, 32), "compression": "deflate"},
    ),
    "rgba_planes": (
        image(4, 67, 101),
        {
            "photometric": "rgb",
            "planarconfig": "separate",
            "tile": (16, 32),
            "compression": "deflate",
        },
    ),
    "float_tiles": (image(67, 101, dtype="float32"), {"tile": (16, 16), "compression": "deflate"}),
    "jpeg_tiles": (
        image(67, 101, 3),
        {"photometric": "rgb", "tile": (16, 32), "compression": "jpeg"},
    ),
    "jpeg_tiles_420": (
        image(67, 101, 3),
        {"photometric": "rgb", "tile": (32, 32), "compression": "jpeg", "subsampling": (2, 2)},
    ),
    "jpeg_strips": (
        image(67, 101, 3),
        {"photometric": "rgb", "rowsperstrip": 16, "compression": "jpeg"},
    ),
    "jpeg_gray": (image(67, 101), {"tile": (16, 16), "compression": "jpeg"}),
    "jpeg2000_tiles": (
        image(67, 101, 3),
        {"photometric": "rgb", "tile": (32, 32), "compression": "jpeg2000"},
    ),
    "bigtiff": (
        image(67, 101, 3),
        {"photometric": "rgb", "tile": (16, 32), "compression": "jpeg", "bigtiff": True},
    ),
}


@pytest.fixture(scope="module")
def tiffs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("tiffs")
    for name, (array, options) in TIFFS.items():
        tifffile.imwrite(folder / f"{name}.tif", array, **options)
    return {name: folder / f"{name}.tif" for name in TIFFS}


@pytest.fixture
def tiled(tiffs: dict[str, Path], tmp_path: Path) -> Path:
    """A tiled file that a test may damage."""
    return Path(shutil.copy(tiffs["deflate_tiles"], tmp_path / "tiled.tif"))


def whole(path: Path, **options: Any) -> np.ndarray:
    """What tifffile gives, as `[H, W, C]` without alpha."""
    array = tifffile.imread(path, **options)
    if array.ndim == 2:
        return array[..., None]
    if array.shape[0] in (3, 4):
        array = np.moveaxis(array, 0, -1)
    return array[..., :3]


def read_all(source: Source) -> np.ndarray:
    return source.read(0, source.shape[0])


def decode_counter(source: TiffSource) -> Counter[int]:
    """Counts from now on how often each segment is decoded."""
    counts: Counter[int] = Counter()
    decode = source._layout.decode

    def counting(data: bytes, segment: int) -> Any:
        counts[segment] += 1
        return decode(data, segment)

    source._layout = dataclasses.replace(source._layout, decode=counting)
    return counts


# --------------------------------------------------------------------------------------------------
# TIFF


@pytest.mark.parametrize("name", TIFFS)
def test_tiff_equals_tifffile(tiffs: dict[str, Path], name: str) -> None:
    expected = whole(tiffs[name])
    source = TiffSource(tiffs[name])
    assert source.shape == expected.shape
    assert source.dtype == expected.dtype
    assert source.dtype.isnative
    rows = read_all(source)
    assert rows.flags.c_contiguous
    assert rows.dtype == expected.dtype
    np.testing.assert_array_equal(rows, expected)


@pytest.mark.parametrize("name", TIFFS)
@pytest.mark.parametrize("cache_bytes", [0, 10_000])
@SHARED_FILES
@given(ranges=st.lists(st.tuples(st.integers(0, 67), st.integers(0, 67)), min_size=1, max_size=6))
def test_any_rows_in_any_order(
    tiffs: dict[str, Path], name: str, cache_bytes: int, ranges: list[tuple[int, int]]
) -> None:
    expected = whole(tiffs[name])
    source = TiffSource(tiffs[name], cache_bytes=cache_bytes, num_threads=1)
    for start, stop in map(sorted, ranges):
        rows = source.read(start, stop)
        assert rows.flags.c_contiguous
        np.testing.assert_array_equal(rows, expected[start:stop])


@pytest.mark.parametrize("name", TIFFS)
@pytest.mark.parametrize("cache_bytes", [0, 10_000])
@SHARED_FILES
@given(
    windows=st.lists(
        st.tuples(*[st.integers(0, 66), st.integers(1, 67)], *[st.integers(0, 100)] * 2),
        min_size=1,
        max_size=4,
    )
)
def test_any_window_in_any_order(
    tiffs: dict[str, Path], name: str, cache_bytes: int, windows: list[tuple[int, ...]]
) -> None:
    expected = whole(tiffs[name])
    source = TiffSource(tiffs[name], cache_bytes=cache_bytes, num_threads=1)
    for a, b, c, d in windows:
        rows, columns = (min(a, b - 1), max(a + 1, b)), (min(c, d), max(c, d) + 1)
        found = source.read_window(rows, columns)
        assert found.flags.c_contiguous
        np.testing.assert_array_equal(found, expected[slice(*rows), slice(*columns)])


def test_only_segments_of_the_window_are_decoded_and_kept(tiffs: dict[str, Path]) -> None:
    source = TiffSource(tiffs["deflate_tiles"])  # 16 x 32 tiles: 4 in a row
    counts = decode_counter(source)
    source.read_window((10, 20), (40, 70))
    source.crop((0, 40), (33, 60)).read(12, 16)
    assert counts == {1: 1, 2: 1, 5: 1, 6: 1}


def window_sources(tmp_path: Path) -> dict[str, Source]:
    array = image(37, 53, 3)
    np.save(tmp_path / "a.npy", array)
    np.save(tmp_path / "big.npy", array.astype(">u2"))
    small = ArraySource(image(8, 11))
    return {
        "array": sources.open(array),
        "npy": sources.open(tmp_path / "a.npy"),
        "big endian": sources.open(tmp_path / "big.npy"),
        "gray": Grayscale(sources.open(array), invert=True),
        "padded": Padded(sources.open(array), 16, value=7),
        "upsampled": Upsampled(small, 5, (37, 53)),
        "crop": sources.open(array).crop((3, 30), (5, 44)),
        "crop of padded": Padded(sources.open(array), 32).crop((20, 64), (30, 60)),
    }


@pytest.mark.parametrize("window", [(0, 3, 2, 9), (20, 27, 0, 1), (13, 14, 3, 30)])
def test_windows_of_every_source_are_parts_of_its_rows(
    tmp_path: Path, window: tuple[int, int, int, int]
) -> None:
    start, stop, left, right = window
    for name, source in window_sources(tmp_path).items():
        found = source.read_window((start, stop), (left, right))
        assert found.dtype == source.dtype
        assert found.flags.c_contiguous
        expected = read_all(source)[start:stop, left:right]
        np.testing.assert_array_equal(found, expected, err_msg=name)


@pytest.mark.parametrize("shape", [(20, 31), (37, 53), (9, 80), (90, 100), (64, 5)])
def test_scaled_images_are_those_of_pillow(shape: tuple[int, int]) -> None:
    array = image(37, 53, 3)
    expected = np.asarray(Image.fromarray(array).resize(shape[::-1], Image.Resampling.BILINEAR))
    source = Scaled(sources.open(array), shape)
    np.testing.assert_array_equal(read_all(source), expected)
    rng = np.random.default_rng(0)
    for _ in range(20):
        rows, columns = (tuple(sorted(rng.choice(n + 1, 2, replace=False))) for n in shape)
        found = source.read_window(rows, columns)
        part = expected[slice(*rows), slice(*columns)]
        assert abs(found.astype(int) - part).max() <= 1


def test_scaled_windows_read_what_they_need() -> None:
    asked = []

    class Seen(Source):
        def _read_window(self, *window: int) -> np.ndarray:
            asked.append(window)
            return np.zeros((window[1] - window[0], window[3] - window[2], 1), np.uint8)

        def _read(self, start: int, stop: int) -> np.ndarray:
            raise AssertionError

    Scaled(Seen((4000, 4000), np.uint8, "seen"), (1000, 500)).read_window((500, 510), (0, 5))
    assert asked == [(1992, 2048, 0, 56)]


def test_what_cannot_be_scaled() -> None:
    with pytest.raises(SourceError, match="expected uint8 and sides of at least 1"):
        Scaled(sources.open(np.zeros((5, 5), np.int16)), (2, 2))
    with pytest.raises(SourceError, match="was to become 0 x 2"):
        Scaled(sources.open(np.zeros((5, 5), np.uint8)), (0, 2))


def test_files_that_are_open_only_while_they_are_read(tmp_path: Path) -> None:
    """More than may be open at once, of every kind; each equals its file."""
    arrays = {}
    for number in range(12):
        array = image(9, 14, 3 if number % 3 else 1)
        arrays[tmp_path / f"{number}.png"] = array
        Image.fromarray(array.squeeze()).save(tmp_path / f"{number}.png")
        arrays[tmp_path / f"{number}.npy"] = array
        np.save(tmp_path / f"{number}.npy", array)
    held = {path: OnDisk(path) for path in arrays}
    before = len(os.listdir("/dev/fd"))
    for path, source in held.items():
        np.testing.assert_array_equal(source.read(0, 9), arrays[path], err_msg=str(path))
        np.testing.assert_array_equal(source.read_window((2, 5), (3, 4)), arrays[path][2:5, 3:4])
    assert len(os.listdir("/dev/fd")) - before <= 16


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16"])
def test_shapes_of_files_are_those_of_their_sources(tmp_path: Path, mode: str) -> None:
    suffix = "jpg" if mode == "CMYK" else "png"
    Image.new(mode, (7, 5)).save(tmp_path / f"a.{suffix}")
    source = sources.open(tmp_path / f"a.{suffix}")
    assert opening.shape_of_file(tmp_path / f"a.{suffix}") == (source.shape, source.dtype)


def test_a_file_that_was_replaced_is_named(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", image(9, 14))
    source = OnDisk(tmp_path / "a.npy")
    np.save(tmp_path / "a.npy", image(10, 14))
    with pytest.raises(SourceError, match=r"a\.npy: is .* now and was .* it was replaced"):
        source.read(0, 1)


def test_levels_by_open(tmp_path: Path) -> None:
    path, base = tmp_path / "pyramid.tif", image(200, 150, 3)
    with tifffile.TiffWriter(path) as writer:
        writer.write(base, subifds=1, photometric="rgb", tile=(64, 64))
        writer.write(base[::2, ::2], subfiletype=1, photometric="rgb", tile=(64, 64))
    for source in (sources.open(path, 1), OnDisk(path, 1)):
        np.testing.assert_array_equal(read_all(source), base[::2, ::2])
    np.save(tmp_path / "a.npy", base)
    with pytest.raises(
        SourceError, match=r"a\.npy: level 1 was asked for, the slide has 1 \(200 x 150\)"
    ):
        sources.open(tmp_path / "a.npy", 1)


def test_windows_of_a_source_of_ones_own() -> None:
    """It defines `_read` alone."""

    class Ramp(Source):
        def _read(self, start: int, stop: int) -> np.ndarray:
            return np.arange(start * 4, stop * 4, dtype=np.int32).reshape(-1, 4, 1)

    source = Ramp((6, 4), np.int32, "ramp")
    np.testing.assert_array_equal(source.read_window((2, 4), (1, 3))[..., 0], [[9, 10], [13, 14]])


@pytest.mark.parametrize("window", [((0, 21), (0, 1)), ((3, 3), (0, 1)), ((0, 1), (-1, 2))])
def test_windows_outside_the_image(window: Any) -> None:
    with pytest.raises(IndexError, match="were asked for, the image has"):
        ArraySource(image(20, 30)).read_window(*window)


@pytest.mark.parametrize(
    ("photometric", "extra", "num_bands", "num_kept"),
    [
        ("minisblack", ["unassalpha"], 2, 1),
        ("minisblack", ["assocalpha"], 2, 1),
        ("minisblack", ["unspecified"] * 4, 5, 5),  # a multispectral image keeps all its bands
        ("rgb", ["unspecified"], 4, 3),  # what some writers call their alpha
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


def test_numbers_of_threads_agree(tiffs: dict[str, Path]) -> None:
    expected = whole(tiffs["jpeg_tiles_420"])
    for num_threads in (1, 2, 5):
        source = TiffSource(tiffs["jpeg_tiles_420"], num_threads=num_threads)
        np.testing.assert_array_equal(source.read(1, 66), expected[1:66])


def test_levels(tmp_path: Path) -> None:
    path, base = tmp_path / "pyramid.tif", image(200, 150, 3)
    options = {"photometric": "rgb", "tile": (64, 64), "compression": "jpeg"}
    with tifffile.TiffWriter(path) as writer:
        writer.write(base, subifds=2, **options)
        writer.write(base[::2, ::2], subfiletype=1, **options)
        writer.write(base[::4, ::4], subfiletype=1, **options)
    for level, shape in enumerate([(200, 150, 3), (100, 75, 3), (50, 38, 3)]):
        source = TiffSource(path, level)
        assert source.shape == shape
        assert len(source.pyramid.levels) == 3
        assert source.level == level
        np.testing.assert_array_equal(read_all(source), whole(path, series=0, level=level))
    for level in (3, -1):
        message = rf"pyramid.tif: level {level} was asked for, the file has 3 \(200 x 150, 100"
        with pytest.raises(SourceError, match=message):
            TiffSource(path, level)


@pytest.mark.parametrize("nodata", [None, 255])
def test_missing_tiles_get_nodata(tmp_path: Path, nodata: int | None) -> None:
    path, tile = tmp_path / "sparse.tif", image(16, 16)
    tags = [] if nodata is None else [(42113, "s", 0, str(nodata), True)]
    tiles = iter([tile, None, None, tile])
    options: dict[str, Any] = {"tile": (16, 16), "compression": "deflate", "extratags": tags}
    tifffile.imwrite(path, tiles, shape=(30, 30), dtype="uint8", **options)
    rows = read_all(TiffSource(path))
    assert (rows[:16, 16:] == (nodata or 0)).all()
    np.testing.assert_array_equal(rows, whole(path))


@pytest.mark.parametrize("name", ["deflate_tiles", "jpeg_strips", "one_row_strips", "rgba_planes"])
@pytest.mark.parametrize("halo", [0, 3, 9])
def test_overlapping_strips_decode_each_segment_once(
    tiffs: dict[str, Path], name: str, halo: int
) -> None:
    source = TiffSource(tiffs[name])
    counts = decode_counter(source)
    for start in range(0, 67, 10):
        source.read(max(0, start - halo), min(67, start + 10 + halo))
    assert set(counts.values()) == {1}
    kept_planes = 3 if name == "rgba_planes" else 1  # the alpha plane is never decoded
    assert len(counts) == len(source._layout.offsets) // source._layout.planes * kept_planes


def test_only_segments_of_the_wanted_rows_are_decoded(tiffs: dict[str, Path]) -> None:
    source = TiffSource(tiffs["deflate_tiles"])  # 16 x 32 tiles: 4 in a row
    counts = decode_counter(source)
    source.read(17, 20)
    assert sorted(counts) == [4, 5, 6, 7]


def test_the_cache_is_bounded(tiffs: dict[str, Path]) -> None:
    band_bytes = 16 * 101 * 3
    source = TiffSource(tiffs["deflate_tiles"], cache_bytes=3 * band_bytes)
    read_all(source)
    assert sum(band.nbytes for band in source._cached.values()) <= source.cache_bytes
    assert source.cache_bytes == 3 * band_bytes
    assert TiffSource(tiffs["deflate_tiles"], cache_bytes=0).cache_bytes == 2 * band_bytes
    assert TiffSource(tiffs["plain_rgb"]).cache_bytes == 0


def test_many_threads_may_read(tiffs: dict[str, Path]) -> None:
    expected = whole(tiffs["jpeg_tiles"])
    source = TiffSource(tiffs["jpeg_tiles"], cache_bytes=0)
    starts = np.random.default_rng(1).integers(0, 60, 100)
    with ThreadPoolExecutor(4) as pool:
        for start, rows in zip(
            starts, pool.map(lambda at: source.read(at, at + 7), starts), strict=True
        ):
            np.testing.assert_array_equal(rows, expected[start : start + 7])


def test_describe_tells_what_the_file_is(tiffs: dict[str, Path]) -> None:
    source = TiffSource(tiffs["jpeg_tiles"])
    expected = "67 x 101 x 3 uint8, 19.8 KiB, level 0 of 1, tiles of 16 x 32, JPEG"
    assert source.describe().endswith(expected)
    assert repr(source) == f"<{source.describe()}>"
    assert "strips of 1 x 101" in TiffSource(tiffs["one_row_strips"]).describe()


# --------------------------------------------------------------------------------------------------
# TIFF: what cannot be read


@pytest.mark.parametrize("name", ["deflate_tiles", "plain_rgb", "jpeg_strips"])
@pytest.mark.parametrize("missing", [1, 500])
def test_truncation_is_noticed_at_open(
    tiffs: dict[str, Path], tmp_path: Path, name: str, missing: int
) -> None:
    path = tmp_path / "cut.tif"
    path.write_bytes(tiffs[name].read_bytes()[:-missing])
    with pytest.raises(SourceError, match=r"cut\.tif: is truncated: .* Write or copy the file"):
        TiffSource(path)


def test_a_file_cut_down_to_its_header(tiled: Path) -> None:
    os.truncate(tiled, 6)
    with pytest.raises(SourceError, match=r"tiled\.tif: cannot be read as TIFF .*6 bytes"):
        TiffSource(tiled)


def test_a_file_that_shrinks_after_it_was_opened(tiffs: dict[str, Path], tmp_path: Path) -> None:
    for name in ("deflate_tiles", "plain_rgb"):
        path = Path(shutil.copy(tiffs[name], tmp_path))
        source = TiffSource(path)
        os.truncate(path, 2000)
        with pytest.raises(SourceError, match="became shorter after it was opened"):
            read_all(source)


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
def test_stacks_are_refused(
    tmp_path: Path, shape: tuple[int, ...], options: dict[str, Any], axes: str
) -> None:
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
def test_other_colours_are_refused(tmp_path: Path, photometric: str, stored: str) -> None:
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
def test_unknown_compressions_are_refused(
    tiled: Path, compression: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class WithoutCodecs(dict[int, Any]):
        def __missing__(self, key: int) -> Any:
            raise KeyError(f"{key} requires the 'imagecodecs' package")

    monkeypatch.setattr(tifffile.TIFF, "DECOMPRESSORS", WithoutCodecs())
    set_tag(tiled, 259, compression)
    with pytest.raises(SourceError, match=rf"compressed with {name}, .*Install the imagecodecs"):
        TiffSource(tiled)


def test_a_damaged_tile_is_named(tiled: Path) -> None:
    with tifffile.TiffFile(tiled) as tiff:
        at = tiff.pages[0].dataoffsets[5]
    with tiled.open("r+b") as file:
        file.seek(at)
        file.write(b"\xff" * 16)
    source = TiffSource(tiled)
    assert source.read(0, 16).shape == (16, 101, 3)  # rows above are still read
    message = (
        r"tiled.tif: tile or strip 5, rows 16:32 from column 32, cannot be decoded \(.*copy it"
    )
    with pytest.raises(SourceError, match=message):
        source.read(0, 32)


def test_a_strip_too_large_to_decode_is_refused(
    tiffs: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiff_layout, "_MAX_BAND_BYTES", 5000)
    TiffSource(tiffs["plain_gray"])  # one strip as well, but rows are read from it
    with pytest.raises(SourceError, match=r"strips of 67 x 101, .*: one must .* tile=\(512, 512\)"):
        TiffSource(tiffs["one_strip"])


def test_a_list_of_tiles_too_short(tiled: Path) -> None:
    set_tag(tiled, 257, 500)  # ImageLength
    with pytest.raises(SourceError, match=r"lists 20 offsets and 20 sizes for 128 tiles"):
        TiffSource(tiled)


def test_one_bit_samples_are_refused_or_exact(tmp_path: Path) -> None:
    path, bits = tmp_path / "bits.tif", image(20, 30) > 60
    tifffile.imwrite(path, bits, photometric="minisblack")
    np.testing.assert_array_equal(read_all(TiffSource(path))[..., 0], bits)
    tifffile.imwrite(path, np.zeros((20, 30), np.complex64), photometric="minisblack")
    with pytest.raises(SourceError, match="has dtype complex64; expected a boolean, integer"):
        TiffSource(path)


def test_closed_sources_say_so(tiffs: dict[str, Path], tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", image(5, 4))
    opened = [
        TiffSource(tiffs["jpeg_tiles"]),
        TiffSource(tiffs["plain_rgb"]),
        sources.open(tmp_path / "a.npy"),
        TiffSource(tiffs["plain_rgb"]).crop((2, 9)),
    ]
    for source in opened:
        source.read(0, 1)
        source.close()
        with pytest.raises(SourceError, match=r"was closed\. Open the source again"):
            source.read(0, 1)
    array = ArraySource(image(5, 4))
    array.close()
    assert array.read(0, 5).shape == (5, 4, 1)


# --------------------------------------------------------------------------------------------------
# Arrays and .npy files


@pytest.mark.parametrize("shape", [(9, 7), (9, 7, 1), (9, 7, 5)])
@pytest.mark.parametrize("dtype", ["uint8", ">u2", "float32", "bool"])
def test_arrays(shape: tuple[int, ...], dtype: str) -> None:
    array = image(*shape).astype(dtype)
    for variant in (array, np.asfortranarray(array)):
        source = ArraySource(variant)
        rows = source.read(2, 8)
        assert rows.flags.c_contiguous
        assert rows.dtype == source.dtype
        assert rows.dtype.isnative
        np.testing.assert_array_equal(rows, array.reshape(9, 7, -1)[2:8])
        with pytest.raises(ValueError, match="read-only"):
            rows[0] = 0


@pytest.mark.parametrize("shape", [(9, 7), (9, 7, 5)])
@pytest.mark.parametrize("dtype", ["uint8", ">u2", "<f4", "bool"])
@pytest.mark.parametrize(("start", "stop"), [(0, 9), (3, 4), (8, 9), (5, 5)])
def test_npy(tmp_path: Path, shape: tuple[int, ...], dtype: str, start: int, stop: int) -> None:
    array = image(*shape).astype(dtype)
    np.save(tmp_path / "a.npy", array)
    for given_as in (tmp_path / "a.npy", str(tmp_path / "a.npy"), np.load(tmp_path / "a.npy", "r")):
        source = sources.open(given_as)
        assert isinstance(source, RawSource)
        assert source.dtype.isnative
        rows = source.read(start, stop)
        assert rows.flags.c_contiguous
        assert rows.dtype == source.dtype
        np.testing.assert_array_equal(rows, array.reshape(9, 7, -1)[start:stop])


def test_rows_of_a_memory_map_are_read_from_their_place(tmp_path: Path) -> None:
    array = image(300, 70)
    np.save(tmp_path / "a.npy", array)
    mapped = np.load(tmp_path / "a.npy", "r")
    np.testing.assert_array_equal(read_all(sources.open(mapped[131:200]))[..., 0], array[131:200])
    raw = np.memmap(tmp_path / "a.npy", np.uint8, "r", offset=128 + 70 * 100, shape=(200, 70))
    np.testing.assert_array_equal(read_all(sources.open(raw[7:]))[..., 0], array[107:])
    assert isinstance(sources.open(mapped + 1), ArraySource)  # arithmetic leaves the file


def test_memory_maps_that_cannot_be_read_by_rows(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", image(30, 7))
    np.save(tmp_path / "f.npy", np.asfortranarray(image(30, 7)))
    mapped = np.load(tmp_path / "a.npy", "r")
    with pytest.raises(SourceError, match=r"f\.npy: .*not stored row after row .* Source\.crop"):
        sources.open(tmp_path / "f.npy")
    with pytest.raises(SourceError, match=r"a\.npy: .*not stored row after row"):
        sources.open(mapped[:, :3])
    with pytest.raises(SourceError, match=r"a\.npy: .*copy-on-write \(mode 'c'\)"):
        sources.open(np.load(tmp_path / "a.npy", "c"))
    with pytest.raises(SourceError, match=r"is a memory map; .*sources\.open"):
        ArraySource(mapped)


def test_damaged_npy_files(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, image(30, 7))
    os.truncate(path, 200)
    with pytest.raises(SourceError, match=r"a\.npy: is not a readable \.npy file .*200 bytes"):
        sources.open(path)
    path.write_bytes(b"not numpy")
    with pytest.raises(SourceError, match=r"a\.npy: is not a readable \.npy file"):
        sources.open(path)
    np.save(path, image(4, 4, 4, 4))
    with pytest.raises(SourceError, match=r"has shape \(4, 4, 4, 4\); expected \[rows, columns\]"):
        sources.open(path)
    with pytest.raises(SourceError, match=r"a\.npy: is truncated: .* ends at byte 10100, the file"):
        RawSource(path, 100, np.uint8, (100, 100))


def test_raw_files(tmp_path: Path) -> None:
    array = image(11, 6, 3, dtype="uint16")
    (tmp_path / "a.raw").write_bytes(b"header" + array.astype(">u2").tobytes())
    source = RawSource(tmp_path / "a.raw", 6, ">u2", (11, 6, 3))
    np.testing.assert_array_equal(source.read(4, 11), array[4:])


MEMORY = """
import sys, types
package = sys.modules["tfbig"] = types.ModuleType("tfbig")
package.__path__ = ["tfbig"]  # the module alone: it needs neither TensorFlow nor Keras
from tfbig import sources
assert not {"tensorflow", "keras"} & set(sys.modules)
def resident():
    with open("/proc/self/status") as file:
        fields = dict(line.split(":", 1) for line in file)
    return {name: int(fields[name].split()[0]) // 1024 for name in ("RssFile", "RssAnon")}
import numpy as np
source = sources.open(np.load(sys.argv[1], mmap_mode="r") if sys.argv[2] == "map" else sys.argv[1])
source.read(0, 500)
before = resident()
total = sum(int(source.read(row, row + 500)[0, 0, 0]) for row in range(0, 20_000, 500))
after = resident()
print(*(after[name] - before[name] for name in before))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="resident memory is read from /proc")
@pytest.mark.parametrize("given_as", ["path", "map"])
def test_reading_a_large_file_maps_no_pages(tmp_path: Path, given_as: str) -> None:
    path = tmp_path / "large.npy"
    np.lib.format.open_memmap(path, "w+", np.uint8, (20_000, 10_000))  # sparse: 200 MB of zeros
    command = [sys.executable, "-c", MEMORY, str(path), given_as]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    of_files, anonymous = map(int, done.stdout.split())
    assert of_files <= 2  # MiB; mapped pages would be 200
    assert anonymous <= 16  # one strip is 5


# --------------------------------------------------------------------------------------------------
# Opening


@pytest.mark.parametrize(("mode", "channels"), [("RGB", 3), ("RGBA", 3), ("L", 1), ("LA", 1)])
def test_pictures(tmp_path: Path, mode: str, channels: int) -> None:
    bands = len(Image.new(mode, (1, 1)).getbands())
    array = image(12, 17, bands) if bands > 1 else image(12, 17)
    Image.fromarray(array).save(tmp_path / "a.png")
    source = sources.open(tmp_path / "a.png")
    assert source.shape == (12, 17, channels)
    np.testing.assert_array_equal(read_all(source), array.reshape(12, 17, -1)[..., :channels])


@pytest.mark.parametrize(("mode", "name"), [("P", "a.png"), ("CMYK", "a.jpg"), ("1", "a.bmp")])
def test_pictures_of_other_modes(tmp_path: Path, mode: str, name: str) -> None:
    Image.fromarray(image(12, 17, 3)).convert(mode).save(tmp_path / name)
    expected = np.asarray(Image.open(tmp_path / name).convert("1" if mode == "1" else "RGB"))
    np.testing.assert_array_equal(read_all(sources.open(tmp_path / name)).squeeze(), expected)


def test_jpeg_pictures(tmp_path: Path) -> None:
    Image.fromarray(image(12, 17, 3)).save(tmp_path / "a.jpg")
    expected = np.asarray(Image.open(tmp_path / "a.jpg"))
    np.testing.assert_array_equal(read_all(sources.open(tmp_path / "a.jpg")), expected)


def test_damaged_pictures(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"\x89PNG but no more")
    with pytest.raises(SourceError, match=r"a\.png: cannot be decoded as a picture .* tiled TIFF"):
        sources.open(tmp_path / "a.png")


def test_open_dispatches(tiffs: dict[str, Path]) -> None:
    source = sources.open(tiffs["jpeg_tiles"])
    assert isinstance(source, TiffSource)
    assert sources.open(source) is source
    assert isinstance(sources.open(image(3, 4)), ArraySource)


@pytest.mark.parametrize("name", ["a.tif", "a.npy", "a.png", "a.svs", "a.xyz"])
def test_missing_files(tmp_path: Path, name: str) -> None:
    for function in (sources.open, lambda path: sources.resolve(str(path))):
        with pytest.raises(SourceError, match=rf"{name}: there is no such file\. Check the path"):
            function(tmp_path / name)


def test_folders_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "a.tif").mkdir()
    with pytest.raises(SourceError, match=r"a\.tif: cannot be"):
        sources.open(tmp_path / "a.tif")


def test_unknown_kinds(tmp_path: Path) -> None:
    (tmp_path / "a.xyz").write_bytes(b"?")
    with pytest.raises(SourceError, match=r"files named '\.xyz' are not known; .*\.npy, .*\.tif,"):
        sources.open(tmp_path / "a.xyz")
    with pytest.raises(TypeError, match="given as list; expected a path, a NumPy array or"):
        sources.open([[1, 2]])  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", [(5,), (2, 3, 4, 5), (0, 4), (3, 0, 1)])
def test_arrays_that_are_no_image(shape: tuple[int, ...]) -> None:
    message = rf"array: has shape {re.escape(str(shape))}; expected \[rows, columns\] or"
    with pytest.raises(SourceError, match=message):
        sources.open(np.zeros(shape))


def test_arrays_of_no_numbers() -> None:
    with pytest.raises(SourceError, match="array: has dtype complex128; expected a boolean"):
        sources.open(np.zeros((2, 2), complex))


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (0, 11), (5, 4), (11, 11)])
def test_rows_outside_the_image(start: int, stop: int) -> None:
    message = f"array: rows {start}:{stop} were asked for, the image has rows 0:10. Ask for"
    with pytest.raises(IndexError, match=message):
        ArraySource(image(10, 3)).read(start, stop)


def test_no_rows() -> None:
    assert ArraySource(image(10, 3)).read(4, 4).shape == (0, 3, 1)


# --------------------------------------------------------------------------------------------------
# Handles


def test_handles() -> None:
    first, second = ArraySource(image(3, 4)), ArraySource(image(3, 4))
    assert re.fullmatch(r"tfbig:\d+", first.handle)
    assert first.handle == first.handle != second.handle
    assert sources.resolve(first.handle) is first
    assert sources.resolve(second.handle) is second
    handle = first.handle
    first.release()
    first.release()  # once more does nothing
    with pytest.raises(SourceError, match=f"{handle}: no source is registered .* pass the path"):
        sources.resolve(handle)
    assert sources.resolve(first.handle) is first  # using it again registers it again
    first.release()
    second.release()


def test_handles_are_lent() -> None:
    """Only what was not registered before is forgotten after the block, errors included."""
    mine, other = ArraySource(image(3, 4)), ArraySource(image(3, 4))
    assert sources.resolve(mine.handle) is mine
    with pytest.raises(ZeroDivisionError), mine.lent() as kept, other.lent() as lent:
        assert (sources.resolve(kept), sources.resolve(lent)) == (mine, other)
        raise ZeroDivisionError
    assert sources.resolve(kept) is mine
    with pytest.raises(SourceError, match="no source is registered"):
        sources.resolve(lent)
    mine.release()


def test_handles_are_given_once_under_threads() -> None:
    source = ArraySource(image(3, 4))
    barrier = threading.Barrier(8)

    def ask(_: int) -> str:
        barrier.wait()
        return source.handle

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(ask, range(8)))) == 1
    source.release()


def num_open(folder: Path) -> int:
    """How many files of `folder` this process has open."""
    links = (Path("/proc/self/fd") / name for name in os.listdir("/proc/self/fd"))
    return sum(str(folder) in os.readlink(link) for link in links if link.is_symlink())


@pytest.mark.skipif(sys.platform != "linux", reason="open files are counted in /proc")
def test_paths_are_opened_once_and_closed_when_old(tmp_path: Path) -> None:
    paths = [str(tmp_path / f"{index}.npy") for index in range(20)]
    for index, path in enumerate(paths):
        np.save(path, np.full((2, 2), index))
    assert sources.resolve(paths[0]) is sources.resolve(paths[0])
    held = sources.resolve(paths[0])
    for index, path in enumerate(paths):
        assert sources.resolve(path).read(0, 1)[0, 0, 0] == index
    assert num_open(tmp_path) == 16 + 1
    assert held.read(0, 1).shape == (1, 2, 1)  # old, but still in use
    del held
    assert num_open(tmp_path) == 16


def test_a_replaced_file_is_opened_anew(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    for value in (1, 2):
        with sources.write_npy(path, (2, 2), np.uint8) as file:
            file.write(0, np.full((2, 2), value, np.uint8))
        assert sources.resolve(str(path)).read(0, 2).max() == value


# --------------------------------------------------------------------------------------------------
# Views


def test_crop() -> None:
    array = image(20, 15, 3)
    source = ArraySource(array)
    np.testing.assert_array_equal(read_all(source.crop()), array)
    np.testing.assert_array_equal(read_all(source.crop((3, 9))), array[3:9])
    np.testing.assert_array_equal(read_all(source.crop(columns=(14, 15))), array[:, 14:])
    inner = source.crop((3, 19), (2, 12)).crop((1, 5), (4, 7))
    rows = inner.read(1, 3)
    assert inner.shape == (4, 3, 3)
    assert rows.flags.c_contiguous
    np.testing.assert_array_equal(rows, array[5:7, 6:9])
    assert inner.describe().startswith("Cropped of array[3:19, 2:12][1:5, 4:7]: 4 x 3 x 3 uint8")


@pytest.mark.parametrize(
    ("rows", "columns", "what"), [((5, 5), None, "rows 5:5"), (None, (-1, 3), "columns -1:3")]
)
def test_crops_outside_the_image(rows: Any, columns: Any, what: str) -> None:
    with pytest.raises(IndexError, match=f"array: {what} were asked for, the image has"):
        ArraySource(image(20, 15)).crop(rows, columns)


def pillow_gray(rgb: np.ndarray) -> np.ndarray:
    return np.asarray(Image.fromarray(rgb).convert("L"))[..., None]


def test_grayscale_is_pillows(monkeypatch: pytest.MonkeyPatch) -> None:
    rgb = np.random.default_rng(3).integers(0, 256, (300, 401, 3), dtype=np.uint8)
    rgb[0, :6] = [[0, 0, 0], [255, 255, 255], [255, 0, 0], [0, 255, 0], [0, 0, 255], [1, 2, 3]]
    source = Grayscale(ArraySource(rgb))
    assert source.shape == (300, 401, 1)
    assert source.dtype == np.uint8
    np.testing.assert_array_equal(read_all(source), pillow_gray(rgb))
    monkeypatch.setattr(views, "_LUMA_BLOCK", 7)
    np.testing.assert_array_equal(source.read(5, 60), pillow_gray(rgb)[5:60])


def test_grayscale_equation_of_the_docstring() -> None:
    levels = np.array([0, 1, 2, 63, 127, 128, 200, 254, 255], np.uint8)
    rgb = np.stack(np.meshgrid(levels, levels, levels), -1).reshape(27, 27, 3)
    red, green, blue = np.moveaxis(rgb.astype(int), -1, 0)
    expected = (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16
    np.testing.assert_array_equal(read_all(Grayscale(ArraySource(rgb)))[..., 0], expected)
    inverted = Grayscale(ArraySource(rgb), invert=True)
    np.testing.assert_array_equal(read_all(inverted)[..., 0], 255 - expected)


def test_gray_images_pass_through() -> None:
    gray = image(30, 20)
    assert np.shares_memory(Grayscale(ArraySource(gray)).read(3, 9), gray)
    inverted = Grayscale(ArraySource(gray), invert=True).read(3, 9)
    np.testing.assert_array_equal(inverted[..., 0], 255 - gray[3:9].astype(int))
    np.testing.assert_array_equal(gray, image(30, 20))  # the image itself is not inverted


@pytest.mark.parametrize(("shape", "dtype"), [((4, 5, 3), "uint16"), ((4, 5, 2), "uint8")])
def test_grayscale_of_something_else(shape: tuple[int, ...], dtype: str) -> None:
    message = f"array: has {shape[2]} channels of {dtype}; Grayscale expects 1 or 3 channels"
    with pytest.raises(SourceError, match=message):
        Grayscale(ArraySource(np.zeros(shape, dtype)))


@given(
    factor=st.integers(1, 9), rows=st.integers(1, 40), columns=st.integers(1, 40), data=st.data()
)
@settings(max_examples=60, deadline=None)
def test_upsampled(factor: int, rows: int, columns: int, data: st.DataObject) -> None:
    small = image(-(-rows // factor), -(-columns // factor), 2)
    source = Upsampled(small, factor, (rows, columns))
    start = data.draw(st.integers(0, rows))
    stop = data.draw(st.integers(start, rows))
    expected = small.repeat(factor, 0).repeat(factor, 1)[start:stop, :columns]
    got = source.read(start, stop)
    assert source.shape == (rows, columns, 2)
    assert got.flags.c_contiguous
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    ("factor", "shape"), [(8, (33, 40)), (8, (32, 41)), (0, (1, 1)), (-1, (1, 1))]
)
def test_upsampled_too_far(factor: int, shape: tuple[int, int]) -> None:
    message = rf"array: 4 x 5 times {factor} was asked to cover {shape[0]} x {shape[1]}\. Give a"
    with pytest.raises(SourceError, match=message):
        Upsampled(ArraySource(image(4, 5)), factor, shape)


@given(
    rows=st.integers(1, 30), columns=st.integers(1, 30), multiple=st.integers(1, 16), data=st.data()
)
@settings(max_examples=60, deadline=None)
def test_padded(rows: int, columns: int, multiple: int, data: st.DataObject) -> None:
    array = image(rows, columns, 3)
    source = Padded(ArraySource(array), multiple, 255)
    below, right = -rows % multiple, -columns % multiple
    expected = np.pad(array, ((0, below), (0, right), (0, 0)), constant_values=255)
    start = data.draw(st.integers(0, len(expected)))
    stop = data.draw(st.integers(start, len(expected)))
    assert source.shape == expected.shape
    assert source.dtype == array.dtype
    np.testing.assert_array_equal(source.read(start, stop), expected[start:stop])


@pytest.mark.parametrize(("multiple", "value"), [(0, 0), (8, 256), (8, -1), (8, 0.5)])
def test_padding_that_does_not_work(multiple: int, value: float) -> None:
    message = f"array: cannot be padded with {value} to a multiple of {multiple}; expected a value"
    with pytest.raises(SourceError, match=message):
        Padded(ArraySource(image(4, 5)), multiple, value)


def test_padding_of_real_and_boolean_images() -> None:
    assert Padded(ArraySource(np.zeros((1, 1))), 2, 0.5).read(1, 2)[0, 0, 0] == 0.5
    assert Padded(ArraySource(np.zeros((1, 1), bool)), 2, 1).read(1, 2).all()
    with pytest.raises(SourceError, match="that bool can hold"):
        Padded(ArraySource(np.zeros((1, 1), bool)), 2, 2)


# --------------------------------------------------------------------------------------------------
# Writing


@pytest.mark.parametrize("shape", [(30, 7), (30, 7, 3)])
@pytest.mark.parametrize("dtype", ["uint8", ">f4"])
def test_written_rows_are_numpys(tmp_path: Path, shape: tuple[int, ...], dtype: str) -> None:
    path, array = tmp_path / "a.npy", image(*shape).astype(dtype)
    with sources.write_npy(path, shape, dtype) as file:
        for start in (20, 0, 10):  # any order
            file.write(start, array[start : start + 10])
        assert not path.exists()
        assert (tmp_path / ".part-a.npy").exists()
    written = np.load(path)
    assert written.dtype == array.dtype
    np.testing.assert_array_equal(written, array)
    assert os.listdir(tmp_path) == ["a.npy"]


def test_rows_that_are_not_contiguous_are_written(tmp_path: Path) -> None:
    array = image(10, 20)[:, ::2]
    with sources.write_npy(tmp_path / "a.npy", array.shape, array.dtype) as file:
        file.write(0, array)
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), array)


def test_a_failure_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.npy"
    np.save(path, np.ones(3))
    with (
        pytest.raises(RuntimeError, match="mine"),
        sources.write_npy(path, (4, 4), np.uint8) as file,
    ):
        file.write(0, image(2, 4))
        raise RuntimeError("mine")
    assert os.listdir(tmp_path) == ["a.npy"]
    np.testing.assert_array_equal(np.load(path), np.ones(3))


def test_rows_left_out_are_noticed(tmp_path: Path) -> None:
    message = r"\.part-a\.npy: 3 of 10 rows were not written, the first is row 2"
    with (
        pytest.raises(SourceError, match=message),
        sources.write_npy(tmp_path / "a.npy", (10, 4), np.uint8) as file,
    ):
        file.write(0, image(2, 4))
        file.write(5, image(5, 4))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("start", "rows"),
    [(9, image(2, 4)), (-1, image(2, 4)), (0, image(2, 5)), (0, image(2, 4, dtype="uint16"))],
)
def test_rows_that_do_not_fit(tmp_path: Path, start: int, rows: np.ndarray) -> None:
    message = rf"rows {start}:{start + 2} of shape .* do not fit shape \(10, 4\) and dtype uint8"
    with (
        pytest.raises(ValueError, match=message),
        sources.write_npy(tmp_path / "a.npy", (10, 4), np.uint8) as file,
    ):
        file.write(start, rows)


def test_disk_space_is_checked_first(tmp_path: Path) -> None:
    with (
        pytest.raises(BudgetError, match=r"a\.npy: needs 9\.09e\+05 TiB on disk, .* Make room"),
        sources.write_npy(tmp_path / "a.npy", (10**9, 10**9), np.uint8),
    ):
        pass
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("name", ["a.tif", "a", ".npy", "a.npy.gz"])
def test_only_npy_files_are_written(tmp_path: Path, name: str) -> None:
    message = rf"{name}: cannot be written as a \.npy file; expected a path that ends in \.npy"
    with (
        pytest.raises(SourceError, match=message),
        sources.write_npy(tmp_path / name, (2, 2), np.uint8),
    ):
        pass
    assert os.listdir(tmp_path) == []


def test_a_folder_that_does_not_exist(tmp_path: Path) -> None:
    with (
        pytest.raises(
            SourceError, match=r"its folder cannot be written to: .* Create .*none first"
        ),
        sources.write_npy(tmp_path / "none" / "a.npy", (2, 2), np.uint8),
    ):
        pass


def test_a_name_that_is_taken_by_a_folder(tmp_path: Path) -> None:
    (tmp_path / ".part-a.npy").mkdir()
    with (
        pytest.raises(SourceError, match=r"\.part-a\.npy: cannot be opened: Is a directory"),
        sources.write_npy(tmp_path / "a.npy", (2, 2), np.uint8),
    ):
        pass


def test_a_disk_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    with (
        pytest.raises(SourceError, match=r"\.part-a\.npy: writing at byte 128 failed: .*No space"),
        sources.write_npy(tmp_path / "a.npy", (2, 2), np.uint8) as file,
    ):
        monkeypatch.setattr(os, "pwrite", full)
        file.write(0, image(2, 2))
    assert os.listdir(tmp_path) == []


# --------------------------------------------------------------------------------------------------
# Real slides


@pytest.mark.parametrize("name", SLIDES)
def test_real_slides_equal_tifffile(name: str) -> None:
    path = EXAMPLES / name
    if not path.exists():
        pytest.skip(f"{path.relative_to(ROOT)} is not here")
    for level in (0, 1):
        source, expected = TiffSource(path, level), tifffile.imread(path, series=0, level=level)
        assert len(source.pyramid.levels) == 2
        for start in range(0, source.shape[0], 700):
            stop = min(start + 700, source.shape[0])
            np.testing.assert_array_equal(source.read(start, stop), expected[start:stop])


def test_a_real_svs() -> None:
    if not SMALL_SVS.exists():
        pytest.skip(f"{SMALL_SVS.relative_to(ROOT)} is not here")
    source = sources.open(SMALL_SVS)
    expected = tifffile.imread(SMALL_SVS, series=0)
    assert source.shape == (2967, 2220, 3)
    for start, stop in ((0, 1), (239, 241), (1000, 1701), (2966, 2967)):
        np.testing.assert_array_equal(source.read(start, stop), expected[start:stop])


def test_a_real_svs_whose_tile_is_damaged() -> None:
    path = SMALL_SVS.with_name("unreadable_tile.svs")
    if not path.exists():
        pytest.skip(f"{path.relative_to(ROOT)} is not here")
    with pytest.raises(SourceError, match=r"unreadable_tile\.svs: tile or strip 0, rows 0:16"):
        read_all(sources.open(path))


def test_a_real_svs_that_is_none() -> None:
    path = SMALL_SVS.with_name("broken_not_a_tiff.svs")
    if not path.exists():
        pytest.skip(f"{path.relative_to(ROOT)} is not here")
    with pytest.raises(SourceError, match=r"broken_not_a_tiff\.svs: cannot be read as TIFF"):
        sources.open(path)
