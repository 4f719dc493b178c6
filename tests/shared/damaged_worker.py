"""A process that reads damaged files, and is started again after one that ends it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from samples import ENVIRONMENT, PROGRAMS

SECONDS = 20
"""Time limit of a file; most take milliseconds."""


def run_worker(program: str, paths: list[Path]) -> dict[str, str]:
    """Read files in a separate process, which is restarted after a file that crashes it; return the outcomes.

    Args:
        program: Name of the program in `tests/programs`.
        paths: The files.
    """
    outcomes: dict[str, str] = {}
    waiting = list(paths)
    while waiting:
        command = [sys.executable, str(PROGRAMS / program), str(SECONDS)]
        done = subprocess.run(
            [*command, *map(str, waiting)],
            env=ENVIRONMENT,
            capture_output=True,
            text=True,
            timeout=60 + SECONDS * len(waiting),
            check=False,
        )
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        for line in lines:
            outcomes |= line
        if len(lines) == len(waiting):
            break
        reason = f"the interpreter ended with {done.returncode}: {done.stderr[-300:]}"
        outcomes[str(waiting[len(lines)])] = reason
        waiting = waiting[len(lines) + 1 :]
    return outcomes
