"""Runs of several seeds and folds: folders, means and intervals, and what happens if one fails or is stopped."""

from __future__ import annotations

import re
import shutil
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import cli_runs
import numpy as np
import pytest
import yaml
from cli_runs import history, metrics, rows_of
from PIL import Image

import train
from tfbig import NonFiniteError, SourceError, Stopped
from tfbig.cli.data.run_data import Data, Opened
from tfbig.cli.main import main
from tfbig.cli.settings import training
from tfbig.cli.settings.series import Member
from tfbig.cli.settings.tasks import MILSettings, TrainSettings
from tfbig.cli.tasks import run_series
from tfbig.cli.tasks.task import Curve, History, Models, Plans, Task
from tfbig.results import run_folder

SERIES = [*cli_runs.MIL, "--seeds", "2"]
THREE = (Member(0), Member(1), Member(2))


NO_DATA = Data(Opened(), Opened(), Opened(), decided={"tile": 7})


@dataclass
class Fake(Task[MILSettings]):
    """A task whose runs end with the metric that a function of their seed returns, or with what it raises."""

    accuracy: Callable[[int], float]
    loads: Callable[[], Data] = lambda: NO_DATA
    trained: list[int] = field(default_factory=list)

    def load(self, settings: MILSettings) -> Data:
        return self.loads()

    def models(self, settings: MILSettings, data: Data) -> Models:
        return Models(None, None)

    def plans(self, models: Models, settings: MILSettings, data: Data) -> Plans | None:
        return None

    def fit(self, models: Models, settings: MILSettings, data: Data, folder: Path) -> History:
        raise AssertionError("settings with test_only train nothing")

    def curve(self, settings: MILSettings) -> Curve:
        raise AssertionError("settings with test_only train nothing")

    def restore(self, models: Models, path: Path) -> None:
        assert path.parent.name.startswith("seed-")

    def write_results(
        self, models: Models, settings: MILSettings, data: Data, folder: Path, measured: Any
    ) -> None:
        self.trained.append(settings.seed)
        accuracy = self.accuracy(settings.seed)
        run_folder.write_json(folder / "metrics.json", {"test_accuracy": accuracy, "epochs": 2})


@pytest.fixture
def settings(tmp_path: Path) -> TrainSettings:
    """Settings of an evaluation of three runs, the cheapest way through the trainer."""
    for seed in range(3):
        folder = tmp_path / "runs" / f"seed-{seed}"
        folder.mkdir(parents=True)
        run_folder.write_json(folder / "metrics.json", {})
    run_folder.write_yaml(tmp_path / "runs" / "config.yaml", {"seed": 0, "seeds": 3})
    return training.parse(
        ["--task", "mil", "--out", str(tmp_path / "out"), "--test-only", str(tmp_path / "runs")]
    )


def raising(error: Exception, *failing: int) -> Callable[[int], float]:
    """Return a function that raises for some seeds."""

    def accuracy(seed: int) -> float:
        if seed in failing:
            raise error
        return 0.5 + 0.1 * seed

    return accuracy


def test_few_runs_are_printed_each() -> None:
    names = [f"seed {seed}" for seed in range(6)]
    row = {"metric": "auc", "mean": 0.5, **dict.fromkeys(names, 0.25)}
    assert "seed 4" not in run_series._text([row], names)
    few = {name: value for name, value in row.items() if name != "seed 5"}
    assert "seed 4" in run_series._text([few], names[:5])


def test_settings_of_a_series(settings: TrainSettings) -> None:
    series = [Member(seed, fold, True) for fold in (0, 1) for seed in (5, 3, 4)]
    saved = run_series._of_series(settings, series)
    assert (saved.seed, saved.seeds, saved.folds, saved.fold) == (3, 3, 2, None)


def test_means_and_deviations() -> None:
    runs: dict[str, dict[str, Any]] = {
        f"seed {seed}": {"mode": "offload", "epochs": 3, "auc": value, "auc_low": 0.0, "odd": odd}
        for seed, value, odd in ((4, 0.1, 0.2), (5, 0.4, float("nan")), (6, 0.4, 0.5))
    }
    del runs["seed 6"]["mode"]
    (row,) = run_series.table(runs, {"auc": (0.2, 0.5)})
    assert (row["95 % from"], row["to"]) == (0.2, 0.5)
    values = [0.1, 0.4, 0.4]
    assert [row[name] for name in ("metric", "seed 4", "seed 5", "seed 6")] == ["auc", *values]
    assert [*row][:5] == ["metric", "mean", "standard deviation", "95 % from", "to"]
    assert row["mean"] == pytest.approx(np.mean(values))
    assert row["standard deviation"] == pytest.approx(np.std(values, ddof=1))


def test_a_diverged_seed_is_left_out(
    settings: TrainSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    task = Fake(raising(NonFiniteError("the loss is NaN"), 1))
    several = run_series.members_of(settings)
    assert several == THREE
    assert run_series.run(task, settings, several) == 1
    assert task.trained == [0, 1, 2]
    printed = capsys.readouterr()
    assert "seed 1: the loss is NaN" in printed.err
    assert re.search(r"test_accuracy +0\.6000 +0\.1414 +0\.5000 +0\.7000", printed.out)
    out = Path(settings.out or "")
    assert metrics(out)["runs"] == ["seed 0", "seed 2"]
    assert metrics(out)["standard_deviation"] == {"test_accuracy": pytest.approx(0.1 * 2**0.5)}


def test_a_seed_without_checkpoints_is_refused_first(settings: TrainSettings) -> None:
    """Seeds that have finished need no checkpoints."""
    with pytest.raises(SourceError, match="the disk is full"):
        run_series.run(Fake(raising(SourceError("the disk is full"), 1)), settings, THREE)
    seeds = [Path(settings.out or "") / f"seed-{seed}" for seed in range(2)]
    for folder in seeds:
        run_folder.write_text(folder / "model.keras", "")
    task, resumed = Fake(raising(Stopped("never"))), replace(settings, resume=True)
    with pytest.raises(SourceError, match=rf"^{seeds[1]}: has results of 0 epochs, but no file"):
        run_series.run(task, resumed, THREE)
    assert task.trained == []
    (seeds[1] / "model.keras").unlink()
    assert run_series.run(task, resumed, THREE) == 0
    assert task.trained == [1, 2]


def test_only_diverged_seeds(settings: TrainSettings) -> None:
    task = Fake(raising(NonFiniteError("the loss is NaN"), 0, 2))
    with pytest.raises(SourceError, match="1 of 3 runs finished; expected two or more"):
        run_series.run(task, settings, THREE)


def test_other_errors_end_the_command_and_it_resumes(settings: TrainSettings) -> None:
    with pytest.raises(SourceError, match="the disk is full"):
        run_series.run(Fake(raising(SourceError("the disk is full"), 1)), settings, THREE)
    resumed = training.parse(["--resume", "--out", settings.out or ""])
    stopped = Fake(raising(Stopped("stopped by SIGTERM"), 1))
    with pytest.raises(Stopped, match="stopped by SIGTERM"):
        run_series.run(stopped, resumed, THREE)
    assert stopped.trained == [1]  # the first seed has finished before
    healthy = Fake(raising(Stopped("never")))
    assert run_series.run(healthy, resumed, THREE) == 0
    assert healthy.trained == [1, 2]
    assert [row["mean"] for row in rows_of(Path(settings.out or "") / "runs.csv")] == ["0.6"]


def test_curves_of_the_seeds_are_in_the_report(settings: TrainSettings) -> None:
    """Each run has its own number of epochs, as with early stopping."""

    @dataclass
    class Trained(Fake):
        def curve(self, settings: MILSettings) -> Curve:
            return Curve({"loss": "loss", "accuracy": "accuracy"}, "validation bags")

        def write_results(
            self, models: Models, settings: MILSettings, data: Data, folder: Path, measured: Any
        ) -> None:
            super().write_results(models, settings, data, folder, measured)
            rows = [
                {
                    "epoch": n + 1,
                    "val_loss": 1 / (n + 1),
                    "val_accuracy": 0.1 * n + self.accuracy(0),
                }
                for n in range(3 + settings.seed)
            ]
            run_folder.write_csv(folder / run_folder.HISTORY, rows)

    assert run_series.run(Trained(raising(Stopped("never"))), settings, THREE) == 0
    out = Path(settings.out or "")
    with Image.open(out / "learning_curve.png") as picture:
        assert picture.width > picture.height > 100
    assert "Learning curves" in (out / "report.html").read_text()


@pytest.mark.parametrize(
    ("splits", "shared"), [(("val",) * 3, "val"), (("val", "test", "val"), None)]
)
def test_metrics_say_which_split_all_runs_were_tested_on(
    settings: TrainSettings, splits: tuple[str, ...], shared: str | None
) -> None:
    @dataclass
    class Tested(Fake):
        def write_results(
            self, models: Models, settings: MILSettings, data: Data, folder: Path, measured: Any
        ) -> None:
            super().write_results(models, settings, data, folder, measured)
            metrics = run_folder.read_json(folder / run_folder.METRICS)
            metrics[run_folder.TESTED_ON] = splits[settings.seed]
            run_folder.write_json(folder / run_folder.METRICS, metrics)

    assert run_series.run(Tested(raising(Stopped("never"))), settings, THREE) == 0
    metrics = run_folder.read_json(Path(settings.out or "") / run_folder.METRICS)
    assert metrics.get(run_folder.TESTED_ON) == shared


def test_kappa_of_classes_without_an_order_is_left_out(settings: TrainSettings) -> None:
    @dataclass
    class OfTypes(Fake):
        def write_results(
            self, models: Models, settings: MILSettings, data: Data, folder: Path, measured: Any
        ) -> None:
            scores = {f"probability_{name}": 0.2 for name in ("LUAD", "LUSC", "other")}
            run_folder.write_csv(folder / run_folder.PREDICTIONS, [{"bag": "a", **scores}])
            run_folder.write_json(folder / "metrics.json", {"test_auc": 0.5, "test_qwk": 0.25})

    assert run_series.run(OfTypes(raising(Stopped("never"))), settings, THREE) == 0
    rows = run_folder.read_rows(Path(settings.out or "") / run_folder.RUNS)
    assert [row["metric"] for row in rows] == ["test_auc"]


def test_a_folder_in_which_nothing_began_is_free(settings: TrainSettings) -> None:
    def missing() -> Data:
        raise SourceError("no such table")

    with pytest.raises(SourceError, match="no such table"):
        run_series.run(Fake(raising(Stopped("never")), missing), settings, THREE)
    assert run_series.run(Fake(raising(Stopped("never"))), settings, THREE) == 0


def test_dry_run(settings: TrainSettings, tmp_path: Path) -> None:
    """The first seed is planned; nothing is written."""
    task = Fake(raising(Stopped("never")))
    assert run_series.run(task, replace(settings, dry_run=True), THREE) == 0
    assert task.trained == []
    assert not (tmp_path / "out").exists()


def test_runs_that_did_not_finish_are_not_evaluated(settings: TrainSettings) -> None:
    (Path(settings.test_only or "") / "seed-1" / "metrics.json").unlink()
    task = Fake(raising(Stopped("never")))
    assert run_series.run(task, settings, THREE) == 1
    assert task.trained == [0, 2]


def test_several_processes_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train.main([*SERIES, "--strategy", "multiworker", "--out", str(tmp_path / "out")]) == 2
    assert "--seeds and --folds need one process" in capsys.readouterr().err
    assert train.main([*cli_runs.MIL, "--seeds", "1"]) == 2
    assert "must be at least 2" in capsys.readouterr().err


@pytest.fixture(scope="module")
def series(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of two trained seeds."""
    folder = tmp_path_factory.mktemp("series") / "out"
    with cli_runs.like_a_test():
        assert train.main([*SERIES, "--out", str(folder)]) == 0
    return folder


@pytest.mark.slow
def test_training(series: Path, mil_run: Any) -> None:
    """Each seed trains as in a run of its own, and their metrics are in a table and a report."""
    runs = [series / "seed-0", series / "seed-1"]
    assert history(runs[0]) == history(mil_run.folder)
    assert history(runs[1]) != history(runs[0])
    assert [yaml.safe_load((run / "config.yaml").read_text())["seed"] for run in runs] == [0, 1]
    assert yaml.safe_load((series / "config.yaml").read_text())["seeds"] == 2
    rows = {row["metric"]: row for row in rows_of(series / "runs.csv")}
    assert {"loss", "val_loss", "test_accuracy", "seconds_per_step"} <= set(rows)
    values = [metrics(run)["test_auc"] for run in runs]
    assert float(rows["test_auc"]["mean"]) == statistics.mean(values) == metrics(series)["test_auc"]
    assert float(rows["test_auc"]["standard deviation"]) == statistics.stdev(values)
    page = (series / "report.html").read_text()
    assert "<h2>Runs</h2>" in page
    assert "standard deviation" in page


@pytest.mark.slow
def test_resume(series: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A finished seed is not trained again, unless settings change."""
    out = Path(shutil.copytree(series, tmp_path / "out"))
    before = (out / "seed-0" / "metrics.json").stat().st_mtime_ns
    (out / "seed-1" / "metrics.json").unlink()
    assert train.main(["--resume", "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert f"seed 0: {out / 'seed-0'} has finished" in printed
    assert "all epochs are already done" in printed
    assert (out / "seed-0" / "metrics.json").stat().st_mtime_ns == before
    assert train.main(["--resume", "--out", str(out), "--epochs", "2"]) == 0
    assert [len(history(out / f"seed-{seed}")) for seed in range(2)] == [2, 2]


@pytest.mark.slow
def test_evaluation(mil_run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The weights of one run stand for those of two seeds, which draw other bags."""
    series, out = tmp_path / "series", tmp_path / "out"
    for seed in range(2):
        shutil.copytree(mil_run.folder, series / f"seed-{seed}")
    settings = yaml.safe_load((mil_run.folder / "config.yaml").read_text())
    run_folder.write_yaml(series / "config.yaml", settings | {"seeds": 2})
    assert main(["evaluate", str(series), "--out", str(out)]) == 0
    for name in ("test_accuracy", "test_auc"):
        values = [metrics(out / f"seed-{seed}")[name] for seed in range(2)]
        assert values[0] == metrics(mil_run.folder)[name]
        assert metrics(out)[name] == statistics.mean(values)
        assert metrics(out)["standard_deviation"][name] == statistics.stdev(values)
    assert main(["predict", str(series), str(tmp_path), "--out", str(tmp_path / "no")]) == 1
    one = f"Name one of them, such as {series / 'seed-0'}."
    assert one in capsys.readouterr().err


@pytest.mark.slow
def test_evaluation_of_trained_seeds(series: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main(["evaluate", str(series), "--out", str(out)]) == 0
    for name in ("test_accuracy", "test_auc"):
        assert metrics(out)[name] == metrics(series)[name]
        deviations = [metrics(folder)["standard_deviation"] for folder in (out, series)]
        assert deviations[0][name] == deviations[1][name]


@pytest.mark.slow
@pytest.mark.parametrize("task", ["segmentation", "patchgd"])
def test_other_tasks(task: str, data: Path, tmp_path: Path) -> None:
    out, flags = tmp_path / "out", ["--seeds", "2", "--epochs", "1"]
    run = cli_runs.run_patchgd if task == "patchgd" else partial(cli_runs.run_segmentation, data)
    assert run(out, *flags) == 0
    first = 4 if task == "segmentation" else 0
    figure = "test_dice" if task == "segmentation" else "test_auc"
    values = [metrics(out / f"seed-{seed}")[figure] for seed in (first, first + 1)]
    assert metrics(out)[figure] == statistics.mean(values)
    assert main(["evaluate", str(out), "--out", str(tmp_path / "again")]) == 0
    again = metrics(tmp_path / "again")["standard_deviation"]
    assert again[figure] == pytest.approx(metrics(out)["standard_deviation"][figure], abs=1e-6)


@pytest.mark.slow
def test_folds(slide_bags_run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The weights of one run stand for those of three folds, which test other slides; every slide is tested once."""
    series, out = tmp_path / "series", tmp_path / "out"
    settings = yaml.safe_load((slide_bags_run.folder / "config.yaml").read_text())
    rows = rows_of(slide_bags_run.folder / "slides.csv")
    usable = [row for row in rows if row["path"]]
    for fold in range(3):
        place = Path(shutil.copytree(slide_bags_run.folder, series / f"fold-{fold}"))
        split = [
            {**row, "split": "test" if n % 3 == fold else "train"} for n, row in enumerate(usable)
        ]
        run_folder.write_csv(place / "slides.csv", split)
        run_folder.write_yaml(place / "config.yaml", settings | {"folds": 3, "fold": fold})
    run_folder.write_yaml(series / "config.yaml", settings | {"folds": 3, "fold": None})
    assert main(["evaluate", str(series), "--out", str(out)]) in (0, 3)
    tested = [
        row["bag"] for fold in range(3) for row in rows_of(out / f"fold-{fold}" / "predictions.csv")
    ]
    assert len(tested) == len(set(tested)) > 6
    (row,) = [row for row in rows_of(out / "runs.csv") if row["metric"] == "test_accuracy"]
    values = [float(row[f"fold {fold}"]) for fold in range(3)]
    assert float(row["mean"]) == pytest.approx(statistics.mean(values))
    assert float(row["95 % from"]) <= float(row["mean"]) <= float(row["to"])
    assert metrics(out)["interval"]["test_accuracy"][0] == float(row["95 % from"])


@pytest.mark.slow
def test_folds_and_seeds_are_trained(cohort_table: Path, tmp_path: Path) -> None:
    """Six runs, of which each seed tests every slide once; a resumed command makes none of them again."""
    out = tmp_path / "out"
    flags = [*cli_runs.SLIDE_BAGS, "--data", str(cohort_table), "--out", str(out)]
    assert train.main([*flags, "--folds", "3", "--seeds", "2", "--epochs", "1"]) in (0, 3)
    runs = [out / f"fold-{fold}-seed-{seed}" for fold in range(3) for seed in range(2)]
    for seed in range(2):
        tested = [row["bag"] for run in runs[seed::2] for row in rows_of(run / "predictions.csv")]
        assert len(tested) == len(set(tested))
    before = [(run / "metrics.json").stat().st_mtime_ns for run in runs]
    assert train.main(["--resume", "--out", str(out)]) in (0, 3)
    assert [(run / "metrics.json").stat().st_mtime_ns for run in runs] == before
    assert yaml.safe_load((out / "config.yaml").read_text())["folds"] == 3
    assert set(metrics(out)["runs"]) == {run.name.replace("-", " ") for run in runs}
