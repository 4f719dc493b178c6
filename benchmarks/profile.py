"""Profile a training step: shares of arithmetic, copies, reading and waiting.

    python benchmarks/profile.py [--network resnet18 --side 2048 --way streamed --operations 20]
    python benchmarks/profile.py --plot profile.png    # of the lines in results.jsonl

TensorFlow's profiler traces a step, so that it is known which operations ran at each moment: convolutions and matrix
products; other arithmetic; calls to Python, which read and write stores; none, which is waiting. A moment counts for
the first of these that ran. Copies to stores, in their own thread, and reading of files overlap with operations and are
timed separately. Prints the operations that took longest, and one JSON line. The profiler itself takes time, mostly for
each operation, so a streamed step with its many small operations looks slower than it is; `untraced_seconds` is the
step before.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)

from benchmarks import compare, harness, report
from benchmarks.networks import NETWORKS

PRODUCTS = ("conv", "matmul", "einsum", "cudnn", "gemm")
COPIES = ("memcpy", "_send", "_recv", "deepcopy")
KINDS = ("products", "other arithmetic", "copies to a device", "calls to Python")
"""The first counts where several run at once."""

Event = tuple[int, int, str]
"""First and last picosecond, and type of the operation."""


@dataclass(frozen=True)
class Arguments:
    network: Annotated[str, tuple(NETWORKS)] = "resnet18"
    side: int = 2048
    way: Annotated[str, tuple(compare.WAYS)] = "streamed"
    operations: Annotated[int, "how many are printed"] = 20
    device: Annotated[str | None, "bytes for strips"] = None
    host: Annotated[str | None, "bytes of host memory of ways that are small"] = None
    policy: str | None = None
    optimizer: Annotated[str, ("adam", "adamw")] = "adam"
    plot: Annotated[str | None, "file of a picture of the saved profiles; nothing runs"] = None


def main() -> None:
    arguments = harness.read(Arguments)
    if arguments.plot:
        plot(saved_lines(), arguments.plot)
        return
    import keras
    import numpy as np
    import tensorflow as tf

    way = compare.WAYS[arguments.way]
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(way.get("policy") or arguments.policy or "float32")
    model, plan = compare.build(arguments, way)
    image = tf.constant(
        np.random.default_rng(0).random((1, arguments.side, arguments.side, 3), np.float32)
    )
    for _ in range(3):
        began = time.perf_counter()
        model.train_on_batch(image, tf.ones((1, 1)))
        untraced = time.perf_counter() - began
    beside = timed()
    began, before = time.perf_counter(), os.times()
    events = traced(lambda: model.train_on_batch(image, tf.ones((1, 1))))
    after = os.times()
    seconds = Counter[str]()
    for start, stop, kind in events:
        seconds[kind] += (stop - start) / 1e12
    for kind, taken in seconds.most_common(arguments.operations):
        print(f"{kind:40} {taken:8.3f} s", file=sys.stderr)
    print(
        report.line(
            f"profile {arguments.network}",
            [arguments.side, arguments.side, 3],
            way=arguments.way,
            seconds=round(after.elapsed - before.elapsed, 3),
            untraced_seconds=round(untraced, 3),
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


def floor(plan: Any) -> float:
    """Return the seconds of all operations at the rate of a convolution in near memory."""
    from tfbig.engine import machine_rates
    from tfbig.system import backend

    return float(plan.exact_operations / machine_rates.of(backend.accelerator()).operations)


def timed() -> dict[str, float]:
    """Return the seconds of work that overlaps with operations, a dict that grows as the work runs."""
    from tfbig.engine import read_ahead
    from tfbig.stores import transfers

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

    follow(transfers, "_copy_all", "copies to stores")
    follow(transfers, "_submit", "waiting for copies")
    follow(read_ahead, "_read_part", "reading files")
    return taken


def record(work: Callable[[], object], level: int = 2) -> Any:
    """Return the trace of `work` by TensorFlow's profiler, an `XSpace`."""
    import tensorflow as tf
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    profiler = tf.profiler.experimental
    with tempfile.TemporaryDirectory() as folder:
        profiler.start(folder, profiler.ProfilerOptions(level, python_tracer_level=0))
        try:
            work()
        finally:
            profiler.stop()
        (file,) = Path(folder).rglob("*.xplane.pb")
        space = xplane_pb2.XSpace()
        space.ParseFromString(file.read_bytes())
    return space


def traced(work: Callable[[], object]) -> list[Event]:
    """Return the operations that ran during `work`."""
    events = []
    for plane in record(work).planes:
        on_gpu = "GPU" in plane.name
        for line in plane.lines:
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name
                kind = name if on_gpu else name.rpartition(":")[2].partition("#")[0].strip()
                if on_gpu or (":" in name and "__inference" not in name and _is_operation(kind)):
                    first = line.timestamp_ns * 1000 + event.offset_ps
                    events.append((first, first + event.duration_ps, kind))
    return events


def _is_operation(kind: str) -> bool:
    return kind.replace("_", "").isalnum() and kind not in ("Process", "Run", "Start")


def kind_of(operation: str) -> str:
    """Return the kind of an operation, one of `KINDS`."""
    name = operation.lower()
    if any(word in name for word in PRODUCTS):
        return KINDS[0]
    if any(word in name for word in COPIES):
        return KINDS[2]
    return KINDS[3] if name.startswith("pyfunc") else KINDS[1]


def shares(events: Iterable[Event]) -> dict[str, float]:
    """Return the share of the time of each kind (the first of several at once), and of waiting."""
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


def saved_lines() -> list[dict[str, Any]]:
    """Return the saved profiles of steps without a GPU, the last of each network, way and commit."""
    lines = map(json.loads, report.RESULTS.read_text().splitlines())
    profiles = [x for x in lines if x["case"].startswith("profile ") and "untraced_seconds" in x]
    return list({(x["case"], x["way"], x["commit"]): x for x in profiles}.values())


def plot(lines: Sequence[dict[str, Any]], path: str) -> None:
    """Draw the seconds of each kind of work as stacked bars, one bar for each profile, one panel for each network."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    networks = list(dict.fromkeys(x["case"].removeprefix("profile ") for x in lines))
    figure, axes = pyplot.subplots(
        1, len(networks), figsize=(4.4 * len(networks), 4.2), squeeze=False
    )
    kinds = [k for k in (*KINDS, "waiting") if any(x["shares"][k] for x in lines)]
    for network, axis in zip(networks, axes[0], strict=True):
        own = [x for x in lines if x["case"] == f"profile {network}"]
        names, bottom = [f"{x['way']}\n{x['commit'][:7]}" for x in own], [0.0] * len(own)
        for number, kind in enumerate(kinds):
            heights = [x["seconds"] * x["shares"][kind] for x in own]
            axis.bar(names, heights, 0.6, bottom, color=f"C{number}", label=kind)
            bottom = [a + b for a, b in zip(bottom, heights, strict=True)]
        untraced = [x["untraced_seconds"] for x in own]
        axis.plot(names, untraced, "k_", markersize=24, label="without the profiler")
        axis.set_title(f"{network}, {own[0]['size'][0]} x {own[0]['size'][1]}")
        axis.set_ylim(0, 1.08 * max(*bottom, *untraced))
    axes[0, 0].set_ylabel("seconds of a training step")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=len(labels), frameon=False, fontsize=9)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    main()
