"""GDAL opens files of this machine that are checked with all they lead to; nothing ever connects to a network."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import rasterio
from hostile_scenes import hostile_vrts, nothing_arrives, source, vrt, wms
from scene_files import pixels, write_scene

from tfbig.errors import SourceError
from tfbig.sources import RasterSource, trial
from tfbig.sources.scenes import gdal
from tfbig.sources.scenes.raster import RasterSlide


def image(folder: Path, name: str = "in.tif") -> Path:
    return write_scene(folder / name, pixels(8, 8, dtype="uint8"))


def refused(path: Path) -> str:
    """Return the one line of the error with which a file is refused, at the latest when it is read."""
    with pytest.raises(SourceError) as raised:
        scene = RasterSource(path)
        scene.read(0, scene.shape[0])
        scene.reduced(4)
    message = str(raised.value)
    assert "\n" not in message and path.parent.name in message
    return message


@pytest.mark.parametrize("kind", sorted(hostile_vrts("")))
def test_hostile_vrts(tmp_path: Path, kind: str) -> None:
    image(tmp_path)
    with nothing_arrives() as address:
        (tmp_path / "a.vrt").write_text(hostile_vrts(address)[kind])
        refused(tmp_path / "a.vrt")
        (tmp_path / "outer.vrt").write_text(vrt(source("a.vrt")))
        refused(tmp_path / "outer.vrt")
        (tmp_path / "a.vrt").rename(tmp_path / "hidden.tif")
        refused(tmp_path / "hidden.tif")
        (tmp_path / "outer.vrt").write_text(vrt(source("hidden.tif")))
        refused(tmp_path / "outer.vrt")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_other_encodings(tmp_path: Path, encoding: str) -> None:
    with nothing_arrives() as address:
        (tmp_path / "a.vrt").write_bytes(vrt(source(f"/vsicurl/{address}/a.tif")).encode(encoding))
        refused(tmp_path / "a.vrt")


def test_circle_of_vrts(tmp_path: Path) -> None:
    (tmp_path / "a.vrt").write_text(vrt(source("b.vrt")))
    (tmp_path / "b.vrt").write_text(vrt(source("a.vrt")))
    assert "in a circle" in refused(tmp_path / "a.vrt")


def test_vrts_that_multiply(tmp_path: Path) -> None:
    image(tmp_path)
    (tmp_path / "a0.vrt").write_text(vrt(source("in.tif") * 1000))
    for n in range(1, 4):
        (tmp_path / f"a{n}.vrt").write_text(vrt(source(f"a{n - 1}.vrt") * 1000))
    assert "expected at most 67108864" in refused(tmp_path / "a3.vrt")


@pytest.mark.parametrize("ending", [".ovr", ".msk"])
def test_overviews_and_masks_beside_an_image_are_images(tmp_path: Path, ending: str) -> None:
    path = image(tmp_path)
    with nothing_arrives() as address:
        for text in (vrt(source(f"/vsicurl/{address}/a.tif")), wms(address), "no image"):
            (tmp_path / f"in.tif{ending}").write_text(text)
            refused(path)
            (tmp_path / "a.vrt").write_text(vrt(source("in.tif")))
            refused(tmp_path / "a.vrt")
    os.remove(tmp_path / f"in.tif{ending}")
    os.mkfifo(tmp_path / f"in.tif{ending}")
    assert "is not a regular file" in refused(path)


@pytest.mark.parametrize("domain", ["OVERVIEWS", "overviews"])
def test_metadata_that_name_overviews(tmp_path: Path, domain: str) -> None:
    with nothing_arrives() as address:
        for name in (f"/vsicurl/{address}/a.tif", f"{address}/a.tif", "other.tif"):
            path = image(tmp_path)
            item = f'<Metadata domain="{domain}"><MDI key="OVERVIEW_FILE">{name}</MDI></Metadata>'
            (tmp_path / "in.tif.aux.xml").write_text(f"<PAMDataset>{item}</PAMDataset>")
            assert "name another file with overviews" in refused(path)
            os.remove(tmp_path / "in.tif.aux.xml")
            with rasterio.open(path, "r+") as file:
                file.update_tags(ns="OVERVIEWS", OVERVIEW_FILE=name)
            assert "name another file with overviews" in refused(path)


def test_mask_beside_a_vrt(tmp_path: Path) -> None:
    image(tmp_path)
    (tmp_path / "a.vrt").write_text(vrt(source("in.tif")))
    image(tmp_path, "mask.tif").rename(tmp_path / "a.vrt.msk")
    assert "is a mask of a VRT file" in refused(tmp_path / "a.vrt")


def test_files_of_erdas_beside_an_image(tmp_path: Path) -> None:
    path = image(tmp_path)
    (tmp_path / "in.aux").write_bytes(b"EHFA_HEADER_TAG\0")
    assert "is a file of ERDAS" in refused(path)


SERVER = (
    "<GDAL_WMS><Service name='TMS'><ServerUrl>http://127.0.0.1:9/</ServerUrl></Service></GDAL_WMS>"
)
GRID = "ncols 2\nnrows 2\nxllcorner 0\nyllcorner 0\ncellsize 1\n1 2\n3 4\n"


@pytest.mark.parametrize("suffix", gdal.DRIVERS)
@pytest.mark.parametrize("content", [SERVER, GRID])
def test_content_of_another_driver(content: str, suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{suffix}"
    path.write_text(content)
    with pytest.raises(SourceError, match=f"a{suffix}: "):
        RasterSource(path)


def test_pipes(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.tif")
    (tmp_path / "a.vrt").write_text(vrt(source("pipe.tif")))
    for name in ("a.vrt", "pipe.tif"):
        assert "is not a regular file" in refused(tmp_path / name)


def test_gdal_ends_its_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image(tmp_path)
    text = vrt(source("in.tif", "KernelFilteredSource"))
    monkeypatch.setattr(
        gdal.vrt, "rewritten", lambda path, _: text.replace("in.tif", str(path.with_name("in.tif")))
    )
    (tmp_path / "a.vrt").write_text(vrt(""))
    with pytest.raises(SourceError, match=r"a\.vrt: the library ends its process with SIGSEGV"):
        RasterSource(tmp_path / "a.vrt")


def test_connections_are_off_in_this_process(tmp_path: Path) -> None:
    with rasterio.Env() as env:
        assert not {*gdal.SERVERS} & {*env.drivers()}
    with nothing_arrives() as address, gdal.quiet(), pytest.raises(rasterio.errors.RasterioError):
        rasterio.open(f"/vsicurl/{address}/a.tif")
    trial.check("raster", image(tmp_path))


def test_overviews_of_another_dtype(tmp_path: Path) -> None:
    path = write_scene(tmp_path / "a.tif", pixels(16, 16))
    write_scene(tmp_path / "a.tif.ovr", pixels(8, 8, dtype="int16"))
    slide = RasterSlide(path)
    with pytest.raises(
        SourceError,
        match=r"a\.tif: its overview 1 is \(8, 8, 1\) int16; expected \(8, 8, 1\) uint16",
    ):
        slide.level(1)


def test_blocks_that_need_much_memory(tmp_path: Path) -> None:
    options = {"tiled": True, "blockxsize": 65536, "blockysize": 65536, "SPARSE_OK": True}
    size = {"height": 65536, "width": 65536, "count": 1, "dtype": "uint8"}
    with gdal.quiet(), rasterio.open(tmp_path / "in.tif", "w", driver="GTiff", **size, **options):
        pass
    (tmp_path / "a.vrt").write_text(vrt(source("in.tif")))
    for name in ("in.tif", "a.vrt"):
        assert "a block of its pixels would take 4.0 GiB" in refused(tmp_path / name)


@pytest.mark.parametrize("dtype", ["complex_int16", "complex64"])
def test_complex_samples(tmp_path: Path, dtype: str) -> None:
    size = {"height": 8, "width": 8, "count": 1, "dtype": dtype}
    with gdal.quiet(), rasterio.open(tmp_path / "in.tif", "w", driver="GTiff", **size):
        pass
    assert f"its samples are {dtype}; expected integers or floats" in refused(tmp_path / "in.tif")


@pytest.mark.parametrize(
    "error",
    [ZeroDivisionError("by zero"), UnicodeDecodeError("utf-8", b"\xff", 0, 1, "x"), KeyError("a")],
)
def test_errors_of_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    path = image(tmp_path)

    def fail(*_: object) -> None:
        raise error

    scene = RasterSource(path)
    monkeypatch.setattr("rasterio.windows.Window", fail)
    with pytest.raises(SourceError, match=r"in\.tif: rows 0:1 from column 0 cannot be read"):
        scene.read(0, 1)
    monkeypatch.setattr("tfbig.sources.scenes.raster.MapGrid.of", fail)
    assert "cannot be read" in refused(path)


def test_companions_of_real_scenes(tmp_path: Path) -> None:
    with gdal.quiet():
        path = write_scene(
            tmp_path / "a.tif", pixels(300, 200, 2), tiled=True, crs=None, transform=None
        )
    (tmp_path / "a.tfw").write_text("10\n0\n0\n-10\n500005\n5999995\n")
    with rasterio.Env(TIFF_USE_OVR=True), rasterio.open(path, "r+") as file:
        file.build_overviews([2, 4], rasterio.enums.Resampling.nearest)
    (tmp_path / "a.2023.tif").write_bytes(b"another")
    assert (tmp_path / "a.tif.ovr").exists()
    scene = RasterSource(path)
    assert scene.levels == ((300, 200), (150, 100), (75, 50))
    assert scene.grid.matrix == (10, 0, 500000, 0, -10, 6000000)
    assert {Path(file).name for file in scene.files} >= {"a.tif", "a.tif.ovr", "a.tfw"}
    assert RasterSource(path, 2).shape == (75, 50, 2)
    (tmp_path / "a.vrt").write_text(
        '<VRTDataset rasterXSize="200" rasterYSize="300"><VRTRasterBand dataType="UInt16" band="1">'
        + source("a.tif")
        + "</VRTRasterBand></VRTDataset>"
    )
    shown = RasterSource(tmp_path / "a.vrt")
    np.testing.assert_array_equal(shown.read(0, 300)[..., 0], scene.read(0, 300)[..., 0])
    assert {*scene.files} < {*shown.files}
