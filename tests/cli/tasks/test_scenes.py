"""`--task scenes` from the command line to the run folder, on small scenes."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest
from cli_runs import history, metrics, predictions
from rio_cogeo.cogeo import cog_validate
from scene_files import write_scene

import train
from tfbig.cli.main import main
from tfbig.cli.settings.scene_settings import SceneSettings
from tfbig.cli.tasks import scenes
from tfbig.results.run_folder import read_yaml
from tfbig.sources import RasterSource

SMALL = ["--filters", "4", "--depth", "1", "--quiet", "--lr", "0.02"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Scenes of two classes, bright and dark, and of values, their brightness."""
    folder = tmp_path_factory.mktemp("scenes")
    rows = {"classes": ["scene,label,split"], "values": ["scene,label,split"]}
    for n, split in enumerate(("train", "val", "test")):
        bright = np.indices((48, 64)).sum(0) // 9 % 2
        noise = np.random.default_rng(n).integers(-50, 50, (48, 64, 3))
        image = (1000 + 1000 * bright[..., None] + noise).astype("uint16")
        image[:9] = 0
        write_scene(folder / f"s{n}.tif", image, nodata=0)
        write_scene(folder / f"classes{n}.tif", bright.astype("uint8"))
        write_scene(folder / f"values{n}.tif", (bright * 4.0 + 7).astype("float32"))
        for kind, lines in rows.items():
            lines.append(f"s{n}.tif,{kind}{n}.tif,{split}")
    for kind, lines in rows.items():
        (folder / f"{kind}.csv").write_text("\n".join(lines))
    return folder


@pytest.mark.slow
def test_classes_by_crops(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--task", "segmentation", "--data", str(data / "classes.csv"), "--mode", "device"]
    flags = ["--crop", "32x32", "--crops", "32", "--epochs", "3", *SMALL]
    assert train.main([*words, *flags, "--out", str(tmp_path / "run")]) == 0
    assert "train: 1 scene, s0" in capsys.readouterr().out
    results = metrics(tmp_path / "run")
    assert results["test_accuracy"] > 0.95
    assert results["tested_on"] == "test"
    assert history(tmp_path / "run")[0].keys() >= {"loss", "val_loss", "accuracy", "val_accuracy"}
    assert cog_validate(tmp_path / "run" / "s2.tif", strict=True, quiet=True)[0]
    config = read_yaml(tmp_path / "run" / "config.yaml")
    assert (config["task"], config["class_names"]) == ("scenes", ["0", "1"])
    (row,) = predictions(tmp_path / "run")
    assert float(row["accuracy"]) == pytest.approx(results["test_accuracy"])
    out = tmp_path / "out"
    assert main(["predict", str(tmp_path / "run"), str(data / "s2.tif"), "--out", str(out)]) == 0
    one, two = (RasterSource(folder / "s2.tif").read(0, 48) for folder in (tmp_path / "run", out))
    np.testing.assert_array_equal(one, two)
    assert (two[:9] == 255).all()
    labels = RasterSource(data / "classes2.tif").read(0, 48)
    assert (labels == two)[9:].mean() == pytest.approx(results["test_accuracy"])


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["mse", "huber"])
def test_values_of_whole_scenes(data: Path, tmp_path: Path, loss: str) -> None:
    words = ["--task", "scenes", "--data", str(data / "values.csv"), "--target", "regression"]
    flags = ["--crop", "whole", "--batch-size", "1", "--epochs", "40", "--loss", loss, *SMALL]
    for background in ("skip", "compute"):
        out = str(tmp_path / background)
        assert train.main([*words, *flags, "--background", background, "--out", out]) == 0
    skip, compute = (metrics(tmp_path / name) for name in ("skip", "compute"))
    assert skip["loss"] == pytest.approx(compute["loss"], rel=0.05)
    assert compute["test_r2"] > 0.5
    assert main(["evaluate", str(tmp_path / "skip"), "--out", str(tmp_path / "again")]) == 0
    again = metrics(tmp_path / "again")
    assert again["test_rmse"] == pytest.approx(skip["test_rmse"], rel=1e-5)
    found = RasterSource(tmp_path / "skip" / "s2.tif").read(0, 48)
    assert np.isnan(found[:9]).all()
    truth = RasterSource(data / "values2.tif").read(0, 48)[9:]
    error = np.sqrt(np.mean((found[9:].astype(float) - truth) ** 2))
    assert skip["test_rmse"] == pytest.approx(error, rel=1e-6)


def test_a_loss_of_another_target(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--task", "scenes", "--data", str(data / "classes.csv"), "--loss", "mse", "--dry-run"]
    assert train.main(words) == 2
    assert "--loss mse: --target class has cross_entropy" in capsys.readouterr().err


def test_losses_are_means_over_labelled_pixels() -> None:
    rng = np.random.default_rng(0)
    truth, found = rng.normal(size=(2, 4, 4, 1)), rng.normal(size=(2, 4, 4, 1))
    weights = rng.integers(0, 2, (2, 4, 4, 1)).astype("float32")
    chosen = (truth - found)[weights > 0]
    mse = scenes.make_loss(SceneSettings(target="regression"))
    value = float(mse(truth, found, sample_weight=weights[..., 0]))
    assert value == pytest.approx(np.mean(chosen**2), rel=1e-5)
    huber = scenes.make_loss(
        SceneSettings(target="regression", loss="huber", value_scale=(0.0, 0.5))
    )
    size = np.abs(chosen)
    expected = np.where(size < 0.5, 0.5 * size**2, 0.5 * size - 0.125).mean()
    assert float(huber(truth, found, sample_weight=weights[..., 0])) == pytest.approx(
        expected, rel=1e-5
    )
    assert isinstance(scenes.make_loss(SceneSettings()), keras.losses.SparseCategoricalCrossentropy)
