"""GeoTIFF: images written from a georeferenced image have its coordinates."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from samples import darkness

from tfbig.cli.main import main
from tfbig.cli.predictors import results
from tfbig.sources import ArraySource, Coords, open_slide, write_ome_tiff
from tfbig.sources.slides.georeference import PIXEL_SCALE, TIEPOINTS, TRANSFORMATION

UTM = [
    (34735, "H", 16, (1, 1, 0, 3, 1024, 0, 1, 1, 1025, 0, 1, 1, 3072, 0, 1, 32632), True),
    (34737, "s", 0, "WGS 84 / UTM zone 32N|", True),
]


SCALED = [
    (PIXEL_SCALE, "d", 3, (10.0, 20.0, 0.0), True),
    (TIEPOINTS, "d", 6, (4.0, 8.0, 0.0, 399960.0, 5300040.0, 0.0), True),
]


MATRIX = (10.0, 1.0, 0.0, 399960.0, 2.0, -20.0, 0.0, 5300040.0, *([0.0] * 7), 1.0)


def write_scene(path: Path, tags: list[Any]) -> np.ndarray:
    """Write a georeferenced image and return it."""
    base = np.full((300, 420, 3), 240, np.uint8)
    base[40:200, 100:330] = 90
    tifffile.imwrite(path, base, photometric="rgb", tile=(64, 64), extratags=[*tags, *UTM])
    return base


def coordinates(tags: Any, row: float, column: float) -> tuple[float, float]:
    """Compute x and y of the corner of a pixel with the formulas of the standard."""
    if TRANSFORMATION in tags:
        x, y, *_ = np.reshape(tags[TRANSFORMATION].value, (4, 4)) @ [column, row, 0, 1]
        return x, y
    points, scale = tags[TIEPOINTS].value, tags[PIXEL_SCALE].value
    return points[3] + (column - points[0]) * scale[0], points[4] - (row - points[1]) * scale[1]


@pytest.mark.parametrize("tags", [SCALED, [(TRANSFORMATION, "d", 16, MATRIX, True)]])
@pytest.mark.parametrize("steps", [(1.0, 1.0), (2.0, 4.0)])
def test_scaled(tmp_path: Path, tags: list[Any], steps: tuple[float, float]) -> None:
    write_scene(tmp_path / "a.tif", tags)
    georeference = open_slide(tmp_path / "a.tif").georeference.scaled(*steps)
    small = ArraySource(np.zeros((150, 105, 1), np.uint8))
    write_ome_tiff(tmp_path / "b.ome.tif", small, georeference=georeference)
    with (
        tifffile.TiffFile(tmp_path / "a.tif") as before,
        tifffile.TiffFile(tmp_path / "b.ome.tif") as after,
    ):
        for row, column in ((0, 0), (10, 33)):
            expected = coordinates(before.pages.first.tags, row * steps[0], column * steps[1])
            assert coordinates(after.pages.first.tags, row, column) == pytest.approx(expected)
        assert (
            after.geotiff_metadata["ProjectedCSTypeGeoKey"]
            == before.geotiff_metadata["ProjectedCSTypeGeoKey"]
        )
        assert after.geotiff_metadata["GTModelTypeGeoKey"] == 1
    again = open_slide(tmp_path / "b.ome.tif").georeference
    assert again == georeference


def test_incomplete_tags(tmp_path: Path) -> None:
    for tags in ([], SCALED[:1], SCALED[1:], [(TRANSFORMATION, "d", 3, (1.0, 2.0, 3.0), True)]):
        write_scene(tmp_path / "a.tif", tags)
        assert open_slide(tmp_path / "a.tif").georeference is None
    wrong = [(PIXEL_SCALE, "d", 3, (float("nan"), 1.0, 0.0), True), SCALED[1]]
    write_scene(tmp_path / "a.tif", wrong)
    assert open_slide(tmp_path / "a.tif").georeference is None


def test_predicted_mask(tmp_path: Path) -> None:
    write_scene(tmp_path / "a.tif", SCALED)
    darkness(tmp_path / "m.keras")
    model, scene, out = (str(tmp_path / name) for name in ("m.keras", "a.tif", "out"))
    assert main(["predict", model, scene, "--out", out]) == 0
    mask = open_slide(tmp_path / "out" / "a.ome.tif")
    assert mask.georeference == open_slide(scene).georeference
    assert mask.mpp is None


def test_attention_map(tmp_path: Path) -> None:
    """A tile of 60 pixels becomes four pixels of the map along each axis."""
    write_scene(tmp_path / "a.tif", SCALED)
    slide = open_slide(tmp_path / "a.tif")
    coords = Coords("a", np.array([[60, 120], [300, 240]]), 60, 1.0)
    settings = Namespace(out=tmp_path, classes=["no", "yes"])
    results.write_attention(settings, tmp_path / "a.tif", slide, coords, np.array([0.2, 0.8]), "a")
    slide.close()
    with (
        tifffile.TiffFile(tmp_path / "a.tif") as before,
        tifffile.TiffFile(tmp_path / "a_attention.ome.tif") as after,
    ):
        heat = after.asarray()
        row, column = np.argwhere(heat == heat.max())[0]
        assert (row * 15, column * 15) == (240, 300)
        expected = coordinates(before.pages.first.tags, 240, 300)
        assert coordinates(after.pages.first.tags, row, column) == pytest.approx(expected)
