"""One training step on images whose plain step no machine at hand could hold.

    python benchmarks/huge.py [resnet50 8192 | resnet18 16384] [--host 18GB --strips 512MB --store bfloat16]

Prints the plan and one JSON line: seconds of the step, tracing included, and the peak of the process.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.dirname(HERE), HERE]

import numpy as np
import report


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", default="resnet50", choices=["resnet18", "resnet50"])
    parser.add_argument("side", nargs="?", type=int, default=8192)
    parser.add_argument("--host", help="bytes of host memory; by default what is available")
    parser.add_argument("--disk", help="bytes of disk; by default what is free")
    parser.add_argument("--strips", default="512MB")
    parser.add_argument("--store", help="element type of stored images")
    given = parser.parse_args()
    import keras

    import tfbig
    from models import resnet

    keras.utils.set_random_seed(0)
    shape = (given.side, given.side, 3)
    image = tfbig.open(np.random.default_rng(0).integers(0, 256, shape, np.uint8))
    base, _ = report.memory_bytes()
    encoder = getattr(resnet, given.model)(include_top=False, pooling="avg")
    model = keras.Model(encoder.input, keras.layers.Dense(1)(encoder.output))
    budget = tfbig.Budget(device=given.strips, host=given.host, disk=given.disk)
    big = tfbig.stream(model, budget, store=given.store)
    big.compile("adam", "mse")
    plan = big.plan((1, *shape))
    print(plan, file=sys.stderr, flush=True)
    began = time.perf_counter()
    loss = big.train_on_batch(np.array([image.handle]), np.ones((1, 1), np.float32))
    print(
        report.line(
            f"{given.model} huge",
            list(shape),
            seconds=round(time.perf_counter() - began, 1),
            predicted_seconds=round(plan.seconds, 1),
            base_bytes=base,
            peak_bytes=report.memory_bytes()[1],
            planned_bytes=base + plan.total_bytes,
            disk_bytes=plan.disk_bytes,
            store=given.store or "float32",
            loss=float(loss),
        )
    )


if __name__ == "__main__":
    main()
