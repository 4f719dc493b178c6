"""One training step of a model, streamed in several ways and as plain Keras, each in a process of its own, in turn."""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import report


def main(
    script: str, case: str, build: Callable[[], Any], side: int, kinds: dict[str, dict[str, Any]]
) -> None:
    """The command line of a benchmark; prints one JSON line per kind.

    Args:
        script: file of the benchmark; its docstring's first line is the help.
        build: makes the plain model, `[N, H, W, 3]` to one number.
        side: rows and columns of the image.
        kinds: `device`, `host` and `store` of each way of streaming, by name; `remat` is Keras' own way to save
            memory instead, a mode of `keras.RematScope`.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--side", type=int, default=side, help="rows and columns of the image")
    parser.add_argument("--steps", type=int, default=4, help="a process; the first does not count")
    parser.add_argument("--rounds", type=int, default=3, help="processes of each kind, in turn")
    parser.add_argument("--kinds", nargs="+", default=list(kinds), choices=list(kinds))
    parser.add_argument("--only", choices=[*kinds, "plain"], help="one kind, in this process")
    given = parser.parse_args()
    if given.only:
        print(measure(build, given.only, kinds.get(given.only), given.side, given.steps))
        return
    runs: dict[str, list[dict]] = {kind: [] for kind in [*given.kinds, "plain"]}
    for _ in range(given.rounds):
        for kind, found in runs.items():
            words = ["--only", kind, "--side", str(given.side), "--steps", str(given.steps)]
            found.append(report.in_own_process([script, *words]))
    for kind in given.kinds:
        name = case if len(kinds) == 1 else f"{case} {kind}"
        print(compared(name, [given.side, given.side, 3], runs[kind], runs["plain"]), flush=True)


def measure(
    build: Callable[[], Any], kind: str, ways: dict[str, Any] | None, side: int, steps: int
) -> str:
    """Trains in this process: seconds of the median step but the first, and memory above the imports."""
    import keras
    import numpy as np
    import tensorflow as tf

    import tfbig

    keras.utils.set_random_seed(0)
    base, _ = report.memory_bytes()
    image = tf.constant(np.random.default_rng(0).random((1, side, side, 3), np.float32))
    label = tf.ones((1, 1))
    remat = (ways or {}).get("remat")
    with keras.RematScope(mode=remat) if remat else contextlib.nullcontext():
        model, planned = build(), None
    if ways is not None and not remat:
        budget = tfbig.Budget(device=ways.get("device"), host=ways.get("host"))
        model = tfbig.stream(model, budget, store=ways.get("store"))
        model.compile("adam", "mse")
        model.optimizer.build(model.trainable_variables)
        held, _ = report.memory_bytes()
        plan = model.plan((1, side, side, 3))
        print(plan, file=sys.stderr)
        planned = held + plan.peak_bytes
    else:
        model.compile("adam", "mse", jit_compile=False)
    seconds = []
    for _ in range(steps):
        began = time.perf_counter()
        loss = model.train_on_batch(image, label)
        seconds.append(time.perf_counter() - began)
    figures = {"seconds": statistics.median(seconds[1:] or seconds), "first_seconds": seconds[0]}
    figures |= {"base_bytes": base, "peak_bytes": report.memory_bytes()[1]}
    return report.line(kind, [side], planned_bytes=planned, loss=float(loss), **figures)


def compared(case: str, size: list[int], ours: list[dict], plain: list[dict]) -> str:
    """Medians, and the median of the ratios of processes that ran one after the other."""

    def middle(runs: list[dict], figure: str) -> float:
        return statistics.median(run[figure] for run in runs)

    def above(runs: list[dict]) -> float:
        return middle(runs, "peak_bytes") - middle(runs, "base_bytes")

    pairs = zip(ours, plain, strict=True)
    return report.line(
        case,
        size,
        seconds=round(middle(ours, "seconds"), 2),
        seconds_twin=round(middle(plain, "seconds"), 2),
        seconds_ratio=round(statistics.median(a["seconds"] / b["seconds"] for a, b in pairs), 3),
        first_seconds=round(middle(ours, "first_seconds"), 1),
        first_seconds_twin=round(middle(plain, "first_seconds"), 1),
        base_bytes=int(middle(ours, "base_bytes")),
        peak_bytes=int(middle(ours, "peak_bytes")),
        peak_bytes_twin=int(middle(plain, "peak_bytes")),
        above_base_ratio=round(above(ours) / above(plain), 3),
        planned_bytes=ours[0]["planned_bytes"],
    )
