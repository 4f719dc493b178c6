"""Start of `tfbig` and `train.py`: arguments are parsed before TensorFlow is imported.

Importing `tfbig` imports Keras and TensorFlow, which takes seconds; help and wrong flags need neither.
"""

from __future__ import annotations

import importlib.util
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

PACKAGE = "tfbig"


def main(argv: Sequence[str] | None = None, prog: str = PACKAGE) -> int:
    """Run a command line and return the exit code; 130 if Ctrl-C stops it while modules are imported.

    Args:
        argv: The command line; by default that of the process.
        prog: Name of the program in help and errors.
    """
    try:
        with unexecuted_package() as execute:
            from tfbig.cli.main import main as run

            return run(argv, prog, before_running=execute)
    except KeyboardInterrupt:  # later, `tfbig.system.signals` stops the work
        print(f"{prog}: stopped by SIGINT", file=sys.stderr)
        return 128 + signal.SIGINT


@contextmanager
def unexecuted_package() -> Iterator[Callable[[], None]]:
    """Make modules of `tfbig` importable without importing `tfbig` itself, in this context.

    Modules that need neither Keras nor TensorFlow can be imported in it before the function that it returns is called,
    which imports `tfbig` as usual. If that is not called, all of them are forgotten.
    """
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
        loader.exec_module(package)

    try:
        yield execute
    finally:
        if not executed:
            _forget()


def _forget() -> None:
    """Remove the package from the imported modules, so that it can be imported as usual."""
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]


if __name__ == "__main__":
    sys.exit(main())
