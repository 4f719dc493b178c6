"""Runs of several seeds and folds in one folder, with the mean, the deviation and an interval of each metric."""

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
from tfbig.cli.settings.series import Member, members
from tfbig.cli.settings.tasks import TrainSettings
from tfbig.cli.tasks import run_results, trainer
from tfbig.cli.tasks.task import Task
from tfbig.results import figures, judgement, report, run_folder, shown

T = TypeVar("T", bound=TrainSettings)
MAX_PRINTED = 5
"""Largest number of runs whose own values are printed; the table in the folder has all."""
Row = dict[str, Any]
"""A metric: its name, its value in each run, their mean and standard deviation, and an interval."""


def members_of(settings: TrainSettings) -> tuple[Member, ...]:
    """The runs that `--seeds` and `--folds` ask for, or those of the evaluated folder; empty for a single run."""
    if settings.test_only and (config := Path(settings.test_only) / run_folder.CONFIG).exists():
        return members(run_folder.read_yaml(config), str(config))
    return members(vars(settings))


def run(task: Task[Any], settings: TrainSettings, series: Sequence[Member]) -> int:
    """Train or evaluate the runs of a series, write their metrics in one table, and return the exit code.

    Runs that have finished are not made again. A run whose training diverges is reported, and the next one starts; any
    other error ends the command.

    Raises:
        SourceError: Fewer than two runs have finished, or one that is continued has lost its checkpoints.
    """
    if settings.dry_run:
        return trainer.run(task, _of_member(settings, Path(settings.out or ""), series[0]))
    settings = _of_series(settings, series)
    _check_checkpoints(settings, series)
    folder = open_run.open_run(settings)
    runs = {member: _of_member(settings, folder, member) for member in series}
    try:
        finished = {
            member: each
            for member, each in runs.items()
            if _is_there(each.test_only) and _finish(task, each, member)
        }
    finally:
        if not any((member.folder(folder) / run_folder.CONFIG).exists() for member in series):
            (folder / run_folder.CONFIG).unlink()  # nothing was begun: the folder can be used again
    _write(task, folder, settings, finished, len(series))
    codes = [splits.exit_code(Path(each.out or "")) for each in finished.values()]
    return max(codes) if len(finished) == len(runs) else 1


def _check_checkpoints(settings: TrainSettings, series: Sequence[Member]) -> None:
    """Check that all runs that will be continued have checkpoints, before the first is trained."""
    for member in series if settings.resume else ():
        each = _of_member(settings, Path(settings.out or ""), member)
        if each.resume and not _has_finished(each):
            open_run.check_folder(each)


def _of_series(settings: T, series: Sequence[Member]) -> T:
    """The settings that the folder of a series saves, from which its members can be told again."""
    seeds = sorted({member.seed for member in series})
    changed: dict[str, Any] = {"seed": seeds[0]}
    changed["seeds"] = len(seeds) if series[0].names_seed else None
    if series[0].fold is not None:
        changed |= {"folds": len({member.fold for member in series}), "fold": None}
    return replace(settings, **changed)


def _of_member(settings: T, folder: Path, member: Member) -> T:
    """The settings of a run of a series."""
    out = member.folder(folder)
    evaluated = settings.test_only and str(member.folder(settings.test_only))
    resumes = settings.resume and (out / run_folder.CONFIG).exists()
    changed: dict[str, Any] = {"seed": member.seed, "seeds": None, "out": str(out)}
    changed |= {"test_only": evaluated, "resume": resumes}
    changed |= {} if member.fold is None else {"fold": member.fold}
    return replace(settings, **changed)


def _is_there(evaluated: str | None) -> bool:
    """Tell whether the run to evaluate, if any, has finished; a diverged run has not."""
    return not evaluated or (Path(evaluated) / run_folder.METRICS).exists()


def _finish(task: Task[Any], settings: TrainSettings, member: Member) -> bool:
    """Train or evaluate a run unless it has finished; return whether it has metrics."""
    place = f"{member.name}: {settings.out}"
    if _has_finished(settings):
        print(f"\n{place} has finished", flush=True)
        return True
    print(f"\n{place}", flush=True)
    keras.utils.clear_session()  # layers get the names that they have in a run of their own
    machine.begin(settings)
    try:
        trainer.run(task, settings)
    except NonFiniteError as error:
        print(f"{member.name}: {error}", file=sys.stderr)
        return False
    return True


def _has_finished(settings: TrainSettings) -> bool:
    """Tell whether the run has metrics, and was made with these settings; data decide some that are None here."""
    folder = Path(settings.out or "")
    if not (folder / run_folder.METRICS).exists():
        return False
    made = deciding(training.parse(["--resume", "--out", str(folder)]))
    return all(
        made[name] == value for name, value in deciding(settings).items() if value is not None
    )


def _write(
    task: Task[Any],
    folder: Path,
    settings: TrainSettings,
    finished: Mapping[Member, TrainSettings],
    number: int,
) -> None:
    """Write and print the table, the metrics and the report of all runs.

    Raises:
        SourceError: Fewer than two runs have finished.
    """
    if len(finished) < 2:
        raise SourceError(
            f"{folder}: {len(finished)} of {number} runs finished; expected two or more, for their deviation."
        )
    places = {member: Path(each.out or "") for member, each in finished.items()}
    metrics = {member.name: _metrics(place) for member, place in places.items()}
    intervals = judgement.intervals([judgement.read(place) for place in places.values()])
    rows = table(metrics, intervals)
    run_folder.write_csv(folder / run_folder.RUNS, rows)
    about: dict[str, Any] = {"mode": settings.mode, "runs": list(metrics)}
    about |= _shared(run_folder.TESTED_ON, list(metrics.values()))
    means = {row["metric"]: row["mean"] for row in rows}
    deviations = {row["metric"]: row["standard deviation"] for row in rows}
    others = {"standard_deviation": deviations, "interval": intervals}
    run_results.write_metrics(folder, settings, about | means | others)
    _draw(task, folder, settings, places)
    page = report.write_report(folder, used=training.in_use)
    print(f"\n{_text(rows, list(metrics))}\nrun folder: {folder}\nreport: {page}")


def _metrics(folder: Path) -> dict[str, Any]:
    """Read the metrics of a run, without those that do not fit its classes."""
    classes = shown.class_names(run_folder.read_rows(folder / run_folder.PREDICTIONS))
    return shown.results(run_folder.read_json(folder / run_folder.METRICS), classes)


def _shared(name: str, metrics: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A metric by its name, if all runs have it with one value."""
    values = [each.get(name) for each in metrics]
    return (
        {name: values[0]}
        if values[0] is not None and values.count(values[0]) == len(values)
        else {}
    )


def _draw(
    task: Task[Any], folder: Path, settings: TrainSettings, places: Mapping[Member, Path]
) -> None:
    """Draw the validation curves of all runs; runs that were only evaluated have none."""
    histories = {
        member.name: run_folder.read_rows(place / run_folder.HISTORY)
        for member, place in places.items()
    }
    if all(histories.values()):
        figures.run_curves(folder / "learning_curve.png", histories, *task.curve(settings))


def table(
    metrics: Mapping[str, Mapping[str, Any]], intervals: Mapping[str, Sequence[float]] | None = None
) -> list[Row]:
    """A row for each metric that is a finite float in all runs, with the standard deviation of a sample (n - 1).

    `intervals` are the ends of the interval of the mean of a metric, for those that have one.

    The ends of the interval of a single run are left out: their mean is no end of an interval.
    """
    first, *others = metrics.values()
    names = [
        name
        for name in first
        if not name.endswith(judgement.INTERVAL_SUFFIXES)
        and all(_is_measured(m.get(name)) for m in (first, *others))
    ]
    ends = intervals or {}
    return [
        _row(name, {run: m[name] for run, m in metrics.items()}, ends.get(name, ("", "")))
        for name in names
    ]


def _row(name: str, values: Mapping[str, float], ends: Sequence[Any]) -> Row:
    numbers = list(values.values())
    return {
        "metric": name,
        "mean": statistics.mean(numbers),
        "standard deviation": statistics.stdev(numbers),
        "95 % from": ends[0],
        "to": ends[1],
        **values,
    }


def _is_measured(value: Any) -> bool:
    """Tell whether a value is a measurement; counts and bytes are integers."""
    return isinstance(value, float) and math.isfinite(value)


def _text(rows: Sequence[Row], runs: Sequence[str]) -> str:
    """Align the table as text, without the single runs if there are many."""
    left_out = runs if len(runs) > MAX_PRINTED else ()
    rows = [{name: v for name, v in row.items() if name not in left_out} for row in rows]
    lines = [
        list(rows[0]),
        *([v if isinstance(v, str) else f"{v:.4f}" for v in row.values()] for row in rows),
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])])
        for line in lines
    )
