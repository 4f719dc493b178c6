"""Create or reopen a run folder, and lock it for one process."""

from __future__ import annotations

import atexit
import fcntl
import os
import shlex
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from tfbig import SourceError
from tfbig.cli import machine, paths
from tfbig.cli.settings.flag import to_save
from tfbig.cli.settings.series import members
from tfbig.cli.settings.tasks import TrainSettings
from tfbig.results import run_folder
from tfbig.system import output_folder

T = TypeVar("T", bound=TrainSettings)
RUNS = "runs"
"""Folder of runs without `--out`."""
_locked: list[int] = []
"""Descriptor of the locked folder."""


def check_folder(settings: TrainSettings) -> None:
    """Check that `--out` can become a new run, or has what `--resume` continues from; nothing is read or written.

    Raises:
        FlagError: `--out` is a file.
        FileExistsError: The folder holds a run, and `--resume` is not set.
        SourceError: The folder has results of training, but no checkpoint, or no record of its files.
    """
    if not settings.out:
        return
    if Path(settings.out).exists():
        paths.check_path(f"--out {settings.out}", settings.out, "folder")
    if _continues(settings):
        _check_record(Path(settings.out))
        run_folder.check_checkpoints(settings.out)
    else:
        run_folder.check_new(settings.out)


def with_done_epochs(settings: T) -> T:
    """Raise the number of epochs to those that a resumed run, or one of its series, has done."""
    if not _continues(settings):
        return settings
    folder = Path(settings.out or "")
    runs = [member.folder(folder) for member in members(vars(settings))] or [folder]
    return replace(settings, epochs=max(settings.epochs, *map(run_folder.epochs_done, runs)))


def open_run(settings: TrainSettings) -> Path:
    """Create or reopen the run folder, and write the settings into its `config.yaml`; only the chief worker keeps it.

    Raises:
        FileExistsError: The folder holds a run, and `--resume` is not set.
        SourceError: Another process trains in it, or its checkpoints cannot be identified.
    """
    if machine.is_chief():
        folder = _folder(settings)
    else:  # a temporary folder: what other workers write is deleted
        folder = Path(tempfile.mkdtemp(prefix="tfbig-worker-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _lock(folder)
    if settings.resume:
        _check_identity(folder)
        (folder / run_folder.METRICS).unlink(
            missing_ok=True
        )  # its presence means that the run has ended
    run_folder.write_yaml(folder / run_folder.CONFIG, to_save(settings))
    run_folder.write_versions(folder)
    machine.write_rates(folder)
    return folder


def close_run() -> None:
    """Unlock the run folder."""
    while _locked:
        os.close(_locked.pop())


def _continues(settings: TrainSettings) -> bool:
    """Tell whether the settings continue a run that exists."""
    return settings.resume and (Path(settings.out or "") / run_folder.CONFIG).exists()


def _folder(settings: TrainSettings) -> Path:
    """Create or claim the run folder; the default name is task, mode and time."""
    if _continues(settings):
        return output_folder.claim(settings.out or "")
    name = f"{settings.task}-{settings.mode}-{time.strftime('%Y%m%d-%H%M%S')}"
    return run_folder.create(settings.out or Path(RUNS) / name)


def _lock(folder: Path) -> None:
    """Lock the folder for this process, until `close_run`."""
    close_run()
    _locked.append(os.open(folder, os.O_RDONLY))
    try:
        fcntl.flock(_locked[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise SourceError(
            f"{folder}: another process trains in it. Wait for it, or use another --out."
        ) from error
    except OSError:
        pass  # a file system that cannot lock folders


def _check_record(folder: Path) -> None:
    """Check that a run to continue has the record of its files; a name alone does not show that a file is the run's.

    Raises:
        SourceError: It has none: it was made before there were records, or copied without hidden files.
    """
    if not output_folder.is_claimed(folder):
        name = output_folder.RECORD
        raise SourceError(
            f"{folder}: is a run folder without {name}, the record of what tfbig wrote there; expected one, as no "
            "other file is replaced. Copy the folder with its hidden files. If it never had one, and all files in it "
            f"are of the run: cd {shlex.quote(str(folder))} && find * | sed 's/.*/\"&\"/' > {name}"
        )


def _check_identity(folder: Path) -> None:
    """Check that `versions.json` names the run, if there are checkpoints."""
    checkpoints = folder / run_folder.CHECKPOINTS
    if any(checkpoints.rglob("step-*")) and "run" not in run_folder.read_json(
        folder / run_folder.VERSIONS
    ):
        raise SourceError(
            f"{folder / run_folder.VERSIONS}: no such file; it tells to which run the checkpoints belong. Put it "
            "back, or start again in another --out."
        )
