"""Start of `tfbig` and `train.py`: arguments are parsed before TensorFlow is imported.

Importing `tfbig` imports Keras and TensorFlow, which takes seconds; help and wrong flags need neither.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

PACKAGE = "tfbig"
LEVEL = "TF_CPP_MIN_LOG_LEVEL"
QUIET = {LEVEL: "3", "GRPC_VERBOSITY": "NONE"}
"""Settings of the logs of TensorFlow, which are about the machine; errors that matter are raised."""
LOG_LINE = re.compile(rb"([IWE])\d{4} [\d:.]+ +\d+ \S+\] |(W)ARNING: All log messages before absl")
"""A line of these logs, with its severity."""


def main(argv: Sequence[str] | None = None, prog: str = PACKAGE) -> int:
    """Run a command line and return the exit code.

    Args:
        argv: The command line; by default that of the process.
        prog: Name of the program in help and errors.
    """
    with unexecuted_package() as execute:
        from tfbig.cli.main import main as run

        return run(argv, prog, before_running=execute)


@contextmanager
def unexecuted_package() -> Iterator[Callable[[], None]]:
    """Make modules of `tfbig` importable without importing `tfbig` itself, in this context.

    Modules that need neither Keras nor TensorFlow can be imported in it before the function that it returns is called,
    which imports `tfbig` as usual. If that is not called, all of them are forgotten.
    """
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    if PACKAGE in sys.modules:
        yield lambda: None
        return
    spec = importlib.util.find_spec(PACKAGE)
    assert spec is not None and spec.loader is not None
    package, loader = importlib.util.module_from_spec(spec), spec.loader
    sys.modules[PACKAGE] = package
    executed = []

    def execute() -> None:
        executed.append(True)
        with logs_held_back():
            loader.exec_module(package)

    try:
        yield execute
    finally:
        if not executed:
            _forget()


@contextmanager
def logs_held_back() -> Iterator[None]:
    """Hold back lines of TensorFlow's logs below `TF_CPP_MIN_LOG_LEVEL`, which TensorFlow 2.21 ignores as it loads.

    They are printed by C++ code, so the file descriptor of standard error is replaced; other lines are printed at the
    end.
    """
    sys.stderr.flush()
    terminal = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(terminal, 2)
            os.close(terminal)
            held.seek(0)
            os.write(2, b"".join(line for line in held if not _is_quiet(line)))


def _is_quiet(line: bytes) -> bool:
    """Return whether a line is a log below the level."""
    log = LOG_LINE.match(line)
    level = os.environ[LEVEL]
    return log is not None and level.isdigit() and b"IWE".index(log[1] or log[2]) < int(level)


def _forget() -> None:
    """Remove the package from the imported modules, so that it can be imported as usual."""
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]


if __name__ == "__main__":
    sys.exit(main())
