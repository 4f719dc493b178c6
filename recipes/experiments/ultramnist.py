r"""Compare methods on UltraMNIST at 512 x 512 in equal memory: plain, downscaled, PatchGD, and exact streaming.

    python recipes/experiments/ultramnist.py --data FOLDER_OF_IDX_FILES [--epochs 6 --images 4000 --memory 285MB]
    python recipes/experiments/ultramnist.py --data FOLDER_OF_IDX_FILES --methods patchgd --inner-accumulate 1 2 4 \
        --batch 16 --out epsilon.png

Scaled to two cores: images of three digits of 14 or 28 rows whose sum is the label, one small network (five strided
convolutions with BatchNormalization, a transformer over their map), Adam at 1e-3 with a cosine schedule. As in the
low-memory runs of the paper, all start from one pretrained backbone: here on single digits. Each method has the largest
batch of 2, 4, 8, 16 and 32 whose training stays within `--memory` above the memory of the process before its first
step:

    plain       whole images
    downscaled  images of half the side, whole
    patchgd     patches of 256, one of four at a time, the mean of their gradients
    streamed    whole images strip by strip, exact, `Budget(host=...)`

The second command trains PatchGD three times: the optimizer takes a step after every 1, 2 or 4 of the four patches,
with the mean of their gradients (epsilon in the paper), and the cosine has as many steps. Each training has its own
process. Writes `ultramnist.png`, or `--out`, and prints one JSON line per training.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)

import numpy as np

from benchmarks import report

SIDE, PATCH, LATENT, FACTORS, COUNTS = 512, 256, 64, (1, 1), (3,)
SINGLE = 64
METHODS = ("plain", "downscaled", "patchgd", "streamed")
BATCHES = (32, 16, 8, 4, 2)
PATCHES = (SIDE // PATCH) ** 2
"""Patches of an image, of which PatchGD encodes one in each inner step."""


def single_digits(data, part, per_class):
    """Return images of one digit each, and the digits."""
    from tfbig.recipes.digits import read_digits
    from tfbig.recipes.ultramnist import ultramnist

    drawn, classes = ultramnist(*read_digits(data, part), per_class, SINGLE, FACTORS, (1,), 1)
    return np.stack([image.read(0, SINGLE) for image in drawn]), classes


def pretrain(data, path, epochs=6):
    """Train the backbone on single digits; return its accuracy on those of the test files."""
    import keras

    from tfbig.models import encoders

    keras.utils.set_random_seed(0)
    encoder = encoders.make("strided", (SINGLE, SINGLE, 1))
    model = keras.Sequential([encoder, keras.layers.Dense(10)])
    x, y = single_digits(data, "train", 3000)
    schedule = keras.optimizers.schedules.CosineDecay(3e-3, epochs * len(y) // 64)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(schedule), loss, metrics=["accuracy"])
    model.fit(x, y, batch_size=64, epochs=epochs, verbose=0)
    encoder.save_weights(path)
    test = single_digits(data, "test", 100)
    return {"single_digit_accuracy": model.evaluate(*test, verbose=0)[1]}


def build(method, weights, memory, inner_accumulate=None):
    """Return the network of a method, not compiled."""
    import tfbig
    from tfbig.models import encoders, latent

    trained = encoders.make("strided", (SINGLE, SINGLE, 1))
    trained.load_weights(weights)
    if method == "patchgd":
        shape = (PATCH, PATCH, 1)
        encoder = encoders.make("strided", shape, latent=LATENT, pooled=False)
        encoder.get_layer("strided").set_weights(trained.get_weights())
        head, image = latent.transformer_head(10, LATENT), (SIDE, SIDE, 1)
        return tfbig.PatchGD(encoder, head, PATCH, accumulate=inner_accumulate, image_shape=image)
    side = SIDE // 2 if method == "downscaled" else SIDE
    plain = latent.baseline("strided", (side, side, 1), 10, "transformer", LATENT, LATENT)
    plain.get_layer("strided").set_weights(trained.get_weights())
    if method != "streamed":
        return plain
    budget = tfbig.Budget(host=memory, device="32MB", disk=0)
    return tfbig.stream(plain, budget, unsupported="device")


def dataset(data, method, part, number, batch, seed):
    """Return handles for methods that read images themselves, else images, from the pool of digits of `part`."""
    import tensorflow as tf

    from tfbig.cli.data import images
    from tfbig.cli.settings.tasks import ImageSettings
    from tfbig.recipes.digits import read_digits
    from tfbig.recipes.ultramnist import ultramnist
    from tfbig.sources import Scaled

    drawn, labels = ultramnist(
        *read_digits(data, part), number // 10, SIDE, FACTORS, COUNTS, seed, part
    )
    if method == "downscaled":
        drawn = tuple(Scaled(image, (SIDE // 2, SIDE // 2)) for image in drawn)
    image_set = images.ImageSet(drawn, labels)
    settings = ImageSettings(seed=seed, batch_size=batch)
    dense = method in ("plain", "downscaled")
    return images.dataset(image_set, settings, part == "train", dense=dense).prefetch(
        tf.data.AUTOTUNE
    )


def trained(method, arguments):
    """Return the accuracy and loss of every epoch, seconds and memory, in this process."""
    import keras

    import tfbig

    keras.utils.set_random_seed(arguments.seed)
    (inner_accumulate,) = arguments.inner_accumulate or [None]
    model = build(method, arguments.weights, arguments.memory, inner_accumulate)
    steps_per_batch = PATCHES // (inner_accumulate or PATCHES)
    steps = arguments.images // arguments.batch * arguments.epochs * steps_per_batch
    schedule = keras.optimizers.schedules.CosineDecay(1e-3, steps)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(schedule), loss, metrics=["accuracy"])
    train = dataset(
        arguments.data, method, "train", arguments.images, arguments.batch, arguments.seed + 1
    )
    before, _ = report.memory_bytes()
    if arguments.steps:
        try:
            model.fit(train.take(arguments.steps), shuffle=False, verbose=0)
        except tfbig.BudgetError:  # raised before a streamed step starts
            return {"above_bytes": math.inf}
        return {"above_bytes": report.memory_bytes()[1] - before}
    test = dataset(arguments.data, method, "test", arguments.tests, 8, 99)
    history, start = [], time.monotonic()
    for epoch in range(arguments.epochs):
        logs = model.fit(train, shuffle=False, verbose=0).history
        fitted = time.monotonic() - start
        if epoch == 0:
            above = report.memory_bytes()[1] - before
        scores = model.evaluate(test, verbose=0)
        history.append([logs["loss"][0], logs["accuracy"][0], *scores])
        print(f"{method}, epoch {epoch + 1}: {history[-1]} {fitted:.0f} s", file=sys.stderr)
    return {"above_bytes": above, "seconds": fitted, "history": history}


def own_process(method, arguments, weights, **options):
    flags = {
        **{
            key: getattr(arguments, key)
            for key in ("data", "epochs", "images", "tests", "memory", "seed")
        },
        "weights": weights,
        **options,
    }
    words = [f"--{key.replace('_', '-')}={value}" for key, value in flags.items()]
    return report.in_own_process([__file__, "--only", method, *words])


def trainings(arguments):
    """Return `(method, options)` of each training: that of PatchGD once for every `--inner-accumulate`."""
    epsilons = [{"inner_accumulate": n} for n in arguments.inner_accumulate or ()] or [{}]
    return [
        (method, options)
        for method in arguments.methods
        for options in (epsilons if method == "patchgd" else [{}])
    ]


def largest_batch(method, arguments, weights, **options):
    """Return the first of `BATCHES` whose training stays within the memory; the smallest if none does."""
    from tfbig.system.budget import parse_bytes

    for batch in BATCHES:
        figures = own_process(method, arguments, weights, batch=batch, steps=6, **options)
        above = figures["above_bytes"]
        print(f"{method}, batch {batch}: {above / 1e6:.0f} MB", file=sys.stderr)
        if above <= parse_bytes(arguments.memory):
            break
    return batch


def label_of(line):
    """Return how a training is called in the figure."""
    epsilon = line.get("inner_accumulate")
    return f"{line['method']}, epsilon {epsilon}" if epsilon else line["method"]


def draw(lines, path):
    """Plot the accuracy on unseen images by epoch, and memory."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.6), layout="constrained")
    accuracy, memory = figure.subplots(1, 2, width_ratios=(1.3, 1))
    for line in lines:
        curve = [row[3] for row in line["history"]]
        label = f"{label_of(line)}, batch {line['batch']}"
        accuracy.plot(range(1, len(curve) + 1), curve, "o-", label=label)
        memory.bar(label_of(line), line["above_bytes"] / 1e6)
    accuracy.set(xlabel="epoch", ylabel="accuracy on unseen images", ylim=0)
    accuracy.legend()
    accuracy.grid(alpha=0.3)
    memory.set(ylabel="MB above the start")
    figure.savefig(path, dpi=110)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--data", required=True)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--tests", type=int, default=1000)
    parser.add_argument("--memory", default="285MB")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument(
        "--inner-accumulate",
        nargs="+",
        type=int,
        choices=[n for n in range(1, PATCHES + 1) if PATCHES % n == 0],
        help=f"for patchgd: inner steps whose gradients make a step, of {PATCHES} (default: all)",
    )
    parser.add_argument("--out", default=str(ROOT / "benchmarks" / "ultramnist.png"))
    parser.add_argument("--only", choices=[*METHODS, "pretrain"], help="in this process")
    parser.add_argument("--weights", help="file of the backbone's weights; trained by default")
    parser.add_argument(
        "--batch", type=int, help="of every method; by default the largest that fits"
    )
    parser.add_argument("--steps", type=int, default=0, help="no more, and memory alone")
    arguments = parser.parse_args()
    if arguments.only:
        alone = arguments.only == "pretrain"
        figures_of_run = (
            pretrain(arguments.data, arguments.weights)
            if alone
            else trained(arguments.only, arguments)
        )
        print(json.dumps(figures_of_run))
        return
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        weights = arguments.weights or str(Path(folder) / "backbone.weights.h5")
        shared = {} if arguments.weights else own_process("pretrain", arguments, weights)
        for method, options in trainings(arguments):
            batch = arguments.batch or largest_batch(method, arguments, weights, **options)
            figures_of_run = own_process(method, arguments, weights, batch=batch, **options)
            figures_of_run["history"] = [
                [round(n, 4) for n in row] for row in figures_of_run["history"]
            ]
            error = math.sqrt(
                figures_of_run["history"][-1][3]
                * (1 - figures_of_run["history"][-1][3])
                / arguments.tests
            )
            figures = {
                "accuracy": figures_of_run["history"][-1][3],
                "standard_error": round(error, 4),
            }
            settings = {"method": method, **options, "batch": batch, "memory": arguments.memory}
            settings |= {
                key: getattr(arguments, key) for key in ("epochs", "images", "tests", "seed")
            }
            case = "ultramnist epsilon" if options else "ultramnist"
            line = report.line(
                case, [SIDE, SIDE, 1], **settings, **shared, **figures, **figures_of_run
            )
            print(line, flush=True)
            lines.append(json.loads(line))
    draw(lines, arguments.out)


if __name__ == "__main__":
    main()
