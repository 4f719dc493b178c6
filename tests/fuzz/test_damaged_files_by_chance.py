"""Damaged files are read or refused with a clear error in 2 GB and 20 s; none ends the interpreter."""

from __future__ import annotations

import json
from pathlib import Path

import mutations
import numpy as np
import pytest
from damaged_worker import run_worker


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
    outcomes = run_worker("damaged_files.py", paths)
    wrong = {
        Path(path).name: outcome
        for path, outcome in outcomes.items()
        if outcome not in ("read", "refused")
    }
    assert len(outcomes) == count
    assert not wrong, json.dumps(wrong, indent=1)
    assert list(outcomes.values()).count("refused") > count / 10
    assert list(outcomes.values()).count("read") > count / 10
