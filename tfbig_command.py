"""Start of `tfbig` and `train.py`: arguments are parsed before TensorFlow is imported.

Importing `tfbig` imports Keras and TensorFlow, which takes seconds; help and wrong flags need neither.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Sequence

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "GRPC_VERBOSITY": "NONE"}
"""Settings of the logs of TensorFlow, which are about the machine; errors that matter are raised."""


def main(argv: Sequence[str] | None = None, prog: str = "tfbig") -> int:
    """Run a command line and return the exit code.

    Args:
        argv: The command line; by default that of the process.
        prog: Name of the program in help and errors.
    """
    execute = place_package()
    from tfbig.cli.main import main as run

    return run(argv, prog, before_running=execute)


def place_package() -> Callable[[], None]:
    """Make modules of `tfbig` importable without importing `tfbig` itself; return the function that does.

    Modules that need neither Keras nor TensorFlow can be imported before that function is called.
    """
    for name, level in QUIET.items():
        os.environ.setdefault(name, level)
    if "tfbig" in sys.modules:
        return lambda: None
    spec = importlib.util.find_spec("tfbig")
    assert spec is not None and spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules["tfbig"] = package
    loader = spec.loader
    return lambda: loader.exec_module(package)


if __name__ == "__main__":
    sys.exit(main())
