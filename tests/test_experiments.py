"""The experiments in recipes/experiments on small data, and the pictures that they draw."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from samples import ROOT

from recipes.experiments import mil_loss, scaling


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
