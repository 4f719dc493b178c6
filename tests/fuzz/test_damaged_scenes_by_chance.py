"""Damaged scenes and labels are read or refused with a clear error in 2 GB and 20 s; none ends the interpreter."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import scene_mutations
from damaged_workers import damage_seeds, run_worker


@pytest.mark.slow
@pytest.mark.parametrize("seed", damage_seeds(0))
@pytest.mark.parametrize("suffix", scene_mutations.SUFFIXES)
def test_damaged_scenes(tmp_path: Path, suffix: str, seed: int) -> None:
    count = int(os.environ.get("TFBIG_FUZZ_COUNT", "200"))
    rng = np.random.default_rng(seed)
    (tmp_path / "seeds").mkdir()
    seeds = {path.suffix: path for path in scene_mutations.write_scene_seeds(tmp_path / "seeds")}
    paths = [
        scene_mutations.damaged_scene(seeds[suffix], tmp_path / f"{number:04}", rng)
        for number in range(count)
    ]
    outcomes = run_worker("damaged_scenes.py", paths)
    wrong = {
        Path(path).name: outcome
        for path, outcome in outcomes.items()
        if outcome not in ("read", "refused")
    }
    assert len(outcomes) == count
    assert not wrong, json.dumps(wrong, indent=1)
    assert list(outcomes.values()).count("refused") > count / 20
    assert list(outcomes.values()).count("read") > count / 20
