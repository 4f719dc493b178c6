"""Compare the convolution of volumes plane by plane, as streamed models compute it on a CPU, with TensorFlow's own.

    python benchmarks/volume_kernels.py [--rounds 5]

A convolution of 3 x 3 x 3 in float32, forward, and forward with both gradients, of shapes as in the 3-D U-Net. Both ways
run in turn; prints one JSON line per shape with the median seconds and the median of the ratios of each round.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
HERE = Path(__file__).resolve().parent
sys.path[0] = str(HERE.parent)

import tensorflow as tf

from benchmarks import report
from tfbig.geometry.windows import Window
from tfbig.ops import volumes
from tfbig.ops.kernels import InputRows, Strip

SHAPES = ((8, 256, 256, 32), (8, 128, 128, 128), (8, 64, 64, 256))
"""Planes, rows, columns and channels, in and out."""


def by_planes(x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    """Convolve a whole volume plane by plane."""
    planes = x.shape[1]
    numbers = map(tf.constant, (0, planes, 1, 1, planes))
    strip = Strip(*map(tf.constant, (0, planes, planes)), (InputRows(*numbers),))
    return volumes.convolution(x, kernel, [Window(3, padding="same")] * 3, 1, strip)


def by_tensorflow(x: tf.Tensor, kernel: tf.Tensor) -> tf.Tensor:
    """Convolve a whole volume with TensorFlow's kernel."""
    return tf.nn.conv3d(x, kernel, [1] * 5, "SAME")


def timed(
    convolve: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], x: tf.Tensor, kernel: tf.Tensor
) -> dict[str, Callable[[], float]]:
    """Return functions that measure a pass forward, and one with both gradients, in seconds."""

    @tf.function
    def forward() -> tf.Tensor:
        return tf.reduce_sum(convolve(x, kernel))

    @tf.function
    def gradients() -> list[tf.Tensor]:
        with tf.GradientTape() as tape:
            tape.watch([x, kernel])
            loss = tf.reduce_sum(convolve(x, kernel) ** 2)
        return [tf.reduce_sum(t) for t in tape.gradient(loss, [x, kernel])]

    def seconds(run: Callable[[], object]) -> float:
        start = time.perf_counter()
        run()
        return time.perf_counter() - start

    forward(), gradients()
    return {"forward": lambda: seconds(forward), "gradients": lambda: seconds(gradients)}


def measure(shape: Sequence[int], rounds: int) -> str:
    """Return the JSON line of a shape."""
    *size, channels = shape
    random = tf.random.Generator.from_seed(0)
    x, kernel = random.normal((1, *shape)), random.normal((3, 3, 3, channels, channels))
    difference = tf.reduce_max(tf.abs(by_planes(x, kernel) - by_tensorflow(x, kernel)))
    planes, own = timed(by_planes, x, kernel), timed(by_tensorflow, x, kernel)
    figures: dict[str, float] = {"largest_difference": float(difference)}
    for name in planes:
        pairs = [(planes[name](), own[name]()) for _ in range(rounds)]
        figures[f"{name}_seconds"] = round(statistics.median(a for a, _ in pairs), 4)
        figures[f"{name}_ratio"] = round(statistics.median(a / b for a, b in pairs), 3)
    return report.line("convolution by planes", [*size, channels], **figures)


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args(words)


def main() -> None:
    """Print the lines."""
    arguments = parse_arguments()
    for shape in SHAPES:
        print(measure(shape, arguments.rounds), flush=True)


if __name__ == "__main__":
    main()
