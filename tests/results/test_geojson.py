"""GeoJSON: valid outlines with the area of their pixels, tiles with scores, and the format of QuPath."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import shapely
from hypothesis import given
from hypothesis import strategies as st

from tfbig import SourceError
from tfbig.results import geojson
from tfbig.sources import ArraySource


def test_outlines_follow_pixels_and_holes() -> None:
    labels = np.zeros((40, 60), np.uint8)
    labels[5:35, 10:50] = 1
    labels[15:25, 20:40] = 2
    labels[18:22, 28:32] = 0
    outlines = geojson.regions(labels, 2.0)
    assert set(outlines) == {1, 2}
    assert outlines[1].equals(shapely.box(20, 10, 100, 70) - shapely.box(40, 30, 80, 50))
    assert outlines[2].equals(shapely.box(40, 30, 80, 50) - shapely.box(56, 36, 64, 44))


@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 12), st.floats(0.1, 0.9))
def test_outlines_of_random_masks_are_valid(
    seed: int, rows: int, columns: int, share: float
) -> None:
    labels = (np.random.default_rng(seed).random((rows, columns)) < share).astype(np.int64)
    exact = geojson._outline(labels == 1)
    assert exact.is_valid and exact.area == labels.sum()
    for shape in geojson.regions(labels).values():
        assert shape.is_valid
        assert shape.hausdorff_distance(exact) <= 1.5


def test_outlines_are_smooth_and_small_parts_are_dropped() -> None:
    rows, columns = np.ogrid[:200, :200]
    labels = ((rows - 100) ** 2 + (columns - 100) ** 2 < 80**2).astype(np.uint8)
    labels[:2, :3] = 1
    (shape,) = geojson.regions(labels, smallest=10).values()
    (disk,) = shape.geoms
    assert disk.area == pytest.approx(np.pi * 80**2, rel=0.01)
    assert len(disk.exterior.coords) < 200  # 640 along the edges of pixels
    assert geojson.regions(labels * 0) == {}


def test_small_labels_are_the_most_frequent() -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, (2050, 131, 1), np.uint8)
    small, factor = geojson.small_labels(ArraySource(labels), 500)
    assert factor == 5
    assert small.shape == (410, 27)
    for i, j in ((0, 0), (409, 26), (204, 13), (100, 26)):
        block = labels[5 * i : 5 * i + 5, 5 * j : 5 * j + 5]
        assert small[i, j] == np.bincount(block.ravel(), minlength=4).argmax()
    whole, factor = geojson.small_labels(ArraySource(labels), 5000)
    assert factor == 1
    np.testing.assert_array_equal(whole, labels[..., 0])
    for wrong in (labels.astype(np.float32), np.repeat(labels, 2, 2)):
        with pytest.raises(SourceError, match=r"array: has .* expected one channel of integer"):
            geojson.small_labels(ArraySource(wrong))


def test_file_for_qupath(tmp_path: Path) -> None:
    labels = np.zeros((40, 60), np.uint8)
    labels[5:15, 10:50] = 1
    labels[25:35, 10:50] = 1
    names = ["background", "tumour"]
    parts = geojson.region_features(geojson.regions(labels), names)
    assert geojson.write_geojson(tmp_path / "a.geojson", parts) == 2
    read = json.loads((tmp_path / "a.geojson").read_text())
    assert read["type"] == "FeatureCollection"
    feature = read["features"][0]
    assert feature["type"] == "Feature"
    assert feature["properties"] == {
        "objectType": "annotation",
        "classification": {"name": "tumour", "color": [0, 158, 115]},
    }
    shapes = [shapely.from_geojson(json.dumps(f["geometry"])) for f in read["features"]]
    assert shapely.union_all(shapes).equals(
        shapely.box(10, 5, 50, 15) | shapely.box(10, 25, 50, 35)
    )
    assert geojson.write_geojson(tmp_path / "none.geojson", []) == 0
    assert json.loads((tmp_path / "none.geojson").read_text())["features"] == []


def test_tiles_are_detections_with_measurements(tmp_path: Path) -> None:
    scores = {"attention": [0.25, np.nan], "probability": [0.5, 1.0]}
    features = geojson.tile_features(
        [[0, 512], [256, 512]], 256, [1, 0], ["benign", "tumour"], scores
    )
    geojson.write_geojson(tmp_path / "a.geojson", features)
    first, second = json.loads((tmp_path / "a.geojson").read_text())["features"]
    assert first["properties"]["objectType"] == "detection"
    assert first["properties"]["measurements"] == {"attention": 0.25, "probability": 0.5}
    assert second["properties"]["measurements"] == {"probability": 1.0}  # JSON has no NaN
    assert second["properties"]["classification"]["name"] == "benign"
    assert shapely.from_geojson(json.dumps(first["geometry"])).bounds == (0, 512, 256, 768)


def test_failed_write_leaves_no_file(tmp_path: Path) -> None:
    def broken() -> object:
        yield {"type": "Feature"}
        raise SourceError("slide: damaged")

    with pytest.raises(SourceError, match="slide: damaged"):
        geojson.write_geojson(tmp_path / "a.geojson", broken())
    assert not list(tmp_path.iterdir())
    with pytest.raises(SourceError, match=r"none/a\.geojson: cannot be written"):
        geojson.write_geojson(tmp_path / "none" / "a.geojson", [])
