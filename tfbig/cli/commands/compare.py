"""Compare finished runs on the cases that they tested: means, confidence intervals, and differences from the first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tfbig.cli.data import side_tables
from tfbig.cli.settings import training
from tfbig.cli.settings.commands import CompareSettings
from tfbig.cli.settings.series import members
from tfbig.errors import SourceError
from tfbig.results import figures, judgement, report, run_folder
from tfbig.results.judgement import ScoredPredictions

SETTINGS = "compare.yaml"
NAMES = {
    "test_accuracy": "accuracy",
    "test_qwk": "quadratic weighted kappa",
    "test_auc": "AUC",
    "test_mae": "mean absolute error",
    "test_rmse": "root mean squared error",
    "test_r2": "R2",
}


def run(settings: CompareSettings) -> int:
    """Write the table, the picture and the report of the comparison, and return the exit code.

    Raises:
        SourceError: A folder holds no finished run, or the runs share no metric.
        FileExistsError: The folder for the results holds others.
    """
    if len(settings.runs) < 2:
        raise SourceError(
            f"there is one run, {settings.runs[0]}; expected two or more. Name another."
        )
    judged = {Path(run).resolve(): judged_runs(Path(run)) for run in settings.runs}
    if len(judged) < len(settings.runs):
        raise SourceError("a run is named twice. Name each once.")
    _say_other_cases({path.name: runs for path, runs in judged.items()})
    rows = table({path.name: runs for path, runs in judged.items()})
    folder = run_folder.create(settings.out)
    run_folder.write_yaml(folder / SETTINGS, {"runs": [str(path) for path in judged]})
    run_folder.write_csv(folder / run_folder.COMPARISON, rows)
    figures.intervals(folder / "comparison.png", rows)
    print(f"{text(rows)}\nreport: {report.write_report(folder, used=training.in_use)}")
    return 0


def judged_runs(folder: Path) -> list[ScoredPredictions]:
    """Read the predictions of a run, or of each run of a series that has finished.

    Raises:
        SourceError: None has finished, or it made no predictions with labels.
    """
    if not (folder / run_folder.CONFIG).exists():
        raise SourceError(
            f"{folder}: is not a run folder of train or evaluate; expected one with {run_folder.CONFIG}."
        )
    config = folder / run_folder.CONFIG
    series = members(run_folder.read_yaml(config), str(config))
    places = [member.folder(folder) for member in series] or [folder]
    finished = [place for place in places if (place / run_folder.METRICS).exists()]
    if not finished:
        raise SourceError(
            f"{folder}: no run has finished. Continue it with --resume --out {folder}."
        )
    judged = [judgement.read(place) for place in finished]
    if not all(run.measures for run in judged):
        raise SourceError(
            f"{folder}: {run_folder.PREDICTIONS} has no predictions beside labels; expected a run that was tested."
        )
    return judged


def _say_other_cases(runs: dict[str, list[ScoredPredictions]]) -> None:
    """Say which cases of a run or series the first one did not test: these are not compared in pairs."""
    cases = {
        name: dict.fromkeys(case for run in each for case in run.cases)
        for name, each in runs.items()
    }
    (first, tested), *others = cases.items()
    for name, own in others:
        missing = [case for case in own if case not in tested]
        free = [case for case in tested if case not in own]
        side_tables.say_unmatched(name, missing, len(own), free, f"no case that {first} tested")


def table(runs: dict[str, list[ScoredPredictions]]) -> list[dict[str, Any]]:
    """A row for each metric and run: its mean, its interval, and its difference from the first run.

    Raises:
        SourceError: The runs share no metric.
    """
    first, *_ = runs.values()
    points = {name: judgement.means(each) for name, each in runs.items()}
    ends = {name: judgement.intervals(each) for name, each in runs.items()}
    apart = {name: judgement.differences(first, each) for name, each in runs.items()}
    shared = [m for m in judgement.means(first) if all(m in found for found in points.values())]
    if not shared:
        raise SourceError(
            "the runs have no metric in common; expected runs of one task, with labels."
        )
    return [
        {
            "metric": NAMES.get(metric, metric.removeprefix("test_")),
            "run": name,
            "runs": len(each),
            "cases": len({case for run in each for case in run.cases}),
            "mean": points[name][metric],
            **dict(zip(("95 % from", "to"), ends[name][metric], strict=True)),
            **_difference(None if each is first else apart[name][metric]),
        }
        for metric in shared
        for name, each in runs.items()
    ]


def _difference(values: tuple[float, float, float] | None) -> dict[str, Any]:
    names = ("difference", "difference from", "difference to")
    return dict(zip(names, values or ("", "", ""), strict=True))


def text(rows: list[dict[str, Any]]) -> str:
    """Write a line for each row of the table."""
    lines = []
    for row in rows:
        line = f"{row['metric']:26} {row['run']}: {row['mean']:.4f} ({row['95 % from']:.4f} to {row['to']:.4f})"
        if row["difference"] != "":
            line += f"; {row['difference']:+.4f} ({row['difference from']:+.4f} to {row['difference to']:+.4f})"
        lines.append(line)
    return "\n".join(lines)
