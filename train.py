"""Train a model from the command line; the same as `tfbig train`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import tfbig_command

if TYPE_CHECKING:
    from tfbig.cli.settings.tasks import TrainSettings

PROGRAM = "train.py"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code; 3 if files were skipped."""
    flags = sys.argv[1:] if argv is None else argv
    return tfbig_command.main(["train", *flags], PROGRAM)


def settings_of(argv: Sequence[str]) -> TrainSettings:
    """Return the settings of a command line.

    Args:
        argv: The command line.
    """
    from tfbig.cli.settings import training

    return training.parse(argv, PROGRAM)


if __name__ == "__main__":
    sys.exit(main())
