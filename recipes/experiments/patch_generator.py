"""Compare a generator of patches by PatchGD with plain training, on pictures of the size of CIFAR (appendix E).

    python recipes/experiments/patch_generator.py --data FOLDER [--steps 2000 --shares 0.5 1.0 --seed 0]

The networks of `examples/patch_generator.py`: four patches of 16 x 16 make an image of 32 x 32, of which half (or with
share 1.0 all) have a gradient in a step. The paper has StyleGAN-2 on CIFAR-10, with an FID of 6.3 against 6.1.

The Frechet distance is that of 32 features of a fixed network: three convolutions that tell the classes of the pictures
of `FOLDER/CLASS/*`, trained from seed 0, the same for all. It is no FID, which needs the weights of Inception. The line
has the distances of two halves of the pictures, which is the least that can be expected, and of an untrained generator.
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

SIDE, BATCH, FEATURES, GENERATED = 32, 32, 32, 2000


def load(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return the pictures `[n, 32, 32, 3]` from -1 to 1, and their classes."""
    from tfbig.mil import generate

    pool, classes, _ = generate.pictures(folder, (SIDE, SIDE))
    order = np.random.default_rng(0).permutation(len(classes))
    return (pool.take(order) / 127.5 - 1).astype("float32"), classes[order]


def fixed_network(images: np.ndarray, classes: np.ndarray, epochs: int) -> tuple[Any, float]:
    """Return a network from images to features, trained to tell the classes, and its accuracy on them."""
    import keras
    from keras import layers

    keras.utils.set_random_seed(0)
    image = keras.Input((SIDE, SIDE, 3))
    x = image
    for width in (16, 32, 64):
        x = layers.Conv2D(width, 3, 2, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.GroupNormalization(8)(x))
    x = layers.Dense(FEATURES, activation="tanh")(layers.Flatten()(x))
    model = keras.Model(image, layers.Dense(int(classes.max()) + 1)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(2e-3), loss, metrics=["accuracy"])
    history = model.fit(images, classes, 32, epochs=epochs, verbose=0).history
    return keras.Model(image, x), history["accuracy"][-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.5, 1.0])
    parser.add_argument("--epochs", type=int, default=10, help="of the fixed network")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    images, classes = load(arguments.data)
    network, accuracy = fixed_network(images, classes, arguments.epochs)

    import keras
    import tensorflow as tf

    from examples.patch_generator import NOISE, PatchGAN, frechet

    def features(images: Any) -> np.ndarray:
        return np.asarray(network.predict(images, 256, verbose=0), np.float64)

    def generated(model: PatchGAN) -> np.ndarray:
        noise = tf.random.stateless_normal([GENERATED, NOISE], (0, 1))
        return np.concatenate([model.images(part) for part in tf.split(noise, 20)])

    of_data = features(images)
    halves = frechet(of_data[::2], of_data[1::2])
    for share in arguments.shares:
        keras.utils.set_random_seed(arguments.seed)
        model = PatchGAN(share, arguments.seed)
        untrained = frechet(features(generated(model)), of_data)
        rng, start = np.random.default_rng(arguments.seed), time.monotonic()
        for number in range(arguments.steps):
            chosen = rng.integers(len(images), size=BATCH)
            model.step(tf.constant(images[chosen]), tf.constant(number))
        seconds = time.monotonic() - start
        figures = {
            "distance": round(frechet(features(generated(model)), of_data), 3),
            "halves": round(halves, 3),
            "untrained": round(untrained, 3),
            "accuracy_of_network": round(accuracy, 3),
            "seconds": round(seconds),
        }
        setting = {"way": f"share {share}", "size": [SIDE] * 2, "steps": arguments.steps}
        about = {"seed": arguments.seed, "pictures": len(images)}
        print(report.line("patch generator", **setting, **about, **figures), flush=True)


if __name__ == "__main__":
    main()
