"""Does streaming cost time, and how much memory does it save?

    python benchmarks/conv_chain.py [--side 3072 --steps 4 --rounds 3]

Five conv-BatchNorm-ReLU of 64 channels (the first with stride 2), global pooling and a Dense layer, one training
step on a float32 image; streamed and plain Keras in turn, each in a process of its own. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE), HERE]

import report


def chain():
    """The network."""
    import keras

    image = x = keras.Input((None, None, 3))
    for depth in range(5):
        strides = 2 if depth == 0 else 1
        x = keras.layers.Conv2D(64, 3, strides=strides, padding="same", use_bias=False)(x)
        x = keras.layers.BatchNormalization()(x)
        x = keras.layers.ReLU()(x)
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(image, keras.layers.Dense(1)(x))


def measure(kind: str, side: int, steps: int, device_memory: str) -> None:
    """Trains in this process and prints seconds of the median step but the first, and memory."""
    import keras
    import numpy as np
    import tensorflow as tf

    import tfbig

    keras.utils.set_random_seed(0)
    random = np.random.default_rng(0)
    base = report.memory_bytes()[0]
    image = tf.constant(random.random((1, side, side, 3), np.float32))
    label = tf.ones((1, 1))
    model, planned = chain(), None
    if kind == "streamed":
        model = tfbig.stream(model, tfbig.Budget(device=device_memory))
        plan = model.plan((1, side, side, 3))
        print(plan, file=sys.stderr)
        planned = base + plan.peak_bytes + side * side * 3 * 4  # the image itself is ours to hold
    model.compile("adam", "mse", jit_compile=False)
    seconds = []
    for _ in range(steps):
        began = time.perf_counter()
        loss = model.train_on_batch(image, label)
        seconds.append(time.perf_counter() - began)
    figures = {"seconds": statistics.median(seconds[1:]), "base_bytes": base, "loss": float(loss)}
    print(
        report.line(
            kind, [side], peak_bytes=report.memory_bytes()[1], planned_bytes=planned, **figures
        )
    )


def compare(side: int, steps: int, rounds: int, device_memory: str) -> None:
    """Both in turn, `rounds` times; medians, and the median of the ratios pair by pair."""
    runs: dict[str, list[dict]] = {"streamed": [], "plain": []}
    for _ in range(rounds):
        for kind, found in runs.items():
            words = [__file__, "--only", kind, "--side", str(side), "--steps", str(steps)]
            found.append(report.in_own_process([*words, "--device-memory", device_memory]))
    middle = {
        k: {
            f: statistics.median(r[f] for r in found)
            for f in ("seconds", "peak_bytes", "base_bytes")
        }
        for k, found in runs.items()
    }
    above = {k: m["peak_bytes"] - m["base_bytes"] for k, m in middle.items()}
    pairs = list(zip(runs["streamed"], runs["plain"], strict=True))
    print(
        report.line(
            "conv_chain",
            [side, side, 3],
            seconds=round(middle["streamed"]["seconds"], 2),
            seconds_twin=round(middle["plain"]["seconds"], 2),
            seconds_ratio=round(
                statistics.median(a["seconds"] / b["seconds"] for a, b in pairs), 3
            ),
            base_bytes=middle["streamed"]["base_bytes"],
            peak_bytes=middle["streamed"]["peak_bytes"],
            peak_bytes_twin=middle["plain"]["peak_bytes"],
            above_base_ratio=round(above["streamed"] / above["plain"], 3),
            planned_bytes=runs["streamed"][0]["planned_bytes"],
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--side", type=int, default=3072, help="rows and columns of the image")
    parser.add_argument(
        "--steps", type=int, default=4, help="steps a process, the first not counted"
    )
    parser.add_argument("--rounds", type=int, default=3, help="processes of each kind, in turn")
    parser.add_argument("--device-memory", default="96MB", help="bytes for strips")
    parser.add_argument("--only", choices=["streamed", "plain"], help="one kind, in this process")
    arguments = parser.parse_args()
    if arguments.only:
        measure(arguments.only, arguments.side, arguments.steps, arguments.device_memory)
    else:
        compare(arguments.side, arguments.steps, arguments.rounds, arguments.device_memory)


if __name__ == "__main__":
    main()
