"""Console command `tfbig`; `tfbig COMMAND --help` describes each command."""

from __future__ import annotations

import importlib
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tfbig.cli import messages, paths
from tfbig.cli.settings import request
from tfbig.cli.settings.commands import COMMANDS
from tfbig.errors import SourceWarning, Stopped, TfbigError, one_line
from tfbig.system import signals


def main(
    argv: Sequence[str] | None = None,
    prog: str = "tfbig",
    run: Callable[[Any], int] | None = None,
) -> int:
    """Run a command line and return the exit code.

    Args:
        argv: The command line; by default that of the process.
        prog: Name of the program in help and errors.
        run: Function that runs the settings of the command, in place of its own.
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    is_command = not prog.endswith(".py") and argv[:1] and argv[0] in COMMANDS
    name = f"{prog} {argv[0]}" if is_command else prog
    try:
        requested = request.parse(argv, prog)
    except TfbigError as error:
        return _fail(name, error)
    _silence_readers()
    return _run(requested, name, run)


def _silence_readers() -> None:
    """Turn off logs and warnings of tifffile and Pillow on damaged and large files, which tfbig's errors describe."""
    logging.getLogger("tifffile").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", "Image size .* exceeds limit")


def _run(requested: request.Request, name: str, run: Callable[[Any], int] | None) -> int:
    """Import the module of a command, and run it, or another function."""
    from tfbig import backend  # noqa: F401  # the first name imports all: see `tfbig_command.light_imports`

    module = importlib.import_module(requested.command.module)
    with signals.on_signals(requested.command.on_signal), _warnings_in_one_line():
        try:
            code: int = (run or module.run)(requested.settings)
            return code
        except Stopped as stopped:
            print(f"{name}: {stopped}; {requested.command.after_signal}", file=sys.stderr)
            return signals.exit_code()
        except _expected_errors() as error:
            return _fail(name, error, requested.name)


@contextmanager
def _warnings_in_one_line() -> Iterator[None]:
    """Print each `SourceWarning` of a command once, as one line on the error output."""
    printed: set[str] = set()

    def show(message: Warning | str, category: type[Warning], *others: Any) -> None:
        if not issubclass(category, SourceWarning):
            others_shown(message, category, *others)
        elif (text := one_line(message)) not in printed:
            printed.add(text)
            print(f"warning: {text}", file=sys.stderr)

    with warnings.catch_warnings():
        others_shown: Any = warnings.showwarning
        warnings.simplefilter("always", SourceWarning)
        setattr(warnings, "showwarning", show)  # noqa: B010  # its type is that of one function
        yield


def _expected_errors() -> tuple[type[Exception], ...]:
    """The errors whose message is printed without a traceback; TensorFlow is imported by now."""
    of_tensorflow: type[Exception] = importlib.import_module("tensorflow").errors.OpError
    return TfbigError, OSError, ValueError, MemoryError, of_tensorflow


def _fail(name: str, error: Exception, command: str = "") -> int:
    """Print an error in one line, and return the exit code: 2 if a flag is wrong."""
    is_flag = isinstance(error, paths.FlagError)
    text = str(error) if is_flag else messages.in_flags(error, command)
    print(f"{name}: {one_line(text) or type(error).__name__}", file=sys.stderr)
    return 2 if is_flag else 1


if __name__ == "__main__":
    sys.exit(main())
