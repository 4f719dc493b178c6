"""Compare the losses of accumulated training with those of whole-bag training (the first figure of ABMIL-ACC).

    python benchmarks/mil_loss.py [--epochs 10 --bags 8 --instances 32 --side 84 --lr 1e-6]

ResNet-18 and ABMIL, float32, Adam, weight decay 1e-3, one step per epoch over all bags, from the same weights: whole
bags, slices of a quarter of a bag, and plain Keras with whole bags in float32 and float64; with exact
BatchNormalization, with the statistics of each slice as in the paper, and without BatchNormalization. Writes
`mil_loss.png` and prints one JSON line.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[0] = os.path.dirname(HERE)

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
}
"""Which differences are drawn: what, and against what."""
STYLES = {"whole bags": "C0-", "a quarter at once": "C1--", "a quarter, statistics of each": "C2--"}
"""Of the runs whose losses are drawn."""


def losses(arguments, data, has_norm, share=1, plain=False, norm="exact", dtype="float32"):
    """Return the training loss of every epoch."""
    import keras
    import tensorflow as tf

    from tfbig import mil, optimizers
    from tfbig.models import encoders
    from tfbig.models.pooling import ABMIL

    shape = (arguments.side, arguments.side, 3)
    keras.config.set_floatx("float32")  # all runs draw the same initial weights
    keras.config.set_dtype_policy("float32")
    keras.utils.set_random_seed(1)
    weights = mil.bag_model(encoders.make("resnet18", shape, norm=has_norm), ABMIL(2)).get_weights()
    keras.config.set_floatx(dtype)
    keras.config.set_dtype_policy(dtype)
    encoder = encoders.make("resnet18", shape, norm=has_norm)
    model = mil.MIL(encoder, ABMIL(2), arguments.instances // share, norm=norm)
    model.set_weights(weights)
    model = model.twin if plain else model
    steps = len(data.bags)
    model.compile(
        optimizers.CoupledAdam(arguments.lr, l2=1e-3, gradient_accumulation_steps=steps),
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


def draw(cases, path):
    """Plot the losses above, and their relative differences below."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 7.5), layout="constrained")
    axes = figure.subplots(2, len(cases), sharex=True, squeeze=False)
    for (above, below), (name, case) in zip(axes.T, cases.items(), strict=True):
        epochs = range(1, len(case["losses"]["whole bags"]) + 1)
        for run, style in STYLES.items():
            if run in case["losses"]:
                above.plot(epochs, case["losses"][run], style, label=run)
        for color, pair in enumerate(PAIRS):
            if pair in case["differences"]:
                values = [max(d, 1e-9) for d in case["differences"][pair]]
                below.semilogy(epochs, values, marker=".", color=f"C{color}", label=pair)
        below.axhline(1e-6, color="grey", lw=0.8, ls=":")
        below.set(xlabel="epoch", ylabel="relative difference of the loss", ylim=(5e-10, 0.1))
        below.grid(alpha=0.3)
        above.set(title=name, ylabel="training loss")
        above.legend()
    figure.legend(*axes[1][0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    figure.savefig(path, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--bags", type=int, default=8)
    parser.add_argument("--instances", type=int, default=32)
    parser.add_argument("--side", type=int, default=84)
    parser.add_argument("--lr", type=float, default=1e-6)
    parser.add_argument("--runs", nargs="+", choices=list(RUNS), default=list(RUNS))
    parser.add_argument("--out", default=str(Path(HERE) / "mil_loss.png"))
    arguments = parser.parse_args()
    from tfbig.mil import generate

    pool, classes = generate.shapes(600, arguments.side)
    key = generate.SHAPES.index("ring")
    data = generate.compose(pool, classes, key, arguments.bags, arguments.instances, 0.25)
    cases = {}
    for name, has_norm in (("with BatchNormalization", True), ("without", False)):
        runs = {run: options for run, options in RUNS.items() if run in arguments.runs}
        if not has_norm:
            runs.pop("a quarter, statistics of each", None)
        losses_of_runs = {
            run: losses(arguments, data, has_norm, **options) for run, options in runs.items()
        }
        cases[name] = {"losses": losses_of_runs, "differences": differences(losses_of_runs)}
        worst = {pair: max(values) for pair, values in cases[name]["differences"].items()}
        print(name, {pair: f"{value:.1e}" for pair, value in worst.items()}, file=sys.stderr)
    draw(cases, arguments.out)
    size = [arguments.bags, arguments.instances, arguments.side, arguments.side, 3]
    print(report.line("mil_loss", size, learning_rate=arguments.lr, cases=cases))


if __name__ == "__main__":
    main()
