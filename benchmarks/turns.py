"""Processes that share a GPU: they trace at the same time, and measure in turn, while the others are stopped."""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def join(folder: Path | None) -> None:
    """Let processes of this folder stop this one while they measure; None for a process that shares nothing."""
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / str(os.getpid())).touch()


@contextmanager
def alone(folder: Path | None) -> Iterator[None]:
    """Wait until no other process of the folder measures, and stop the others until the end."""
    if folder is None:
        yield
        return
    with (folder / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            _send(folder, signal.SIGSTOP)
            yield
        finally:
            _send(folder, signal.SIGCONT)


def _send(folder: Path, what: signal.Signals) -> None:
    """Send a signal to the other processes that have joined and still run."""
    for file in folder.glob("[0-9]*"):
        if file.name != str(os.getpid()):
            with suppress(ProcessLookupError):
                os.kill(int(file.name), what)
