"""Bags of features with a planted signal, and tables of what is to be predicted of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from cli_runs import write_table

import train

WIDTH = 6
"""Features of an instance; the mean of the first is the signal."""
FLAGS = [
    *("--task", "mil", "--bags", "folder", "--encoder", "none", "--mode", "device"),
    *("--model", "mean", "--lr", "0.05", "--schedule", "constant", "--epochs", "5", "--quiet"),
]
"""A small run on features, without `--target`, `--data` and `--out`."""
SPLITS = ["train"] * 32 + ["val"] * 12 + ["test"] * 16


def rows_of(target: str, signal: np.ndarray, seed: int = 0) -> list[dict[str, Any]]:
    """Return the columns of a target, which a signal decides up to noise."""
    rng = np.random.default_rng(seed)
    if target == "survival":
        times = np.round(10 * np.exp(-2 * signal) * rng.gamma(4, 0.1, len(signal)) + 0.1, 2)
        ends = rng.exponential(60, len(signal)).round(2) + 0.5
        return [
            {"time": min(time, end), "event": int(time <= end)}
            for time, end in zip(times, ends, strict=True)
        ]
    if target == "regression":
        return [{"value": round(float(x), 4)} for x in 100 + 20 * signal]
    if target == "multilabel":
        labels = np.stack([signal > 0, signal < 0.3], 1).astype(int)
        rows = [{"label_up": int(up), "label_down": int(down)} for up, down in labels]
        for number in range(0, len(rows), 5):
            rows[number]["label_down"] = ""
        return rows
    return [{"label": "high" if x > 0 else "low"} for x in signal]


def write(folder: Path, target: str, slides: int = 1, splits: list[str] | None = None) -> Path:
    """Write bags of features and `bags.csv`, with a number of slides for each case; return the folder."""
    splits = SPLITS if splits is None else splits
    folder.mkdir(parents=True)
    rng = np.random.default_rng(1)
    signal = rng.normal(size=len(splits))
    lines = []
    for case, (split, row) in enumerate(zip(splits, rows_of(target, signal), strict=True)):
        for slide in range(slides):
            name = f"case{case}-{slide}.npy"
            features = rng.normal(size=(int(rng.integers(5, 12)), WIDTH))
            features[:, 0] += 2 * signal[case]
            np.save(folder / name, features.astype(np.float32))
            lines.append({"case_id": f"P{case}", "bag": name, **row, "split": split})
    write_table(folder / "bags.csv", lines)
    return folder


def run(data: Path, out: Path, target: str, *flags: str) -> Any:
    """Train on bags of `write`, and return the exit code."""
    return train.main([*FLAGS, "--target", target, "--data", str(data), "--out", str(out), *flags])
