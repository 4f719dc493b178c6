"""What the channels of a network for scenes mean, and when blocks of an earlier process are used."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scene_files import pixels, write_scene
from scene_models import small_unet

import tfbig
from tfbig.cli import scene_blocks
from tfbig.cli.scene_blocks import SceneOutputs
from tfbig.errors import SourceError
from tfbig.sources import RasterSource
from tfbig.sources.scenes import cog
from tfbig.sources.scenes.measured import FilledScene


def test_outputs_of_classes() -> None:
    scores = np.array([[[0.1, 0.7, 0.2], [0.5, 0.2, 0.3]]], np.float32)
    classes = SceneOutputs(("a", "b", "c"), 3)
    assert (classes.dtype, classes.nodata, classes.names) == (np.uint8, 255, ("class",))
    assert classes.convert(scores)[..., 0].tolist() == [[1, 0]]
    both = SceneOutputs(("a", "b", "c"), 3, probabilities=True)
    assert both.names == ("class", "a", "b", "c")
    assert both.convert(scores).tolist() == [[[1, 10, 70, 20], [0, 50, 20, 30]]]
    yes = SceneOutputs(("no", "yes"), 1, 0.6, probabilities=True)
    assert yes.names == ("class", "yes")
    assert yes.convert(np.array([[[0.5], [0.7]]]))[..., 0].tolist() == [[0, 1]]
    many = SceneOutputs(tuple(map(str, range(256))), 256)
    assert (many.dtype, many.nodata) == (np.uint16, 65535)
    assert SceneOutputs(tuple(map(str, range(255))), 255).dtype == np.uint8


def test_outputs_of_values() -> None:
    values = SceneOutputs((), 2)
    assert (values.dtype, values.names) == (np.float32, ("value 0", "value 1"))
    assert np.isnan(values.nodata)
    outputs = np.array([[[1.5, -2]]])
    np.testing.assert_array_equal(values.convert(outputs), outputs)
    assert SceneOutputs((), 1).names == ("value",)


def test_fill(tmp_path: Path) -> None:
    whole = RasterSource(write_scene(tmp_path / "a.tif", pixels(4, 4, 2)))
    real = RasterSource(write_scene(tmp_path / "b.tif", pixels(4, 4, 2, dtype="float32")))
    assert scene_blocks.fill_of((1.4, 2.6), whole) == (1, 3)
    assert scene_blocks.fill_of((1.4, 2.6), real) == (1.4, 2.6)
    assert scene_blocks.fill_of(None, whole) == (0, 0)


def test_number_of_bands(tmp_path: Path) -> None:
    source = RasterSource(write_scene(tmp_path / "a.tif", pixels(4, 5, 2), names=["red", ""]))
    scene_blocks.check_bands(source, 2, "m")
    with pytest.raises(SourceError, match=r"has 2 bands \(red\) of 4 x 5 pixels, but m reads 3"):
        scene_blocks.check_bands(source, 3, "m")
    four = pixels(4, 5, 4, dtype="uint8")  # GDAL takes the fourth band of bytes for alpha
    source = RasterSource(write_scene(tmp_path / "b.tif", four))
    with pytest.raises(SourceError, match="has 3 bands and an alpha band, which is a mask"):
        scene_blocks.check_bands(source, 4, "m")


def test_only_missing_blocks_are_predicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block of zeros that another process has written stays."""
    monkeypatch.setattr(cog.BlockWriter.__init__, "__defaults__", (512,))
    image = pixels(520, 20, 2) % 5 + 1
    source = RasterSource(write_scene(tmp_path / "a.tif", image))
    model = small_unet(tmp_path / "m.keras", 2, 3)
    big, filled = tfbig.stream(model, source_dtype="float32"), FilledScene(source, (0, 0), 2)
    made = []

    class Remembered(cog.BlockWriter):
        def write(self, block, rows):  # type: ignore[no-untyped-def]
            made.append(block)
            super().write(block, rows)
            if len(made) == 1:
                raise KeyboardInterrupt

    monkeypatch.setattr(scene_blocks, "BlockWriter", Remembered)
    arguments = (big, filled, tmp_path / "out.tif", SceneOutputs(("a", "b", "c"), 3), {"model": 1})
    with pytest.raises(KeyboardInterrupt):
        scene_blocks.predict(*arguments)
    done = scene_blocks.predict(*arguments)
    assert made == [((0, 512), (0, 20)), ((512, 520), (0, 20))]
    expected = np.asarray(model(image[None].astype("float32")))[0].argmax(-1)
    found = RasterSource(tmp_path / "out.tif").read(0, 520)[..., 0]
    np.testing.assert_array_equal(found, expected)
    assert done.counts.tolist() == np.bincount(expected.ravel(), minlength=3).tolist()
    assert (done.nodata, done.computed) == (0, 1.0)
