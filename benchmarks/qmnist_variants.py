"""Compare accumulation with sampling on QMNIST-bags: accuracy and instance AUC (the second figure of ABMIL-ACC).

    python benchmarks/qmnist_variants.py --data FOLDER --runs FOLDER [--seeds 3 --epochs 10]
    python benchmarks/qmnist_variants.py --draw benchmarks/results.jsonl

FOLDER is that of `python -m tfbig.recipes.write_qmnist_bags FOLDER --data IDX --instances 100 --share 0.1 --tile 28`.

ABMIL-ACC trains on whole bags, 3, 25, 50 or 100 % of a bag at once; ABMIL-SAMPL trains on 3, 25 or 50 % of a bag, drawn
anew each epoch. Each is tested on whole bags, and on 3 and 25 % of a bag, ten times. Every seed has new bags and
weights. The scale is that of two cores: 100 bags to train on, 30 to validate on and 60 to test on as in the paper, but
of 100 digits of 28 x 28, 10 of them keys (paper: 500 of 84 x 84, 25 keys), LeNet (ResNet-18), and 10 epochs at 5e-4
with a cosine (300 at 5e-5). LeNet has no BatchNormalization, so the share at once changes rounding only.

Runs stay in `--runs`; the same command continues with those that have not finished. Prints one JSON line for each way
to train. The second command writes `qmnist_variants.png` from the last line of each.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
HERE = Path(__file__).resolve().parent
sys.path[0] = str(HERE.parent)

from benchmarks import report

FIGURES = {"test_accuracy": "accuracy", "test_instance_auc": "instance AUC"}
TRAINED = {
    "ABMIL-ACC-100%": ("--instances-at-once", "100"),
    "ABMIL-SAMPL-3%": ("--instances-at-once", "100", "--sample", "0.03"),
    "ABMIL-SAMPL-25%": ("--instances-at-once", "100", "--sample", "0.25"),
    "ABMIL-SAMPL-50%": ("--instances-at-once", "100", "--sample", "0.5"),
    "ABMIL-ACC-50%": ("--instances-at-once", "50"),
    "ABMIL-ACC-25%": ("--instances-at-once", "25"),
    "ABMIL-ACC-3%": ("--instances-at-once", "3"),
}
"""Flags of each way to train; the slowest is last."""
TESTED = {
    "100%": (),
    **{f"{n}%": ("--eval-sample", str(n / 100), "--eval-repeats", "10") for n in (3, 25)},
}
"""Flags of each way to test."""
RECIPE = HERE.parent / "recipes" / "qmnist-bags-small.yaml"
CASE = "qmnist_variants"
SCALE = ("--accumulate", "1")


def train(arguments, name):
    """Train one way with all seeds, or continue; return the folder."""
    import train

    out = Path(arguments.runs) / name
    flags = ["--config", str(RECIPE), "--data", arguments.data, "--seeds", str(arguments.seeds)]
    flags += ["--epochs", str(arguments.epochs), *SCALE, *TRAINED[name]]
    if train.main([*flags, "--out", str(out), "--resume"]):
        raise SystemExit(f"{name}: a run failed")
    return out


def tests(run, asked):
    """Return the figures of all seeds by way to test: those that are asked for, and those in the folder."""
    ways = [name for name in TESTED if name in asked or (run / f"test-{name}").exists()]
    return {name: spread(test(run, name)) for name in ways}


def test(run, name):
    """Return the metrics of all seeds, tested one way."""
    from tfbig.cli.main import main

    if name == "100%":
        return json.loads((run / "metrics.json").read_text())
    out = run / f"test-{name}"
    flags = [*TESTED[name], "--instances-at-once", "100", "--out", str(out)]
    if not (out / "metrics.json").exists() and main(["evaluate", str(run), *flags]):
        raise SystemExit(f"{run.name} tested on {name}: a run failed")
    return json.loads((out / "metrics.json").read_text())


def spread(metrics):
    """Return mean and standard deviation of the figures."""
    deviations = metrics["standard_deviation"]
    return {key: {"mean": metrics[key], "std": deviations[key]} for key in FIGURES}


def draw(results, path):
    """Plot each figure as bars: a group for each way to train, a bar for each way to test."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 6), layout="constrained")
    for axes, (key, label) in zip(figure.subplots(2, 1, sharex=True), FIGURES.items(), strict=True):
        for number, tested in enumerate(TESTED):
            there = [place for place, name in enumerate(results) if tested in results[name]]
            values = [list(results.values())[place][tested][key] for place in there]
            places = [place + 0.25 * (number - 1) for place in there]
            heights, errors = ([value[part] for value in values] for part in ("mean", "std"))
            axes.bar(places, heights, 0.25, yerr=errors, capsize=2, label=f"tested on {tested}")
        axes.set(ylabel=label, ylim=(0.4, 1.05), xlim=(-0.5, len(results) - 0.5))
        axes.set_xticks(range(len(results)), list(results))
        axes.grid(axis="y", alpha=0.3)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=3)
    figure.savefig(path, dpi=110)


def drawn(path):
    """Return the last results of each way to train in a file of results, by method and share."""
    lines = [json.loads(text) for text in Path(path).read_text().splitlines()]
    results = {line["trained"]: line["tested"] for line in lines if line["case"] == CASE}
    return {name: results[name] for name in sorted(results, key=_order)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data")
    parser.add_argument("--runs")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--trained", nargs="+", choices=list(TRAINED), default=list(TRAINED))
    parser.add_argument("--tested", nargs="+", choices=list(TESTED), default=list(TESTED))
    parser.add_argument("--draw", help="file of results to draw; nothing is trained")
    parser.add_argument("--out", default=str(HERE / "qmnist_variants.png"))
    arguments = parser.parse_args()
    if arguments.draw:
        draw(drawn(arguments.draw), arguments.out)
        return
    if not (arguments.data and arguments.runs):
        parser.error("--data and --runs are needed to train")
    scale = {"epochs": arguments.epochs, "seeds": arguments.seeds}
    for name in arguments.trained:
        found = tests(train(arguments, name), arguments.tested)
        print(report.line(CASE, [100, 28, 28, 1], **scale, trained=name, tested=found), flush=True)


def _order(name):
    """Return what sorts the ways to train: by method, then by share."""
    method, _, share = name.rpartition("-")
    return method, int(share.removesuffix("%"))


if __name__ == "__main__":
    main()
