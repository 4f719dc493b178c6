"""VRT files of GDAL's own programs are written again with the same pixels, bands and grid."""

from __future__ import annotations

import os
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import rasterio
import rasterio.shutil
from hostile_scenes import source, vrt
from rasterio.transform import Affine
from scene_files import PLACE, pixels, write_scene

from tfbig.errors import SourceError
from tfbig.sources import RasterSource, stack_bands
from tfbig.sources.scenes.vrt import rewritten

BUILT = """<VRTDataset rasterXSize="40" rasterYSize="30">
  <SRS dataAxisToSRSAxisMapping="1,2">EPSG:32632</SRS>
  <GeoTransform>5.0e+05, 1.0e+01, 0.0, 6.0e+06, 0.0, -1.0e+01</GeoTransform>
  <Metadata><MDI key="AREA_OR_POINT">Area</MDI></Metadata>
  <!-- as of gdalbuildvrt -->
  <VRTRasterBand dataType="UInt16" band="1">
    <NoDataValue>0</NoDataValue>
    <ColorInterp>Gray</ColorInterp>
    <ComplexSource resampling="nearest">
      <SourceFilename relativeToVRT="1" shared="0">tiles/left &amp; 1.tif</SourceFilename>
      <SourceBand>1</SourceBand>
      <SourceProperties RasterXSize="20" RasterYSize="30" DataType="UInt16" BlockXSize="20" BlockYSize="30" />
      <SrcRect xOff="0" yOff="0" xSize="20" ySize="30" />
      <DstRect xOff="0" yOff="0" xSize="20" ySize="30" />
      <NODATA>0</NODATA>
    </ComplexSource>
    <SimpleSource>
      <SourceFilename relativeToVRT="0">{elsewhere}</SourceFilename>
      <SourceBand>1</SourceBand>
      <SrcRect xOff="0" yOff="0" xSize="20" ySize="30" />
      <DstRect xOff="20" yOff="0" xSize="20" ySize="30" />
    </SimpleSource>
  </VRTRasterBand>
</VRTDataset>
"""


def mosaic(folder: Path) -> np.ndarray:
    """Write two images and a VRT file `here/a.vrt` that shows one beside the other; return its pixels."""
    image = pixels(30, 40)
    (folder / "here/tiles").mkdir(parents=True)
    (folder / "there").mkdir()
    write_scene(folder / "here/tiles/left & 1.tif", image[:, :20])
    right = write_scene(folder / "there/right.tif", image[:, 20:])
    (folder / "here/a.vrt").write_text(BUILT.format(elsewhere=right))
    return image


def test_sources_in_folders_below_and_elsewhere(tmp_path: Path) -> None:
    image = mosaic(tmp_path)
    scene = RasterSource(tmp_path / "here/a.vrt")
    np.testing.assert_array_equal(scene.read(0, 30)[..., 0], image)
    assert scene.bands.nodata == (0,)
    assert scene.grid.transform == PLACE
    assert scene.grid.crs.to_epsg() == 32632
    names = [os.path.relpath(file, tmp_path) for file in scene.files]
    assert names == ["here/a.vrt", "here/tiles/left & 1.tif", "there/right.tif"]


def test_vrt_of_a_vrt_and_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image = mosaic(tmp_path)
    (tmp_path / "link.vrt").symlink_to(tmp_path / "here/a.vrt")
    stack_bands(tmp_path / "b.vrt", [tmp_path / "link.vrt", tmp_path / "here/a.vrt"])
    monkeypatch.chdir(tmp_path)
    scene = RasterSource("b.vrt")
    np.testing.assert_array_equal(scene.read(0, 30), np.stack([image, image], -1))
    assert len(scene.files) == 5
    (tmp_path / "there/right.tif").unlink()
    with pytest.raises(
        SourceError, match=r"b\.vrt: its source .*right\.tif: cannot be opened: No such file"
    ):
        RasterSource("b.vrt")


def test_everything_that_gdal_translates(tmp_path: Path) -> None:
    image = pixels(64, 48, 4, dtype="uint8")
    image[..., 3] = np.where(np.arange(48) < 9, 0, 255)
    names = ("red", "green", "blue", "alpha")
    path = write_scene(tmp_path / "a.tif", image, photometric="RGB", ALPHA="YES", names=names)
    rasterio.shutil.copy(path, tmp_path / "a.vrt", driver="VRT")
    scene, shown = RasterSource(path), RasterSource(tmp_path / "a.vrt")
    assert (shown.bands, shown.grid, shown.dtype) == (scene.bands, scene.grid, scene.dtype)
    np.testing.assert_array_equal(shown.read(0, 64), scene.read(0, 64))
    window = (0, 64), (0, 48)
    np.testing.assert_array_equal(
        shown.valid(*window, shown.read_window(*window)),
        scene.valid(*window, scene.read_window(*window)),
    )


def test_masks_palettes_and_overviews(tmp_path: Path) -> None:
    image, mask = pixels(600, 40, dtype="uint8"), np.random.default_rng(3).integers(0, 2, (600, 40))
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True):
        path = write_scene(tmp_path / "a.tif", image)
        with rasterio.open(path, "r+") as file:
            file.write_mask(mask.astype("uint8") * 255)
            file.write_colormap(1, {n: (n, 0, 0, 255) for n in range(256)})
            file.build_overviews([2], rasterio.enums.Resampling.nearest)
    rasterio.shutil.copy(path, tmp_path / "a.vrt", driver="VRT")
    shown = RasterSource(tmp_path / "a.vrt")
    assert shown.levels[0] == (600, 40)
    np.testing.assert_array_equal(shown.valid((0, 600), (0, 40), shown.read(0, 600)), mask > 0)


def test_same_xml_in_other_letters(tmp_path: Path) -> None:
    image = mosaic(tmp_path)
    text = (tmp_path / "here/a.vrt").read_text()
    for name in ("VRTRasterBand", "SimpleSource", "SrcRect", "relativeToVRT", "rasterXSize"):
        text = text.replace(name, name.lower())
    (tmp_path / "here/a.vrt").write_text("<?xml version='1.0'?>\n" + text)
    np.testing.assert_array_equal(RasterSource(tmp_path / "here/a.vrt").read(0, 30)[..., 0], image)


def test_only_known_elements_remain(tmp_path: Path) -> None:
    (tmp_path / "a.vrt").write_text(
        vrt(
            source("b&amp;c.tif", more="<Clamp>1</Clamp>"),
            '<Metadata domain="x"><MDI key="a">b</MDI></Metadata>',
        )
    )
    root = ElementTree.fromstring(rewritten(tmp_path / "a.vrt", lambda path: (str(path), None)))
    assert [element.tag for element in root.iter()] == [
        *("VRTDataset", "VRTRasterBand", "SimpleSource", "SourceFilename", "SourceBand", "Clamp")
    ]
    name = root.find(".//SourceFilename")
    assert name is not None
    assert (name.text, name.attrib) == (str(tmp_path / "b&c.tif"), {"relativeToVRT": "0"})


def test_affine_of_a_vrt_without_a_place(tmp_path: Path) -> None:
    write_scene(tmp_path / "in.tif", pixels(8, 8, dtype="uint8"))
    (tmp_path / "a.vrt").write_text(vrt(source("in.tif")))
    scene = RasterSource(tmp_path / "a.vrt")
    assert scene.grid.transform == Affine.identity()
    with pytest.raises(SourceError, match="has no place on the map"):
        RasterSource(tmp_path / "a.vrt", onto=(scene.grid, (8, 8)))
