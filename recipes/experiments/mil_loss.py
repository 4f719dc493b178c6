"""Compare the losses of accumulated training with those of whole-bag training (the first figure of ABMIL-ACC).

    python recipes/experiments/mil_loss.py [--lr 1e-6 --epochs 10 --bags 8 --instances 32 --side 84]
    python recipes/experiments/mil_loss.py --data FOLDER --lr 5e-5 --cases without
    python recipes/experiments/mil_loss.py --draw benchmarks/results.jsonl

ResNet-18 and ABMIL, float32, Adam, weight decay 1e-3, one step per epoch over all bags, from the same weights: whole
bags, slices of a quarter of a bag, and plain Keras with whole bags in float32 and float64; with exact
BatchNormalization, with the statistics of each slice as in the paper, and without BatchNormalization. Prints one JSON
line. The second command takes the first `--bags` training bags of FOLDER, which
`python -m tfbig.recipes.write_qmnist_bags` wrote, and makes one step per bag, in their order, as
`recipes/abmil-acc-qmnist-as-published.yaml` does. The third writes `mil_loss.png` from the last line of each learning
rate: that of the paper, 5e-5, where Adam multiplies a difference of rounding at every step, and 1e-6, where it does
not.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)

from benchmarks import report

RUNS = {
    "whole bags": {},
    "a quarter at once": {"share": 4},
    "a quarter, statistics of each": {"share": 4, "norm": "per_slice"},
    "plain Keras": {"plain": True},
    "plain Keras, float64": {"plain": True, "dtype": "float64"},
}
PAIRS = {
    "a quarter at once against whole bags": ("a quarter at once", "whole bags"),
    "the same, statistics of each slice": ("a quarter, statistics of each", "whole bags"),
    "a quarter at once against plain Keras": ("a quarter at once", "plain Keras"),
    "a quarter at once against float64": ("a quarter at once", "plain Keras, float64"),
    "plain Keras against float64": ("plain Keras", "plain Keras, float64"),
    "plain Keras against whole bags": ("plain Keras", "whole bags"),
}
"""Which differences are drawn: what, and against what."""
STYLES = {"whole bags": "C0-", "a quarter at once": "C1--", "a quarter, statistics of each": "C2--"}
"""Line styles of the runs whose losses are drawn."""
DRAWN = (5e-5, 1e-6)
"""Learning rates that are drawn."""
CASES = {"with BatchNormalization": True, "without": False}
"""Which networks are trained, and whether they have BatchNormalization."""


def drawn_bags(arguments):
    """Compose bags of drawn shapes."""
    from tfbig.mil import generate

    pool, classes = generate.shapes(600, arguments.side)
    key = generate.SHAPES.index("ring")
    return generate.compose(pool, classes, key, arguments.bags, arguments.instances, 0.25)


def bags_of(folder, count):
    """Open the first `count` training bags of a folder of `write_qmnist_bags`."""
    from tfbig import mil
    from tfbig.recipes.write_qmnist_bags import CLASSES

    table = csv.DictReader((folder / "bags.csv").read_text().splitlines())
    rows = [row for row in table if row["split"] == "train"][:count]
    paths = [str(folder / row["bag"]) for row in rows]
    return mil.read_bags(paths, [CLASSES.index(row["label"]) for row in rows], len(CLASSES))


def losses(arguments, data, has_norm, share=1, plain=False, norm="exact", dtype="float32"):
    """Return the training loss of every epoch, the mean over its bags."""
    import keras
    import tensorflow as tf

    from tfbig import mil, optimizers
    from tfbig.models import encoders
    from tfbig.models.pooling import ABMIL

    instances, *shape = data.bags[0].shape
    keras.config.set_floatx("float32")  # all runs draw the same initial weights
    keras.config.set_dtype_policy("float32")
    keras.utils.set_random_seed(1)
    weights = mil.bag_model(encoders.make("resnet18", shape, norm=has_norm), ABMIL(2)).get_weights()
    keras.config.set_floatx(dtype)
    keras.config.set_dtype_policy(dtype)
    encoder = encoders.make("resnet18", shape, norm=has_norm)
    model = mil.MIL(encoder, ABMIL(2), instances // share, norm=norm)
    model.set_weights(weights)
    model = model.twin if plain else model
    accumulated = None if arguments.data else len(data.bags)
    model.compile(
        optimizers.CoupledAdam(arguments.lr, l2=1e-3, gradient_accumulation_steps=accumulated),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    bags = mil.dataset(data.bags, data.labels, dense=plain)
    if plain:
        bags = bags.map(lambda x, y: (tf.cast(x, dtype), y))
    history = model.fit(bags, epochs=arguments.epochs, shuffle=False, verbose=0)
    return history.history["loss"]


def differences(losses_of_runs):
    """Return the relative differences by epoch of all pairs that ran."""
    return {
        name: [abs(x - y) / y for x, y in zip(losses_of_runs[a], losses_of_runs[b], strict=True)]
        for name, (a, b) in PAIRS.items()
        if a in losses_of_runs and b in losses_of_runs
    }


def draw(lines, path):
    """Plot the losses above, and their relative differences below, for each learning rate.

    Args:
        lines: Results by learning rate.
        path: PNG file.
    """
    from matplotlib.figure import Figure

    cases = [(rate, name, case) for rate in lines for name, case in lines[rate]["cases"].items()]
    figure = Figure(figsize=(4.4 * len(cases), 7.5), layout="constrained")
    columns = figure.subplots(2, len(cases), squeeze=False).T
    for (above, below), (rate, name, case) in zip(columns, cases, strict=True):
        epochs = range(1, len(case["losses"]["whole bags"]) + 1)
        for run, style in STYLES.items():
            if run in case["losses"]:
                above.plot(epochs, case["losses"][run], style, label=run)
        for color, pair in enumerate(PAIRS):
            if pair in case["differences"]:
                values = [max(d, 1e-9) for d in case["differences"][pair]]
                below.semilogy(epochs, values, marker=".", color=f"C{color}", label=pair)
        below.axhline(1e-6, color="grey", lw=0.8, ls=":")
        below.set(xlabel="epoch", ylabel="relative difference of the loss", ylim=(5e-10, 1))
        below.grid(alpha=0.3)
        above.set(title=f"{name}, learning rate {rate:g}", ylabel="training loss")
        above.legend()
    handles = [handle for _, below in columns for handle in below.get_legend_handles_labels()[0]]
    by_name = {handle.get_label(): handle for handle in handles}
    figure.legend(by_name.values(), by_name.keys(), loc="outside lower center", ncols=3)
    figure.savefig(path, dpi=100)


def drawn_lines(path, size):
    """Return the last line of each learning rate of `DRAWN` in a file of results, for one size."""
    lines = [json.loads(text) for text in Path(path).read_text().splitlines()]
    mine = [line for line in lines if line["case"] == "mil_loss" and line["size"] == size]
    by_rate = {line["learning_rate"]: line for line in mine}
    return {rate: by_rate[rate] for rate in DRAWN if rate in by_rate}


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--bags", type=int, default=8)
    parser.add_argument("--instances", type=int, default=32)
    parser.add_argument("--side", type=int, default=84)
    parser.add_argument("--lr", type=float, default=1e-6)
    parser.add_argument("--runs", nargs="+", choices=list(RUNS), default=list(RUNS))
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--data", type=Path, help="folder of bags; drawn shapes by default")
    parser.add_argument("--out", default=str(ROOT / "benchmarks" / "mil_loss.png"))
    parser.add_argument("--draw", help="file of results to draw; nothing is trained")
    arguments = parser.parse_args()
    if arguments.draw:
        size = [arguments.bags, arguments.instances, arguments.side, arguments.side, 3]
        draw(drawn_lines(arguments.draw, size), arguments.out)
        return
    data = bags_of(arguments.data, arguments.bags) if arguments.data else drawn_bags(arguments)
    cases = {}
    for name in arguments.cases:
        runs = {run: options for run, options in RUNS.items() if run in arguments.runs}
        if not CASES[name]:
            runs.pop("a quarter, statistics of each", None)
        losses_of_runs = {
            run: losses(arguments, data, CASES[name], **options) for run, options in runs.items()
        }
        cases[name] = {"losses": losses_of_runs, "differences": differences(losses_of_runs)}
        worst = {pair: max(values) for pair, values in cases[name]["differences"].items()}
        print(name, {pair: f"{value:.1e}" for pair, value in worst.items()}, file=sys.stderr)
    case = "mil_loss qmnist" if arguments.data else "mil_loss"
    size = [len(data.bags), *data.bags[0].shape]
    print(report.line(case, size, learning_rate=arguments.lr, cases=cases))


if __name__ == "__main__":
    main()
