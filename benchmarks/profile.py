"""Where the time of a training step goes: arithmetic, copies, reading, waiting.

    python benchmarks/profile.py [--network resnet18 --side 2048 --way streamed --operations 20]

A step is traced by TensorFlow's profiler. Of every moment it is known which operations ran: convolutions and matrix
products; other arithmetic; calls to Python, which read and write stores; none, which is waiting. A moment counts for
the first of these that ran. Copies to stores, in a thread of their own, and reading of files are timed beside, as they
overlap. Prints the operations that took longest, and one JSON line.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)

from benchmarks import compare, report

PRODUCTS = ("conv", "matmul", "einsum", "cudnn", "gemm")
COPIES = ("memcpy", "_send", "_recv", "deepcopy")
KINDS = ("products", "other arithmetic", "copies to a device", "calls to Python")
"""The first counts where several run at once."""

Event = tuple[int, int, str]
"""First and last picosecond, and type of the operation."""


def main() -> None:
    given = parsed()
    import keras
    import numpy as np
    import tensorflow as tf

    way = compare.WAYS[given.way]
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(way.get("policy") or given.policy or "float32")
    model, plan = compare.made(given, way)
    image = tf.constant(np.random.default_rng(0).random((1, given.side, given.side, 3), np.float32))
    for _ in range(2):
        model.train_on_batch(image, tf.ones((1, 1)))
    beside = timed()
    began, before = time.perf_counter(), os.times()
    events = traced(lambda: model.train_on_batch(image, tf.ones((1, 1))))
    after = os.times()
    seconds = Counter[str]()
    for start, stop, kind in events:
        seconds[kind] += (stop - start) / 1e12
    for kind, taken in seconds.most_common(given.operations):
        print(f"{kind:40} {taken:8.3f} s", file=sys.stderr)
    print(
        report.line(
            f"profile {given.network}",
            [given.side, given.side, 3],
            way=given.way,
            seconds=round(after.elapsed - before.elapsed, 3),
            cores_busy=round(
                (after.user + after.system - before.user - before.system)
                / (after.elapsed - before.elapsed),
                3,
            ),
            floor_seconds=round(floor(plan), 3),
            shares={kind: round(share, 4) for kind, share in shares(events).items()},
            beside={name: round(taken, 3) for name, taken in beside.items()},
            traced_seconds=round(time.perf_counter() - began, 3),
        )
    )


def parsed() -> argparse.Namespace:
    from benchmarks.networks import NETWORKS

    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--network", default="resnet18", choices=list(NETWORKS))
    parser.add_argument("--side", type=int, default=2048)
    parser.add_argument("--way", default="streamed", choices=list(compare.WAYS))
    parser.add_argument("--operations", type=int, default=20, help="how many are printed")
    parser.add_argument("--device", help="bytes for strips")
    parser.add_argument("--host", help="bytes of host memory of ways that are small")
    parser.add_argument("--policy")
    parser.add_argument("--optimizer", default="adam", choices=["adam", "adamw"])
    return parser.parse_args()


def floor(plan: Any) -> float:
    """Seconds of the arithmetic at the rate of a convolution in memory that is near."""
    from tfbig.engine import machine_rates
    from tfbig.system import backend

    return float(plan.exact_operations / machine_rates.of(backend.accelerator()).operations)


def timed() -> dict[str, float]:
    """Seconds of what runs beside the operations, which grow as it runs."""
    from tfbig.engine import read_ahead
    from tfbig.stores import host_store

    taken: dict[str, float] = defaultdict(float)

    def follow(module: Any, name: str, label: str) -> None:
        function = getattr(module, name)

        def followed(*arguments: Any) -> Any:
            began = time.perf_counter()
            try:
                return function(*arguments)
            finally:
                taken[label] += time.perf_counter() - began

        setattr(module, name, followed)

    follow(host_store, "_copy_all", "copies to stores")
    follow(host_store, "_later", "waiting for copies")
    follow(read_ahead, "_read_rows", "reading files")
    return taken


def traced(work: Callable[[], object]) -> list[Event]:
    """The operations that ran while `work` did."""
    import tensorflow as tf
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    profiler = tf.profiler.experimental
    with tempfile.TemporaryDirectory() as folder:
        profiler.start(folder, profiler.ProfilerOptions(host_tracer_level=2, python_tracer_level=0))
        try:
            work()
        finally:
            profiler.stop()
        (file,) = Path(folder).rglob("*.xplane.pb")
        space = xplane_pb2.XSpace()
        space.ParseFromString(file.read_bytes())
    found = []
    for plane in space.planes:
        on_gpu = "GPU" in plane.name
        for line in plane.lines:
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name
                kind = name if on_gpu else name.rpartition(":")[2].partition("#")[0].strip()
                if on_gpu or (":" in name and "__inference" not in name and _is_operation(kind)):
                    first = line.timestamp_ns * 1000 + event.offset_ps
                    found.append((first, first + event.duration_ps, kind))
    return found


def _is_operation(kind: str) -> bool:
    return kind.replace("_", "").isalnum() and kind not in ("Process", "Run", "Start")


def kind_of(operation: str) -> str:
    """Which of `KINDS` an operation is."""
    name = operation.lower()
    if any(word in name for word in PRODUCTS):
        return KINDS[0]
    if any(word in name for word in COPIES):
        return KINDS[2]
    return KINDS[3] if name == "pyfunc" else KINDS[1]


def shares(events: Iterable[Event]) -> dict[str, float]:
    """The share of the time for which each kind ran, the first where several did, and of waiting."""
    ends = sorted(x for start, stop, name in events for x in ((start, 1, name), (stop, -1, name)))
    running, spent = Counter[str](), Counter[str]()
    last = ends[0][0]
    for moment, change, name in ends:
        active = next((kind for kind in KINDS if running[kind] > 0), "waiting")
        spent[active] += moment - last
        running[kind_of(name)] += change
        last = moment
    whole = max(sum(spent.values()), 1)
    return {kind: spent[kind] / whole for kind in (*KINDS, "waiting")}


if __name__ == "__main__":
    main()
