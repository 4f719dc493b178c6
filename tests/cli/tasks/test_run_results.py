"""Metrics of a run, compared with another."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from samples import ROOT

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


def described() -> list[str]:
    """Return patterns of the files that the guide says a run folder contains."""
    guide = (ROOT / "docs/guides/slides.md").read_text(encoding="utf-8")
    section = guide.partition("## What a run folder contains")[2]
    table = section.partition("A folder of predictions contains")[0]
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    names = re.findall("`([^`]+?)/?`", " ".join(rows))
    return [re.escape(name).replace("NAME", ".+").replace("_N", r"_\d+") for name in names]


@pytest.mark.parametrize(
    "run", [pytest.param("segmentation_run", marks=pytest.mark.slow), "mil_run"]
)
def test_every_file_of_a_run_is_described(run: str, request: pytest.FixtureRequest) -> None:
    finished: Any = request.getfixturevalue(run)
    found = {path.name for path in Path(finished.folder).iterdir()}
    assert {"config.yaml", "model.keras", "metrics.json", "MODEL_CARD.md"} <= found
    patterns = described()
    assert not {name for name in found if not any(re.fullmatch(p, name) for p in patterns)}


@pytest.mark.parametrize(
    ("tested_on", "said"), [("val", "There were no test images: test_ is of the"), ("test", "")]
)
def test_results_of_validation_images_are_printed_as_such(
    tested_on: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = {"test_dice": 0.5, "tested_on": tested_on}
    (tmp_path / "metrics.json").write_text(json.dumps(metrics))
    (tmp_path / "config.yaml").write_text("task: segmentation\nmode: offload\n")
    run_results.print_results({"test_dice": 0.5}, tmp_path)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "test_dice 0.5000"
    assert printed[1].startswith(said or "run folder: ")
    assert len(printed) == (4 if said else 3)
