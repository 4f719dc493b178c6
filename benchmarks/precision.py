"""Compare gradients in bfloat16 with those in float64, for a streamed and a plain ResNet-18.

    python benchmarks/precision.py [--side 512]

The weights and the image are the same in every precision. Prints one JSON line: the relative error of the loss; the
relative error of the gradients (2-norm), as the median over weights and for all weights together; and the cosine of the
gradients.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)

import numpy as np

from benchmarks import report

WAYS = {
    "plain float32": ("float32", False),
    "streamed float32": ("float32", True),
    "plain bfloat16": ("mixed_bfloat16", False),
    "streamed bfloat16": ("mixed_bfloat16", True),
}


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--side", type=int, default=512)
    return parser.parse_args(words)


def main() -> None:
    arguments = parse_arguments()
    random = np.random.default_rng(0)
    image = random.random((1, arguments.side, arguments.side, 3))
    weights, (loss, truth) = None, (0.0, [])
    figures = {}
    for name, (policy, streams) in {"truth": ("float64", False), **WAYS}.items():
        value, gradients, weights = step(policy, streams, image, weights)
        if name == "truth":
            loss, truth = value, gradients
        else:
            figures[name] = errors(value, gradients, loss, truth)
    print(report.line("precision resnet18", [arguments.side, arguments.side, 3], **figures))


def step(policy: str, streams: bool, image: Any, weights: Any) -> tuple[float, list[Any], Any]:
    """Return the loss, gradients and weights of a new model, or of one with the given weights."""
    import keras
    import tensorflow as tf

    import tfbig
    from benchmarks.networks import resnet18

    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(policy)
    model = resnet18()
    weights = weights or model.get_weights()
    model.set_weights(weights)
    run = tfbig.stream(model, tfbig.Budget(device="32MB")) if streams else model
    with tf.GradientTape() as tape:
        outputs = run(
            tf.constant(image, "float64" if policy == "float64" else "float32"), training=True
        )
        loss = tf.reduce_mean((tf.cast(outputs, "float64") - 1) ** 2)
    gradients = tape.gradient(loss, [v._value for v in model.trainable_variables])
    return float(loss), [tf.cast(g, "float64").numpy().ravel() for g in gradients], weights


def errors(loss: float, gradients: list[Any], exact: float, truth: list[Any]) -> dict[str, float]:
    """Return the errors relative to float64."""
    norm = np.linalg.norm
    each = [norm(a - b) / norm(b) for a, b in zip(gradients, truth, strict=True) if norm(b) > 0]
    all_a, all_b = np.concatenate(gradients), np.concatenate(truth)
    return {
        "loss_error": abs(loss - exact) / abs(exact),
        "gradient_error_median": float(np.median(each)),
        "gradient_error": float(norm(all_a - all_b) / norm(all_b)),
        "cosine": float(all_a @ all_b / norm(all_a) / norm(all_b)),
    }


if __name__ == "__main__":
    main()
