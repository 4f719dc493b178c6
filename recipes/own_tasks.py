"""Training by a task of one's own in place of one of `tfbig train`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from tfbig.cli.commands import train
from tfbig.cli.main import main


def train_with(name: str, task: Any, argv: Sequence[str] | None = None) -> int:
    """Run `tfbig train --task NAME` with another task, and return the exit code.

    Args:
        name: Name of the task whose flags are read.
        task: The task.
        argv: The flags; by default those of the process.
    """
    usual = train.TASKS[name]
    train.TASKS[name] = task
    try:
        return main(["train", "--task", name, *(sys.argv[1:] if argv is None else argv)])
    finally:
        train.TASKS[name] = usual
