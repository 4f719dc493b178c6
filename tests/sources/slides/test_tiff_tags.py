"""What TIFF tags say beyond size and layout: one test for each row of the table."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rasterio
import tifffile
from slide_files import SMALL_SVS, image

import tfbig
from tfbig import SourceError, SourceWarning
from tfbig.sources import TiffSource
from tfbig.sources.slides import tiff_tags

SMALL, LARGE = image(30, 40, 3), image(64, 128, 3)
GDAL = '<GDALMetadata><Item name="{0}" sample="0" role="{0}">{1}</Item></GDALMetadata>'


def write(path: Path, **options: Any) -> Path:
    """Write the large image, gray with tags of GDAL or RGB."""
    tifffile.imwrite(path, LARGE, **{"photometric": "rgb", "metadata": None, **options})
    return path


def pixels(path: Path) -> Any:
    slide = tfbig.open_slide(path)
    return slide.read((0, slide.shape[0]), (0, slide.shape[1]))


def levels(path: Path) -> None:
    with tifffile.TiffWriter(path) as writer:
        writer.write(LARGE, photometric="rgb", subifds=1, metadata=None)
        writer.write(LARGE[::2, ::2], photometric="rgb", subfiletype=1)
    assert tfbig.open_slide(path).levels == ((64, 128), (32, 64))


def several(path: Path) -> None:
    """The image after its overview, by OpenSlide's and tifffile's size; with its levels."""
    with tifffile.TiffWriter(path) as writer:
        writer.write(SMALL, photometric="rgb", metadata=None)
        writer.write(LARGE, photometric="rgb", subifds=1, metadata=None)
        writer.write(LARGE[::2, ::2], photometric="rgb", subfiletype=1)
    assert tfbig.open_slide(path).levels == ((64, 128), (32, 64))
    np.testing.assert_array_equal(pixels(path), tifffile.imread(path, series=1))


def photometric(path: Path) -> None:
    tifffile.imwrite(path, LARGE[..., 0], photometric="miniswhite", metadata=None)
    with pytest.raises(SourceError, match="colours are stored as MINISWHITE"):
        pixels(path)


def orientation(path: Path) -> None:
    write(path, extratags=[(274, "H", 1, 6, True)])
    with pytest.raises(SourceError, match=r"stored rotated or mirrored \(Orientation RIGHTTOP\)"):
        pixels(path)


def predictor(path: Path) -> None:
    write(path, compression="deflate", predictor=2, planarconfig="contig")
    np.testing.assert_array_equal(pixels(path), LARGE)


def alpha(path: Path) -> None:
    rgba = np.dstack([LARGE, np.zeros(LARGE.shape[:2], np.uint8)])
    tifffile.imwrite(path, rgba, photometric="rgb", extrasamples=["unassalpha"], metadata=None)
    np.testing.assert_array_equal(pixels(path), LARGE)


def resolution(path: Path) -> None:
    write(path, resolution=(20000, 40000), resolutionunit="CENTIMETER")
    assert tfbig.open_slide(path).mpp == (0.25, 0.5)


def description(path: Path) -> None:
    """The size of a pixel is that of the image that is read, if an OME-TIFF has two."""
    path = path.with_suffix(".ome.tif")
    with tifffile.TiffWriter(path, ome=True) as writer:
        for array, mpp in ((SMALL, 9.0), (LARGE, 0.5)):
            size = {"PhysicalSizeX": mpp, "PhysicalSizeY": mpp}
            writer.write(array, photometric="rgb", metadata=size)
    assert tfbig.open_slide(path).mpp == (0.5, 0.5)
    np.testing.assert_array_equal(pixels(path), LARGE)


def calibration(path: Path) -> None:
    """Signed 16 bits, as ImageJ saves them: c0 + c1 * sample."""
    stored = np.arange(12, dtype=np.uint16).reshape(3, 4)
    facts = {"cf": 0, "c0": -32768.0, "c1": 1.0}
    tifffile.imwrite(path, stored, imagej=True, metadata=facts)
    with pytest.warns(SourceWarning, match=r"ImageJ calibrates its values \(c0 -32768, c1 1\)"):
        np.testing.assert_array_equal(pixels(path)[..., 0], stored)
    tifffile.imwrite(path, stored, imagej=True, metadata={"cf": 0, "c0": 0.0, "c1": 1.0})
    pixels(path)


def response(path: Path) -> None:
    write(path, extratags=[(301, "H", 256, tuple(range(256)), True)])
    with pytest.warns(SourceWarning, match="not applied: its TransferFunction"):
        pixels(path)


def place(path: Path) -> None:
    tags = [(33550, "d", 3, (10.0, 10.0, 0.0), True), (33922, "d", 6, (0, 0, 0, 5e5, 6e6, 0), True)]
    write(path, extratags=tags)
    found = tfbig.open_slide(path).georeference
    assert found is not None
    assert found.scale == (10.0, 10.0, 0.0)


def nodata(path: Path) -> None:
    tiles = iter([LARGE[:32, :32, 0], None, *[LARGE[:32, :32, 0]] * 6])
    tifffile.imwrite(
        path,
        tiles,
        shape=(64, 128),
        dtype="uint8",
        tile=(32, 32),
        metadata=None,
        extratags=[(42113, "s", 0, "7", True)],
    )
    assert (pixels(path)[:32, 32:64] == 7).all()
    np.testing.assert_array_equal(pixels(path)[..., 0], tifffile.imread(path))


def scaling(path: Path) -> None:
    """Reflectance of Sentinel-2 since 2022, as GDAL unscales it."""
    stored = np.array([[[1000, 2000, 3000], [0, 5000, 6000]]], np.uint16)
    place = {"crs": "EPSG:32632", "transform": rasterio.Affine(10, 0, 5e5, 0, -10, 6e6)}
    with rasterio.open(path, "w", "GTiff", 3, 2, 1, dtype="uint16", nodata=0, **place) as file:
        file.write(stored)
        file.scales, file.offsets = (1e-4,), (-0.1,)
    expected = np.array([[0.0, 0.1, 0.2], [np.nan, 0.4, 0.5]], np.float32)
    np.testing.assert_allclose(pixels(path)[..., 0], expected, atol=1e-7)
    with pytest.raises(tiff_tags.ScaledError, match=r"\(scale 0.0001, offset -0.1\). Open it with"):
        TiffSource(path)


def empty_tiles(path: Path) -> None:
    """An SVS with a tile of no bytes at level 1 has OpenSlide's pixels there."""
    openslide = pytest.importorskip("openslide")
    data = bytearray(SMALL_SVS.read_bytes())
    with tifffile.TiffFile(SMALL_SVS) as tiff:
        counts = tiff.series[0].keyframe.tags["TileByteCounts"]
        place, size = counts.valueoffset, counts.valuebytecount // counts.count
    data[place : place + size] = bytes(size)
    path = path.with_suffix(".svs")
    path.write_bytes(data)
    slide = tfbig.open_slide(path)
    assert slide.reader == "OpenSlide (aperio)"
    region = np.asarray(openslide.OpenSlide(path).read_region((0, 0), 0, (8, 8)))
    assert (region[..., 3] == 0).all()
    assert (slide.read((0, 8), (0, 8)) == 255).all()
    with pytest.raises(SourceError, match="stored no data for some tiles, which OpenSlide paints"):
        tfbig.open_slide(path, reader="tifffile")


CASES: dict[str, Callable[[Path], None]] = {
    "NewSubfileType, SubIFDs": levels,
    "several images": several,
    "PhotometricInterpretation": photometric,
    "Orientation": orientation,
    "Predictor, FillOrder, PlanarConfiguration, SampleFormat": predictor,
    "ExtraSamples": alpha,
    "XResolution, YResolution, ResolutionUnit": resolution,
    "ImageDescription": description,
    "calibration of ImageJ": calibration,
    "GrayResponseCurve, TransferFunction": response,
    "ModelPixelScale, ModelTiepoint, ModelTransformation": place,
    "GDAL_NODATA": nodata,
    "scale and offset in GDAL_METADATA": scaling,
    "tiles of no bytes": empty_tiles,
}


@pytest.mark.parametrize("name", CASES)
def test_tag(name: str, tmp_path: Path) -> None:
    CASES[name](tmp_path / "a.tif")


def test_every_tag_has_a_test() -> None:
    assert [tag.subject for tag in tiff_tags.TAGS] == list(CASES)


def test_a_reduced_copy_of_an_odd_ratio_is_no_other_image(tmp_path: Path) -> None:
    """Tifffile takes no level of it."""
    path = tmp_path / "a.tif"
    with tifffile.TiffWriter(path) as writer:
        writer.write(LARGE, photometric="rgb", subifds=1, metadata=None)
        writer.write(image(34, 67, 3), photometric="rgb", subfiletype=1)
    np.testing.assert_array_equal(pixels(path), LARGE)


def test_another_image_of_a_similar_size_is_said(tmp_path: Path) -> None:
    """Two sections of one slide; a label of half the size is none of them."""
    path = tmp_path / "a.ome.tif"
    for second, said in ((LARGE, True), (LARGE[:32, :64], False)):
        with tifffile.TiffWriter(path, ome=True) as writer:
            writer.write(LARGE, photometric="rgb")
            writer.write(second, photometric="rgb")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            np.testing.assert_array_equal(pixels(path), LARGE)
        texts = [str(each.message) for each in caught]
        assert [("holds 2 images of a similar size" in text) for text in texts] == [True] * said


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (GDAL.format("offset", "-0.1"), {"offset": -0.1}),
        (GDAL.format("scale", "1"), {}),
        ("<GDALMetadata", {}),
        ("", {}),
    ],
)
def test_scaling_of_metadata(text: str, expected: dict[str, float]) -> None:
    assert tiff_tags.scaling_of(text) == expected
