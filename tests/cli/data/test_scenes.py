"""Tables of scenes: splits, classes, normalisation, crops, and what is refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import geopandas
import numpy as np
import pytest
import shapely
from rasterio.transform import Affine
from scene_files import PLACE, UTM, pixels, write_scene

from tfbig.cli.data import dense_items, scenes
from tfbig.cli.paths import FlagError
from tfbig.cli.settings.scene_settings import SceneSettings
from tfbig.errors import SourceError
from tfbig.sources import stack_bands

NAMES = tuple("012345")
"""Classes of all labels."""


def write_table(folder: Path, rows: list[str], columns: str = "scene,label,split") -> str:
    (folder / "t.csv").write_text("\n".join([columns, *rows]))
    return str(folder / "t.csv")


def settings(folder: Path, **others: Any) -> SceneSettings:
    given = {"data": str(folder / "t.csv"), "crop": "32x32", "depth": 2, **others}
    return SceneSettings(**given)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Four scenes of three bands, with classes in rasters."""
    rows = []
    for n, split in enumerate(("train", "train", "val", "test")):
        image = pixels(70, 90, 3, seed=n)
        image[:20, :30] = 0
        write_scene(tmp_path / f"s{n}.tif", image, nodata=0)
        classes = np.random.default_rng(n).integers(0, 3 + n, (70, 90)).astype("uint16")
        write_scene(tmp_path / f"l{n}.tif", classes, nodata=2)
        rows.append(f"s{n}.tif,l{n}.tif,{split}")
    write_table(tmp_path, rows)
    return tmp_path


def test_splits_and_decisions(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = scenes.load(settings(folder, class_names=NAMES))
    assert [
        [s.name for s in part] for part in (data.train.items, data.val.items, data.test.items)
    ] == [
        ["s0", "s1"],
        ["s2"],
        ["s3"],
    ]
    samples = np.concatenate([pixels(70, 90, 3, seed=n)[20:] for n in (0, 1)]).reshape(-1, 3)
    rest = np.concatenate([pixels(70, 90, 3, seed=n)[:20, 30:] for n in (0, 1)]).reshape(-1, 3)
    every = np.concatenate([samples, rest]).astype(float)
    np.testing.assert_allclose(data.decided["mean"], every.mean(0), rtol=1e-6)
    np.testing.assert_allclose(data.decided["std"], every.std(0), rtol=1e-6)
    assert "train: 2 scenes, s0, s1" in capsys.readouterr().out
    image = data.train.items[0].image
    assert image.shape == (72, 92, 3)
    filled = np.rint(data.decided["mean"]).astype("float32")
    np.testing.assert_array_equal(image.read(0, 1)[0, 0], filled)
    weights = data.train.items[0].weights.read(0, 72)[..., 0]
    classes = np.random.default_rng(0).integers(0, 3, (70, 90))
    expected = np.zeros((72, 92))
    expected[:70, :90] = classes != 2
    expected[:20, :30] = 0
    np.testing.assert_array_equal(weights, expected)


def test_classes_that_no_label_has_are_said(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A class that is the nodata of the labels, as 0 for the background, would never be learned."""
    scenes.load(settings(folder, class_names=NAMES))
    train, val, test = capsys.readouterr().err.splitlines()
    unset = "; its number is the nodata of {}, and pixels of nodata do not count. If it is a class,"
    assert train.startswith(
        "warning: none of the scenes to train on has the class 2, 4, 5, which cannot be learned"
        + unset.format("2 labels")
    )
    assert val.startswith(
        "warning: none of the scenes in val has the class 2, 5, which its metrics"
    )
    assert unset.format("1 label") in val
    assert test.startswith("warning: none of the scenes in test has the class 2, which")
    for name in "0123":  # no nodata: all classes of training are there
        classes = np.random.default_rng(0).integers(0, 5, (70, 90)).astype("uint16")
        write_scene(folder / f"l{name}.tif", classes)
    scenes.load(settings(folder))
    assert capsys.readouterr().err == ""


def test_classes_of_rasters(folder: Path) -> None:
    data = scenes.load(settings(folder))
    assert data.decided["class_names"] == ("0", "1", "2", "3", "4")
    # the test scene has class 5, which no other has
    assert [name for name, _ in data.failed] == ["s3.tif"]
    assert "has the class number 5, but there are 5 classes" in data.failed[0][1]


def test_classes_of_outlines(folder: Path) -> None:
    for n in range(4):
        boxes = [
            shapely.box(*(PLACE @ (5, 40)), *(PLACE @ (50, 10))),
            shapely.box(5e5, 5.9e6, 6e5, 6e6),
        ]
        table = geopandas.GeoDataFrame({"kind": [10 + n, 9]}, geometry=boxes, crs=UTM)
        table.to_crs(4326).to_file(folder / f"l{n}.geojson")
    write_table(
        folder, [f"s{n}.tif,l{n}.geojson,{s}" for n, s in enumerate(("train", "val", "train"))]
    )
    data = scenes.load(settings(folder, label_column="kind"))
    assert data.decided["class_names"] == ("background", "9", "10", "11", "12")
    assert set(np.unique(data.train.items[0].labels.read(0, 70))) == {0.0, 1.0}
    single = scenes.load(settings(folder))
    assert single.decided["class_names"] == ("background", "label")


@pytest.mark.parametrize(
    ("attributes", "flags", "line"),
    [
        ({"fid_": [1], "kind": ["a"], "id": [3]}, {}, "have the columns fid_, kind; without"),
        ({"kind": ["a"]}, {"label_column": "kind"}, ""),
        ({"kind": ["a"]}, {"test_only": "/run", "scale": 2.0, "mean": (1.0,) * 3}, ""),
        ({"id": [3]}, {}, ""),
        ({}, {}, ""),
    ],
)
def test_columns_that_are_not_used_are_named(
    folder: Path,
    attributes: dict[str, Any],
    flags: dict[str, Any],
    line: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    box = shapely.box(*(PLACE @ (5, 40)), *(PLACE @ (50, 10)))
    geopandas.GeoDataFrame(attributes, geometry=[box], crs=UTM).to_file(folder / "o.geojson")
    write_table(folder, [f"s{n}.tif,o.geojson,{s}" for n, s in enumerate(("train", "val"))])
    scenes.load(settings(folder, **flags))
    output = capsys.readouterr().out
    assert ("without --label-column all are one class" in output) == bool(line)
    assert line in output


def test_outlines_and_rasters_have_the_classes_of_the_raster(folder: Path) -> None:
    box = shapely.box(*(PLACE @ (5, 40)), *(PLACE @ (50, 10)))
    table = geopandas.GeoDataFrame({"kind": ["water"]}, geometry=[box], crs=UTM)
    table.to_file(folder / "o.geojson")
    write_table(folder, ["s0.tif,o.geojson,train", "s1.tif,l0.tif,train", "s2.tif,l0.tif,val"])
    with pytest.raises(FlagError, match="in the order of their numbers, background first"):
        scenes.load(settings(folder, label_column="kind"))
    names = ("background", "field", "water")
    data = scenes.load(settings(folder, label_column="kind", class_names=names))
    assert set(np.unique(data.train.items[0].labels.read(0, 70))) == {0.0, 2.0}


def test_crops(folder: Path) -> None:
    data = scenes.load(settings(folder))
    crops = scenes.draw(data.train.items, (32, 16), 20, [0, 1])
    again = scenes.draw(data.train.items, (32, 16), 20, [0, 1])
    assert all(crop.image.shape == (32, 16, 3) for crop in crops)
    assert {crop.name for crop in crops} == {"s0", "s1"}
    for one, two in zip(crops, again, strict=True):
        np.testing.assert_array_equal(one.image.read(0, 32), two.image.read(0, 32))
    assert all(crop.weights.read(0, 32).any() for crop in crops)
    (images, labels, weights), *_ = list(
        dense_items.dataset(crops[:4], crops[0], dense_items.WEIGHTED, 4, dense=True)
    )
    assert [tuple(t.shape) for t in (images, labels, weights)] == [
        (4, 32, 16, 3),
        (4, 32, 16, 1),
        (4, 32, 16, 1),
    ]
    np.testing.assert_array_equal(images[1], crops[1].image.read(0, 32))


def test_values(folder: Path) -> None:
    values = np.random.default_rng(0).normal(50, 5, (70, 90)).astype("float32")
    values[30:] = -1
    write_scene(folder / "v.tif", values, nodata=-1)
    write_table(folder, [f"s{n}.tif,v.tif,{s}" for n, s in enumerate(("train", "val"))])
    data = scenes.load(settings(folder, target="regression"))
    known = np.concatenate([values[20:30].ravel(), values[:20, 30:].ravel()]).astype(float)
    assert data.decided["value_scale"] == pytest.approx((known.mean(), known.std()), rel=1e-5)


def test_splits_of_a_table_without(folder: Path) -> None:
    write_table(folder, [f"s{n}.tif,l{n}.tif" for n in range(4)], "scene,label")
    data = scenes.load(settings(folder, class_names=NAMES))
    assert len(data.train.items) == 3 or len(data.train.items) == 2
    assert data.val.items
    write_table(folder, [f"s{n}.tif,l{n}.tif" for n in range(2)], "scene,label")
    with pytest.raises(SourceError, match="has 2 scenes and no column split"):
        scenes.load(settings(folder))


@pytest.mark.parametrize("other", [True, False])
def test_evaluations_of_a_table_without_splits(other: bool, folder: Path, tmp_path: Path) -> None:
    """An evaluation reads the scenes of the run's own table that it was not trained on, and all of another table."""
    write_table(folder, [f"s{n % 4}.tif,l{n % 4}.tif" for n in range(10)], "scene,label")
    trained = scenes.load(settings(folder, class_names=NAMES))
    data = str(folder) if other else str(folder / "t.csv")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.yaml").write_text(f"data: {data}\n")
    given = {name: trained.decided[name] for name in ("mean", "std", "class_names")}
    found = scenes.load(settings(folder, test_only=str(tmp_path / "run"), **given))
    assert [s.name for s in found.test.items] == [
        row["scene"][:2] for row in trained.table if other or row["split"] == "test"
    ]
    assert found.train is found.val is found.test


def test_scenes_that_do_not_fit_are_left_out(folder: Path) -> None:
    write_scene(folder / "four.tif", pixels(70, 90, 4))
    far = PLACE @ Affine.translation(9000, 0)
    write_scene(folder / "far.tif", np.zeros((70, 90), "uint8"), transform=far)
    rows = [
        "s0.tif,l0.tif,train",
        "four.tif,l1.tif,train",
        "s1.tif,far.tif,train",
        "s2.tif,l2.tif,val",
    ]
    write_table(folder, [*rows, "none.tif,l0.tif,train"])
    data = scenes.load(settings(folder))
    assert data.decided["class_names"] == ("0", "1", "2", "3", "4")
    assert [s.name for s in data.train.items] == ["s0"]
    reasons = dict(data.failed)
    assert "has 4 bands of 70 x 90 pixels, but this run reads 3" in reasons["four.tif"]
    assert "does not overlap s1.tif" in reasons["s1.tif"]
    assert "no such scene none.tif" in reasons["none.tif"]


def test_scenes_that_end_early(folder: Path) -> None:
    """Damaged training scenes are left out before training; with given means, their crops report it."""
    path = folder / "s1.tif"
    mean = scenes.load(settings(folder, class_names=NAMES)).decided["mean"]
    os.truncate(path, path.stat().st_size * 2 // 3)
    data = scenes.load(settings(folder, class_names=NAMES))
    assert [s.name for s in data.train.items] == ["s0"]
    ((name, reason),) = data.failed
    assert name == "s1.tif"
    assert "cannot be read" in reason
    assert data.decided["mean"] != mean
    given = {name: data.decided[name] for name in ("mean", "std")}
    data = scenes.load(settings(folder, class_names=NAMES, **given))
    assert [s.name for s in data.train.items] == ["s0", "s1"]
    crops = scenes.draw(data.train.items[1:], (64, 64), 3, [0])
    assert len(crops) == 3
    with pytest.raises(SourceError, match=r"s1\.tif.* cannot be read"):
        crops[0].image.read(0, 64)


def test_flags_that_do_not_fit(folder: Path) -> None:
    data = scenes.load(settings(folder))
    for crop, message in (("30x32", "must be multiples of 4"), ("128x32", "is 70 x 90 pixels")):
        with pytest.raises(FlagError, match=message):
            scenes.check_crop(settings(folder, crop=crop), data.train.items)
    with pytest.raises(FlagError, match="stands for --mean and --std"):
        scenes.load(settings(folder, scale=1e4, mean=(0.0,)))
    scaled = scenes.load(settings(folder, scale=1e4)).decided
    assert (scaled["mean"], scaled["std"]) == ((0.0,) * 3, (1e4,) * 3)
    with pytest.raises(FlagError, match="--data TABLE is missing"):
        scenes.load(SceneSettings())


def test_scenes_of_several_coordinate_systems(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_scene(folder / "z.tif", pixels(70, 90, 3), crs="EPSG:32633")
    write_scene(folder / "lz.tif", np.ones((70, 90), "uint8"), crs="EPSG:32633")
    write_table(folder, ["s0.tif,l0.tif,train", "z.tif,lz.tif,val"])
    scenes.load(settings(folder))
    printed = capsys.readouterr().out
    assert (
        "grids: EPSG:32632, pixels of 10 metres; EPSG:32633, pixels of 10 metres; networks see"
        in printed
    )


@pytest.mark.parametrize("file", ["s0.tif", "l0.tif", "named", "beside", "inner", "outlines"])
def test_confine(file: str, folder: Path) -> None:
    """Links, and VRT files whose files are elsewhere: of their own, beside it, or of a VRT file that they name."""
    within = settings(folder, class_names=NAMES, confine=True)
    assert len(scenes.load(within).train.items) == 2
    outside = folder.parent / f"{folder.name}-outside.tif"
    table = folder / "t.csv"
    if file in ("named", "inner"):
        (folder / "s0.tif").rename(outside)
        stack_bands(folder / "s0.vrt", [outside])
        if file == "inner":
            (folder / "s0.vrt").rename(folder / "hidden.tif")
            text = (folder / "hidden.tif").read_text().replace(str(outside), "hidden.tif")
            (folder / "s0.vrt").write_text(text.replace('relativeToVRT="0"', 'relativeToVRT="1"'))
        table.write_text(table.read_text().replace("s0.tif", "s0.vrt"))
    elif file == "beside":
        outside.write_text("10\n0\n0\n-10\n500005\n5999995\n")
        (folder / "s0.tfw").symlink_to(outside)
    elif file == "outlines":
        geopandas.GeoDataFrame(
            geometry=[shapely.box(5e5, 5.9995e6, 5.005e5, 6e6)], crs="EPSG:32632"
        ).to_file(folder / "l0.shp")
        (folder / "l0.dbf").rename(outside)
        (folder / "l0.dbf").symlink_to(outside)
        table.write_text(table.read_text().replace("l0.tif", "l0.shp"))
    else:
        (folder / file).rename(outside)
        (folder / file).symlink_to(outside)
    assert len(scenes.load(settings(folder, class_names=NAMES)).train.items) == 2
    with pytest.raises(SourceError, match=f"lies outside of {folder}, and --confine is set"):
        scenes.load(within)
