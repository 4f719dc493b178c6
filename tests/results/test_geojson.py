"""GeoJSON: regions and tiles with scores, in the format of QuPath."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import shapely
import shapely.affinity

from tfbig import SourceError, Stopped
from tfbig.results import geojson
from tfbig.system import signals


def test_file_for_qupath(tmp_path: Path) -> None:
    polygons = {1: [shapely.box(10, 5, 50, 15), shapely.box(10, 25, 50, 35)]}
    names = ["background", "tumour"]
    parts = geojson.region_features(polygons, names)
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


def test_tiles_of_two_sides(tmp_path: Path) -> None:
    features = geojson.tile_features([[10, 20]], (30.0, 40.0), [0], ["tile"])
    geojson.write_geojson(tmp_path / "a.geojson", features)
    (one,) = json.loads((tmp_path / "a.geojson").read_text())["features"]
    assert shapely.from_geojson(json.dumps(one["geometry"])).bounds == (10, 20, 50, 50)


@pytest.mark.parametrize("shape", ["polygon", "multipolygon"])
def test_another_origin(tmp_path: Path, shape: str) -> None:
    hole = shapely.box(10, 5, 50, 15).difference(shapely.box(20, 7, 30, 9))
    whole = hole if shape == "polygon" else shapely.MultiPolygon([hole, shapely.box(60, 5, 70, 9)])
    features = list(geojson.region_features({1: [whole]}, ["", "tumour"]))
    geojson.write_geojson(tmp_path / "a.geojson", features, (3, 8), "scanned")
    content = json.loads((tmp_path / "a.geojson").read_text())
    assert (content["type"], content["origin"]) == ("FeatureCollection", "scanned")
    (one,) = content["features"]
    found = shapely.from_geojson(json.dumps(one["geometry"]))
    assert found.equals(shapely.affinity.translate(whole, -8, -3))
    assert one["id"] == features[0]["id"]


def test_failed_write_leaves_no_file(tmp_path: Path) -> None:
    def broken() -> object:
        yield {"type": "Feature"}
        raise SourceError("slide: damaged")

    with pytest.raises(SourceError, match="slide: damaged"):
        geojson.write_geojson(tmp_path / "a.geojson", broken())
    assert not list(tmp_path.iterdir())
    with pytest.raises(SourceError, match=r"none/a\.geojson: cannot be written"):
        geojson.write_geojson(tmp_path / "none" / "a.geojson", [])


def test_signal_ends_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    features = geojson.region_features({1: [shapely.box(0, 0, 1, 1)]}, ["background", "tumour"])
    monkeypatch.setattr(signals, "_requested", 15)
    with pytest.raises(Stopped, match="SIGTERM"):
        geojson.write_geojson(tmp_path / "a.geojson", features)
    assert not list(tmp_path.iterdir())
