"""Training by the published loop of ABMIL-ACC."""

from __future__ import annotations

from pathlib import Path

import dataset_folders
import pytest
from cli_runs import metrics, predictions
from samples import ROOT

from tfbig.cli.main import main
from tfbig.mil import abmil_acc
from tfbig.recipes import train_as_abmil_acc, write_qmnist_bags


@pytest.mark.slow
def test_train_resume_evaluate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are those of the published loop, and a saved run is evaluated as any other."""
    calls, gradients = [], abmil_acc.gradients
    monkeypatch.setattr(
        abmil_acc, "gradients", lambda *args: calls.append(True) or gradients(*args)
    )
    dataset_folders.qmnist(tmp_path / "digits")
    digits = ["--data", str(tmp_path / "digits/QMNIST/raw"), "--tile", "28"]
    small = ["--bags", "4", "2", "2", "--instances", "8"]
    write_qmnist_bags.main([str(tmp_path / "data"), *digits, *small])
    run = tmp_path / "run"
    command = ["--config", str(ROOT / "recipes/abmil-acc-qmnist-as-coded.yaml"), "--quiet"]
    command += ["--data", str(tmp_path / "data"), "--out", str(run), "--encoder", "lenet"]
    command += ["--instances-at-once", "4", "--accumulate", "2"]
    assert train_as_abmil_acc.main([*command, "--epochs", "1"]) == 0
    assert train_as_abmil_acc.main([*command, "--epochs", "2", "--resume"]) == 0
    assert calls and metrics(run)["epochs"] == 2
    assert main(["evaluate", str(run), "--out", str(tmp_path / "again"), "--quiet"]) == 0
    assert predictions(tmp_path / "again") == predictions(run)
