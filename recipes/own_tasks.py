"""Training by a task of one's own in place of one of `tfbig train`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tfbig.cli.commands import train
from tfbig.cli.main import main
from tfbig.tasks import TASKS


def train_with(name: str, task: type[Any], argv: Sequence[str] | None = None) -> int:
    """Run `tfbig train --task NAME` with another task, and return the exit code.

    Args:
        name: Name of the task whose flags are read.
        task: Class of the task.
        argv: The flags; by default those of the process.
    """
    own = replace(TASKS[name], trainer=f"{task.__module__}:{task.__qualname__}")
    words = ["train", "--task", name, *(sys.argv[1:] if argv is None else argv)]
    return main(words, run=partial(train.run, declaration=own))
