"""Images with dark spots, whose number decides what a table says of them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import target_bags
from cli_runs import without, write_table
from PIL import Image

import train

SIDE = 64
FLAGS = [
    *(
        "--task",
        "images",
        "--mode",
        "patchgd",
        "--images",
        "folder",
        "--encoder",
        "small",
        "--head",
        "abmil",
    ),
    *(
        "--patch",
        "32",
        "--latent",
        "8",
        "--head-width",
        "8",
        "--batch-size",
        "8",
        "--sampling",
        "4",
    ),
    *("--lr", "0.005", "--schedule", "constant", "--epochs", "10", "--quiet"),
]
"""A small run on images of `write`, without `--target`, `--mode`, `--data` and `--out`."""


def spots(rng: np.random.Generator, signal: float) -> np.ndarray:
    """Return a bright image `[64, 64, 3]` of which 5 to 45 % are dark squares, more for a higher signal."""
    share = 0.05 + 0.4 / (1 + np.exp(-2 * signal))
    dark = rng.uniform(size=(SIDE // 4, SIDE // 4)) < share
    image = np.where(np.kron(dark, np.ones((4, 4), bool)), 60, 200)[..., None]
    noisy = image + rng.normal(0, 10, (SIDE, SIDE, 3))
    return np.clip(noisy, 0, 255).astype(np.uint8)


def write(folder: Path, target: str, splits: list[str] | None = None) -> Path:
    """Write images and `images.csv`; return the folder."""
    splits = target_bags.SPLITS if splits is None else splits
    folder.mkdir(parents=True)
    rng = np.random.default_rng(1)
    signal = rng.normal(size=len(splits))
    lines = []
    for case, (split, row) in enumerate(
        zip(splits, target_bags.rows_of(target, signal), strict=True)
    ):
        name = f"case{case}.png"
        Image.fromarray(spots(rng, signal[case])).save(folder / name)
        lines.append({"case_id": f"P{case}", "image": name, **row, "split": split})
    write_table(folder / "images.csv", lines)
    return folder


def run(data: Path, out: Path, target: str, *flags: str) -> Any:
    """Train on images of `write`, and return the exit code; without patches in another mode than patchgd."""
    modes = [value for flag, value in pairwise(flags) if flag == "--mode"]
    other = bool(modes) and modes[-1] != "patchgd"
    usual = without(FLAGS, "--patch", "--sampling") if other else FLAGS
    return train.main([*usual, "--target", target, "--data", str(data), "--out", str(out), *flags])
