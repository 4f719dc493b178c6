"""Other processes that read damaged files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from samples import ENVIRONMENT, PROGRAMS

SECONDS = 20
"""Time limit of a file; most take milliseconds."""


def damage_seeds(*default: int) -> list[int]:
    """Seeds of the damage: those of `TFBIG_FUZZ_SEED`, such as "21 22", or the default."""
    return [int(seed) for seed in os.environ.get("TFBIG_FUZZ_SEED", "").split()] or list(default)


def run_worker(program: str, paths: list[Path]) -> dict[str, str]:
    """Read files in a separate process, which is restarted after a file that crashes it; return the outcomes."""
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
