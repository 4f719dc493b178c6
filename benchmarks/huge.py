"""One training step on images whose plain step no machine at hand could hold, and where its time goes.

    python benchmarks/huge.py [resnet50 8192 | resnet18 16384] [--host 18GB --strips 512MB --store bfloat16]

Writes an image of random bytes to a file; prints the plan, the seconds that each sweep took, and one JSON line: seconds
of the step, tracing included, and the peak of the process.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[0] = os.path.dirname(HERE)

import numpy as np

from benchmarks import report


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?", default="resnet50", choices=["resnet18", "resnet50"])
    parser.add_argument("side", nargs="?", type=int, default=8192)
    parser.add_argument("--host", help="bytes of host memory; by default what is available")
    parser.add_argument("--disk", help="bytes of disk; by default what is free")
    parser.add_argument("--strips", default="512MB")
    parser.add_argument("--store", help="element type of stored images")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(step(given, Path(folder) / "image.npy"))


def step(given: argparse.Namespace, path: Path) -> str:
    """The JSON line of one step."""
    import keras

    import tfbig
    from tfbig.models import resnet

    keras.utils.set_random_seed(0)
    write_image(path, given.side)
    base, _ = report.memory_bytes()
    encoder = getattr(resnet, given.model)(include_top=False, pooling="avg")
    model = keras.Model(encoder.input, keras.layers.Dense(1)(encoder.output))
    budget = tfbig.Budget(device=given.strips, host=given.host, disk=given.disk)
    big = tfbig.stream(model, budget, store=given.store)
    big.compile("adam", "mse")
    shape = (given.side, given.side, 3)
    plan = big.plan((1, *shape))
    print(plan, file=sys.stderr, flush=True)
    sweeps = follow()
    began = time.perf_counter()
    loss = big.train_on_batch(np.array([tfbig.open(path).handle]), np.ones((1, 1), np.float32))
    seconds = time.perf_counter() - began
    ends = sorted((last, name) for name, last in sweeps.items())
    starts = [began, *(last for last, _ in ends)]
    return report.line(
        f"{given.model} huge",
        list(shape),
        seconds=round(seconds, 1),
        predicted_seconds=round(plan.seconds, 1),
        base_bytes=base,
        peak_bytes=report.memory_bytes()[1],
        planned_bytes=base + plan.total_bytes,
        disk_bytes=plan.disk_bytes,
        store=given.store or "float32",
        loss=float(loss),
        sweeps={
            name: round(last - start, 1) for start, (last, name) in zip(starts, ends, strict=False)
        },
    )


def write_image(path: Path, side: int) -> None:
    """Random bytes `[side, side, 3]`, a few rows at a time."""
    import tfbig

    random = np.random.default_rng(0)
    with tfbig.sources.write_npy(path, (side, side, 3), np.dtype("uint8")) as writer:
        for start in range(0, side, 64):
            rows = min(64, side - start)
            writer.write(start, random.integers(0, 256, (rows, side, 3), np.uint8))


def follow() -> dict[str, float]:
    """When the last strip of each sweep was done, by what progress calls the sweep."""
    from tfbig.system.progress import METER

    ends: dict[str, float] = {}
    tick = METER.tick

    def noted(what: str, index: int, count: int, unit: str = "strip") -> None:
        ends[what] = time.perf_counter()
        if index % max(count // 4, 1) == 0:
            print(f"{what} {index + 1}/{count}", file=sys.stderr, flush=True)
        tick(what, index, count, unit)

    METER.tick = noted  # type: ignore[method-assign]
    return ends


if __name__ == "__main__":
    main()
