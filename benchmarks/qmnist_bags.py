"""Train on QMNIST-bags end to end: accuracy on held-out bags, and whether attention finds the keys.

    python benchmarks/qmnist_bags.py --data FOLDER [--seeds 3]

FOLDER is that of `python -m tfbig.recipes.write_qmnist_bags FOLDER --data IDX --bags 300 60 120 --instances 100
--tile 28`.
Trains `recipes/qmnist-bags-small.yaml` once per seed. Writes `qmnist_bags.png` (validation by epoch, attention over the
digits of a test bag) and prints one JSON line.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
HERE = Path(__file__).resolve().parent
sys.path[0] = str(HERE.parent)

from benchmarks import report

FIGURES = ("test_accuracy", "test_auc", "test_instance_auc")
RECIPE = HERE.parent / "recipes" / "qmnist-bags-small.yaml"


def train(data, seed, out):
    """Return the metrics of a run and the seconds that it took."""
    import train

    start = time.monotonic()
    flags = ["--config", str(RECIPE), "--data", data, "--seed", str(seed), "--out", str(out)]
    if train.main(flags):
        raise SystemExit(f"seed {seed}: the run failed")
    seconds = time.monotonic() - start
    return json.loads((out / "metrics.json").read_text()) | {"seconds": seconds}


def draw(runs, path):
    """Plot the validation of every run by epoch, and the attention of the first run."""
    from matplotlib.figure import Figure
    from matplotlib.image import imread

    figure = Figure(figsize=(9, 4), layout="constrained")
    curves, attention = figure.subplots(1, 2, width_ratios=(1, 1.4))
    for seed, run in enumerate(runs):
        rows = list(csv.DictReader((run / "history.csv").read_text().splitlines()))
        accuracy = [float(row["val_accuracy"]) for row in rows]
        curves.plot(range(1, len(rows) + 1), accuracy, label=f"seed {seed}")
    curves.set(xlabel="epoch", ylabel="accuracy on validation bags", ylim=(0.4, 1.02))
    curves.grid(alpha=0.3)
    curves.legend()
    attention.imshow(imread(runs[0] / "attention_0.png"))
    attention.set_axis_off()
    figure.savefig(path, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", default=str(HERE / "qmnist_bags.png"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = [Path(folder) / str(seed) for seed in range(arguments.seeds)]
        figures_of_runs = [train(arguments.data, seed, run) for seed, run in enumerate(runs)]
        draw(runs, arguments.out)
    spread = {
        key: {
            "mean": statistics.mean(run[key] for run in figures_of_runs),
            "std": statistics.pstdev(run[key] for run in figures_of_runs),
        }
        for key in (*FIGURES, "seconds")
    }
    print(report.line("qmnist_bags", [100, 28, 28, 1], seeds=arguments.seeds, **spread))


if __name__ == "__main__":
    main()
