"""The folder of a run: made or found again, and kept for one process."""

import atexit
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

from tfbig import SourceError
from tfbig.cli import machine
from tfbig.cli.settings import to_save
from tfbig.results import run_folder

_claimed: list[int] = []
"""The descriptor of the folder, by which other processes are kept away."""


def open_run(settings):
    """The run folder, with the settings in its `config.yaml`; `--config` takes them back. The chief makes it.

    Raises:
        FileExistsError: it holds a run, and `--resume` is not set.
        SourceError: another process trains in it, or its checkpoints cannot be known.
    """
    if machine.is_chief():
        folder = _folder(settings)
    else:  # what the others write is thrown away
        folder = Path(tempfile.mkdtemp(prefix="tfbig-worker-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _claim(folder)
    if settings.resume:
        _check_identity(folder)
        (folder / run_folder.METRICS).unlink(missing_ok=True)  # it says that a run has ended
    run_folder.write_yaml(folder / run_folder.CONFIG, to_save(settings))
    run_folder.write_versions(folder)
    machine.write_rates(folder)
    return folder


def close_run():
    """Others may have the folder of the run."""
    while _claimed:
        os.close(_claimed.pop())


def _folder(settings):
    """The run folder, by default named after task, mode and time."""
    if settings.resume and (Path(settings.out) / run_folder.CONFIG).exists():
        return Path(settings.out)
    name = f"{settings.task}-{settings.mode}-{time.strftime('%Y%m%d-%H%M%S')}"
    return run_folder.create(settings.out or Path("runs") / name)


def _claim(folder):
    """Keeps the folder for this process, until `close_run`."""
    close_run()
    _claimed.append(os.open(folder, os.O_RDONLY))
    try:
        fcntl.flock(_claimed[0], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise SourceError(
            f"{folder}: another process trains in it. Wait for it, or give another --out."
        ) from error
    except OSError:
        pass  # a file system without locks of folders


def _check_identity(folder):
    """That something says of which run checkpoints are, if there are some."""
    checkpoints = folder / run_folder.CHECKPOINTS
    if any(checkpoints.rglob("step-*")) and "run" not in run_folder.read_json(
        folder / run_folder.VERSIONS
    ):
        raise SourceError(
            f"{folder / run_folder.VERSIONS}: is not there, by which the run knows its checkpoints. Put it back, or "
            "start again in another --out."
        )
