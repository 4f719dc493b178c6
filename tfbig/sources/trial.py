"""Another process that opens a file first: on some damaged files, C libraries end the process that they are in."""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import IO, Final

from tfbig.errors import SourceError, reason_of
from tfbig.sources.files import PathLike
from tfbig.sources.untrusted import regular_file

SECONDS: Final = 300
"""Longest time of a trial: disks in a network may be slow."""
PROGRAM: Final = Path(__file__).with_name("trial_program.py")


def check(kind: str, path: PathLike, text: str = "") -> None:
    """Raise SourceError if a library ends its process on a file, does not return, or may harm this process.

    `kind` is "hdf5", "keras", "openslide", "outlines", "raster" or "zarr"; a zarr array is a folder. `text` is what is
    opened in place of the file: the text of a VRT file.

    A file is tried once, and again when it has changed.

    Raises:
        SourceError: The process ended, or took more than `SECONDS`; HDF5 cannot read the file; or there is none.
    """
    status = os.stat(path) if os.path.isdir(path) else regular_file(path)
    known = _check_text if text else _check
    known(kind, os.fspath(path), text, status.st_size, status.st_mtime_ns)


def _try(kind: str, name: str, text: str, size: int, time_ns: int) -> None:
    # the absolute path, because this process may have changed its directory
    reason = _PROCESS.attempt(kind, text or os.path.abspath(name))
    if reason:
        raise SourceError(
            f"{name}: {reason_of(reason)} ({size} bytes). The file is damaged; copy or write it again."
        )


_check: Final = lru_cache(maxsize=2**14)(_try)
_check_text: Final = lru_cache(maxsize=16)(_try)
"""`_try` for texts, which are kept with their results and may be long."""


class _Process:
    """The other process, started when it is first needed, and again after a file has ended it or after a fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._child: subprocess.Popen[str] | None = None
        self._errors: IO[str] | None = None
        self._parent = 0

    def attempt(self, kind: str, name: str) -> str:
        """Open a file in the process, and return what is wrong; an empty string if nothing is."""
        with self._lock:
            child = self._started()
            assert child.stdin is not None and child.stdout is not None
            child.stdin.write(json.dumps([kind, name]) + "\n")
            child.stdin.flush()
            if not select.select([child.stdout], [], [], SECONDS)[0]:
                self.stop()
                return f"the library has not opened it in {SECONDS} s"
            if answer := child.stdout.readline():
                return str(json.loads(answer))
            reason = self._end(child.wait())
            self.stop()
            return reason

    def stop(self) -> None:
        """End the process."""
        if self._child is not None and self._errors is not None and self._parent == os.getpid():
            self._child.kill()
            with suppress(BrokenPipeError):
                self._child.__exit__(None, None, None)  # closes the pipes, and waits
            self._errors.close()
        self._child = self._errors = None

    def _started(self) -> subprocess.Popen[str]:
        if (
            self._child is not None
            and self._parent == os.getpid()
            and self._child.poll() is not None
        ):
            self.stop()  # somebody has ended it while it was waiting
        if self._child is None or self._parent != os.getpid():
            self._parent = os.getpid()
            self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
            command = [sys.executable, str(PROGRAM)]
            pipe = subprocess.PIPE
            self._child = subprocess.Popen(
                command,
                stdin=pipe,
                stdout=pipe,
                stderr=self._errors,
                text=True,
                env=os.environ | {"OPENBLAS_NUM_THREADS": "1"},  # each thread takes address space
            )
        return self._child

    def _end(self, code: int) -> str:
        """Say how the process ended."""
        assert self._errors is not None
        self._errors.seek(0)
        last = (self._errors.read().strip().splitlines() or ["no message"])[-1]
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        return f"the library ends its process with {how} on it ({last})"


_PROCESS: Final = _Process()
atexit.register(_PROCESS.stop)
