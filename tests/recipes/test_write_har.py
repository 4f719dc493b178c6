"""Series of UCI HAR as a folder, and the recipes that train on it."""

from __future__ import annotations

import csv
from pathlib import Path

import dataset_folders
import numpy as np
import pytest
from cli_runs import metrics
from recipe_runs import train_resume_evaluate

from tfbig import SourceError
from tfbig.recipes import write_har


@pytest.fixture
def signals(tmp_path: Path) -> Path:
    """The folder as it is downloaded, small."""
    return dataset_folders.uci_har(tmp_path / "har", 20, 8) / "UCI HAR Dataset"


def test_series_are_those_of_the_files(signals: Path, tmp_path: Path) -> None:
    write_har.main([str(tmp_path / "data"), "--data", str(signals), "--seed", "3"])
    rows = list(csv.DictReader((tmp_path / "data/images.csv").read_text().splitlines()))
    assert [row["split"] for row in rows] == ["train"] * 18 + ["val"] * 2 + ["test"] * 8
    files = [signals / f"train/Inertial Signals/{name}_train.txt" for name in write_har.SIGNALS]
    expected = np.stack([np.loadtxt(file, dtype=np.float32) for file in files], -1)
    order = np.random.default_rng(3).permutation(20)
    of_train = [*order[2:], *order[:2]]  # training, validation
    for row, place in zip(rows, of_train, strict=False):
        np.testing.assert_array_equal(np.load(tmp_path / "data" / row["image"]), expected[place])
        assert row["label"] == write_har.ACTIVITIES[place % 6]


def test_mistakes(signals: Path, tmp_path: Path) -> None:
    file = signals / "train" / "y_train.txt"
    file.write_text("1\n2\n1000000\n" + "3\n" * 17)
    with pytest.raises(SourceError, match=r"y_train.txt: line 3: label 1e\+06; expected 1 to 6"):
        write_har.write(signals, tmp_path / "data")
    file.unlink()
    with pytest.raises(SourceError, match="no such file; expected the folder 'UCI"):
        write_har.write(signals, tmp_path / "data")
    assert not (tmp_path / "data").exists()


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["patchgd-har-as-published", "patchgd-har-as-coded"])
@pytest.mark.parametrize("mode", ["patchgd", "device"])
def test_recipes(recipe: str, mode: str, signals: Path, tmp_path: Path) -> None:
    write_har.write(signals, tmp_path / "data")
    run = train_resume_evaluate(recipe, tmp_path / "data", "--mode", mode)
    assert np.sum(metrics(run)["confusion"]) == 8
