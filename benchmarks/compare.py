"""Compare ways to run one training step of a network, each in its own process, in turn.

    python benchmarks/compare.py [--network resnet18 --side 2048 --ways plain streamed --rounds 3]

Prints one JSON line per way: medians, and the ratios of time and memory to the first way, of processes that ran one
after the other. `--torch PYTHON` names a Python with PyTorch, for the ways of `torch_step.py`. Plain Keras is as it is
by default: XLA compiles it on a GPU, and not on a CPU.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)

from benchmarks import harness, report
from benchmarks.networks import NETWORKS

WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "plain-without-xla": {"xla": False},
    "remat": {"remat": "activations"},
    "unified": {"unified": True},
    "streamed": {"budget": {}},
    "streamed-small": {"budget": {"host": True}},
    "bfloat16-stores": {"budget": {}, "store": "bfloat16"},
    "bfloat16-stores-small": {"budget": {"host": True}, "store": "bfloat16"},
    "plain-bfloat16": {"policy": "mixed_bfloat16"},
    "bfloat16": {"budget": {}, "policy": "mixed_bfloat16"},
}
"""`budget`: streamed, within `--host` if it is set; `remat`: mode of `keras.RematScope`; `policy`: dtype policy;
`xla`: `jit_compile` of Keras for the plain model, by default "auto"."""

PEERS = ("torch", "torch-checkpoint", "torch-save_on_cpu")
"""See `torch_step.py`."""


@dataclass(frozen=True)
class Arguments:
    network: Annotated[str, tuple(NETWORKS)] = "resnet18"
    side: Annotated[int, "rows and columns of the image"] = 2048
    steps: Annotated[int, "timed, of a process"] = 3
    warmup: Annotated[int, "steps before"] = 1
    rounds: Annotated[int, "processes of each way, in turn"] = 3
    ways: Annotated[Sequence[str], (*WAYS, *PEERS)] = ("plain", "streamed")
    device: Annotated[str | None, "bytes for strips"] = None
    host: Annotated[str | None, "bytes of host memory of ways that are small"] = None
    policy: Annotated[str | None, "of Keras, for all ways that have none of their own"] = None
    optimizer: Annotated[str, ("adam", "adamw")] = "adam"
    torch: Annotated[str, "a Python that has PyTorch"] = sys.executable


def main() -> None:
    arguments = harness.read(Arguments)

    def run(way: str) -> dict[str, Any]:
        ours = way not in PEERS
        found = harness.apart(measure, arguments, way) if ours else peer(arguments, way)
        return found | {"above_base_bytes": found["peak_bytes"] - found["base_bytes"]}

    runs = harness.in_turn(arguments.ways, arguments.rounds, run)
    for way, figures in runs.items():
        print(summarize(arguments, way, figures, runs[arguments.ways[0]]), flush=True)


def peer(arguments: Arguments, way: str) -> dict[str, Any]:
    """Return the figures of a way in a Python that has PyTorch."""
    words = ["--only", way, "--policy", arguments.policy or "float32"]
    for name in ("network", "side", "steps", "warmup", "optimizer"):
        words += [f"--{name}", getattr(arguments, name)]
    return report.in_own_process([ROOT / "benchmarks/torch_step.py", *words], arguments.torch)


def measure(arguments: Arguments, name: str) -> dict[str, Any]:
    """Train in this process; return the seconds of the median step after the warm-up, and memory above the imports."""
    import keras
    import numpy as np
    import tensorflow as tf

    import tfbig
    from tfbig.engine import machine_rates
    from tfbig.system import backend, unified_memory

    way = WAYS[name]
    if way.get("unified"):
        print(tfbig.unified_memory(), file=sys.stderr)
    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(way.get("policy") or arguments.policy or "float32")
    base, _ = report.memory_bytes()
    numbers = np.random.default_rng(0).random((1, arguments.side, arguments.side, 3), np.float32)
    with tf.device("/CPU:0" if "budget" in way else None):  # a plain step has it on its device
        image = tf.constant(numbers)
    model, plan = build(arguments, way)
    floor = plan.exact_operations / machine_rates.of(backend.accelerator()).operations
    held, _ = report.memory_bytes()
    seconds, loss = [], 0.0
    for _ in range(arguments.warmup + arguments.steps):
        began = time.perf_counter()
        loss = float(model.train_on_batch(image, tf.ones((1, 1))))
        seconds.append(time.perf_counter() - began)
    return {
        "seconds": statistics.median(seconds[arguments.warmup :]),
        "first_seconds": seconds[0],
        "floor_seconds": floor,
        "predicted_seconds": plan.seconds if "budget" in way else None,
        "base_bytes": base,
        "peak_bytes": report.memory_bytes()[1],
        "planned_bytes": held + plan.peak_bytes if "budget" in way else None,
        "device_peak_bytes": unified_memory.peak_bytes(),
        "loss": loss,
        "xla": bool(model.jit_compile) if "budget" not in way else None,
    }


def build(arguments: Any, way: dict[str, Any]) -> tuple[Any, Any]:
    """Return the compiled model of a way and the plan of its step; without streaming, the plan of one strip."""
    import keras

    import tfbig

    shape = (1, arguments.side, arguments.side, 3)
    remat = way.get("remat")
    with keras.RematScope(mode=remat) if remat else contextlib.nullcontext():
        plain = NETWORKS[arguments.network]()
    kinds = {"adam": lambda: "adam", "adamw": lambda: keras.optimizers.AdamW(1e-5, 1e-4)}
    if "budget" not in way:
        plain.compile(kinds[arguments.optimizer](), "mse", jit_compile=way.get("xla", "auto"))
        whole = tfbig.stream(
            NETWORKS[arguments.network](),
            tfbig.Budget("900TB", "900TB", disk=0),
            plain_if_small=False,
        )
        return plain, whole.plan(shape)
    host = arguments.host if way["budget"].get("host") else None
    big = tfbig.stream(
        plain, tfbig.Budget(arguments.device, host), store=way.get("store"), plain_if_small=False
    )
    big.compile(kinds[arguments.optimizer](), "mse")
    big.optimizer.build(big.trainable_variables)
    print(big.plan(shape), file=sys.stderr)
    return big, big.plan(shape)


def summarize(
    arguments: Arguments, way: str, ours: list[dict[str, Any]], first: list[dict[str, Any]]
) -> str:
    """Return a line of medians, and of the median ratios to the first way in the same round."""

    def median(key: str) -> Any:
        values = [run[key] for run in ours if run.get(key) is not None]
        return statistics.median(values) if values else None

    figures = {
        "seconds_ratio": harness.ratio(ours, first, "seconds"),
        "memory_ratio": harness.ratio(ours, first, "above_base_bytes"),
        "seconds": round(median("seconds"), 3),
        "above_base_bytes": int(median("above_base_bytes")),
    }
    keys = ("first_seconds", "floor_seconds", "predicted_seconds", "planned_bytes", "base_bytes")
    figures |= {key: median(key) for key in (*keys, "peak_bytes", "device_peak_bytes", "loss")}
    printed = {key: value for key, value in figures.items() if value is not None}
    size = [arguments.side, arguments.side, 3]
    settings = {"host": arguments.host} if way.endswith("-small") else {}
    settings |= {"policy": arguments.policy} if arguments.policy else {}
    settings |= {"xla": True} if ours[0].get("xla") else {}
    return report.line(
        arguments.network,
        size,
        way=way,
        to=arguments.ways[0],
        rounds=len(ours),
        **settings,
        **printed,
    )


if __name__ == "__main__":
    main()
