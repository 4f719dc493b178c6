"""Logs that TensorFlow prints while it is loaded. They are about the machine; errors that matter are raised."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

LEVEL = "TF_CPP_MIN_LOG_LEVEL"
QUIET = {LEVEL: "3", "GRPC_VERBOSITY": "NONE"}
"""Variables of the environment that turn the logs of TensorFlow off; values that are set already win."""

LOG_LINE = re.compile(rb"([IWE])\d{4} [\d:.]+ +\d+ \S+\] |(W)ARNING: All log messages before absl")
"""A line of these logs, with its severity."""


@contextmanager
def held_back() -> Iterator[None]:
    """Hold back logs below `TF_CPP_MIN_LOG_LEVEL`, by default all of them, in this context and later.

    TensorFlow 2.21 ignores the variable while it is loaded, and its logs are printed by C++ code. So the file
    descriptor of standard error is replaced in this context; lines that are no logs are printed at its end. If
    TensorFlow is loaded already, nothing happens.
    """
    if "tensorflow" in sys.modules:
        yield
        return
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    with without_logs():
        yield


@contextmanager
def without_logs() -> Iterator[None]:
    """Print what is written to the file descriptor of standard error in this context at its end, without logs."""
    if sys.stderr is not None:
        sys.stderr.flush()
    try:
        terminal = os.dup(2)
    except OSError:  # closed, as in a service
        yield
        return
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            if sys.stderr is not None:
                sys.stderr.flush()
            os.dup2(terminal, 2)
            os.close(terminal)
            held.seek(0)
            os.write(2, b"".join(line for line in held if not _is_quiet(line)))


def _is_quiet(line: bytes) -> bool:
    """Return whether a line is a log below the level."""
    log = LOG_LINE.match(line)
    level = os.environ.get(LEVEL, "0")
    return log is not None and level.isdigit() and b"IWE".index(log[1] or log[2]) < int(level)
