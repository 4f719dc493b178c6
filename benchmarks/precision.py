"""How near are gradients in bfloat16 to those in float64? ResNet-18, streamed and plain.

    python benchmarks/precision.py [--side 512]

The same weights and image in every precision; prints one JSON line: of the loss the relative error, of the gradients
the relative error of each weight's (2-norm), the median over weights and that of all together, and their cosine.
"""

from __future__ import annotations

import argparse
import os
import sys
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


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--side", type=int, default=512)
    given = parser.parse_args()
    random = np.random.default_rng(0)
    image = random.random((1, given.side, given.side, 3))
    weights, (loss, truth) = None, (0.0, [])
    found = {}
    for name, (policy, streams) in {"truth": ("float64", False), **WAYS}.items():
        value, gradients, weights = step(policy, streams, image, weights)
        if name == "truth":
            loss, truth = value, gradients
        else:
            found[name] = compared(value, gradients, loss, truth)
    print(report.line("precision resnet18", [given.side, given.side, 3], **found))


def step(policy: str, streams: bool, image: Any, weights: Any) -> tuple[float, list[Any], Any]:
    """Loss, gradients and weights of a new model, or of one with these weights."""
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
        found = run(
            tf.constant(image, "float64" if policy == "float64" else "float32"), training=True
        )
        loss = tf.reduce_mean((tf.cast(found, "float64") - 1) ** 2)
    gradients = tape.gradient(loss, [v._value for v in model.trainable_variables])
    return float(loss), [tf.cast(g, "float64").numpy().ravel() for g in gradients], weights


def compared(loss: float, gradients: list[Any], exact: float, truth: list[Any]) -> dict[str, float]:
    """Errors to what is exact."""
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
