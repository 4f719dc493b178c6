"""Recipes are settings that train.py takes, and the small bag task runs from the command line in every mode."""

import csv
import json

import h5py
import keras
import numpy as np
import pytest
import yaml
from PIL import Image
from samples import ROOT

import train
from tfbig.cli import settings
from tfbig.cli.data import bags
from tfbig.cli.data.splits import SPLITS

RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))
QUICK = ["--task", "mil", "--num-bags", "6", "4", "4", "--instances", "8", "--epochs", "2"]
FILES = {
    *("checkpoints", "config.yaml", "history.csv", "kept.weights.h5", "learning_curve.png"),
    *("metrics.json", "model.keras", "plan.txt", "predictions.csv", "confusion.png"),
    *("attention_0.png", "attention_1.png", "rates.json", "report.html", "versions.json", "views"),
}


def run(out, *flags):
    return train.main([*QUICK, "--out", str(out), *flags])


def predictions(folder):
    return list(csv.DictReader((folder / "predictions.csv").read_text().splitlines()))


def metrics(folder):
    return json.loads((folder / "metrics.json").read_text())


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda p: p.stem)
def test_a_recipe_is_a_list_of_flags(recipe):
    found = settings.parse(["--config", str(recipe), "--seed", "2"], train.TASKS)
    assert found.task == ("patchgd" if recipe.stem.startswith("patchgd") else "mil")
    assert found.seed == 2
    written = yaml.safe_load(recipe.read_text())
    for name, value in written.items():
        assert getattr(found, name) == value
    assert recipe.read_text().startswith("#")  # where it is from
    base = recipe.stem.removesuffix("-as-coded").removesuffix("-as-published")
    assert f"`{base}" in (ROOT / "recipes" / "README.md").read_text()


slow = pytest.mark.slow


@pytest.mark.parametrize(
    "mode",
    ["accumulate", "device", *(pytest.param(m, marks=slow) for m in ("offload", "frozen"))],
)
def test_every_mode_leaves_a_whole_folder(mode, tmp_path):
    assert run(tmp_path / "out", "--mode", mode) == 0
    expected = FILES - {"plan.txt"} if mode == "device" else FILES
    assert {p.name for p in (tmp_path / "out").iterdir()} == expected
    found = metrics(tmp_path / "out")
    assert 0 <= found["test_accuracy"] <= 1
    assert np.sum(found["confusion"]) == 4
    rows = predictions(tmp_path / "out")
    assert [row["bag"] for row in rows] == [f"test {i}" for i in range(4)]
    for row in rows:
        shares = [float(v) for k, v in row.items() if k.startswith("probability")]
        assert sum(shares) == pytest.approx(1)
        assert row["predicted"] == ("negative", "positive")[np.argmax(shares)]


@slow
def test_modes_train_alike(tmp_path):
    for mode in ("accumulate", "device"):
        flags = ("--mode", mode, "--epochs", "1", "--optimizer", "adam", "--epsilon", "1e-2")
        assert run(tmp_path / mode, *flags) == 0
    a, b = metrics(tmp_path / "accumulate"), metrics(tmp_path / "device")
    assert abs(a["loss"] - b["loss"]) < 1e-4
    assert abs(a["val_loss"] - b["val_loss"]) < 1e-3


@slow
@pytest.mark.parametrize(
    "flags",
    [
        ("--model", "dtfd", "--width", "16", "--distillation", "MaxMinS", "--two-tiers"),
        ("--model", "attention", "--width", "16", "--batch-size", "2", "--class-weights"),
        ("--model", "gated", "--published", "--norm", "none", "--keep", "window", "--window", "2"),
        ("--model", "mean", "--augment", "--sample", "0.5", "--keep", "best", "--monitor", "qwk"),
        ("--optimizer", "lookahead_radam", "--accumulate", "2", "--sum", "--clip", "1"),
        ("--optimizer", "demon_adamw", "--schedule", "exponential", "--keep", "last"),
        ("--precision", "mixed_bfloat16", "--optimizer", "coupled_adam", "--decay", "1e-4"),
        ("--eval-sample", "4", "--eval-repeats", "3", "--model", "max", "--foreground", "0.1"),
    ],
)
def test_other_settings(flags, tmp_path):
    assert run(tmp_path / "out", *flags, "--epochs", "1") == 0
    assert np.isfinite(metrics(tmp_path / "out")["test_auc"])


def history(folder):
    rows = csv.DictReader((folder / "history.csv").read_text().splitlines())
    return [{k: float(v) for k, v in row.items() if k != "seconds_per_step"} for row in rows]


@pytest.mark.slow
def test_a_run_goes_on_and_is_tested_again(tmp_path):
    """As if it had not stopped: optimizer, order and samples of the bags, best epoch so far."""
    flags = ("--schedule", "constant", "--sample", "6")
    assert run(tmp_path / "out", *flags) == 0
    assert run(tmp_path / "out", "--resume", "--epochs", "3") == 0
    assert run(tmp_path / "whole", *flags, "--epochs", "3") == 0
    for found, expected in zip(history(tmp_path / "out"), history(tmp_path / "whole"), strict=True):
        assert found == pytest.approx(expected, rel=1e-4)
    best = [metrics(tmp_path / name)["test_auc"] for name in ("out", "whole")]
    assert best[0] == best[1]
    assert run(tmp_path / "again", "--test-only", str(tmp_path / "out")) == 0
    before, after = metrics(tmp_path / "out"), metrics(tmp_path / "again")
    assert after["test_accuracy"] == before["test_accuracy"]
    assert after["test_auc"] == before["test_auc"]


def write_features(folder, rows, broken=()):
    rng = np.random.default_rng(0)
    with (folder / "bags.csv").open("w") as file:
        file.write("bag,label,split\n")
        for number, (count, label, split) in enumerate(rows):
            name = f"slide{number}.h5"
            with h5py.File(folder / name, "w") as made:
                made["features"] = rng.normal(label, 1, (count, 12)).astype("float32")
                if number not in broken:
                    made["coords"] = 256 * np.stack(np.divmod(np.arange(count), 4), -1)
            file.write(f"{name},{label},{split}\n")


def test_features_from_files_and_bags_that_cannot_be_used(tmp_path, capsys):
    data = tmp_path / "data"
    data.mkdir()
    rows = [(6 + i, i % 3, s) for i, s in enumerate(["train"] * 9 + ["val"] * 3 + ["test"] * 4)]
    rows[1] = (3, 1, "train")  # fewer than pseudo-bags
    write_features(data, rows, broken=(4,))
    flags = ("--bags", "folder", "--data", str(data), "--encoder", "none", "--mode", "device")
    assert run(tmp_path / "out", *flags, "--model", "dtfd", "--width", "8") == 3
    message = capsys.readouterr().err
    assert "slide4.h5: has no 'coords'" in message
    assert "slide1.h5: has 3 instances, which cannot be split into 4 pseudo-bags" in message
    assert len(metrics(tmp_path / "out")["left_out"]) == 2
    assert np.shape(metrics(tmp_path / "out")["confusion"]) == (3, 3)


def test_folders_of_tiles(tmp_path):
    data = tmp_path / "data"
    lines = ["bag,label,split"]
    for number, split in enumerate(["train", "train", "val", "test", "test"]):
        folder = data / f"slide{number}"
        folder.mkdir(parents=True)
        for i in range(5):
            tile = np.random.default_rng(i).integers(0, 256, (16, 16, 3), np.uint8)
            tile[: 16 if i == 0 else 0] = 255  # the first is all white
            Image.fromarray(tile).save(folder / f"{i}.png")
        lines.append(f"slide{number},{number % 2},{split}")
    (data / "bags.csv").write_text("\n".join(lines))
    flags = ("--bags", "folder", "--data", str(data), "--foreground", "0.6", "--fill")
    flags += ("--sample", "6", "--batch-size", "2", "--epochs", "1")
    assert run(tmp_path / "out", *flags) == 0
    rows = predictions(tmp_path / "out")
    assert [int(row["instances"]) for row in rows] == [4, 4]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "bags.csv: there is no such file"),
        ("bag,split\na,train\n", "has no rows with column 'label'"),
        ("bag,label,split\na.npy,x,train\n", "line 2: label 'x' is no class"),
        ("bag,label,split\na.npy,0,train\n", "none of 1 bags can be used"),
    ],
)
def test_a_table_that_is_none_ends_in_one_line(content, message, tmp_path, capsys):
    if content:
        (tmp_path / "bags.csv").write_text(content)
    assert run(tmp_path / "out", "--bags", "folder", "--data", str(tmp_path)) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_digits_need_a_folder(tmp_path, capsys):
    assert run(tmp_path / "out", "--bags", "digits") == 1
    assert "--bags digits needs --data FOLDER" in capsys.readouterr().err


def test_an_encoder_without_its_norm():
    from tfbig.models import encoders

    plain, without = (encoders.make("resnet18", (32, 32, 3), norm=n) for n in (True, False))
    kinds = [type(layer).__name__ for layer in without._flatten_layers()]
    assert "BatchNormalization" not in kinds
    assert without.output_shape == plain.output_shape
    assert without.count_params() == plain.count_params() - 4 * 4800
    assert isinstance(without, keras.Model)


def test_splits_have_no_instance_in_common():
    found = settings.parse([*QUICK], train.TASKS)
    data = bags.load(found)
    tiles = [{t.tobytes() for b in getattr(data, s).bags for t in b.read(0, 8)} for s in SPLITS]
    assert not tiles[0] & tiles[1]
    assert not tiles[1] & tiles[2]
