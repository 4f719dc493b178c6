"""`--task instances` from the command line to the run folder and to predictions, on small images."""

from __future__ import annotations

import json
from pathlib import Path

import keras
import numpy as np
import pytest
import tifffile
from cli_runs import metrics, predictions

import train
from tfbig.cli.main import main
from tfbig.cli.settings import training
from tfbig.cli.tasks import instances
from tfbig.metrics import Matches


def write_discs(folder: Path, count: int) -> Path:
    """Write bright discs on dark ground, 16 bits, with their numbers."""
    (folder / "masks").mkdir(parents=True)
    rows, columns = np.mgrid[:64, :96]
    for number in range(count):
        rng = np.random.default_rng(number)
        labels = np.zeros((64, 96), np.uint16)
        for disc in range(1, 9):
            y, x, radius = rng.uniform(8, 56), rng.uniform(8, 88), rng.uniform(4, 8)
            labels[np.hypot(rows - y, columns - x) < radius] = disc
        image = 300 + 2000 * (labels > 0) + rng.normal(0, 60, labels.shape)
        tifffile.imwrite(folder / f"{number:02}.tif", image.astype(np.uint16))
        tifffile.imwrite(folder / f"masks/{number:02}.tif", labels)
    return folder


def legends(view: Path) -> dict[str, list[str]]:
    """Return the names of the classes of each overlay of a view."""
    overlays = json.loads(view.read_text())["overlays"]
    return {each["name"]: [name for _, name in each["legend"]] for each in overlays}


def test_the_network_divides_bytes_by_255(tmp_path: Path) -> None:
    data = write_discs(tmp_path / "data", 10)
    task = instances.InstancesTask()
    flags = ["--task", "instances", "--data", str(data), "--crop", "64x64"]
    flags += ["--percentiles", "1", "99.8"]
    settings = training.parse(flags)
    network = task.network(settings, task.load(settings))
    scaling = next(
        layer for layer in network.layers if isinstance(layer, keras.layers.Normalization)
    )
    assert (scaling.input_mean, scaling.input_variance) == ([0.0], [255.0**2])


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["offload", "device"])
def test_discs_are_learned_and_found(tmp_path: Path, mode: str) -> None:
    data, run = write_discs(tmp_path / "data", 20), tmp_path / "run"
    flags = ["--task", "instances", "--mode", mode, "--data", str(data), "--crop", "64x64"]
    network = ["--filters", "4", "--depth", "2", "--epochs", "30", "--lr", "0.01", "--crops", "28"]
    assert train.main([*flags, *network, "--percentiles", "1", "99.8", "--out", str(run)]) == 0
    results, rows = metrics(run), predictions(run)
    assert results["images"] == len(rows) == 4
    assert results["test_average_precision_0.5"] > 0.6
    mean = np.mean([float(row["average_precision_0.5"]) for row in rows])
    assert results["test_average_precision_0.5"] == pytest.approx(mean)
    assert (run / "instances_0.png").exists()
    assert legends(run / "views/instances_0.json")["borders"] == ["labels", "prediction"]
    out = tmp_path / "out"
    assert main(["predict", str(run), str(data / "00.tif"), "--out", str(out)]) == 0
    found = tifffile.imread(out / "00.ome.tif")
    assert found.shape == (64, 96) and 3 <= found.max() <= 12
    assert legends(out / "views/00.json") == {"instances": ["instance", "border"]}


def test_means_over_images_and_over_instances() -> None:
    matches = [[Matches(3, 1, 0)] * 5, [Matches(0, 0, 2)] * 5]
    results = instances.over_images(matches)
    assert results["test_average_precision_0.5"] == 0.375
    assert results["test_pooled_average_precision_0.5"] == 0.5
    assert results["test_instances"] == 4
