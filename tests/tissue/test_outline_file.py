"""Files of outlines: which count, as QuPath's documentation describes its classes, and where they are."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import shapely
from shapely.geometry import mapping

from tfbig.errors import SourceError
from tfbig.tissue import outline_file
from tfbig.tissue.outline_file import OutlineRule, is_outline_file, read_outlines

SHAPE = (1000, 1000)
TUMOUR = shapely.box(100, 200, 400, 300)
WHOLE = shapely.box(0, 0, 1000, 1000)


def feature(shape: Any, name: str | None = None, **others: Any) -> dict[str, Any]:
    """Return a feature as QuPath writes it."""
    properties: dict[str, Any] = {"objectType": "annotation"} | others
    if name:
        properties["classification"] = {"name": name, "color": [200, 0, 0]}
    geometry = None if shape is None else mapping(shape)
    return {"type": "Feature", "id": "1", "geometry": geometry, "properties": properties}


def written(folder: Path, *features: Any, **members: Any) -> Path:
    path = folder / "a.geojson"
    content = {"type": "FeatureCollection", "features": list(features), **members}
    path.write_text(json.dumps(content))
    return path


def area(path: Path, *classes: str, **options: Any) -> float:
    found = read_outlines(path, SHAPE, rule=OutlineRule(classes), **options)
    return float(shapely.union_all(found.polygons).area)


def test_the_region_around_the_tumour_does_not_count(tmp_path: Path) -> None:
    path = written(tmp_path, feature(WHOLE), feature(TUMOUR, "Tumor"))
    assert area(path) == TUMOUR.area == 30_000
    note = read_outlines(path, SHAPE).note
    assert note == f"{path}: as outlines count 1 of class Tumor, not 1 without a class"


@pytest.mark.parametrize("name", ["Ignore*", "ignore*", "Region*", "Artefact*"])
def test_classes_with_a_star_do_not_count(tmp_path: Path, name: str) -> None:
    path = written(tmp_path, feature(WHOLE, name), feature(TUMOUR, "Tumor"))
    assert area(path) == 30_000
    assert f"not 1 of class {name}" in read_outlines(path, SHAPE).note
    if name == "Region*":
        assert area(path, "Region*") == 1_000_000
    only = written(tmp_path, feature(WHOLE, name))
    with pytest.raises(
        SourceError, match=r"has outlines of class .*\* \(1\), none of which counts"
    ):
        area(only)


def test_ignored_outlines_never_count(tmp_path: Path) -> None:
    path = written(tmp_path, feature(WHOLE, "Ignore*"), feature(TUMOUR, "Tumor"))
    assert area(path, "Tumor", "Ignore*") == 30_000
    with pytest.raises(SourceError, match="none of which counts"):
        area(path, "Ignore*")


def test_several_classes_must_be_named(tmp_path: Path) -> None:
    stroma = shapely.box(500, 500, 600, 600)
    path = written(tmp_path, feature(TUMOUR, "Tumor"), feature(stroma, "Stroma"), feature(WHOLE))
    message = (
        r"of class Stroma \(1\), of class Tumor \(1\), without a class \(1\); expected those of one"
    )
    with pytest.raises(SourceError, match=message):
        area(path)
    assert area(path, "stroma") == 10_000
    assert area(path, "Tumor", "Stroma") == 40_000
    with pytest.raises(SourceError, match="none of which counts; expected Tumour"):
        area(path, "Tumour")


def test_derived_classes(tmp_path: Path) -> None:
    """`Tumor: Positive` is a Tumor; QuPath 0.4 and later write the names of its parts."""
    parts = feature(TUMOUR)
    parts["properties"]["classification"] = {"names": ["Tumor", "Positive"], "color": [1, 2, 3]}
    other = feature(shapely.box(0, 0, 10, 10), "Tumor: Negative")
    path = written(tmp_path, parts, other, feature(WHOLE))
    assert area(path) == area(path, "Tumor") == 30_100
    assert area(path, "Tumor: Positive") == 30_000


def test_outlines_without_a_class_count_alone(tmp_path: Path) -> None:
    path = written(tmp_path, feature(TUMOUR), feature(WHOLE, "Ignore*"))
    assert area(path) == 30_000
    note = read_outlines(path, SHAPE).note
    assert note.endswith("as outlines count 1 without a class, not 1 of class Ignore*")
    assert not read_outlines(written(tmp_path, feature(TUMOUR, "Tumor")), SHAPE).note


def test_what_is_no_polygon_is_counted(tmp_path: Path) -> None:
    empty = feature(shapely.Polygon(), "Tumor")
    point = feature(shapely.Point(3, 4), "Tumor")
    path = written(tmp_path, feature(TUMOUR, "Tumor"), feature(None), feature(None), empty, point)
    assert area(path) == 30_000
    note = read_outlines(path, SHAPE).note
    assert note.endswith(
        "count 1 of class Tumor, not 3 without a geometry, not 1 that are no polygons"
    )


def test_outlines_outside_of_the_slide_are_counted(tmp_path: Path) -> None:
    far = feature(shapely.box(5000, 0, 6000, 10), "Tumor")
    path = written(tmp_path, feature(TUMOUR, "Tumor"), far)
    assert "not 1 outside of 1000 x 1000 pixels" in read_outlines(path, SHAPE).note


@pytest.mark.parametrize("kind", ["polygon", "holes", "multipolygon", "collection"])
def test_geometries(tmp_path: Path, kind: str) -> None:
    hole = TUMOUR.difference(shapely.box(150, 220, 200, 240))
    other = shapely.box(600, 600, 700, 800)
    shape: Any = {
        "polygon": TUMOUR,
        "holes": hole,
        "multipolygon": shapely.MultiPolygon([hole, other]),
        "collection": shapely.GeometryCollection(
            [shapely.Point(1, 1), hole, shapely.MultiPolygon([other])]
        ),
    }[kind]
    assert area(written(tmp_path, feature(shape, "Tumor"))) == shape.area


@pytest.mark.parametrize("wrap", ["list", "feature", "geometry", "mark", "utf-16", "gzip"])
def test_files(tmp_path: Path, wrap: str) -> None:
    one = feature(TUMOUR, "Tumor")
    text = json.dumps({"list": [one], "feature": one, "geometry": mapping(TUMOUR)}.get(wrap, [one]))
    content = {
        "mark": b"\xef\xbb\xbf" + text.encode(),
        "utf-16": text.encode("utf-16"),
        "gzip": gzip.compress(text.encode()),
    }.get(wrap, text.encode())
    path = tmp_path / ("a.geojson.gz" if wrap == "gzip" else "a.geojson")
    path.write_bytes(content)
    assert is_outline_file(path)
    assert area(path) == 30_000


def test_archives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr("a.geojson", "{}")
    path = tmp_path / "a.geojson"
    path.write_bytes(buffer.getvalue())
    with pytest.raises(SourceError, match=r"a\.geojson: is a zip archive; .*Unpack it"):
        area(path)
    monkeypatch.setattr(outline_file, "MOST_BYTES", 1000)
    path.write_bytes(gzip.compress(b" " * 2000))
    with pytest.raises(SourceError, match="more than 1000 bytes when it is decompressed"):
        area(path)
    path.write_bytes(gzip.compress(b" " * 2000)[:12])
    with pytest.raises(SourceError, match=r"is not a GeoJSON file \(EOFError"):
        area(path)


def test_outlines_are_counted_from_the_scanned_area(tmp_path: Path) -> None:
    """QuPath adds `openslide.bounds-x` and `-y` to its coordinates when it reads pixels."""
    path = written(tmp_path, feature(TUMOUR, "Tumor"))
    origin = 37, 21  # row and column
    found = read_outlines(path, SHAPE, origin)
    assert found.polygons[0].bounds == (121, 237, 421, 337)
    assert found.note.endswith(
        "count 1 of class Tumor, shifted by x 21 and y 37 from the scanned area"
    )
    plain = read_outlines(path, SHAPE, origin, OutlineRule(origin="level-0"))
    assert (plain.polygons[0].bounds, plain.note) == (TUMOUR.bounds, "")
    for said, bounds in (("level-0", TUMOUR.bounds), ("scanned", (121, 237, 421, 337))):
        path = written(tmp_path, feature(TUMOUR, "Tumor"), origin=said)
        for flag in outline_file.ORIGINS:
            again = read_outlines(path, SHAPE, origin, OutlineRule(origin=flag))
            assert again.polygons[0].bounds == bounds
    with pytest.raises(
        ValueError, match="received origin 'qupath'; expected one of scanned, level-0"
    ):
        OutlineRule(origin="qupath")


def test_names() -> None:
    assert [is_outline_file(name) for name in ("a.GeoJSON", "b.json", "c.json.gz", "d.tif")] == [
        *(True, True, True),
        False,
    ]
