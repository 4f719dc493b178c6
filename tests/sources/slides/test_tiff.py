"""TiffSource equals tifffile for any rows and windows, and decodes every tile once."""

from __future__ import annotations

import dataclasses
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from masked_images import check_background
from samples import ROOT
from slide_files import SMALL_SVS, TIFFS, image, noise, read_all, read_with_tifffile

from tfbig import sources
from tfbig.errors import SourceError
from tfbig.geometry import cells
from tfbig.sources import TiffSource

EXAMPLES = ROOT / "examples" / "data"


SLIDES = ("pancreas_pdac_1.tif", "esophagus_eosinophilic.tif", "gastritis_lymphocytic.tif")


SHARED_FILES = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


# one of each way to store samples; the others read the same way with another codec
FAST = {
    "plain_rgb",
    "uint16_big_endian_tiles",
    "one_row_strips",
    "deflate_tiles",
    "rgba_planes",
    "jpeg_tiles_420",
}
every_tiff = pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in TIFFS]
)


def decode_counter(source: TiffSource) -> Counter[int]:
    """Count how often each segment is decoded from now on."""
    counts: Counter[int] = Counter()
    decode = source._layout.decode

    def count_and_decode(data: bytes, segment: int) -> Any:
        counts[segment] += 1
        return decode(data, segment)

    source._layout = dataclasses.replace(source._layout, decode=count_and_decode)
    return counts


@pytest.mark.parametrize("name", TIFFS)
def test_equals_tifffile(tiffs: dict[str, Path], name: str) -> None:
    expected = read_with_tifffile(tiffs[name])
    source = TiffSource(tiffs[name])
    assert source.shape == expected.shape
    assert source.dtype == expected.dtype
    assert source.dtype.isnative
    rows = read_all(source)
    assert rows.flags.c_contiguous
    assert rows.dtype == expected.dtype
    np.testing.assert_array_equal(rows, expected)


@every_tiff
@pytest.mark.parametrize("cache_bytes", [0, 10_000])
@SHARED_FILES
@given(ranges=st.lists(st.tuples(st.integers(0, 67), st.integers(0, 67)), min_size=1, max_size=6))
def test_random_rows(
    tiffs: dict[str, Path], name: str, cache_bytes: int, ranges: list[tuple[int, int]]
) -> None:
    expected = read_with_tifffile(tiffs[name])
    source = TiffSource(tiffs[name], cache_bytes=cache_bytes, num_threads=1)
    for start, stop in map(sorted, ranges):
        rows = source.read(start, stop)
        assert rows.flags.c_contiguous
        np.testing.assert_array_equal(rows, expected[start:stop])


@every_tiff
@pytest.mark.parametrize("cache_bytes", [0, 10_000])
@SHARED_FILES
@given(
    windows=st.lists(
        st.tuples(*[st.integers(0, 66), st.integers(1, 67)], *[st.integers(0, 100)] * 2),
        min_size=1,
        max_size=4,
    )
)
def test_random_windows(
    tiffs: dict[str, Path], name: str, cache_bytes: int, windows: list[tuple[int, ...]]
) -> None:
    expected = read_with_tifffile(tiffs[name])
    source = TiffSource(tiffs[name], cache_bytes=cache_bytes, num_threads=1)
    for a, b, c, d in windows:
        rows, columns = (min(a, b - 1), max(a + 1, b)), (min(c, d), max(c, d) + 1)
        actual = source.read_window(rows, columns)
        assert actual.flags.c_contiguous
        np.testing.assert_array_equal(actual, expected[slice(*rows), slice(*columns)])


def test_decodes_only_segments_of_window(tiffs: dict[str, Path]) -> None:
    source = TiffSource(tiffs["deflate_tiles"])  # 16 x 32 tiles: 4 in a row
    counts = decode_counter(source)
    source.read_window((10, 20), (40, 70))
    source.crop((0, 40), (33, 60)).read(12, 16)
    assert counts == {1: 1, 2: 1, 5: 1, 6: 1}


def test_number_of_threads(tiffs: dict[str, Path]) -> None:
    expected = read_with_tifffile(tiffs["jpeg_tiles_420"])
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
        np.testing.assert_array_equal(
            read_all(source), read_with_tifffile(path, series=0, level=level)
        )
    for level in (3, -1):
        message = rf"pyramid.tif: level {level} requested, but the file has 3 \(200 x 150, 100"
        with pytest.raises(SourceError, match=message):
            TiffSource(path, level)


@pytest.mark.parametrize("nodata", [None, 255])
def test_missing_tiles(tmp_path: Path, nodata: int | None) -> None:
    path, tile = tmp_path / "sparse.tif", image(16, 16)
    tags = [] if nodata is None else [(42113, "s", 0, str(nodata), True)]
    tiles = iter([tile, None, None, tile])
    options: dict[str, Any] = {"tile": (16, 16), "compression": "deflate", "extratags": tags}
    tifffile.imwrite(path, tiles, shape=(30, 30), dtype="uint8", **options)
    rows = read_all(TiffSource(path))
    assert (rows[:16, 16:] == (nodata or 0)).all()
    np.testing.assert_array_equal(rows, read_with_tifffile(path))


def test_colour_of_missing_tiles(tmp_path: Path) -> None:
    path, tile = tmp_path / "sparse.tif", image(16, 16, 3)
    tiles = iter([tile, None, None, None])
    tags = [(42113, "s", 0, "7", True)]
    options: dict[str, Any] = {"tile": (16, 16), "compression": "deflate", "extratags": tags}
    shape = (30, 30, 3)
    tifffile.imwrite(path, tiles, shape=shape, dtype="uint8", photometric="rgb", **options)
    source = TiffSource(path)
    counts = decode_counter(source)
    colour = source.colour((16, 30), (0, 30))
    assert colour is not None
    assert colour.tolist() == [7, 7, 7]
    assert colour.dtype == np.uint8
    assert source.colour((0, 16), (16, 17)) is not None
    assert source.colour((15, 30), (15, 30)) is None
    assert not counts
    with pytest.raises(IndexError, match="rows 0:31 requested"):
        source.colour((0, 31), (0, 30))


def write_sparse(
    path: Path, shape: tuple[int, ...], tile: tuple[int, int], stored: np.ndarray, **options: Any
) -> Path:
    """Write a TIFF file of noise, without the tiles where `stored` is False."""
    whole = noise(*tile, *shape[2:])
    tiles = iter([whole if keep else None for keep in stored.ravel()])
    options = {"compression": "deflate", "tile": tile, **options}
    tifffile.imwrite(path, tiles, shape=shape, dtype="uint8", **options)
    return path


@pytest.mark.parametrize(
    ("tile", "cell"), [((256, 256), 256), ((128, 192), 64), ((240, 240), 16), ((1200, 16), 16)]
)
@pytest.mark.parametrize("nodata", [None, 7])
def test_background_of_missing_tiles(
    tmp_path: Path, tile: tuple[int, int], cell: int, nodata: int | None
) -> None:
    shape = (1100, 1000)
    size = [-(-n // m) for n, m in zip(shape, tile, strict=True)]
    stored = np.random.default_rng(1).random(size) < 0.3
    stored.ravel()[:2] = True, False
    tags = [] if nodata is None else [(42113, "s", 0, str(nodata), True)]
    path = write_sparse(tmp_path / "a.tif", shape, tile, stored, extratags=tags)
    source = TiffSource(path)
    counts = decode_counter(source)
    background = source.background
    assert background is not None
    assert not counts
    assert background.cell == cell
    inside = cells.pixels(background, (0, 1100), (0, 1000))
    expected = stored.repeat(tile[0], 0).repeat(tile[1], 1)[:1100, :1000]
    np.testing.assert_array_equal(inside, expected)
    check_background(source)
    assert source.background is background  # found once


def without(source: TiffSource, segments: list[int]) -> TiffSource:
    """Return a source whose file does not store some segments."""
    counts = [0 if n in segments else count for n, count in enumerate(source._layout.counts)]
    source._layout = dataclasses.replace(source._layout, counts=tuple(counts))
    return source


def test_background_of_missing_strips_and_planes(tmp_path: Path) -> None:
    options: dict[str, Any] = {"compression": "deflate"}
    tifffile.imwrite(tmp_path / "a.tif", noise(1100, 1000), rowsperstrip=8, **options)
    strips = without(TiffSource(tmp_path / "a.tif"), [n for n in range(138) if n % 3])
    check_background(strips, 0.66)
    assert strips.background is not None
    assert strips.background.cell == 8
    options |= {"photometric": "rgb", "planarconfig": "separate", "tile": (256, 256)}
    tifffile.imwrite(tmp_path / "b.tif", noise(3, 1280, 1280), **options)
    planes = without(TiffSource(tmp_path / "b.tif"), [n for n in range(75) if n not in (3, 30)])
    assert planes.background is not None
    stored = np.zeros((5, 5), bool)
    stored[0, 3] = stored[1, 0] = True  # in one plane each
    np.testing.assert_array_equal(planes.background.foreground, stored)
    check_background(planes)


def test_no_background(tmp_path: Path) -> None:
    """Small images have none, nor do files that store everything, or whose missing tiles are not numbers."""
    small = write_sparse(tmp_path / "a.tif", (64, 64), (16, 16), np.eye(4))
    assert TiffSource(small).background is None
    full = write_sparse(tmp_path / "b.tif", (1100, 1100), (256, 256), np.ones((5, 5)))
    assert TiffSource(full).background is None
    tifffile.imwrite(tmp_path / "c.tif", noise(1100, 1100))
    assert TiffSource(tmp_path / "c.tif").background is None
    source = without(TiffSource(full), [1])
    assert source.background is not None
    source = without(TiffSource(full), [1])
    source._layout = dataclasses.replace(source._layout, nodata=np.nan)
    assert source.background is None


def test_nothing_is_stored(tmp_path: Path) -> None:
    path = write_sparse(tmp_path / "a.tif", (1100, 1100), (256, 256), np.ones((5, 5)))
    check_background(without(TiffSource(path), list(range(25))), 1.0)


@pytest.mark.parametrize("name", ["deflate_tiles", "jpeg_strips", "one_row_strips", "rgba_planes"])
@pytest.mark.parametrize("halo", [0, 3, 9])
def test_overlapping_strips_decode_once(tiffs: dict[str, Path], name: str, halo: int) -> None:
    source = TiffSource(tiffs[name])
    counts = decode_counter(source)
    for start in range(0, 67, 10):
        source.read(max(0, start - halo), min(67, start + 10 + halo))
    assert set(counts.values()) == {1}
    decoded_planes = 3 if name == "rgba_planes" else 1  # the alpha plane is never decoded
    assert len(counts) == len(source._layout.offsets) // source._layout.planes * decoded_planes


def test_decodes_only_segments_of_rows(tiffs: dict[str, Path]) -> None:
    source = TiffSource(tiffs["deflate_tiles"])  # 16 x 32 tiles: 4 in a row
    counts = decode_counter(source)
    source.read(17, 20)
    assert sorted(counts) == [4, 5, 6, 7]


def test_cache_size(tiffs: dict[str, Path]) -> None:
    band_bytes = 16 * 128 * 3
    source = TiffSource(tiffs["deflate_tiles"], cache_bytes=3 * band_bytes)
    read_all(source)
    assert sum(band.nbytes for band in source._cached.values()) <= source.cache_bytes
    assert source.cache_bytes == 3 * band_bytes
    assert TiffSource(tiffs["deflate_tiles"], cache_bytes=0).cache_bytes == 2 * band_bytes
    assert TiffSource(tiffs["plain_rgb"]).cache_bytes == 0


def test_concurrent_reads(tiffs: dict[str, Path]) -> None:
    expected = read_with_tifffile(tiffs["jpeg_tiles"])
    source = TiffSource(tiffs["jpeg_tiles"], cache_bytes=0)
    starts = np.random.default_rng(1).integers(0, 60, 100)
    with ThreadPoolExecutor(4) as pool:
        for start, rows in zip(
            starts, pool.map(lambda at: source.read(at, at + 7), starts), strict=True
        ):
            np.testing.assert_array_equal(rows, expected[start : start + 7])


def test_describe(tiffs: dict[str, Path]) -> None:
    source = TiffSource(tiffs["jpeg_tiles"])
    expected = "67 x 101 x 3 uint8, 19.9 KiB, level 0 of 1, tiles of 16 x 32, JPEG"
    assert source.describe().endswith(expected)
    assert repr(source) == f"<{source.describe()}>"
    assert "strips of 1 x 101" in TiffSource(tiffs["one_row_strips"]).describe()


def test_damaged_tile(tiled: Path) -> None:
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


@pytest.mark.parametrize(
    "name", [SLIDES[0], *(pytest.param(name, marks=pytest.mark.slow) for name in SLIDES[1:])]
)
def test_real_slides(name: str) -> None:
    path = EXAMPLES / name
    if not path.exists():
        pytest.skip(f"{path.relative_to(ROOT)} is not here")
    for level in (0, 1):
        source, expected = TiffSource(path, level), tifffile.imread(path, series=0, level=level)
        assert len(source.pyramid.levels) == 2
        for start in range(0, source.shape[0], 700):
            stop = min(start + 700, source.shape[0])
            np.testing.assert_array_equal(source.read(start, stop), expected[start:stop])


def test_real_svs() -> None:
    if not SMALL_SVS.exists():
        pytest.skip(f"{SMALL_SVS.relative_to(ROOT)} is not here")
    source = sources.open(SMALL_SVS)
    expected = tifffile.imread(SMALL_SVS, series=0)
    assert source.shape == (2967, 2220, 3)
    for start, stop in ((0, 1), (239, 241), (1000, 1701), (2966, 2967)):
        np.testing.assert_array_equal(source.read(start, stop), expected[start:stop])


def test_real_svs_with_damaged_tile() -> None:
    path = SMALL_SVS.with_name("unreadable_tile.svs")
    if not path.exists():
        pytest.skip(f"{path.relative_to(ROOT)} is not here")
    with pytest.raises(SourceError, match=r"unreadable_tile\.svs: tile or strip 0, rows 0:16"):
        read_all(sources.open(path))
