"""The one trainer of all tasks: it reads, builds, plans, trains, evaluates and writes in this order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from tfbig.cli import machine, open_run
from tfbig.cli.data import splits
from tfbig.cli.settings.tasks import TrainSettings
from tfbig.cli.tasks import run_results
from tfbig.cli.tasks.task import Models, Plans, Task
from tfbig.results import figures, run_folder
from tfbig.tasks import TASKS
from tfbig.training.best_window import save_model

PLAN = "plan.txt"


def run(task: Task[Any], settings: TrainSettings) -> int:
    """Train or evaluate, and return the exit code."""
    settings = task.resolved(settings)
    data = task.load(settings)
    settings = replace(settings, **data.decided)
    splits.check_failed(data.failed, settings.strict)
    run_results.say_untested(data, TASKS[settings.task].items)
    with machine.scope():
        models = task.models(settings, data)
        plans = task.plans(models, settings, data)
    planned = _print_plans(settings, plans)
    if settings.dry_run:
        return 0

    folder = open_run.open_run(settings)
    splits.write_tables(data.table, data.failed, folder)
    measured: dict[str, Any] = {"mode": settings.mode}
    if settings.test_only:
        task.restore(models, Path(settings.test_only) / run_folder.MODEL)
    else:
        measured |= _fit_and_save(task, models, settings, data, folder, plans) | planned
        if not machine.is_chief():
            return splits.exit_code(folder)
        models = machine.without_strategy(models, lambda: _rebuilt(task, settings, data, folder))
    task.write_results(models, settings, data, folder, measured)
    splits.print_failed(folder)
    return splits.exit_code(folder)


def _print_plans(settings: TrainSettings, plans: Plans | None) -> dict[str, float]:
    """Print the plan of a training step, and return the planned memory, and the computed share if it is not all."""
    if plans is None:
        return {}
    print(f"\n{machine.in_words(settings, plans.training)}\n", flush=True)
    machine.warn_of_memory(settings, *plans)
    training = plans.training
    return machine.planned_bytes(*plans) | (
        {"planned_share": training.active} if training.active_tiles else {}
    )


def _fit_and_save(
    task: Task[Any],
    models: Models,
    settings: TrainSettings,
    data: Any,
    folder: Path,
    plans: Plans | None,
) -> dict[str, Any]:
    """Train, save the model and its learning curve, and return the measurements."""
    if plans is not None:
        run_folder.write_text(folder / PLAN, f"{machine.in_words(settings, plans.training)}\n")
    history = task.fit(models, settings, data, folder)
    _, peak = run_folder.memory_bytes()  # of training: pictures are not in the plan
    save_model(folder / run_folder.MODEL, models.twin)
    figures.learning_curve(folder / "learning_curve.png", history, *task.curve(settings))
    measured = {key: history[-1][key] for key in task.measured}
    return {"epochs": len(history), **measured, "peak_bytes": peak}


def _rebuilt(task: Task[Any], settings: TrainSettings, data: Any, folder: Path) -> Models:
    """Build models with the weights of the run."""
    models = task.models(settings, data)
    task.restore(models, folder / run_folder.MODEL)
    return models
