"""Compare training steps with both ways to compute the gradients of convolution kernels of one pixel.

    python benchmarks/pixelwise.py [--network resnet50 --side 1024 --steps 12]

One streamed model computes them as TensorFlow does, the other as products of matrices (`tfbig.ops.kernels.pixelwise`).
Both train in this process, step by step in turn, so that other load on the machine affects both. Prints one JSON line
with the medians, and the median ratio of the pairs.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks import compare, report

WARMUP = 2
"""Steps of each model that do not count."""


def main() -> None:
    arguments = parse_arguments()
    import numpy as np
    import tensorflow as tf

    from tfbig.ops import kernels

    side, products = arguments.side, kernels.pixelwise
    image = tf.constant(np.random.default_rng(0).random((1, side, side, 3), np.float32))
    models = []
    for way in (lambda x, kernel: tf.nn.conv2d(x, kernel, 1, "VALID"), products):
        kernels.pixelwise = way  # while the step is traced
        models.append(_built(arguments))
        for _ in range(WARMUP):
            models[-1].train_on_batch(image, tf.ones((1, 1)))
    pairs = [[_seconds(model, image) for model in models] for _ in range(arguments.steps)]
    before, after = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(
        report.line(
            f"kernels of one pixel in {arguments.network}",
            [side, side, 3],
            steps=arguments.steps,
            convolution_seconds=round(before, 3),
            product_seconds=round(after, 3),
            ratio=round(statistics.median(b / a for a, b in pairs), 3),
        )
    )


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the arguments of the command line."""
    from benchmarks.networks import NETWORKS

    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--network", default="resnet50", choices=list(NETWORKS))
    parser.add_argument("--side", type=int, default=1024, help="rows and columns of the image")
    parser.add_argument("--steps", type=int, default=12, help="measured steps of each model")
    return parser.parse_args(words)


def _built(arguments: argparse.Namespace) -> Any:
    """Return the streamed model, the same each time."""
    import keras

    keras.utils.set_random_seed(0)
    options = argparse.Namespace(**vars(arguments), device=None, host=None, optimizer="adam")
    with contextlib.redirect_stderr(io.StringIO()):  # the plan
        return compare.build(options, compare.WAYS["streamed"])[0]


def _seconds(model: Any, image: Any) -> float:
    """Return the seconds of a training step."""
    import tensorflow as tf

    began = time.perf_counter()
    model.train_on_batch(image, tf.ones((1, 1)))
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
