"""Labels of scenes by windows equal those of the whole scene, drawn or resampled by rasterio."""

from __future__ import annotations

import json
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import geopandas
import numpy as np
import pytest
import shapely
from rasterio.features import rasterize
from rasterio.transform import Affine
from scene_files import PLACE, UTM, pixels, write_scene

from tfbig.errors import SourceError
from tfbig.sources import RasterSource
from tfbig.sources.scenes.labels import LabelSource, RasterLabels, VectorLabels, class_names
from tfbig.sources.scenes.measured import FilledScene

WHOLE = (0, 120), (0, 150)
NUMBERS = {"field": 1, "water": 2, "wood": 3}


def scene(folder: Path, name: str = "scene.tif", **options: Any) -> RasterSource:
    return RasterSource(write_scene(folder / name, pixels(120, 150, 2), **options))


def outlines(count: int = 40, transform: Affine = PLACE) -> geopandas.GeoDataFrame:
    """Random polygons with holes, some of which overlap, on a scene of 120 x 150 pixels."""
    rng = np.random.default_rng(5)
    shapes = []
    for x, y, r in rng.uniform([0, 0, 2], [150, 120, 25], (count, 3)):
        ring = shapely.Point(*(transform @ (x, y))).buffer(r * 10, quad_segs=3)
        shapes.append(ring.difference(shapely.Point(*(transform @ (x, y))).buffer(r * 4)))
    kinds = rng.choice(list(NUMBERS), count)
    return geopandas.GeoDataFrame(
        {"kind": kinds, "height": rng.uniform(1, 9, count)}, geometry=shapes, crs=UTM
    )


def drawn(table: geopandas.GeoDataFrame, transform: Affine = PLACE) -> np.ndarray:
    """All outlines drawn at once, in their order."""
    pairs = ((shape, NUMBERS[kind]) for shape, kind in zip(table.geometry, table.kind, strict=True))
    return rasterize(pairs, (120, 150), transform=transform, dtype="float32")


@pytest.mark.parametrize("suffix", [".gpkg", ".shp", ".geojson"])
@pytest.mark.parametrize("size", [(120, 150), (17, 23), (1, 150)])
def test_windows_of_outlines(tmp_path: Path, suffix: str, size: tuple[int, int]) -> None:
    table, image = outlines(), scene(tmp_path)
    file = tmp_path / f"labels{suffix}"
    if suffix == ".geojson":  # which has longitude and latitude
        table = table.to_crs("EPSG:4326")
    table.to_file(file)
    expected = drawn(geopandas.read_file(file).to_crs(UTM))
    labels = VectorLabels(file, image, "kind", NUMBERS)
    out = np.full((120, 150), -1, np.float32)
    for top in range(0, 120, size[0]):
        for left in range(0, 150, size[1]):
            window = (top, min(top + size[0], 120)), (left, min(left + size[1], 150))
            values, known = labels.read(window)
            assert known.all()
            out[slice(*window[0]), slice(*window[1])] = values
    np.testing.assert_array_equal(out, expected)
    assert set(np.unique(out)) == {0, 1, 2, 3}


def test_threads_draw_outlines_without_warnings(tmp_path: Path) -> None:
    outlines(4).to_file(tmp_path / "a.gpkg")
    labels = VectorLabels(tmp_path / "a.gpkg", scene(tmp_path), "kind", NUMBERS)
    interval = sys.getswitchinterval()
    with warnings.catch_warnings(record=True) as shown, ThreadPoolExecutor(8) as threads:
        warnings.simplefilter("always")
        filters = list(warnings.filters)
        sys.setswitchinterval(1e-6)
        try:
            list(threads.map(lambda _: labels.read(WHOLE), range(800)))
        finally:
            sys.setswitchinterval(interval)
        assert warnings.filters == filters
    assert not shown


def test_outlines_in_another_coordinate_system(tmp_path: Path) -> None:
    table, image = outlines(), scene(tmp_path)
    table.to_crs("EPSG:3857").to_file(tmp_path / "a.gpkg")
    values, _ = VectorLabels(tmp_path / "a.gpkg", image, "kind", NUMBERS).read(WHOLE)
    there_and_back = table.to_crs("EPSG:3857").to_crs(UTM)
    np.testing.assert_array_equal(values, drawn(there_and_back))
    assert (values == drawn(table)).mean() > 0.999


def test_rotated_scene(tmp_path: Path) -> None:
    turned = Affine.translation(5e5, 6e6) @ Affine.rotation(25) @ Affine.scale(10, -10)
    table, image = outlines(transform=turned), scene(tmp_path, transform=turned)
    table.to_file(tmp_path / "a.gpkg")
    labels = VectorLabels(tmp_path / "a.gpkg", image, "kind", NUMBERS)
    np.testing.assert_array_equal(labels.read(WHOLE)[0], drawn(table, turned))
    part = labels.read(((40, 77), (13, 101)))[0]
    np.testing.assert_array_equal(part, drawn(table, turned)[40:77, 13:101])


def test_outlines_of_values(tmp_path: Path) -> None:
    table = outlines(3)
    table.to_file(tmp_path / "a.gpkg")
    values, known = VectorLabels(tmp_path / "a.gpkg", scene(tmp_path), "height").read(WHOLE)
    pairs = zip(table.geometry, table.height, strict=True)
    expected = rasterize(pairs, (120, 150), transform=PLACE, fill=-1, dtype="float32")
    np.testing.assert_array_equal(known, expected >= 0)
    np.testing.assert_array_equal(values, np.where(known, expected, 0))


def test_values_in_text(tmp_path: Path) -> None:
    """Tables of countries with a decimal comma have values in text; one without a value is no value."""
    table, image, file = outlines(3), scene(tmp_path), tmp_path / "a.gpkg"
    table.assign(height=["1,5", "12,25", "7"]).to_file(file)
    expected = VectorLabels(_with_heights(tmp_path / "b.gpkg", [1.5, 12.25, 7.0]), image, "height")
    for found, value in zip(
        VectorLabels(file, image, "height").read(WHOLE), expected.read(WHOLE), strict=True
    ):
        np.testing.assert_array_equal(found, value)
    for texts in (["1,500", "2", "3"], ["1,5", "2.5", "3"], ["1_000", "2", "3"]):
        table.assign(height=texts).to_file(file)
        word = "is no number" if "_" in texts[0] else "comma"
        with pytest.raises(SourceError, match=f"height does not hold numbers .*{word}"):
            VectorLabels(file, image, "height")


def _with_heights(file: Path, heights: list[float]) -> Path:
    outlines(3).assign(height=heights).to_file(file)
    return file


def test_without_a_column_all_outlines_are_class_1(tmp_path: Path) -> None:
    table = outlines()
    table.to_file(tmp_path / "a.gpkg")
    values, _ = VectorLabels(tmp_path / "a.gpkg", scene(tmp_path), numbers={"label": 1}).read(WHOLE)
    np.testing.assert_array_equal(values, drawn(table) > 0)


def test_refused_outlines(tmp_path: Path) -> None:
    table, image, file = outlines(), scene(tmp_path), tmp_path / "a.gpkg"
    table.to_file(file)
    with pytest.raises(SourceError, match="has no column nothing; expected one of kind, height"):
        VectorLabels(file, image, "nothing", NUMBERS)
    with pytest.raises(SourceError, match=r"has the class w.* in column kind; expected field"):
        VectorLabels(file, image, "kind", {"field": 1})
    with pytest.raises(SourceError, match="does not hold numbers"):
        VectorLabels(file, image, "kind")
    bare = scene(tmp_path, "bare.tif", crs=None)
    with pytest.raises(SourceError, match="has no coordinate system, which the outlines of"):
        VectorLabels(file, bare, "kind", NUMBERS)
    elsewhere = table.set_geometry(table.geometry.translate(1e5, 0))
    elsewhere.to_file(tmp_path / "b.gpkg")
    with pytest.raises(SourceError, match=r"its outlines do not overlap .*scene\.tif: they cover"):
        VectorLabels(tmp_path / "b.gpkg", image, "kind", NUMBERS)
    table.to_file(tmp_path / "c.shp")
    (tmp_path / "c.prj").unlink()
    with pytest.raises(
        SourceError, match=r"has no coordinate system, as a shapefile without \.prj"
    ):
        VectorLabels(tmp_path / "c.shp", image, "kind", NUMBERS)
    (tmp_path / "d.geojson").write_text(json.dumps({"type": "Nothing"}))
    with pytest.raises(SourceError, match="cannot be read as outlines"):
        VectorLabels(tmp_path / "d.geojson", image, "kind", NUMBERS)


def test_raster_of_the_same_grid(tmp_path: Path) -> None:
    classes = np.random.default_rng(0).integers(0, 400, (120, 150)).astype("uint16")
    classes[:5] = 65535
    write_scene(tmp_path / "labels.tif", classes, nodata=65535)
    labels = RasterLabels(tmp_path / "labels.tif", scene(tmp_path))
    values, known = labels.read(((3, 50), (10, 150)))
    assert not labels.is_warped
    np.testing.assert_array_equal(known, classes[3:50, 10:] < 65535)
    np.testing.assert_array_equal(values[known], classes[3:50, 10:][known])
    assert labels.values() == set(np.unique(classes[5:]).tolist())


def test_raster_of_another_grid_is_resampled(tmp_path: Path) -> None:
    classes = np.random.default_rng(0).integers(1, 9, (30, 30)).astype("uint8")
    coarse = PLACE @ Affine.translation(20, 40) @ Affine.scale(2)
    write_scene(tmp_path / "labels.tif", classes, transform=coarse)
    labels = RasterLabels(tmp_path / "labels.tif", scene(tmp_path))
    values, known = labels.read(WHOLE)
    expected = np.zeros((120, 150), bool)
    expected[40:100, 20:80] = True
    assert labels.is_warped
    np.testing.assert_array_equal(known, expected)
    np.testing.assert_array_equal(values[40:100, 20:80], classes.repeat(2, 0).repeat(2, 1))


def test_refused_rasters(tmp_path: Path) -> None:
    image, file = scene(tmp_path), tmp_path / "labels.tif"
    write_scene(file, pixels(120, 150, 2))
    with pytest.raises(SourceError, match="has 2 bands; expected one"):
        RasterLabels(file, image)
    write_scene(file, pixels(10, 10), crs=None)
    with pytest.raises(SourceError, match="not both have a coordinate system"):
        RasterLabels(file, image)
    write_scene(file, pixels(10, 10), transform=PLACE @ Affine.translation(5000, 0))
    with pytest.raises(SourceError, match=r"does not overlap scene\.tif: it covers"):
        RasterLabels(file, image)
    write_scene(file, np.full((120, 150), 1.5, "float32"))
    with pytest.raises(SourceError, match=r"has the label 1\.5; expected class numbers"):
        RasterLabels(file, image).values()


def test_without_coordinates_the_pixels_of_both_are_the_same(tmp_path: Path) -> None:
    write_scene(tmp_path / "labels.tif", np.ones((120, 150), "uint8"), crs=None)
    assert RasterLabels(tmp_path / "labels.tif", scene(tmp_path)).read(WHOLE)[1].all()


def test_labels_and_weights_as_sources(tmp_path: Path) -> None:
    image = pixels(120, 150, 2)
    image[:, :11] = 0
    write_scene(tmp_path / "scene.tif", image, nodata=0)
    classes = np.random.default_rng(0).integers(0, 4, (120, 150)).astype("uint8")
    write_scene(tmp_path / "labels.tif", classes, nodata=3)
    filled = FilledScene(RasterSource(tmp_path / "scene.tif"), [0, 0], multiple=64)
    labels = RasterLabels(tmp_path / "labels.tif", filled.scene)
    values, weights = (
        LabelSource(filled, labels, part).read(0, 128)[..., 0] for part in (False, True)
    )
    expected = np.zeros((128, 192), np.float32)
    expected[:120, :150] = classes < 3
    expected[:, :11] = 0
    np.testing.assert_array_equal(weights, expected)
    np.testing.assert_array_equal(values[:120, :150], np.where(classes < 3, classes, 0))
    assert LabelSource(filled, labels, True).read_window((120, 128), (0, 9)).sum() == 0


def test_class_names() -> None:
    assert class_names("a.gpkg", "kind", ["a", 3.0, 4, 2.5]) == ["a", "3", "4", "2.5"]
    for gap in (None, np.nan, np.inf, -np.inf):
        with pytest.raises(
            SourceError, match=r"a\.gpkg: has an outline without a class in column kind"
        ):
            class_names("a.gpkg", "kind", [1.0, gap])
