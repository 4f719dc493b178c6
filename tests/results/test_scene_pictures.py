"""Pictures of scenes: bands by name, contrast, colours of classes and values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import rasterio
from PIL import Image
from rasterio.enums import ColorInterp
from scene_files import pixels, write_scene

from tfbig.results import scene_pictures
from tfbig.results.geojson import COLOURS
from tfbig.sources import RasterSource


@pytest.mark.parametrize(
    ("names", "marks", "bands"),
    [
        ((), "", (0, 1, 2)),
        (("blue", "green", "red", "nir"), "", (2, 1, 0)),
        (("B04", "B08", "B03", "B02"), "", (0, 2, 3)),
        (("x_B02", "x_B03", "x_b04", "x_B08"), "", (2, 1, 0)),
        (("x_B02_10m", "B03_10m", "x B04", "x_B08_10m"), "", (2, 1, 0)),
        (("near infra-red", "blue", "green", "swir"), "", (0, 1, 2)),
        ((), "blue green red undefined", (2, 1, 0)),
        ((), "undefined red green blue", (1, 2, 3)),
        (("B02", "B03", "B04", "B08"), "red green blue undefined", (2, 1, 0)),
        ((), "red undefined blue undefined", (0, 1, 2)),
    ],
)
def test_preview(
    tmp_path: Path, names: tuple[str, ...], marks: str, bands: tuple[int, ...]
) -> None:
    image = pixels(30, 40, 4)
    image[:3] = 0
    write_scene(tmp_path / "a.tif", image, nodata=0, names=names)
    if marks:
        with rasterio.open(tmp_path / "a.tif", "r+") as file:
            file.colorinterp = [ColorInterp[mark] for mark in marks.split()]
    scene = RasterSource(tmp_path / "a.tif")
    picture = scene_pictures.preview(scene)
    assert (picture[:3] == 255).all()
    for place, band in enumerate(bands):
        low, high = np.percentile(image[3:, :, band], (2, 98))
        expected = np.clip((image[3:, :, band] - low) / (high - low), 0, 1) * 255
        np.testing.assert_allclose(picture[3:, :, place], expected, atol=1)


def test_preview_of_nothing(tmp_path: Path) -> None:
    scene = RasterSource(write_scene(tmp_path / "a.tif", np.zeros((4, 4, 1), "uint8"), nodata=0))
    assert (scene_pictures.preview(scene) == 255).all()


def test_class_layer() -> None:
    labels, known = np.array([[0, 1], [2, 255]]), np.array([[True, True], [True, False]])
    layer = scene_pictures.class_layer(labels, known, ("background", "a", "b"), "name")
    assert layer.image[..., 3].tolist() == [[0, 255], [255, 0]]
    assert layer.image[0, 1, :3].tolist() == list(COLOURS[0])
    assert [text for _, text in layer.legend] == ["a", "b"]
    layer = scene_pictures.class_layer(labels, known, ("0", "1", "2"), "name")
    assert layer.image[0, 0].tolist() == [*COLOURS[0], 255]


@pytest.mark.parametrize("first", ["background", "0"])
def test_colours_of_classes_are_those_of_the_layer(first: str) -> None:
    names = (first, *map(str, range(1, 12)))
    numbers = np.arange(12)[None]
    layer = scene_pictures.class_layer(numbers, np.ones((1, 12), bool), names, "name")
    colours = scene_pictures.class_colours(names)
    shown = layer.image[0, :, 3] == 255
    np.testing.assert_array_equal(layer.image[0, shown, :3], np.array(colours)[shown])
    assert (colours[0] == (255, 255, 255)) == (first == "background")
    assert scene_pictures.class_colours(()) == ()


def test_value_layer_and_limits(tmp_path: Path) -> None:
    values = np.linspace(0, 100, 101, dtype="float32").reshape(1, 101)
    known = values < 90
    low, high = scene_pictures.limits_of(values, known)
    assert (low, high) == pytest.approx(np.percentile(values[known], (2, 98)))
    layer = scene_pictures.value_layer(values, known, (low, high), "name")
    assert layer.image[0, 95, 3] == 0
    assert layer.legend[0][1] == f"{low:.4g}"
    assert scene_pictures.limits_of(values, np.zeros_like(known)) == (0.0, 1.0)
    picture = np.zeros((1, 101, 3), np.uint8)
    scene_pictures.draw(tmp_path / "a.png", picture, [layer], "title")
    with Image.open(tmp_path / "a.png") as drawn:
        assert min(drawn.size) > 50
