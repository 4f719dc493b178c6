"""Runs of recipes on data that the scripts beside them write."""

from __future__ import annotations

from pathlib import Path

from cli_runs import metrics, predictions
from samples import ROOT

from tfbig.cli.main import main


def train_resume_evaluate(recipe: str, data: Path, *flags: str) -> Path:
    """Train with a recipe, resume and evaluate, all beside the data; return the run folder."""
    run, again = data.parent / "run", data.parent / "again"
    command = ["train", "--config", str(ROOT / f"recipes/{recipe}.yaml"), "--data", str(data)]
    command += [*flags, "--quiet", "--out", str(run)]
    assert main([*command, "--epochs", "1"]) == 0
    assert main([*command, "--epochs", "2", "--resume"]) == 0
    assert metrics(run)["epochs"] == 2
    assert main(["evaluate", str(run), "--out", str(again), "--quiet"]) == 0
    assert predictions(again) == predictions(run)
    return run
