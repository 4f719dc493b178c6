"""Scenes filled where there is no measurement, and the moments of their bands."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scene_files import pixels, write_scene

from tfbig.errors import SourceError
from tfbig.sources import RasterSource
from tfbig.sources.scenes.measured import FilledScene, sampled_moments


def holes(image: np.ndarray, nodata: float) -> np.ndarray:
    """The image with nodata in a corner, in single samples, and in a few pixels."""
    out = image.copy()
    out[:70, :40] = nodata
    out[80, 3:9, 0] = nodata
    out[90, 50] = nodata
    return out


@pytest.mark.parametrize(
    ("dtype", "nodata"), [("uint16", 0), ("int16", -9999), ("float32", np.nan)]
)
def test_filled(tmp_path: Path, dtype: str, nodata: float) -> None:
    image = holes(pixels(131, 97, 2, dtype=dtype), nodata)
    scene = RasterSource(write_scene(tmp_path / "a.tif", image, nodata=nodata))
    filled = FilledScene(scene, [1.5, 2.5], multiple=16)
    assert (filled.shape, filled.dtype) == ((144, 112, 2), np.float32)
    lacks = np.isnan(image) if np.isnan(nodata) else image == nodata
    expected = np.empty((144, 112, 2), np.float32)
    expected[:] = [1.5, 2.5]
    expected[:131, :97] = np.where(lacks, expected[:131, :97], image)
    np.testing.assert_array_equal(filled.read(0, 144), expected)
    np.testing.assert_array_equal(
        filled.read_window((100, 140), (90, 111)), expected[100:140, 90:111]
    )
    valid = np.zeros((144, 112), bool)
    valid[:131, :97] = ~lacks.all(-1)
    np.testing.assert_array_equal(filled.valid((0, 144), (0, 112)), valid)


def test_infinite_samples_are_no_measurements(tmp_path: Path) -> None:
    image = pixels(8, 8, 1, dtype="float32")
    image[0, :2, 0] = np.inf, np.nan
    filled = FilledScene(RasterSource(write_scene(tmp_path / "a.tif", image)), [7.0])
    assert filled.read(0, 1)[0, :2, 0].tolist() == [7, 7]
    assert filled.valid((0, 8), (0, 8)).sum() == 62


def test_background_is_where_cells_have_no_measurement(tmp_path: Path) -> None:
    image = holes(pixels(131, 97, 2), 0)
    scene = RasterSource(write_scene(tmp_path / "a.tif", image, nodata=0))
    assert FilledScene(scene, [1, 2]).background is None
    filled = FilledScene(scene, [1, 2], skip=True)
    expected = np.ones((5, 4), bool)
    expected[:2, :1] = False
    assert filled.background is not None
    assert filled.background.cell == 32
    np.testing.assert_array_equal(filled.background.foreground, expected)
    window = filled.foreground((32, 131), (0, 97)).foreground
    np.testing.assert_array_equal(window, expected[1:])


def test_another_number_of_bands(tmp_path: Path) -> None:
    scene = RasterSource(write_scene(tmp_path / "a.tif", pixels(8, 8, 4)))
    with pytest.raises(SourceError, match="has 4 bands, but the network was trained on 3"):
        FilledScene(scene, [0, 0, 0])


def test_moments(tmp_path: Path) -> None:
    image = holes(pixels(131, 97, 3, dtype="int16"), -9999)
    scene = RasterSource(write_scene(tmp_path / "a.tif", image, nodata=-9999))
    mean, deviation = sampled_moments([scene], windows=1, side=256)
    measured = np.ma.masked_equal(image, -9999).astype(float)
    np.testing.assert_allclose(mean, measured.mean((0, 1)), rtol=1e-10)
    np.testing.assert_allclose(deviation, measured.std((0, 1)), rtol=1e-10)
    several, _ = sampled_moments([scene, scene], windows=9, side=40)
    assert np.isfinite(several).all()


def test_moments_of_one_colour(tmp_path: Path) -> None:
    scene = RasterSource(write_scene(tmp_path / "a.tif", np.full((8, 8, 1), 9, "uint8")))
    assert [each.tolist() for each in sampled_moments([scene])] == [[9], [1]]
