"""Runs of several seeds in one folder, and the mean and standard deviation of their metrics."""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import keras

from tfbig import NonFiniteError, SourceError
from tfbig.cli import machine, open_run
from tfbig.cli.data import splits
from tfbig.cli.settings import training
from tfbig.cli.settings.flag import deciding
from tfbig.cli.settings.run_settings import seed_folder
from tfbig.cli.settings.tasks import TrainSettings
from tfbig.cli.tasks import run_results, trainer
from tfbig.cli.tasks.task import Task
from tfbig.results import figures, report, run_folder

T = TypeVar("T", bound=TrainSettings)
Row = dict[str, Any]
"""A metric: its name, its value of each seed, their mean and standard deviation."""


def seeds_of(settings: TrainSettings) -> range | None:
    """Return the seeds that `--seeds` asks for, or those of the evaluated folder; None for a single run.

    Args:
        settings: Settings of the run.
    """
    first, number = settings.seed, settings.seeds
    if settings.test_only and (config := Path(settings.test_only) / run_folder.CONFIG).exists():
        saved = run_folder.read_yaml(config)
        first, number = saved.get("seed", 0), saved.get("seeds")
    return range(first, first + number) if number else None


def run(task: Task[Any, Any], settings: TrainSettings, seeds: range) -> int:
    """Train or evaluate one run for each seed, write their metrics in one table, and return the exit code.

    Runs that have finished are not made again. A seed whose training diverges is reported, and the next one starts; any
    other error ends the command.

    Args:
        task: The task.
        settings: Settings of all runs.
        seeds: The seeds.

    Raises:
        SourceError: Fewer than two runs have finished.
    """
    if settings.dry_run:
        return trainer.run(task, _of_seed(settings, Path(settings.out or ""), seeds[0]))
    settings = replace(settings, seeds=len(seeds))
    folder = open_run.open_run(settings)
    runs = [_of_seed(settings, folder, seed) for seed in seeds]
    try:
        finished = [each for each in runs if _is_there(each.test_only) and _finish(task, each)]
    finally:
        if not any((seed_folder(folder, seed) / run_folder.CONFIG).exists() for seed in seeds):
            (folder / run_folder.CONFIG).unlink()  # nothing was begun: the folder can be used again
    _write(task, folder, settings, finished)
    codes = [splits.exit_code(Path(each.out or "")) for each in finished]
    return max(codes) if len(finished) == len(runs) else 1


def _of_seed(settings: T, folder: Path, seed: int) -> T:
    """Return the settings of the run of a seed."""
    out = seed_folder(folder, seed)
    evaluated = settings.test_only and str(seed_folder(settings.test_only, seed))
    resumes = settings.resume and (out / run_folder.CONFIG).exists()
    return replace(
        settings, seed=seed, seeds=None, out=str(out), test_only=evaluated, resume=resumes
    )


def _is_there(evaluated: str | None) -> bool:
    """Return whether the run to evaluate, if any, has finished: a seed may have diverged."""
    return not evaluated or (Path(evaluated) / run_folder.METRICS).exists()


def _finish(task: Task[Any, Any], settings: TrainSettings) -> bool:
    """Train or evaluate the run of a seed unless it has finished; return whether it has metrics."""
    place = f"seed {settings.seed}: {settings.out}"
    if _has_finished(settings):
        print(f"\n{place} has finished", flush=True)
        return True
    print(f"\n{place}", flush=True)
    keras.utils.clear_session()  # layers get the names that they have in a run of their own
    machine.begin(settings)
    try:
        trainer.run(task, settings)
    except NonFiniteError as error:
        print(f"seed {settings.seed}: {error}", file=sys.stderr)
        return False
    return True


def _has_finished(settings: TrainSettings) -> bool:
    """Return whether the run has metrics, and was made with these settings; data decide some that are None here."""
    folder = Path(settings.out or "")
    if not (folder / run_folder.METRICS).exists():
        return False
    made = deciding(training.parse(["--resume", "--out", str(folder)]))
    return all(
        made[name] == value for name, value in deciding(settings).items() if value is not None
    )


def _write(
    task: Task[Any, Any], folder: Path, settings: TrainSettings, finished: Sequence[TrainSettings]
) -> None:
    """Write and print the table, the metrics and the report of all runs.

    Raises:
        SourceError: Fewer than two runs have finished.
    """
    if len(finished) < 2:
        raise SourceError(
            f"{folder}: {len(finished)} of {settings.seeds} seeds finished; expected two or more, for their deviation."
        )
    metrics = {
        each.seed: run_folder.read_json(Path(each.out or "") / run_folder.METRICS)
        for each in finished
    }
    rows = table(metrics)
    run_folder.write_csv(folder / run_folder.SEEDS, rows)
    means = {row["metric"]: row["mean"] for row in rows}
    deviations = {row["metric"]: row["standard deviation"] for row in rows}
    about = {"mode": settings.mode, "seeds": list(metrics)}
    run_results.write_metrics(folder, settings, about | means | {"standard_deviation": deviations})
    _draw(task, folder, settings, finished)
    page = report.write_report(folder)
    print(f"\n{_text(rows)}\nrun folder: {folder}\nreport: {page}")


def _draw(
    task: Task[Any, Any], folder: Path, settings: TrainSettings, finished: Sequence[TrainSettings]
) -> None:
    """Draw the validation curves of all runs; runs that were only evaluated have none."""
    histories = {
        each.seed: run_folder.read_rows(Path(each.out or "") / run_folder.HISTORY)
        for each in finished
    }
    if all(histories.values()):
        figures.seed_curves(folder / "learning_curve.png", histories, *task.curve(settings))


def table(metrics: Mapping[int, Mapping[str, Any]]) -> list[Row]:
    """Return a row for each metric that is a finite float in all runs, with the standard deviation of a sample (n - 1).

    Args:
        metrics: Metrics of each run, by seed.
    """
    first, *others = metrics.values()
    names = [name for name in first if all(_is_measured(m.get(name)) for m in (first, *others))]
    return [_row(name, {seed: m[name] for seed, m in metrics.items()}) for name in names]


def _row(name: str, values: Mapping[int, float]) -> Row:
    numbers = list(values.values())
    return {
        "metric": name,
        **{f"seed {seed}": value for seed, value in values.items()},
        "mean": statistics.mean(numbers),
        "standard deviation": statistics.stdev(numbers),
    }


def _is_measured(value: Any) -> bool:
    """Return whether a value is a measurement; counts and bytes are integers."""
    return isinstance(value, float) and math.isfinite(value)


def _text(rows: Sequence[Row]) -> str:
    """Return the table as aligned text."""
    lines = [
        list(rows[0]),
        *([v if isinstance(v, str) else f"{v:.4f}" for v in row.values()] for row in rows),
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])])
        for line in lines
    )
