"""Compare ways to run one training step of a network, each in its own process, in turn.

    python benchmarks/compare.py [--network resnet18 --side 2048 --ways plain streamed --rounds 3]

Prints one JSON line per way: medians, and the ratios of time and memory to the first way, of processes that ran one
after the other. `--torch PYTHON` names a Python with PyTorch, for the ways of `torch_step.py`. Plain Keras is as it is
by default: XLA compiles it on a GPU, and not on a CPU.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)

from benchmarks import report

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

PEERS = ("torch", "torch-checkpoint", "torch-save_on_cpu", "lightstream")
"""See `torch_step.py`."""


def main() -> None:
    arguments = parse_arguments()
    if arguments.only:
        print(measure(arguments))
        return
    words = ["--network", arguments.network, "--side", arguments.side, "--steps", arguments.steps]
    words += ["--warmup", arguments.warmup, "--optimizer", arguments.optimizer]
    options = ["--device", arguments.device] if arguments.device else []
    options += ["--host", arguments.host] if arguments.host else []
    options += ["--policy", arguments.policy] if arguments.policy else []
    runs: dict[str, list[dict[str, Any]]] = {way: [] for way in arguments.ways}
    for _ in range(arguments.rounds):
        for way in list(runs):
            peer = way in PEERS
            script = [str(ROOT / "benchmarks/torch_step.py") if peer else __file__, *words]
            script += [*(_peer_options(arguments) if peer else options), "--only", way]
            python = arguments.torch if peer else None
            try:
                runs[way].append(report.in_own_process(script, python))
            except subprocess.CalledProcessError as error:
                del runs[way]  # keep the other ways, which have taken minutes
                print(f"{way} is left out: it ended with {error.returncode}", file=sys.stderr)
    for way, figures in runs.items():
        print(summarize(arguments, way, figures, runs[arguments.ways[0]]), flush=True)


def _peer_options(arguments: argparse.Namespace) -> list[str]:
    return ["--policy", arguments.policy] if arguments.policy else []


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the arguments of the command line."""
    from benchmarks.networks import NETWORKS

    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--network", default="resnet18", choices=list(NETWORKS))
    parser.add_argument("--side", type=int, default=2048, help="rows and columns of the image")
    parser.add_argument("--steps", type=int, default=3, help="timed, of a process")
    parser.add_argument("--warmup", type=int, default=1, help="steps before")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each way, in turn")
    parser.add_argument("--ways", nargs="+", default=["plain", "streamed"], choices=[*WAYS, *PEERS])
    parser.add_argument("--device", help="bytes for strips")
    parser.add_argument("--host", help="bytes of host memory of ways that are small")
    parser.add_argument("--policy", help="of Keras, for all ways that have none of their own")
    parser.add_argument("--optimizer", default="adam", choices=["adam", "adamw"])
    parser.add_argument("--torch", default=sys.executable, help="a Python that has PyTorch")
    parser.add_argument("--only", choices=list(WAYS), help="one way, in this process")
    return parser.parse_args(words)


def measure(arguments: argparse.Namespace) -> str:
    """Train in this process; return the seconds of the median step after the warm-up, and memory above the imports."""
    import keras
    import numpy as np
    import tensorflow as tf

    import tfbig
    from tfbig.engine import machine_rates
    from tfbig.system import backend, unified_memory

    way = WAYS[arguments.only]
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
    return report.line(
        arguments.only,
        [arguments.side],
        seconds=statistics.median(seconds[arguments.warmup :]),
        first_seconds=seconds[0],
        floor_seconds=floor,
        predicted_seconds=plan.seconds if "budget" in way else None,
        base_bytes=base,
        peak_bytes=report.memory_bytes()[1],
        planned_bytes=held + plan.peak_bytes if "budget" in way else None,
        device_peak_bytes=unified_memory.peak_bytes(),
        loss=loss,
        xla=bool(model.jit_compile) if "budget" not in way else None,
    )


def build(arguments: argparse.Namespace, way: dict[str, Any]) -> tuple[Any, Any]:
    """Return the compiled model of a way and the plan of its step; without streaming, the plan of one strip."""
    import keras

    import tfbig
    from benchmarks.networks import NETWORKS

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
    arguments: argparse.Namespace, way: str, ours: list[dict[str, Any]], first: list[dict[str, Any]]
) -> str:
    """Return a line of medians, and of the median ratios to the first way in the same round."""

    def median(key: str) -> Any:
        values = [run[key] for run in ours if run.get(key) is not None]
        return statistics.median(values) if values else None

    def above(run: dict[str, Any]) -> float:
        return float(run["peak_bytes"] - run["base_bytes"])

    pairs = list(zip(ours, first, strict=True))
    figures = {
        "seconds_ratio": round(statistics.median(a["seconds"] / b["seconds"] for a, b in pairs), 3),
        "memory_ratio": round(statistics.median(above(a) / above(b) for a, b in pairs), 3),
        "seconds": round(median("seconds"), 3),
        "above_base_bytes": int(statistics.median(map(above, ours))),
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
