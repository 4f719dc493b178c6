"""Time and memory of a training step of ResNet-18 and ABMIL on a bag, compared with plain Keras.

    python benchmarks/mil_step.py --instances 500 --side 84 --at-once 125 --norm none
    python benchmarks/mil_step.py --instances 1000 --side 224 --at-once 8 --host 5GB --disk --alone

Without `--alone` streamed and plain models run in turn, `--steps` steps each per round, in one process; prints the
median ratio of seconds and of processor seconds, which do not count when a shared machine stalls. With `--alone` the
streamed model runs in a process that never builds the plain step, so peak memory is its own. `--norm none` removes the
BatchNormalization layers. Prints one JSON line.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks import harness, report, turns


@dataclass(frozen=True)
class Arguments:
    instances: int = 50
    side: int = 112
    at_once: int = 10
    norm: Annotated[str, ("none", "exact", "frozen", "per_slice")] = "exact"
    published: bool = False
    host: str | None = None
    device: Annotated[str | None, "bytes for strips"] = None
    disk: bool = False
    steps: int = 1
    rounds: int = 5
    turns: Annotated[Path | None, "folder of processes that share a GPU"] = None
    alone: bool = False


def model(arguments: Arguments) -> Any:
    """Return the streamed model; its twin is the plain one."""
    import keras

    import tfbig
    from tfbig import mil
    from tfbig.models import encoders
    from tfbig.models.pooling import ABMIL

    keras.utils.set_random_seed(0)
    budget = tfbig.Budget(
        device=arguments.device, host=arguments.host, disk=None if arguments.disk else 0
    )
    shape = (arguments.side, arguments.side, 3)
    return mil.MIL(
        encoders.make("resnet18", shape, norm=arguments.norm != "none"),
        ABMIL(2),
        arguments.at_once,
        norm="exact" if arguments.norm == "none" else arguments.norm,
        mode="published" if arguments.published else "exact",
        budget=budget,
    )


def bag(arguments: Arguments, folder: str) -> Any:
    """Write random tiles to a file, one by one, and open it."""
    import numpy as np

    from tfbig.sources import NpyBag

    path = Path(folder) / "bag.npy"
    shape = (arguments.instances, arguments.side, arguments.side, 3)
    rows = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=shape)
    rng = np.random.default_rng(0)
    for i in range(arguments.instances):
        rows[i] = rng.integers(0, 256, shape[1:], np.uint8)
    rows.flush()
    del rows
    return NpyBag(path)


def main() -> None:
    arguments = harness.read(Arguments)
    turns.join(arguments.turns)
    import keras
    import numpy as np
    import tensorflow as tf

    with tempfile.TemporaryDirectory() as folder:
        tiles, label = bag(arguments, folder), np.array([1])
        streamed = model(arguments)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        streamed.compile(keras.optimizers.SGD(1e-4), loss)
        size = [arguments.instances, arguments.side, arguments.side, 3]
        figures = {"at_once": arguments.at_once, "norm": arguments.norm, "host": arguments.host}
        figures["published"] = arguments.published
        if not arguments.published:
            plan = streamed.plan((1, *size))
            figures |= {"planned_bytes": plan.peak_bytes, "disk_bytes": plan.projected.disk}
        handle = tf.data.Dataset.from_tensors((tf.constant([tiles.handle]), label))
        data = handle.repeat(arguments.steps)

        def steps(network=streamed, batches=data):
            started, used = time.perf_counter(), time.process_time()
            network.fit(batches, shuffle=False, verbose=0)
            taken = time.perf_counter() - started, time.process_time() - used
            return [seconds / arguments.steps for seconds in taken]

        base, _ = report.memory_bytes()
        first, _ = steps()
        if arguments.alone:
            with turns.alone(arguments.turns):
                seconds = [steps()[0] for _ in range(arguments.rounds)]
            _, peak = report.memory_bytes()
            figures |= {"seconds": seconds or [first], "base_bytes": base, "peak_bytes": peak}
            figures |= report.device_memory()
            print(report.line("mil_step", size, first_seconds=first, **figures))
            return
        plain = streamed.twin
        plain.compile(keras.optimizers.SGD(1e-4), loss, jit_compile=False)
        whole = tiles.read(0, size[0])[None].astype("float32")
        dense = tf.data.Dataset.from_tensors((whole, label)).repeat(arguments.steps)

        steps(plain, dense)
        with turns.alone(arguments.turns):
            pairs = [(steps(), steps(plain, dense)) for _ in range(arguments.rounds)]
        ratios, used = ([a[i] / b[i] for a, b in pairs] for i in range(2))
        figures |= {
            "seconds": statistics.median(a for (a, _), _ in pairs),
            "plain_seconds": statistics.median(b for _, (b, _) in pairs),
            "ratio": statistics.median(ratios),
            "ratios": [round(r, 3) for r in ratios],
            "processor_ratio": statistics.median(used),
            "processor_ratios": [round(r, 3) for r in used],
        }
        figures |= report.device_memory()
        print(report.line("mil_step", size, first_seconds=first, **figures))


if __name__ == "__main__":
    main()
