"""Start of `tfbig` and `train.py`: arguments are read before Keras and TensorFlow are imported, which takes seconds."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

is_light = False
"""Whether `import tfbig` leaves Keras and TensorFlow for later; read by `tfbig/__init__.py`."""


def main(argv: Sequence[str] | None = None, prog: str = "tfbig") -> int:
    """Run a command line and return the exit code; 130 if Ctrl-C stops it while modules are imported.

    Args:
        argv: The command line; by default that of the process.
        prog: Name of the program in help and errors.
    """
    try:
        with light_imports():
            from tfbig.cli.main import main as run
        return run(argv, prog)
    except KeyboardInterrupt:  # later, `tfbig.system.signals` stops the work
        print(f"{prog}: stopped by SIGINT", file=sys.stderr)
        return 128 + signal.SIGINT


@contextmanager
def light_imports() -> Iterator[None]:
    """Import modules of `tfbig` in this context without its names, which are imported when the first is used."""
    global is_light
    is_light = True
    try:
        yield
    finally:
        is_light = False


if __name__ == "__main__":
    import tfbig_command  # the module that `tfbig` imports, and not `__main__`

    sys.exit(tfbig_command.main())
