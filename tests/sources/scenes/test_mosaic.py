"""VRT files show bands of several files as one scene."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from rasterio.transform import Affine
from scene_files import PLACE, pixels, write_scene

import tfbig
from tfbig.errors import SourceError
from tfbig.sources import RasterSource, stack_bands

COARSE = PLACE @ Affine.scale(2)


def test_bands_of_files(tmp_path: Path) -> None:
    image, coarse = pixels(40, 60, 2), pixels(20, 30, seed=1)
    options = {"driver": "JP2OpenJPEG", "QUALITY": 100, "REVERSIBLE": "YES"}
    files = [
        write_scene(tmp_path / "B02.jp2", image[..., 0], **options),
        write_scene(tmp_path / "B03.tif", image[..., 1], nodata=3, names=["green"]),
        write_scene(tmp_path / "B11.tif", coarse, transform=COARSE),
    ]
    stack_bands(tmp_path / "scene.vrt", files)
    scene = RasterSource(tmp_path / "scene.vrt")
    enlarged = coarse.repeat(2, 0).repeat(2, 1)
    np.testing.assert_array_equal(scene.read(0, 40), np.dstack([image, enlarged]))
    assert scene.bands.names == ("B02", "green", "B11")
    assert scene.bands.nodata == (None, 3.0, None)
    assert scene.grid.transform == PLACE


def test_the_folder_can_be_moved(tmp_path: Path) -> None:
    folder = tmp_path / "one"
    folder.mkdir()
    image = pixels(8, 8, 1)
    stack_bands(folder / "a.vrt", [write_scene(folder / "a.tif", image)])
    folder.rename(tmp_path / "two")
    np.testing.assert_array_equal(tfbig.open(tmp_path / "two" / "a.vrt").read(0, 8), image)


def test_refused(tmp_path: Path) -> None:
    first = write_scene(tmp_path / "a.tif", pixels(8, 8, 1))
    target = tmp_path / "s.vrt"
    with pytest.raises(ValueError, match="at least one file"):
        stack_bands(target, [])
    with pytest.raises(ValueError, match=r"expected a path \*\.vrt"):
        stack_bands(tmp_path / "s.tif", [first])
    elsewhere = write_scene(
        tmp_path / "b.tif", pixels(8, 8, 1), transform=PLACE @ Affine.translation(4, 0)
    )
    with pytest.raises(SourceError, match="covers another area than"):
        stack_bands(target, [first, elsewhere])
    zone = write_scene(tmp_path / "c.tif", pixels(8, 8, 1), crs="EPSG:32633")
    with pytest.raises(SourceError, match="covers another area than"):
        stack_bands(target, [first, zone])
    bytes_ = write_scene(tmp_path / "d.tif", pixels(8, 8, 1, dtype="uint8"))
    with pytest.raises(SourceError, match="has dtype uint8, but"):
        stack_bands(target, [first, bytes_])
    assert not target.exists()


def test_dtypes_that_vrt_has_not(tmp_path: Path) -> None:
    write_scene(tmp_path / "a.tif", pixels(8, 8).astype("int64"))
    with pytest.raises(SourceError, match=r"a\.tif: has dtype int64; expected one of uint8"):
        stack_bands(tmp_path / "a.vrt", [tmp_path / "a.tif"])
