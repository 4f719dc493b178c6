"""The trainer calls the hooks of a task in one order, with what the data decide."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tfbig import SourceError
from tfbig.cli.data.run_data import Data, Opened
from tfbig.cli.settings.tasks import MILSettings
from tfbig.cli.tasks import trainer
from tfbig.cli.tasks.task import Curve, History, Models, Plans, Task

SKIPPED = Opened(failed=(("a.tif", "is damaged"),))
DATA = Data.of([SKIPPED], decided={"tile": 7})


class Noting(Task[MILSettings]):
    """A task that notes which hooks are called, with which tile."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int | None]] = []

    def resolved(self, settings: MILSettings) -> MILSettings:
        self.calls.append(("resolved", settings.tile))
        return replace(settings, tile=5)

    def load(self, settings: MILSettings) -> Data:
        self.calls.append(("load", settings.tile))
        return DATA

    def models(self, settings: MILSettings, data: Data) -> Models:
        self.calls.append(("models", settings.tile))
        return Models(None, None)

    def plans(self, models: Models, settings: MILSettings, data: Data) -> Plans | None:
        self.calls.append(("plans", settings.tile))
        return None

    def fit(self, models: Models, settings: MILSettings, data: Data, folder: Path) -> History:
        raise AssertionError("nothing is trained")

    def curve(self, settings: MILSettings) -> Curve:
        raise AssertionError("nothing is trained")

    def restore(self, models: Models, path: Path) -> None:
        self.calls.append((str(path), None))

    def write_results(
        self,
        models: Models,
        settings: MILSettings,
        data: Data,
        folder: Path,
        measured: Mapping[str, Any],
    ) -> None:
        self.calls.append(("write_results", settings.tile))
        assert measured == {"mode": "accumulate"}


BEFORE = [("resolved", None), ("load", 5), ("models", 7), ("plans", 7)]


def test_dry_run_writes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = Noting()
    assert trainer.run(task, MILSettings(out=str(tmp_path / "out"), dry_run=True)) == 0
    assert task.calls == BEFORE
    assert not (tmp_path / "out").exists()
    assert "skipped a.tif: is damaged" in capsys.readouterr().err


def test_strict(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"a\.tif: is damaged"):
        trainer.run(Noting(), MILSettings(out=str(tmp_path / "out"), strict=True))


def test_evaluation(tmp_path: Path) -> None:
    """Settings that the data decide are saved; the model of the run is loaded, and nothing is trained."""
    task, out = Noting(), tmp_path / "out"
    assert trainer.run(task, MILSettings(out=str(out), test_only="run")) == 3
    assert task.calls == [*BEFORE, (str(Path("run") / "model.keras"), None), ("write_results", 7)]
    assert "tile: 7\n" in (out / "config.yaml").read_text()
    assert "a.tif,is damaged" in (out / "failed.csv").read_text()
