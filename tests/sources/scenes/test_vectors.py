"""Outlines are read by one driver, from rows that are stored, and never from a network."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import time
from pathlib import Path
from typing import Any

import geopandas
import pytest
import shapely
from hostile_scenes import nothing_arrives
from scene_files import PLACE, UTM, pixels, write_scene

from tfbig.errors import SourceError
from tfbig.sources import RasterSource, trial, trial_program
from tfbig.sources.scenes import vectors
from tfbig.sources.scenes.labels import VectorLabels, columns_of, read_outlines

POINT = {"type": "Point", "coordinates": [9, 54]}


def geojson(path: Path, properties: Any = None, **members: Any) -> Path:
    feature = {"type": "Feature", "properties": properties or {"kind": "a"}, "geometry": POINT}
    path.write_text(json.dumps({"type": "FeatureCollection", **members, "features": [feature]}))
    return path


def outlines(path: Path, *shapes: Any) -> Path:
    table = geopandas.GeoDataFrame({"kind": ["a"] * len(shapes)}, geometry=list(shapes), crs=UTM)
    table.to_file(path)
    return path


def refused(path: Path) -> str:
    """Return the one line of the error with which outlines are refused, in reasonable time."""
    began = time.monotonic()
    with pytest.raises(SourceError) as raised:
        read_outlines(path)
    assert time.monotonic() - began < 5
    message = str(raised.value)
    assert "\n" not in message and path.name in message
    return message


def hostile(address: str) -> dict[str, str]:
    remote = f"/vsicurl/{address}/a.geojson"
    layer = f'<OGRVRTLayer name="a"><SrcDataSource>{remote}</SrcDataSource></OGRVRTLayer>'
    server = f"<URL>{address}/</URL>"
    return {
        "vrt": f"<OGRVRTDataSource>{layer}</OGRVRTDataSource>",
        "wfs": f"<OGRWFSDataSource>{server}</OGRWFSDataSource>",
        "program": json.dumps(
            {"type": "gdal_streamed_alg", "command_line": f"gdal vector pipeline read {remote}"}
        ),
        "esri": json.dumps(
            {"exceededTransferLimit": True, "displayFieldName": "", "fields": [], "url": address}
        ),
        "text": address,
        "empty": "",
    }


@pytest.mark.parametrize("suffix", vectors.SUFFIXES)
@pytest.mark.parametrize("kind", sorted(hostile("")))
def test_other_content(tmp_path: Path, kind: str, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    with nothing_arrives() as address:
        path.write_text(hostile(address)[kind])
        refused(path)


@pytest.mark.parametrize("no_proxy", ["", "127.0.0.1"])
def test_coordinate_systems_at_an_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_proxy: str
) -> None:
    monkeypatch.setenv("no_proxy", no_proxy)
    with nothing_arrives() as address:
        properties = {"href": f"{address}/crs", "url": f"{address}/crs", "type": "ogcwkt"}
        for kind in ("link", "url", "LINK", "Link"):
            path = geojson(tmp_path / "a.geojson", crs={"type": kind, "properties": properties})
            text = path.read_text()
            assert "is at an address" in refused(path)
            for name in ('"CRS"', '"c\\u0072s"', '"\\u0043rs" '):
                path.write_text(text.replace('"crs"', name))
                assert "is at an address" in refused(path)
            path.write_text(text.replace('"crs":', "'crs'/* a */:"))
            refused(path)
    path = geojson(
        tmp_path / "a.geojson", crs={"type": "name", "properties": {"name": "EPSG:32632"}}
    )
    assert read_outlines(path).crs.to_epsg() == 32632
    path = geojson(tmp_path / "a.geojson", {"crs": "x", "url": "y", "type": "link"})
    assert len(read_outlines(path)) == 1


@pytest.mark.parametrize(
    "text", ['"crs"/*', '"crs":/*', '"crs":{},', '"' * 8, '"a\\', '"a" ', "'crs'"]
)
def test_texts_that_repeat(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.geojson").write_text("{" + text * (2**20 // len(text)))
    refused(tmp_path / "a.geojson")


@pytest.mark.parametrize(
    "computed",
    [
        "CREATE VIEW b AS SELECT fid, geom, hex(zeroblob(400000000)) AS kind FROM a",
        "CREATE VIEW b AS WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t) SELECT x AS fid FROM t",
        "CREATE TABLE b (fid INTEGER PRIMARY KEY, geom BLOB, kind TEXT AS (hex(zeroblob(400000000))))",
        "CREATE TABLE b (fid INTEGER PRIMARY KEY, geom BLOB, kind TEXT AS/*\n*/(hex(zeroblob(4))) STORED)",
        "INSERT INTO sqlite_master VALUES ('table', 'b', 'b', 0, 'CREATE VIRTUAL TABLE b USING fts4(kind)')",
    ],
)
def test_computed_tables(tmp_path: Path, computed: str) -> None:
    path = outlines(tmp_path / "a.gpkg", shapely.Point(5e5, 6e6))
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute(computed)
    connection.execute("DELETE FROM gpkg_geometry_columns")
    connection.execute("UPDATE gpkg_contents SET table_name = 'b'")
    connection.execute(
        "INSERT INTO gpkg_geometry_columns VALUES ('b', 'geom', 'POINT', 32632, 0, 0)"
    )
    connection.commit()
    connection.close()
    assert "is computed as it is read" in refused(path)


def test_many_columns(tmp_path: Path) -> None:
    path = geojson(tmp_path / "a.geojson", {f"k{n}": n for n in range(750_000)})
    assert "expected at most 10000" in refused(path)


def test_pipes(tmp_path: Path) -> None:
    for suffix in vectors.SUFFIXES:
        os.mkfifo(tmp_path / f"a{suffix}")
        assert "is not a regular file" in refused(tmp_path / f"a{suffix}")
    path = outlines(tmp_path / "b.shp", shapely.Point(5e5, 6e6))
    (tmp_path / "b.cpg").unlink()
    os.mkfifo(tmp_path / "b.CPG")
    with pytest.raises(SourceError, match=r"b\.CPG: cannot be read: it is not a regular file"):
        read_outlines(path)


def test_files_of_a_shapefile(tmp_path: Path) -> None:
    path = outlines(tmp_path / "a.shp", shapely.Point(5e5, 6e6))
    shutil.copy(tmp_path / "a.dbf", tmp_path / "ab.dbf")
    names = [file.name for file in vectors.files(path)]
    assert names == ["a.shp", "a.cpg", "a.dbf", "a.prj", "a.shx"]
    assert columns_of(path) == ["kind"]


@pytest.mark.parametrize(
    "line",
    [
        shapely.LineString([(5e5, 6e6), (1e308, 1e308)]),
        shapely.LineString([(5e5, 6e6), (5e5, float("inf"))]),
        shapely.LineString([(4e11 * (-1) ** n, 6e6 - n / 1000) for n in range(40_000)]),
    ],
)
def test_long_lines(tmp_path: Path, line: shapely.LineString) -> None:
    path = outlines(tmp_path / "a.gpkg", line)
    scene = RasterSource(write_scene(tmp_path / "a.tif", pixels(20, 20)))
    began = time.monotonic()
    with pytest.raises(
        SourceError, match=r"a\.gpkg: (an outline reaches|its lines cross|its outlines do not)"
    ):
        VectorLabels(path, scene).read(((0, 20), (0, 20)))
    assert time.monotonic() - began < 5


def test_far_outlines_are_cut(tmp_path: Path) -> None:
    scene = RasterSource(write_scene(tmp_path / "a.tif", pixels(20, 20)))
    x, y = PLACE @ (0, 10)
    path = outlines(
        tmp_path / "a.gpkg",
        shapely.box(-1e10, -1e10, 1e10, y),
        shapely.LineString([(x, y + 5), (9e9, y + 5)]),
    )
    values, _ = VectorLabels(path, scene, numbers={"label": 1}).read(((0, 20), (0, 20)))
    assert (values[9:] == 1).all()
    assert (values[:9] == 0).all()


@pytest.mark.parametrize("suffix", [".gpkg", ".shp", ".fgb"])
def test_files_of_other_programs_are_tried_in_another_process(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GDAL may end the process that it is in; a file of that kind is refused by its name."""
    path = outlines(tmp_path / f"a{suffix}", *[shapely.box(0, 0, 1, 1)] * 1500)
    assert trial_program.open_outlines(str(path)) == ""
    assert len(read_outlines(path)) == 1500
    program = tmp_path / "program.py"
    program.write_text("import os, sys\nfor line in sys.stdin:\n    os.abort()\n")
    other = trial._Process()
    monkeypatch.setattr(trial, "PROGRAM", program)
    monkeypatch.setattr(trial, "_PROCESS", other)
    trial._check.cache_clear()
    try:
        assert "the library ends its process with SIGABRT" in refused(path)
    finally:
        other.stop()
        trial._check.cache_clear()
