"""Metrics of a run, compared with another."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tfbig.cli.settings.tasks import MILSettings
from tfbig.cli.tasks import run_results
from tfbig.system import unified_memory


def test_comparison_with_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unified_memory, "peak_bytes", lambda: 7)
    other, folder = tmp_path / "other", tmp_path / "run"
    for each in (other, folder):
        each.mkdir()
    (other / "metrics.json").write_text(json.dumps({"mode": "device", "loss": 2.0, "epochs": 3}))
    run_results.write_metrics(folder, MILSettings(beside=str(other)), {"loss": 1.5})
    beside = {"run": str(other), "mode": "device", "loss": 2.0, "loss_difference": 0.5}
    expected = {"loss": 1.5, "device_peak_bytes": 7, "beside": beside}
    assert json.loads((folder / "metrics.json").read_text()) == expected
