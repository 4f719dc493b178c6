"""The experiments in recipes/experiments on small data, and the pictures that they draw."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import dataset_folders
import numpy as np
import pytest
from PIL import Image
from samples import ROOT

from recipes.experiments import gigapixel_dice, mil_loss, scaling, ultramnist
from tfbig.models import encoders
from tfbig.recipes import write_qmnist_bags


def printed(script: str, *words: object) -> list[dict]:
    """Run an experiment and return the JSON lines that it prints."""
    process = subprocess.run(
        [sys.executable, str(ROOT / "recipes" / "experiments" / script), *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    return [json.loads(line) for line in process.stdout.splitlines() if line.startswith("{")]


@pytest.mark.parametrize("of", ["mean", "fastest"])
def test_fit_of_the_scaling_study(of: str) -> None:
    """Times of a power law give its exponent, and the factor of twice the median area."""
    sides = range(1024, 2049, 256)
    law = {side: 2e-7 * side ** (2 * 1.05) for side in sides}
    seconds = {side: [law[side] * factor for factor in (1.0, 1.1, 1.2)] for side in sides}
    line = scaling.fit(
        {"model": "resnet18", "stages": "4", "seconds": seconds, "peak_bytes": 1}, of
    )
    assert line["b"] == pytest.approx(1.05, abs=2e-3)
    assert line["doubling"] == pytest.approx(2**1.05, abs=2e-3)
    assert line["r2"] == pytest.approx(1, abs=1e-4)
    assert line["fastest"] == pytest.approx(list(law.values()), abs=1e-3)
    assert line["seconds"] == pytest.approx([1.1 * value for value in law.values()], abs=1e-3)
    assert line["deviations"] == pytest.approx([0.1 * value for value in law.values()], abs=1e-3)


def test_drawn_lines_of_mil_loss(tmp_path: Path) -> None:
    """The last line of each learning rate is drawn, in the order of the rates."""
    case = {"losses": {"whole bags": [1.0], "a quarter at once": [1.0]}, "differences": {}}
    pairs = {"losses": case["losses"], "differences": mil_loss.differences(case["losses"])}
    lines = [
        {"case": "mil_loss", "size": [8], "learning_rate": rate, "commit": commit}
        | {"cases": {"without": pairs}}
        for rate, commit in ((1e-6, "old"), (5e-5, "one"), (1e-6, "new"), (2.0, "another"))
    ]
    results = tmp_path / "results.jsonl"
    results.write_text("\n".join(map(json.dumps, [*lines, lines[0] | {"case": "another"}])))
    drawn = mil_loss.drawn_lines(results, [8])
    assert [(rate, line["commit"]) for rate, line in drawn.items()] == [
        (5e-5, "one"),
        (1e-6, "new"),
    ]
    mil_loss.draw(drawn, tmp_path / "figure.png")
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_mil_loss_of_bags_of_a_folder(tmp_path: Path) -> None:
    """The first training bags, one step per bag; equal weights have equal losses before the first step."""
    dataset_folders.qmnist(tmp_path / "digits")
    small = ("--bags", "3", "1", "1", "--instances", "8", "--tile", "32")
    digits = str(tmp_path / "digits/QMNIST/raw")
    write_qmnist_bags.main([str(tmp_path / "bags"), "--data", digits, *small])
    words = ("--data", tmp_path / "bags", "--bags", 1, "--epochs", 2, "--cases", "without")
    (one,) = printed("mil_loss.py", *words, "--runs", "whole bags", "a quarter at once")
    assert (one["case"], one["size"]) == ("mil_loss qmnist", [1, 8, 32, 32, 1])
    losses = one["cases"]["without"]["losses"]
    assert losses["a quarter at once"] == pytest.approx(losses["whole bags"], rel=1e-5)
    data = mil_loss.bags_of(tmp_path / "bags", 2)
    assert [bag.name for bag in data.bags] == [
        str(tmp_path / "bags" / f"train-{number}.npy") for number in range(2)
    ]
    assert data.labels.tolist() == [1, 0]


@pytest.mark.slow
def test_ultramnist_by_inner_steps(tmp_path: Path) -> None:
    """PatchGD is trained once for each number of inner steps, in batches of the given size."""
    dataset_folders.digits(tmp_path, ("train", "t10k"), count=400)
    side, weights = ultramnist.SINGLE, tmp_path / "backbone.weights.h5"
    encoders.make("strided", (side, side, 1)).save_weights(weights)
    words = ("--methods", "patchgd", "--inner-accumulate", 1, 4, "--batch", 5, "--epochs", 1)
    size = ("--images", 10, "--tests", 10, "--weights", weights, "--out", tmp_path / "epsilon.png")
    lines = printed("ultramnist.py", "--data", tmp_path, *words, *size)
    assert [(x["case"], x["inner_accumulate"]) for x in lines] == [
        ("ultramnist epsilon", 1),
        ("ultramnist epsilon", 4),
    ]
    assert {x["batch"] for x in lines} == {5}
    assert all(0 <= x["accuracy"] <= 1 for x in lines)
    assert (tmp_path / "epsilon.png").read_bytes().startswith(b"\x89PNG")


def test_trainings_of_ultramnist() -> None:
    """Each method once, and PatchGD once for each number of inner steps, if there are any."""
    given = argparse.Namespace(methods=("plain", "patchgd"), inner_accumulate=[1, 2])
    assert ultramnist.trainings(given) == [
        ("plain", {}),
        ("patchgd", {"inner_accumulate": 1}),
        ("patchgd", {"inner_accumulate": 2}),
    ]
    given.inner_accumulate = None
    assert ultramnist.trainings(given) == [("plain", {}), ("patchgd", {})]
    assert ultramnist.label_of({"method": "patchgd"}) == "patchgd"
    assert ultramnist.label_of({"method": "patchgd", "inner_accumulate": 2}) == "patchgd, epsilon 2"


def test_figures_of_gigapixel_dice(tmp_path: Path) -> None:
    """The settings, the validation and test metrics, rounded, and a row for each slide."""
    settings = dict.fromkeys(gigapixel_dice.SETTINGS, 1)
    (tmp_path / "config.yaml").write_text(json.dumps({**settings, "task": "segmentation"}))
    metrics = {"epochs": 7, "loss": 0.5, "val_loss": 0.06666, "test_dice": 0.74321}
    (tmp_path / "metrics.json").write_text(json.dumps(metrics))
    (tmp_path / "predictions.csv").write_text("slide,dice,precision,sensitivity\na,0.74321,0.5,1\n")
    assert gigapixel_dice.figures(tmp_path) == {
        **settings,
        "epochs": 7,
        "val_loss": 0.0667,
        "test_dice": 0.7432,
        "slides": {"a": {"dice": 0.7432, "precision": 0.5, "sensitivity": 1.0}},
    }


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Pictures of two classes."""
    for number, name in enumerate(("cat", "dog")):
        (tmp_path / name).mkdir()
        for i in range(40):
            pixels = np.random.default_rng(i).integers(0, 99, (40, 40, 3)) + 150 * number
            Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / name / f"{i}.png")
    return tmp_path


@pytest.mark.slow
def test_normalisation(pictures: Path) -> None:
    words = ("--data", str(pictures), "--epochs", "2", "--methods", "group", "patchgd")
    lines = printed("normalisation.py", *words)
    assert [x["way"] for x in lines] == ["group", "patchgd"]
    assert all(0 <= x["accuracy"] <= 1 for x in lines)


@pytest.mark.slow
def test_patch_generator(pictures: Path) -> None:
    words = ("--data", str(pictures), "--steps", "2", "--epochs", "1")
    lines = printed("patch_generator.py", *words)
    assert [x["way"] for x in lines] == ["share 0.5", "share 1.0"]
    assert all(0 < x["halves"] < x["untrained"] for x in lines)
    assert len({x["untrained"] for x in lines}) == 1
