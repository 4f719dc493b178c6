"""Dice of the gigapixel U-Net on slides that it was not trained on, from finished run folders.

    python train.py --config recipes/gigapixel-fast.yaml --data SLIDES --out runs/fast --resume
    python -m tfbig_command evaluate runs/fast --data OTHERS --out runs/others
    python recipes/experiments/gigapixel_dice.py runs/fast runs/others [--plot benchmarks/gigapixel_dice.png]

Prints one JSON line for each folder of a training run or an evaluation: the settings, the epochs, the validation loss
and Dice, mean and standard deviation of Dice over the test slides, and Dice, precision and sensitivity of each.
`--plot` draws the learning curves of the training runs. SLIDES and OTHERS hold slides and `slides.csv`;
docs/measured.md says which slides were measured.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)

from benchmarks import report

KEPT = ("test_", "val_")
"""Starts of the names of metrics that a line has."""
SETTINGS = ("mode", "crop", "crops", "augment", "optimizer", "lr", "epsilon", "schedule", "seed")


def figures(run: Path) -> dict[str, Any]:
    """Return the figures of a finished run."""
    from tfbig.results import run_folder

    config, metrics = (
        run_folder.read_yaml(run / "config.yaml"),
        run_folder.read_json(run / "metrics.json"),
    )
    slides = {
        row["slide"]: {
            name: round(float(row[name]), 4) for name in ("dice", "precision", "sensitivity")
        }
        for row in csv.DictReader((run / "predictions.csv").read_text().splitlines())
    }
    means = {key: round(value, 4) for key, value in metrics.items() if key.startswith(KEPT)}
    trained = {"epochs": metrics["epochs"]} if "epochs" in metrics else {"evaluated": True}
    return {**{name: config[name] for name in SETTINGS}, **trained, **means, "slides": slides}


def steps_per_epoch(run: Path) -> int:
    """Return the steps of an epoch of a training run on batches of one, with a table of slides."""
    from tfbig.results import run_folder

    config = run_folder.read_yaml(run / "config.yaml")
    slides = csv.DictReader((run / "slides.csv").read_text().splitlines())
    whole = sum(row["split"] == "train" for row in slides)
    return whole if config["crop"] == "whole" else int(config["crops"])


def plot(path: Path, runs: Sequence[Path]) -> None:
    """Draw the validation Dice and loss of training runs over their steps."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.5), layout="constrained")
    for axes, name, label in zip(
        figure.subplots(1, 2),
        ("val_dice", "val_loss"),
        ("Dice", "binary cross-entropy"),
        strict=True,
    ):
        for run in runs:
            rows = list(csv.DictReader((run / "history.csv").read_text().splitlines()))
            steps = [int(row["epoch"]) * steps_per_epoch(run) for row in rows]
            axes.plot(steps, [float(row[name]) for row in rows], ".-", label=run.name)
        axes.set_xscale("log")
        axes.set_xlabel("step")
        axes.set_ylabel(f"{label}, validation slides")
        axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=100)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path, help="run folders")
    parser.add_argument("--plot", type=Path, help="PNG file of the learning curves")
    arguments = parser.parse_args()
    for run in arguments.runs:
        how = f"python recipes/experiments/gigapixel_dice.py {run.name}"
        print(report.line("gigapixel_dice", [], run=run.name, **figures(run), how=how))
    trained = [run for run in arguments.runs if (run / "history.csv").exists()]
    if arguments.plot and trained:
        plot(arguments.plot, trained)


if __name__ == "__main__":
    main()
