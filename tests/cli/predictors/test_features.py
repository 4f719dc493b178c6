"""Predictions of bags of features by a run, for each kind of target."""

from __future__ import annotations

import cli_runs
import numpy as np
import pytest
import target_bags
from cli_runs import predictions, rows_of

from tfbig.cli.main import main

SPLITS = ["train"] * 6 + ["val"] * 2 + ["test"] * 2


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Function from a target to the data and the folder of its run, trained on first use."""
    found = {}

    def run(target):
        if target not in found:
            base = tmp_path_factory.mktemp(target)
            data = target_bags.write(base / "data", target, splits=SPLITS)
            with cli_runs.like_a_test():
                assert target_bags.run(data, base / "run", target, "--epochs", "1") == 0
            found[target] = data, base / "run"
        return found[target]

    return run


@pytest.mark.slow
@pytest.mark.parametrize("target", ["regression", pytest.param("class", marks=pytest.mark.slow)])
def test_predictions_are_those_of_the_run(target, made, tmp_path, capsys):
    data, run = made(target)
    expected = predictions(run)[0]
    bag = next(p for p in data.iterdir() if expected["bag"].endswith(p.name))
    for _ in range(2):
        assert main(["predict", str(run), str(bag), "--out", str(tmp_path / "out")]) == 0
    assert "1 of 1 bags are already finished" in capsys.readouterr().out
    (row,) = predictions(tmp_path / "out")
    assert row["bag"] == bag.name
    assert row["predicted"] == expected["predicted"]
    instances = rows_of(tmp_path / "out" / f"{bag.stem}_instances.csv")
    assert len(instances) == int(row["instances"]) == int(expected["instances"])
    assert sum(float(i["attention"]) for i in instances) == pytest.approx(1, abs=1e-5)
    numbers = {"regression": {"value"}, "class": {"probability_high", "probability_low"}}
    assert set(instances[0]) == {"instance", "attention"} | numbers[target]


@pytest.mark.slow
def test_folders_and_bad_bags(made, tmp_path, capsys):
    _, run = made("regression")
    folder, out = tmp_path / "bags", tmp_path / "out"
    folder.mkdir()
    flags = ["predict", str(run), str(folder), "--out", str(out)]
    assert main(flags) == 1
    assert "holds no bags (.h5, .hdf5, .npy)" in capsys.readouterr().err
    np.save(folder / "good.npy", np.zeros((3, target_bags.WIDTH), np.float32))
    np.save(folder / "wide.npy", np.zeros((3, 9), np.float32))
    (folder / "torn.h5").write_bytes(b"torn")
    assert main([*flags, "--dry-run"]) == 3
    assert main(flags) == 3
    printed = capsys.readouterr()
    assert f"good.npy: 3 instances of {target_bags.WIDTH} features" in printed.out
    assert "has shape (3, 9), expected features [n, 6]. Use the encoder" in printed.err
    assert [row["bag"] for row in predictions(out)] == ["good.npy"]
