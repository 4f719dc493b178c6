"""Commands on damaged runs, tables and slides end with an exit code and a line, and change no file of the user."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import cli_runs
import numpy as np
import pytest
from damaged_workers import damage_seeds, run_worker
from samples import write_slide

CASES = 160
"""Damaged folders of each seed."""

SLIDES = ["--data", "data/slides.csv", *cli_runs.SLIDE_BAGS]
COMMANDS: list[list[str]] = [
    ["report", "run"],
    ["report", "bags"],
    ["evaluate", "run"],
    ["evaluate", "bags"],
    ["predict", "run", "data/slides", "--out", "out"],
    ["plan", "run", "256x256"],
    ["train", "--data", "data/slides", "--out", "run", *cli_runs.SEGMENTATION, "--resume"],
    ["train", *cli_runs.MIL, "--epochs", "2", "--out", "bags", "--resume"],
    ["train", *SLIDES, "--out", "out"],
    ["train", *SLIDES, "--out", "out", "--dry-run"],
    ["tile", "data", "--out", "out", "--tile", "16", "--mpp", "1.0"],
    ["compare", "bags", "bags2", "--out", "out"],
]
"""Commands, in a folder with the run `run` and its slides, the runs `bags` and `bags2`, and a table of slides."""

CELLS = ["", "nan", "-1", "1e400", "../x", "/etc/passwd", "a\nb", "\0", "=1+1", "é" * 300, "train"]
"""Values of a table."""


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data and runs, none of them damaged."""
    folder = tmp_path_factory.mktemp("seeds")
    cli_runs.write_cohort(folder / "data")
    for name in "abc":
        write_slide(folder / "data" / "slides" / f"{name}.tif", ord(name))
    with cli_runs.like_a_test(), pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name in ("bags", "bags2"):
            assert cli_runs.run_mil(Path(name), "--resume") == 0
        assert cli_runs.run_segmentation(Path("data/slides"), Path("run"), "--resume") == 0
    return folder


def damage(path: Path, rng: np.random.Generator) -> None:
    """Damage a file: delete, cut, empty, replace, or change bytes, words or cells."""
    content = path.read_bytes()
    kind = rng.integers(8)
    if kind == 0:
        path.unlink()
    elif kind == 1:
        path.unlink()
        path.mkdir()
    elif kind == 2:
        path.write_bytes(content[: rng.integers(len(content) + 1)])
    elif kind == 3:
        path.write_bytes(bytes(rng.integers(0, 256, rng.integers(2000), np.uint8)))
    elif kind <= 5 or not _is_text(content):
        changed = np.frombuffer(content, np.uint8).copy()
        for place in rng.integers(0, max(len(changed), 1), rng.integers(1, 4)):
            changed[place : place + 1] = rng.integers(256)
        path.write_bytes(changed.tobytes())
    else:
        path.write_text(_changed_text(content.decode(), path.suffix, rng))


def _is_text(content: bytes) -> bool:
    try:
        return len(content) > 0 and content.decode().isprintable() is not None
    except UnicodeDecodeError:
        return False


def _changed_text(text: str, suffix: str, rng: np.random.Generator) -> str:
    """Return a text with another cell, word or order of lines."""
    lines = text.splitlines()
    number = int(rng.integers(len(lines))) if lines else 0
    separator = "," if suffix == ".csv" else " "
    kind = rng.integers(4) if lines else 0
    if kind == 0:
        return text + text
    if kind == 1:
        return "\n".join(lines[:number] + lines[number + 1 :])
    cells: list[Any] = lines[number].split(separator)
    cells[rng.integers(len(cells))] = CELLS[rng.integers(len(CELLS))]
    lines[number] = separator.join(cells)
    return "\n".join(lines)


@pytest.mark.slow
@pytest.mark.parametrize("seed", damage_seeds(1, 2))
def test_commands_on_damaged_folders(seed: int, seeds: Path, tmp_path: Path) -> None:
    rng, folders = np.random.default_rng(seed), []
    for number in range(CASES):
        command = COMMANDS[number % len(COMMANDS)]
        folder = tmp_path / f"{number:03}-{command[0]}"
        shutil.copytree(seeds, folder)
        names = [name for name in ("run", "bags", "data") if any(name in word for word in command)]
        files = [p for name in names for p in sorted((folder / name).rglob("*")) if p.is_file()]
        for place in rng.choice(len(files), rng.integers(1, 4), replace=False):
            damage(files[place], rng)
        (folder / "command.json").write_text(json.dumps(command))
        folders.append(folder)
    outcomes = run_worker("damaged_commands.py", folders)
    wrong = {Path(p).name: o for p, o in outcomes.items() if o not in ("read", "refused")}
    assert not wrong, json.dumps(wrong, indent=1)
    assert len(outcomes) == len(folders)
    for outcome in ("read", "refused"):
        assert list(outcomes.values()).count(outcome) > 0.1 * len(folders)
