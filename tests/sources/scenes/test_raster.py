"""RasterSource equals the array that was written, in every storage; bad files are refused in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import tifffile
from rasterio.transform import Affine
from scene_files import PLACE, UTM, pixels, write_scene

import tfbig
from tfbig import sources
from tfbig.errors import SourceError
from tfbig.sources import RasterSource

STORAGES: dict[str, dict[str, Any]] = {
    "pixel_interleaved_tiles": {
        "interleave": "pixel",
        "tiled": True,
        "blockxsize": 32,
        "blockysize": 16,
        "compress": "deflate",
        "predictor": 2,
    },
    "band_sequential_tiles": {
        "interleave": "band",
        "tiled": True,
        "blockxsize": 16,
        "blockysize": 32,
        "compress": "zstd",
    },
    "band_sequential_strips": {"interleave": "band", "blockysize": 7, "compress": "lzw"},
    "uncompressed_strips": {"interleave": "pixel"},
    "big_endian": {"interleave": "pixel", "ENDIANNESS": "BIG"},
    "big_endian_band_tiles": {
        "interleave": "band",
        "ENDIANNESS": "BIG",
        "tiled": True,
        "blockxsize": 16,
        "blockysize": 16,
        "compress": "deflate",
    },
    "bigtiff": {"BIGTIFF": "YES", "compress": "deflate"},
}


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "float32"])
@pytest.mark.parametrize("storage", STORAGES)
def test_all_storages_of_twelve_bands(tmp_path: Path, storage: str, dtype: str) -> None:
    image = pixels(67, 101, 12, dtype=dtype)
    options = dict(STORAGES[storage])
    if dtype == "float32" and "predictor" in options:
        options["predictor"] = 3
    path = write_scene(tmp_path / "scene.tif", image, **options)
    for source in (RasterSource(path), tfbig.open(path)):  # by GDAL, and by tifffile
        assert source.shape == image.shape
        assert source.dtype == image.dtype
        np.testing.assert_array_equal(source.read(0, 67), image)
        np.testing.assert_array_equal(source.read_window((11, 40), (3, 99)), image[11:40, 3:99])


def test_metadata(tmp_path: Path) -> None:
    image, names = pixels(40, 30, 3), ("red", "green", "nir")
    path = write_scene(tmp_path / "a.tif", image, nodata=7, names=names)
    source = RasterSource(path)
    assert source.bands == sources.RasterSource(path).bands
    assert (source.bands.names, source.bands.nodata) == (names, (7.0, 7.0, 7.0))
    assert source.grid.transform == PLACE
    assert source.grid.crs is not None
    assert source.grid.crs.to_epsg() == 32632
    with rasterio.open(path) as file:
        assert source.grid.crs == file.crs


def test_overviews_are_levels(tmp_path: Path) -> None:
    path = write_scene(tmp_path / "a.tif", pixels(301, 200, 2), tiled=True)
    with rasterio.open(path, "r+") as file:
        file.build_overviews([2, 4], rasterio.enums.Resampling.nearest)
    slide = tfbig.open_slide(path, reader="rasterio")
    assert slide.levels == ((301, 200), (151, 100), (76, 50))
    with rasterio.open(path, overview_level=1) as file:
        expected = file.read().transpose(1, 2, 0)
    np.testing.assert_array_equal(slide.level(2).read(0, 76), expected)
    assert "EPSG:32632, pixels of 10 metres" in slide.describe()


def test_jpeg_2000(tmp_path: Path) -> None:
    image = pixels(64, 80, 3)
    path = write_scene(
        tmp_path / "a.jp2", image, driver="JP2OpenJPEG", QUALITY=100, REVERSIBLE="YES"
    )
    np.testing.assert_array_equal(tfbig.open(path).read(0, 64), image)


def test_alpha_is_a_mask_and_no_band(tmp_path: Path) -> None:
    image = pixels(20, 30, 4, dtype="uint8")
    image[..., 3] = np.where(np.arange(30) < 10, 0, 255)
    path = write_scene(tmp_path / "a.tif", image, photometric="RGB", ALPHA="YES")
    source = RasterSource(path)
    assert source.shape == (20, 30, 3)
    window = (0, 20), (0, 30)
    valid = source.valid(*window, source.read_window(*window))
    np.testing.assert_array_equal(valid, image[..., 3] > 0)


def test_internal_mask(tmp_path: Path) -> None:
    image, mask = pixels(20, 30, 2), np.random.default_rng(3).integers(0, 2, (20, 30))
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True):
        path = write_scene(tmp_path / "a.tif", image)
        with rasterio.open(path, "r+") as file:
            file.write_mask(mask.astype("uint8") * 255)
    source = RasterSource(path)
    window = (2, 20), (5, 30)
    valid = source.valid(*window, source.read_window(*window))
    np.testing.assert_array_equal(valid, mask[2:, 5:] > 0)


def test_a_pixel_is_valid_if_any_band_is_measured(tmp_path: Path) -> None:
    image = pixels(8, 8, 2, dtype="int16")
    image[0, 0] = -9999
    image[0, 1, 0] = -9999
    source = RasterSource(write_scene(tmp_path / "a.tif", image, nodata=-9999))
    block = source.read(0, 8)
    assert source.valid((0, 8), (0, 8), block).sum() == 63
    assert source.measured(block).sum() == 8 * 8 * 2 - 3
    assert source.knows_nodata


def test_resampled_onto_another_grid(tmp_path: Path) -> None:
    image = pixels(20, 20)[:, :, None]
    source = RasterSource(write_scene(tmp_path / "a.tif", image))
    moved = sources.MapGrid(source.grid.wkt, source.grid.window(-5, -5).matrix)
    onto = RasterSource(tmp_path / "a.tif", onto=(moved, (30, 30)))
    block = onto.read(0, 30)
    assert onto.shape == (30, 30, 1)
    np.testing.assert_array_equal(block[5:25, 5:25], image)
    valid = onto.valid((0, 30), (0, 30), block)
    assert valid[5:25, 5:25].all()
    assert valid.sum() == 400


def scaled_scene(path: Path, stored: np.ndarray, scaling: list[tuple[float, float]]) -> Path:
    """Write `[H, W, bands]` with a scale and an offset of each band; 0 is no measurement."""
    write_scene(path, stored, nodata=0)
    with rasterio.open(path, "r+") as file:
        file.scales, file.offsets = zip(*scaling, strict=True)
    return path


def test_scale_and_offset_are_applied(tmp_path: Path) -> None:
    """Each band has its own, in windows, overviews, thumbnails, and resampled onto another grid."""
    stored = pixels(64, 96, 2, dtype="uint16") + 1
    stored[3, 5] = 0, 9
    scaling = [(1e-4, -0.1), (0.5, 0.0)]
    path = scaled_scene(tmp_path / "a.tif", stored, scaling)
    with rasterio.open(path, "r+") as file:
        file.build_overviews([2], rasterio.enums.Resampling.nearest)
    expected = np.stack([stored[..., n] * s + o for n, (s, o) in enumerate(scaling)], -1)
    expected[3, 5, 0] = np.nan
    source = RasterSource(path)
    assert (source.dtype, source.stored) == (np.float32, np.uint16)
    window = source.read_window((2, 9), (4, 20))
    np.testing.assert_allclose(window, expected[2:9, 4:20], rtol=1e-6)
    known = source.measured(window)
    assert known.sum() == known.size - 1
    assert not known[1, 1, 0]
    assert source.valid((3, 4), (5, 6), source.read_window((3, 4), (5, 6))).all()  # the other band
    half = tfbig.open_slide(path, reader="rasterio").level(1).read(0, 32)
    np.testing.assert_allclose(
        half, np.stack([expected[::2, ::2, n] for n in (0, 1)], -1), rtol=1e-6
    )
    np.testing.assert_allclose(source.reduced(1000)[0], expected, rtol=1e-6)
    onto = RasterSource(path, onto=(source.grid, (64, 96)))
    np.testing.assert_allclose(onto.read(0, 64), expected, rtol=1e-6)
    np.testing.assert_allclose(tfbig.open(path).read(0, 64), expected, rtol=1e-6)


def test_bands_of_files_keep_their_scale(tmp_path: Path) -> None:
    stored = pixels(8, 9, 1, dtype="uint16") + 1
    scaling = {"B02": (1e-4, -0.1), "B03": (1e-4, 0.0)}
    for name, pair in scaling.items():
        scaled_scene(tmp_path / f"{name}.tif", stored, [pair])
    files = [tmp_path / f"{name}.tif" for name in scaling]
    sources.stack_bands(tmp_path / "scene.vrt", files)
    expected = [stored[..., 0] * scale + offset for scale, offset in scaling.values()]
    found = tfbig.open(tmp_path / "scene.vrt").read(0, 8)
    np.testing.assert_allclose(found, np.stack(expected, -1), rtol=1e-6)


def test_a_scale_of_nothing(tmp_path: Path) -> None:
    path = scaled_scene(tmp_path / "a.tif", pixels(8, 9, 1, dtype="uint16"), [(0.0, 1.0)])
    with pytest.raises(SourceError, match=r"band 1 has the scale 0 and the offset 1; expected"):
        RasterSource(path)


def test_closed(tmp_path: Path) -> None:
    source = RasterSource(write_scene(tmp_path / "a.tif", pixels(8, 8, 1)))
    source.close()
    with pytest.raises(SourceError, match=r"was closed\. Open the source again"):
        source.read(0, 1)


def test_truncated(tmp_path: Path) -> None:
    path = write_scene(
        tmp_path / "a.tif", pixels(300, 300, 3), tiled=True, blockxsize=64, blockysize=64
    )
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(SourceError, match=r"a\.tif: .*(truncated|cannot be read)"):
        RasterSource(path).read(0, 300)
    path.write_bytes(data[:100])
    with pytest.raises(SourceError, match="cannot be read as GTiff"):
        RasterSource(path)


def test_axes_in_another_order(tmp_path: Path) -> None:
    chw = pixels(12, 90, 100)
    tifffile.imwrite(tmp_path / "pages.tif", chw, photometric="minisblack")
    with pytest.raises(SourceError, match="holds 12 images instead of one with all bands"):
        RasterSource(tmp_path / "pages.tif")
    write_scene(tmp_path / "exchanged.tif", chw)
    with pytest.raises(SourceError, match="100 bands of 12 x 90 pixels, as if its axes"):
        RasterSource(tmp_path / "exchanged.tif")


def test_other_files(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"none\.tif: cannot be opened: No such file"):
        RasterSource(tmp_path / "none.tif")
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(SourceError, match="is not read as a scene"):
        RasterSource(tmp_path / "a.png")
    (tmp_path / "text.tif").write_text("no image")
    with pytest.raises(SourceError, match="cannot be read as GTiff"):
        RasterSource(tmp_path / "text.tif")


def test_a_vrt_file_does_not_read_from_a_network(tmp_path: Path) -> None:
    text = (
        '<VRTDataset rasterXSize="8" rasterYSize="8"><VRTRasterBand dataType="Byte" band="1"><SimpleSource>'
        "<SourceFilename>/vsicurl/http://localhost/a.tif</SourceFilename><SourceBand>1</SourceBand>"
        "</SimpleSource></VRTRasterBand></VRTDataset>"
    )
    (tmp_path / "a.vrt").write_text(text)
    with pytest.raises(SourceError, match=r"names the source .* in a network, an archive"):
        tfbig.open(tmp_path / "a.vrt")


def test_rotated_grid(tmp_path: Path) -> None:
    turned = Affine.rotation(30) @ PLACE
    path = write_scene(tmp_path / "a.tif", pixels(8, 9, 1), transform=turned, crs=UTM)
    assert RasterSource(path).grid.transform.almost_equals(turned)
