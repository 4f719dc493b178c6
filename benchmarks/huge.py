"""Time one training step on an image whose plain step would fit no machine at hand, sweep by sweep.

    python benchmarks/huge.py [resnet50 8192 | resnet18 16384] [--host 18GB --strips 512MB --store bfloat16]

Writes an image of random bytes to a file; prints the plan, the seconds of each sweep, and one JSON line: seconds of the
step, tracing included, and the peak memory of the process.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[0] = os.path.dirname(HERE)

import numpy as np

from benchmarks import report


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("model", nargs="?", default="resnet50", choices=["resnet18", "resnet50"])
    parser.add_argument("side", nargs="?", type=int, default=8192)
    parser.add_argument("--host", help="bytes of host memory; by default what is available")
    parser.add_argument("--disk", help="bytes of disk; by default what is free")
    parser.add_argument("--strips", default="512MB")
    parser.add_argument("--store", help="element type of stored images")
    return parser.parse_args(words)


def main() -> None:
    arguments = parse_arguments()
    with tempfile.TemporaryDirectory() as folder:
        print(step(arguments, Path(folder) / "image.npy"))


def step(arguments: argparse.Namespace, path: Path) -> str:
    """Return the JSON line of one step."""
    import keras

    import tfbig
    from tfbig.models import resnet

    keras.utils.set_random_seed(0)
    write_image(path, arguments.side)
    base, _ = report.memory_bytes()
    encoder = getattr(resnet, arguments.model)(include_top=False, pooling="avg")
    model = keras.Model(encoder.input, keras.layers.Dense(1)(encoder.output))
    budget = tfbig.Budget(device=arguments.strips, host=arguments.host, disk=arguments.disk)
    big = tfbig.stream(model, budget, store=arguments.store, plain_if_small=False)
    big.compile("adam", "mse")
    shape = (arguments.side, arguments.side, 3)
    plan = big.plan((1, *shape))
    print(plan, file=sys.stderr, flush=True)
    sweeps = follow()
    began = time.perf_counter()
    loss = big.train_on_batch(np.array([tfbig.open(path).handle]), np.ones((1, 1), np.float32))
    seconds = time.perf_counter() - began
    ends = sorted((last, name) for name, last in sweeps.items())
    starts = [began, *(last for last, _ in ends)]
    return report.line(
        f"{arguments.model} huge",
        list(shape),
        seconds=round(seconds, 1),
        predicted_seconds=round(plan.seconds, 1),
        base_bytes=base,
        peak_bytes=report.memory_bytes()[1],
        planned_bytes=base + plan.total_bytes,
        disk_bytes=plan.projected.disk,
        store=arguments.store or "float32",
        loss=float(loss),
        sweeps={
            name: round(last - start, 1) for start, (last, name) in zip(starts, ends, strict=False)
        },
    )


def write_image(path: Path, side: int) -> None:
    """Write random bytes `[side, side, 3]`, a few rows at a time."""
    import tfbig

    random = np.random.default_rng(0)
    with tfbig.sources.write_npy(path, (side, side, 3), np.dtype("uint8")) as writer:
        for start in range(0, side, 64):
            rows = min(64, side - start)
            writer.write(start, random.integers(0, 256, (rows, side, 3), np.uint8))


def follow() -> dict[str, float]:
    """Return a dict that will hold the time at which the last strip of each sweep was done."""
    from tfbig.system.progress import METER

    ends: dict[str, float] = {}
    tick = METER.tick

    def record(what: str, index: int, count: int, *unit: Any) -> None:
        ends[what] = time.perf_counter()
        if index % max(count // 4, 1) == 0:
            print(f"{what} {index + 1}/{count}", file=sys.stderr, flush=True)
        tick(what, index, count, *unit)

    METER.tick = record  # type: ignore[method-assign]
    return ends


if __name__ == "__main__":
    main()
