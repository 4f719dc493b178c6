"""Damaged files are read or refused with a clear error in 2 GB and 20 s; none ends the interpreter."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import mutations
import numpy as np
import pytest
from samples import ENVIRONMENT, PROGRAMS

SECONDS = 20
"""Time limit of a file; most take milliseconds."""


def run_worker(paths: list[Path]) -> dict[str, str]:
    """Read files in a separate process, which is restarted after a file that crashes it; return the outcomes."""
    outcomes: dict[str, str] = {}
    waiting = list(paths)
    while waiting:
        program = [sys.executable, str(PROGRAMS / "damaged_files.py"), str(SECONDS)]
        done = subprocess.run(
            [*program, *map(str, waiting)],
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


@pytest.mark.slow
@pytest.mark.parametrize("count", [42, pytest.param(2000, marks=pytest.mark.slow)])
def test_damaged_files(tmp_path: Path, count: int) -> None:
    (tmp_path / "seeds").mkdir()
    (tmp_path / "files").mkdir()
    seeds = mutations.write_seeds(tmp_path / "seeds")
    rng = np.random.default_rng(count)
    paths = []
    for number in range(count):
        seed = seeds[number % len(seeds)]
        paths.append(tmp_path / "files" / f"{number:04}-{seed.name}")
        mutations.damaged(seed, paths[-1], rng)
    outcomes = run_worker(paths)
    wrong = {
        Path(path).name: outcome
        for path, outcome in outcomes.items()
        if outcome not in ("read", "refused")
    }
    assert len(outcomes) == count
    assert not wrong, json.dumps(wrong, indent=1)
    assert list(outcomes.values()).count("refused") > count / 10
    assert list(outcomes.values()).count("read") > count / 10
