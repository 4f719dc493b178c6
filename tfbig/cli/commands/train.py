"""Train a network on slides, on bags of tiles, or on large images, or evaluate one."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from tfbig import SourceError
from tfbig.cli import load_model, machine, open_run, paths
from tfbig.cli.settings import training
from tfbig.cli.settings.tasks import TrainSettings
from tfbig.cli.tasks import run_series, trainer
from tfbig.results import run_folder
from tfbig.system import progress
from tfbig.tasks import TASKS, TaskDeclaration

T = TypeVar("T", bound=TrainSettings)


def run(settings: TrainSettings, declaration: TaskDeclaration | None = None) -> int:
    """Train or evaluate, and return the exit code; 3 if files were skipped.

    Args:
        settings: Settings of the run.
        declaration: What trains; by default the declaration of the task of the settings.
    """
    progress.show(False if settings.quiet else None)
    settings = open_run.with_done_epochs(settings)
    notices = training.resume_notices(settings)
    try:
        prepared = prepare(settings)
        with machine.chief_prints():
            for line in (*notices, *machine.replica_notice()):
                print(line)
            task = (declaration or TASKS[prepared.task]).new_trainer()
            if several := run_series.members_of(prepared):
                return run_series.run(task, prepared, several)
            return trainer.run(task, prepared)
    finally:
        open_run.close_run()


def prepare(settings: T) -> T:
    """Check and set what must be known before a device is used, and fill in the budget of this machine.

    Raises:
        SourceError: The run of `--beside` or `--test-only` has not ended, the run of `--resume` has lost its
            checkpoints, or a device of `--devices` does not exist.
        FlagError: A path does not exist or is of the wrong kind, or `--out` cannot be created.
        FileExistsError: `--out` holds a run, and neither `--resume` nor `--dry-run` is set.
        UnifiedMemoryError: `--mode unified` is not available.
    """
    if not settings.dry_run:
        open_run.check_folder(settings)
    paths.check(settings)
    if settings.test_only and not run_series.members_of(settings):
        load_model.check_file(Path(settings.test_only) / run_folder.MODEL)
    if settings.beside and not (Path(settings.beside) / run_folder.METRICS).exists():
        raise SourceError(
            f"--beside {settings.beside}: has no {run_folder.METRICS}; expected the folder of a finished run."
        )
    prepared = machine.prepare(settings)
    if machine.is_chief() and not settings.dry_run:
        if settings.out:
            paths.check_results(settings.out, paths.inputs_of(settings))
        else:
            paths.check_out(open_run.RUNS)
    return prepared
