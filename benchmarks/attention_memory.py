"""Time and memory of tens of thousands of instances: exact self-attention in blocks, and TransMIL.

    python benchmarks/attention_memory.py [--instances 40000 --model blockwise --block 1024]

Runs one forward pass, then one forward and backward pass for the gradients of the bag and of every weight, on a bag of
512 float32 features; each model in its own process. Prints one JSON line per model.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[0] = os.path.dirname(HERE)

from benchmarks import report

FEATURES = 512
MODELS = ("blockwise", "transmil")


def main() -> None:
    """Run the command line; without `--model`, every model in turn."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--instances", type=int, default=40000, help="of the bag")
    parser.add_argument("--model", choices=MODELS, help="one model, in this process")
    parser.add_argument("--block", type=int, default=1024, help="queries and keys at once")
    arguments = parser.parse_args()
    if arguments.model:
        print(measure(arguments.model, arguments.instances, arguments.block))
        return
    for model in MODELS:
        words = ["--instances", str(arguments.instances), "--block", str(arguments.block)]
        figures = report.in_own_process([os.path.abspath(__file__), "--model", model, *words])
        print(json.dumps(figures), flush=True)


def aggregator(model: str, block: int):
    """Return the layer; it runs in inference mode, so without dropout."""
    from tfbig.models.self_attention import SelfAttentionMIL
    from tfbig.models.transmil import TransMIL

    return SelfAttentionMIL(2, block=block) if model == "blockwise" else TransMIL(2)


def measure(model: str, instances: int, block: int) -> str:
    """Return the seconds of the second call of each kind (the first has a small bag), and the memory used."""
    import keras
    import numpy as np
    import tensorflow as tf

    keras.utils.set_random_seed(0)
    base, _ = report.memory_bytes()
    layer = aggregator(model, block)
    layer.build((1, None, FEATURES))
    signature = [tf.TensorSpec([1, None, FEATURES])]
    forward = tf.function(layer, input_signature=signature)

    @tf.function(input_signature=signature)
    def step(bag):
        with tf.GradientTape() as tape:
            tape.watch(bag)
            loss = tf.reduce_sum(layer(bag) ** 2)
        weights = [v.value for v in layer.trainable_variables]
        return loss, tape.gradient(loss, [bag, *weights])

    numbers = np.random.default_rng(0)
    small = tf.constant(numbers.random((1, 300, FEATURES), np.float32))
    forward(small), step(small)
    bag = tf.constant(numbers.random((1, instances, FEATURES), np.float32))
    began = time.perf_counter()
    forward(bag)
    seconds = [time.perf_counter() - began]
    peaks = [report.memory_bytes()[1]]
    began = time.perf_counter()
    loss, _ = step(bag)
    seconds.append(time.perf_counter() - began)
    peaks.append(report.memory_bytes()[1])
    return report.line(
        f"attention {model}",
        [instances, FEATURES],
        block=block if model == "blockwise" else None,
        forward_seconds=round(seconds[0], 2),
        seconds=round(seconds[1], 2),
        base_bytes=base,
        forward_peak_bytes=peaks[0],
        peak_bytes=peaks[1],
        loss=float(loss),
    )


if __name__ == "__main__":
    main()
