"""Compare BatchNormalization, GroupNormalization and accumulation in plain training with PatchGD, at small batches.

    python recipes/experiments/normalisation.py --data FOLDER [--side 32 --epochs 6 --seeds 0]

Table 1 of PatchGD's appendix F (ResNet-50 on PANDA at 2048 x 2048 in 48 GB), scaled to two cores: ResNet-18 with the
head of the paper, on the pictures of `FOLDER/CLASS/*` scaled to `--side`, a fifth of them for testing. The batches are
those of the table, as if the memory were the same:

    batch       BatchNormalization, batches of 6
    group       GroupNormalization of 32 groups, batches of 6
    accumulate  BatchNormalization, batches of 5, the gradients of 11 averaged
    patchgd     BatchNormalization, batches of 56, patches of half the side, one of four at a time, gradients averaged

Adam, from 0 to 1e-3 in an epoch and to 0 along a cosine; every method sees the same number of images. Prints one JSON
line for each method and seed, with the accuracy on the test pictures after the last epoch.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
ROOT = Path(__file__).resolve().parents[2]
sys.path[0] = str(ROOT)

import numpy as np

from benchmarks import report
from tfbig.units import ceil_div

METHODS = {
    "batch": ("resnet18", 6, 1),
    "group": ("resnet18_gn", 6, 1),
    "accumulate": ("resnet18", 5, 11),
    "patchgd": ("resnet18", 56, 1),
}
"""Network, batch and accumulated batches of each method."""
LATENT = 64


def load(folder: Path, side: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the pictures `[n, side, side, 3]`, their classes, and a random order."""
    from tfbig.mil import generate

    pool, classes, _ = generate.pictures(folder, (side, side))
    order = np.random.default_rng(0).permutation(len(classes))
    return pool.read(0, len(classes)), classes, order


def build(method: str, side: int, classes: int) -> Any:
    """Return the network of a method, not compiled."""
    import tfbig
    from tfbig.models import encoders, latent

    network = METHODS[method][0]
    if method != "patchgd":
        return latent.baseline(network, (side, side, 3), classes, latent=LATENT, width=LATENT)
    patch = side // 2
    encoder = encoders.make(network, (patch, patch, 3), latent=LATENT)
    head = latent.make_head("published", classes, (2, 2), LATENT, LATENT)
    return tfbig.PatchGD(encoder, head, patch, None, 0.25, None, None, seed=0)


def train(method: str, seed: int, data: Any, arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the accuracies after the last epoch, and the seconds of training."""
    import keras

    keras.utils.set_random_seed(seed)
    images, classes, order = data
    test, training = np.split(order, [len(order) // 5])
    _, batch, accumulate = METHODS[method]
    steps = ceil_div(len(training), batch) // accumulate
    schedule = keras.optimizers.schedules.CosineDecay(
        0.0, steps * (arguments.epochs - 1), warmup_target=1e-3, warmup_steps=steps
    )
    options = {"gradient_accumulation_steps": accumulate} if accumulate > 1 else {}
    model = build(method, arguments.side, int(classes.max()) + 1)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(schedule, **options), loss, metrics=["accuracy"])
    start = time.monotonic()
    history = model.fit(
        images[training], classes[training], batch, epochs=arguments.epochs, verbose=0
    )
    seconds = time.monotonic() - start
    accuracy = model.evaluate(images[test], classes[test], 64, verbose=0)[1]
    return {
        "accuracy": round(accuracy, 4),
        "training_accuracy": round(history.history["accuracy"][-1], 4),
        "seconds": round(seconds, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--methods", nargs="+", choices=[*METHODS], default=[*METHODS])
    arguments = parser.parse_args()
    data = load(arguments.data, arguments.side)
    for seed in arguments.seeds:
        for method in arguments.methods:
            figures = train(method, seed, data, arguments)
            setting = {"way": method, "size": [arguments.side] * 2, "seed": seed}
            about = {"epochs": arguments.epochs, "pictures": len(data[1])}
            print(report.line("normalisation", **setting, **about, **figures), flush=True)


if __name__ == "__main__":
    main()
