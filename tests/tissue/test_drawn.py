"""Tissue outlined by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import shapely
from samples import ROOT

from tfbig.errors import SourceError
from tfbig.results import geojson, outlines
from tfbig.sources import ArraySource, Slide, open_slide
from tfbig.tissue import find_tissue, read_tissue
from tfbig.tissue.drawn import Outlined
from tfbig.tissue.outline_file import OutlineRule

SQUARE = {"type": "Polygon", "coordinates": [[[0, 0], [40, 0], [40, 50], [0, 50], [0, 0]]]}
HOLED = {
    "type": "MultiPolygon",
    "coordinates": [[*SQUARE["coordinates"], [[10, 10], [20, 10], [20, 20], [10, 20], [10, 10]]]],
}


@pytest.fixture
def slide(tmp_path: Path) -> Slide:
    np.save(tmp_path / "slide.npy", np.zeros((100, 80, 3), np.uint8))
    return open_slide(tmp_path / "slide.npy")


def written(path: Path, content: Any) -> Path:
    path.write_text(json.dumps(content))
    return path


def test_labels(tmp_path: Path) -> None:
    """They are 1 where the centre of a pixel is in a polygon, in every window, without a warning."""
    image = ArraySource(np.zeros((100, 80, 3), np.uint8))
    corner = {
        "type": "Polygon",
        "coordinates": [[[70.4, 90.6], [90, 90.6], [90, 110], [70.4, 90.6]]],
    }
    labels = Outlined(written(tmp_path / "a.geojson", [HOLED, corner]), image)
    assert (labels.shape, labels.dtype) == ((100, 80, 1), np.uint8)
    rows, columns = np.mgrid[:100, :80] + 0.5
    inside = (rows < 50) & (columns < 40)
    inside &= ~((rows > 10) & (rows < 20) & (columns > 10) & (columns < 20))
    triangle = shapely.from_geojson(json.dumps(corner))
    inside |= shapely.contains_xy(triangle, columns, rows)
    np.testing.assert_array_equal(labels.read(0, 100)[..., 0], inside)
    for window in (
        ((0, 100), (0, 80)),
        ((5, 17), (3, 21)),
        ((60, 80), (0, 10)),
        ((88, 100), (65, 80)),
    ):
        (start, stop), (left, right) = window
        np.testing.assert_array_equal(
            labels.read_window(*window)[..., 0], inside[start:stop, left:right]
        )


def test_labels_of_another_image(tmp_path: Path) -> None:
    image = ArraySource(np.zeros((100, 80, 3), np.uint8))
    far = {"type": "Polygon", "coordinates": [[[200, 200], [240, 200], [240, 250], [200, 200]]]}
    with pytest.raises(SourceError, match=r"none of its 1 polygons is on .*, 100 x 80"):
        Outlined(written(tmp_path / "a.geojson", far), image)


@pytest.mark.parametrize("wrap", ["geometry", "feature", "list", "collection"])
def test_files(slide: Slide, tmp_path: Path, wrap: str) -> None:
    feature = {"type": "Feature", "geometry": HOLED, "properties": {}}
    point = {"type": "Feature", "geometry": {"type": "Point", "coordinates": [1, 2]}}
    content: dict[str, Any] = {
        "geometry": HOLED,
        "feature": feature,
        "list": [point, feature],
        "collection": {"type": "FeatureCollection", "features": [feature, point]},
    }
    tissue = read_tissue(written(tmp_path / "a.geojson", content[wrap]), slide)
    expected = np.zeros((100, 80), bool)
    expected[:50, :40] = True
    expected[10:20, 10:20] = False
    np.testing.assert_array_equal(tissue.mask, expected)
    assert tissue.shape == (100, 80)


def test_round_trip_of_a_real_slide(tmp_path: Path) -> None:
    real = open_slide(ROOT / "examples" / "data" / "pancreas_pdac_1.tif")
    tissue = find_tissue(real)
    polygons = outlines.regions(tissue.mask.astype(np.uint8), 4184 / tissue.mask.shape[1]).polygons
    geojson.write_geojson(tmp_path / "a.geojson", geojson.region_features(polygons, ("", "Tissue")))
    again = read_tissue(tmp_path / "a.geojson", real)
    both = (again.mask & tissue.mask).sum()
    assert 2 * both / (again.mask.sum() + tissue.mask.sum()) > 0.99


def test_labels_are_counted_from_the_origin_of_a_slide(tmp_path: Path) -> None:
    image = ArraySource(np.zeros((100, 80, 3), np.uint8))
    image.origin = 30, 20
    path = written(tmp_path / "a.geojson", SQUARE)
    found = Outlined(path, image)
    expected = np.zeros((100, 80), bool)
    expected[30:80, 20:60] = True
    np.testing.assert_array_equal(found.read(0, 100)[..., 0], expected)
    assert "shifted by x 20 and y 30 from the scanned area" in found.note
    plain = Outlined(path, image, OutlineRule(origin="level-0"))
    np.testing.assert_array_equal(plain.read(0, 100)[..., 0], np.roll(expected, (-30, -20), (0, 1)))


def test_tissue_is_counted_from_the_origin_of_a_slide(slide: Slide, tmp_path: Path) -> None:
    slide.origin = 50, 40
    tissue = read_tissue(written(tmp_path / "a.geojson", SQUARE), slide)
    expected = np.zeros((100, 80), bool)
    expected[50:, 40:] = True
    np.testing.assert_array_equal(tissue.mask, expected)
    assert "shifted by x 40 and y 50" in tissue.note


def test_polygon_that_crosses_itself(slide: Slide, tmp_path: Path) -> None:
    bow = shapely.Polygon([(0, 0), (40, 40), (40, 0), (0, 40)])
    content = json.loads(shapely.to_geojson(bow))
    assert read_tissue(written(tmp_path / "a.geojson", content), slide).share == pytest.approx(
        0.1, rel=0.1
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", r"is not a GeoJSON file \(JSONDecodeError"),
        ("3", "is not a GeoJSON file"),
        ('{"type": "Polygon"}', "is not a GeoJSON file"),
        ('{"features": [{"geometry": null}]}', "has no polygons; expected outlines. Draw"),
        ('{"features": []}', "has no polygons; expected outlines. Draw"),
        ("[" * 100_000, r"is not a GeoJSON file \(RecursionError"),
        (json.dumps({"type": "Point", "coordinates": [1, 2]}), "has no polygons"),
    ],
)
def test_other_files(slide: Slide, tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "a.geojson").write_text(content)
    with pytest.raises(SourceError, match=rf"a\.geojson: {message}"):
        read_tissue(tmp_path / "a.geojson", slide)


def test_outlines_of_another_slide(slide: Slide, tmp_path: Path) -> None:
    far = json.loads(shapely.to_geojson(shapely.box(1000, 1000, 2000, 2000)))
    with pytest.raises(SourceError, match=r"a\.geojson: none of its 1 polygons is on .*slide\.npy"):
        read_tissue(written(tmp_path / "a.geojson", far), slide)
