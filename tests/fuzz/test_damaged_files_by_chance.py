"""Damaged files are read or refused with a clear error in 2 GB and 20 s; none ends the interpreter."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import mutations
import numpy as np
import pytest
import volume_mutations
from damaged_workers import damage_seeds, run_worker

PROGRAM = "damaged_files.py"


@pytest.mark.slow
@pytest.mark.parametrize("seed", damage_seeds(0))
@pytest.mark.parametrize("count", [42, 2000])
def test_damaged_files(tmp_path: Path, count: int, seed: int) -> None:
    (tmp_path / "seeds").mkdir()
    (tmp_path / "files").mkdir()
    seeds = mutations.write_seeds(tmp_path / "seeds")
    rng = np.random.default_rng([count, seed])
    paths = []
    for number in range(count):
        whole = seeds[number % len(seeds)]
        paths.append(tmp_path / "files" / f"{number:04}-{whole.name}")
        mutations.damaged(whole, paths[-1], rng)
    outcomes = run_worker(PROGRAM, paths)
    check(outcomes)
    assert len(outcomes) == count
    assert list(outcomes.values()).count("refused") > count / 10
    assert list(outcomes.values()).count("read") > count / 10


def check(outcomes: dict[str, str], allowed: tuple[str, ...] = ("read", "refused")) -> None:
    """Check that every outcome is allowed."""
    wrong = {Path(p).name: outcome for p, outcome in outcomes.items() if outcome not in allowed}
    assert not wrong, json.dumps(wrong, indent=1)


def damaged_volumes(
    folder: Path, kinds: tuple[str, ...], count: int, seed: int, damage: Callable[..., None]
) -> list[Path]:
    """Write damaged copies of volumes, and beside flipped ones their voxels; return the paths of the copies.

    Args:
        folder: Folder for seeds and copies.
        kinds: Names of the seeds.
        count: Copies of each.
        seed: Seed of the damage.
        damage: Function from a file, its copy and random numbers.
    """
    seeds, target = folder / "seeds", folder / "volumes"
    seeds.mkdir()
    target.mkdir()
    volume_mutations.write_seeds(seeds)
    rng, paths = np.random.default_rng(seed), []
    for number in range(count * len(kinds)):
        kind = kinds[number % len(kinds)]
        paths.append(target / f"{number:04}-{kind}")
        damage(seeds / kind, paths[-1], rng)
        if damage is volume_mutations.flipped:
            shutil.copy(seeds / volume_mutations.EXPECTED, paths[-1].with_suffix(".npy"))
    return paths


@pytest.mark.slow
@pytest.mark.parametrize("seed", damage_seeds(1, 2))
def test_damaged_volumes(seed: int, tmp_path: Path) -> None:
    kinds, damage = volume_mutations.KINDS, volume_mutations.damaged
    paths = damaged_volumes(tmp_path, kinds, 200, seed, damage)
    outcomes = run_worker(PROGRAM, paths)
    check(outcomes)
    assert len(outcomes) == len(paths)
    for outcome in ("read", "refused"):
        assert list(outcomes.values()).count(outcome) > 0.1 * len(paths)


@pytest.mark.slow
@pytest.mark.parametrize("seed", damage_seeds(1, 2))
def test_one_changed_byte_of_compressed_volumes(seed: int, tmp_path: Path) -> None:
    kinds, damage = volume_mutations.COMPRESSED, volume_mutations.flipped
    paths = damaged_volumes(tmp_path, kinds, 300, seed, damage)
    outcomes = run_worker(PROGRAM, paths)
    check(outcomes)
    assert len(outcomes) == len(paths)
    assert list(outcomes.values()).count("refused") > 0.9 * len(paths)


@pytest.mark.slow
def test_volumes_that_hold_gigabytes_of_zeros(tmp_path: Path) -> None:
    (tmp_path / "volumes").mkdir()
    volume_mutations.bombs(tmp_path / "volumes")
    check(run_worker(PROGRAM, sorted((tmp_path / "volumes").iterdir())), ("refused",))
