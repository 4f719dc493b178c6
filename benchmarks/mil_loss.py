"""Does accumulated training follow whole-bag training? The figure that ABMIL-ACC has as its first.

    python benchmarks/mil_loss.py [--epochs 30 --bags 16 --instances 16 --side 64]

ResNet-18 and ABMIL, float32, learning rate 5e-5, from the same weights: whole bags in plain Keras, slices of a quarter
of a bag with exact BatchNormalization, without any, and, as the paper has it, with that of each slice. Two steps an
epoch, gradients averaged over the bags of a step. Writes `mil_loss.png` and prints one JSON line.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE), HERE]

import report

CASES = {
    "with BatchNormalization": (True, {}),
    "without BatchNormalization": (False, {}),
    "BatchNormalization of slices": (True, {"norm": "per_slice"}),
}
"""Whether there is any, and how it accumulates; the last as the paper has it."""


def losses(arguments, norm, options, data, whole):
    """The training loss of every epoch."""
    import keras
    import tensorflow as tf

    from models import encoders
    from models.pooling import ABMIL
    from tfbig import mil, optimizers

    keras.utils.set_random_seed(1)
    shape = (arguments.side, arguments.side, 3)
    encoder = encoders.make("resnet18", shape, norm=norm)
    model = mil.MIL(encoder, ABMIL(2), arguments.instances // 4, **options)
    model = model.twin if whole else model
    steps = len(data.bags) // 2
    model.compile(
        optimizers.CoupledAdam(5e-5, l2=1e-3, gradient_accumulation_steps=steps),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=False,
    )
    bags = mil.dataset(data.bags, data.labels, dense=whole)
    if whole:
        bags = bags.map(lambda x, y: (tf.cast(x, "float32"), y))
    history = model.fit(bags, epochs=arguments.epochs, shuffle=False, verbose=0)
    return history.history["loss"]


def draw(found, path):
    """Losses above, their relative difference below."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * len(found), 5.6), layout="constrained")
    axes = figure.subplots(2, len(found), sharex=True, squeeze=False)
    for column, (name, case) in enumerate(found.items()):
        epochs = range(1, len(case["whole"]) + 1)
        axes[0][column].plot(epochs, case["whole"], label="whole bags")
        axes[0][column].plot(epochs, case["accumulated"], "--", label="accumulated, 25 %")
        axes[0][column].set_title(name)
        axes[0][column].set_ylabel("training loss")
        axes[0][column].legend()
        axes[1][column].semilogy(epochs, [max(d, 1e-9) for d in case["difference"]])
        axes[1][column].axhline(1e-6, color="grey", lw=0.8, ls=":")
        axes[1][column].set_xlabel("epoch")
        axes[1][column].set_ylabel("relative difference")
        axes[1][column].grid(alpha=0.3)
    figure.savefig(path, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--bags", type=int, default=16)
    parser.add_argument("--instances", type=int, default=16)
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--out", default=str(Path(HERE) / "mil_loss.png"))
    arguments = parser.parse_args()
    from tfbig.mil import generate

    pool, classes = generate.shapes(600, arguments.side)
    key = generate.SHAPES.index("ring")
    data = generate.compose(pool, classes, key, arguments.bags, arguments.instances, 0.25)
    found = {}
    for name, (norm, options) in CASES.items():
        whole = losses(arguments, norm, {}, data, whole=True)
        accumulated = losses(arguments, norm, options, data, whole=False)
        difference = [abs(a - b) / b for a, b in zip(accumulated, whole, strict=True)]
        found[name] = {"whole": whole, "accumulated": accumulated, "difference": difference}
    draw(found, arguments.out)
    size = [arguments.bags, arguments.instances, arguments.side, arguments.side, 3]
    worst = {f"{name}: first 10 epochs": max(c["difference"][:10]) for name, c in found.items()}
    print(report.line("mil_loss", size, worst=worst, losses=found))


if __name__ == "__main__":
    main()
