"""Masks of scenes are valid COGs with the pixels of plain Keras, for any budget and blocks, also after a kill."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import rasterio
from cli_runs import failures, predictions
from rio_cogeo.cogeo import cog_validate
from samples import ROOT
from scene_files import PLACE, pixels, write_scene
from scene_models import globally_normalised, small_unet

from tfbig.cli.main import main
from tfbig.results.geojson import COLOURS
from tfbig.sources import RasterSource
from tfbig.sources.scenes import cog

pytestmark = pytest.mark.usefixtures("small_blocks")


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 512 pixels, so that small scenes have several."""
    monkeypatch.setattr(cog.BlockWriter.__init__, "__defaults__", (512,))


def scene(path: Path, rows: int = 701, columns: int = 603, bands: int = 4) -> np.ndarray:
    """Write a scene whose upper left is nodata, and return it."""
    image = pixels(rows, columns, bands) % 7 + 1
    image[: rows // 2, : columns // 3] = 0
    write_scene(path, image, nodata=0)
    return image


def plain(model: object, image: np.ndarray) -> np.ndarray:
    """The outputs of plain Keras on the whole scene, padded to even sizes."""
    odd = [(0, n % 2) for n in image.shape[:2]]
    padded = np.pad(image, (*odd, (0, 0))).astype("float32")
    outputs = np.asarray(model(padded[None]))[0]  # type: ignore[operator]
    return outputs[: image.shape[0], : image.shape[1]]


def predict(folder: Path, name: str, *flags: str, out: str = "out") -> int:
    words = ["predict", str(folder / "m.keras"), str(folder / name), "--out", str(folder / out)]
    return int(main([*words, "--quiet", *flags]))


def test_pixels_are_those_of_plain_keras(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], usual_figures: None
) -> None:
    image = scene(tmp_path / "a.tif")
    model = small_unet(tmp_path / "m.keras", 4, 3)
    assert predict(tmp_path, "a.tif", "--class-names", "field", "water", "wood") == 0
    assert "a.tif: 701 x 603, " in capsys.readouterr().out
    expected = plain(model, image).argmax(-1).astype("uint8")
    expected[(image == 0).all(-1)] = 255
    mask = RasterSource(tmp_path / "out" / "a.tif")
    np.testing.assert_array_equal(mask.read(0, 701)[..., 0], expected)
    assert len(np.unique(expected)) > 2
    assert cog_validate(tmp_path / "out" / "a.tif", strict=True, quiet=True) == (True, [], [])
    assert mask.grid == RasterSource(tmp_path / "a.tif").grid
    with rasterio.open(tmp_path / "out" / "a.tif") as file:
        assert {"CLASS_0": "field", "CLASS_2": "wood"}.items() <= file.tags().items()
        assert [file.colormap(1)[n][:3] for n in range(3)] == [*COLOURS[:3]]
    bands = mask.bands
    assert (bands.nodata, bands.names, bands.is_masked) == ((255.0,), ("class",), False)
    (row,) = predictions(tmp_path / "out")
    assert next(iter(row.items())) == ("scene", "a.tif")
    shares = {name: (expected == n).mean() for n, name in enumerate(("field", "water", "wood"))}
    assert {name: float(row[f"share_{name}"]) for name in shares} == pytest.approx(shares)
    assert float(row["km2_wood"]) == pytest.approx((expected == 2).sum() * 1e-4)
    assert float(row["share_nodata"]) == pytest.approx((expected == 255).mean())
    names = {path.name for path in (tmp_path / "out").iterdir()}
    others = {
        ".lock",
        ".tfbig-files",
        "predict.yaml",
        "predictions.csv",
        "report.html",
        "versions.json",
        "views",
    }
    assert names == {"a.tif", "a.png", *others}


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        ["--device-memory", "300KB"],
        ["--device-memory", "1MB", "--host-memory", "50MB"],
        ["--background", "skip"],
        ["--background", "skip", "--device-memory", "300KB"],
    ],
)
def test_any_budget(tmp_path: Path, flags: list[str]) -> None:
    image = scene(tmp_path / "a.tif", 1100, 1300)
    model = small_unet(tmp_path / "m.keras", 4, 3)
    assert predict(tmp_path, "a.tif", *flags) == 0
    expected = plain(model, image).argmax(-1)
    expected[(image == 0).all(-1)] = 255
    found = RasterSource(tmp_path / "out" / "a.tif").read(0, 1100)[..., 0]
    np.testing.assert_array_equal(found, expected)
    if "skip" in flags and "300KB" in flags:  # larger tiles of these small blocks save nothing
        assert float(predictions(tmp_path / "out")[0]["computed"]) < 0.95


def test_values_and_statistics_of_the_whole_scene(tmp_path: Path) -> None:
    image = scene(tmp_path / "a.tif", 530, 40)
    model = globally_normalised(tmp_path / "m.keras", 4, 1)
    assert predict(tmp_path, "a.tif", "--pad-to", "2") == 0
    mask = RasterSource(tmp_path / "out" / "a.tif")
    found, nothing = mask.read(0, 530), (image == 0).all(-1)
    assert mask.dtype == np.float32
    assert np.isnan(found[nothing]).all()
    np.testing.assert_allclose(found[~nothing], plain(model, image)[~nothing], rtol=2e-4, atol=1e-5)


@pytest.mark.slow
def test_more_than_255_classes_and_probabilities(tmp_path: Path) -> None:
    scene(tmp_path / "a.tif", 60, 50)
    small_unet(tmp_path / "m.keras", 4, 300)
    assert predict(tmp_path, "a.tif") == 0
    mask = RasterSource(tmp_path / "out" / "a.tif")
    assert (mask.dtype, mask.bands.nodata) == (np.uint16, (65535.0,))
    small_unet(tmp_path / "m.keras", 4, 2)
    flags = ("--probabilities", "--class-names", "no", "yes")
    assert predict(tmp_path, "a.tif", *flags, out="other") == 0
    assert RasterSource(tmp_path / "other" / "a.tif").bands.names == ("class", "no", "yes")


def test_bad_scenes_are_named_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small_unet(tmp_path / "m.keras", 4, 2)
    folder = tmp_path / "scenes"
    folder.mkdir()
    write_scene(folder / "three.tif", pixels(20, 20, 3), names=["red", "green", "blue"])
    write_scene(folder / "turned.tif", pixels(4, 20, 30))
    (folder / "text.tif").write_text("no image")
    assert predict(tmp_path, "scenes") == 3
    reasons = failures(tmp_path / "out")
    assert "3 of 3 scenes failed" in capsys.readouterr().err
    by_name = {Path(row["item"]).name: row["reason"] for row in reasons}
    assert by_name["three.tif"].startswith("has 3 bands (red, green, blue) of 20 x 20 pixels, but ")
    assert "as if its axes were in another order" in by_name["turned.tif"]
    assert "cannot be read as GTiff" in by_name["text.tif"]
    assert predict(tmp_path, "scenes", "--tissue", "colour", out="b") == 2
    assert "scenes have nodata" in capsys.readouterr().err


def test_the_scene_is_not_replaced(tmp_path: Path) -> None:
    small_unet(tmp_path / "m.keras", 4, 2)
    image = scene(tmp_path / "a.tif", 20, 20)
    assert predict(tmp_path, "a.tif", out=".") == 2
    np.testing.assert_array_equal(RasterSource(tmp_path / "a.tif").read(0, 20), image)


@pytest.mark.slow
def test_goes_on_after_a_kill(tmp_path: Path) -> None:
    """The blocks that a killed process has written are not written again, and the mask is the same."""
    rows, count = 12 * 4096, 12
    image = np.tile(pixels(96, 64, 4) % 7 + 1, (rows // 96, 1, 1))
    write_scene(tmp_path / "a.tif", image, tiled=True, compress="deflate", transform=PLACE)
    model = small_unet(tmp_path / "m.keras", 4, 3)
    words = ["predict", str(tmp_path / "m.keras"), str(tmp_path / "a.tif"), "--out"]
    command = [sys.executable, str(ROOT / "tfbig_command.py"), *words, str(tmp_path / "out")]
    folder = tmp_path / "out" / ".a.tif.blocks"
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while process.poll() is None and not list(folder.glob("[0-9]*.tif")):
        time.sleep(0.005)
    process.kill()
    process.wait()
    written = {path: path.stat().st_mtime_ns for path in folder.glob("[0-9]*.tif")}
    assert 0 < len(written) < count
    again = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while again.poll() is None and len(list(folder.glob("[0-9]*.tif"))) < count:
        assert all(path.stat().st_mtime_ns == when for path, when in written.items())
        time.sleep(0.005)
    assert again.wait() == 0
    with rasterio.open(tmp_path / "out" / "a.tif") as file:
        found = file.read(1)
    expected = plain(model, image).argmax(-1)
    np.testing.assert_array_equal(found, expected)
    assert not folder.exists()
