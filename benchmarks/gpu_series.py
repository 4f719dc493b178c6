"""Run the benchmarks that matter most on a GPU within a short time, each in a process with a time limit.

    python benchmarks/gpu_series.py [--stages plain streamed ...] [--out FILE] [--list]
    python benchmarks/gpu_series.py --side 128 --policy mixed_bfloat16    # a rehearsal, also without a GPU

Stages run in order of worth. Each line is printed as soon as it is known, with the command that prints it again, and
written to FILE, so that nothing is lost if the time ends. A stage that fails or exceeds its limit has a line with what
it printed last. Sides and budgets are those of ResNet-18 at 4096 x 4096, or smaller by `--side`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

ROOT = Path(__file__).resolve().parent.parent
HERE = ROOT / "benchmarks"
sys.path[0] = str(ROOT)

from benchmarks import harness, report

FULL_SIDE = 4096
LAST_LINES = 8
"""Lines of a failed stage that are printed."""


@dataclass(frozen=True)
class Stage:
    """One process.

    Args:
        words: Script and its arguments; `{side}`, `{double}` (twice the side), `{policy}` and budgets, `{8GB}` and
            `{30GB}`, are replaced.
        limit: Seconds that it may take on a GPU.
        environment: Variables that are set for it.
    """

    words: str
    limit: int
    environment: dict[str, str] = field(default_factory=dict)


_SIZES = "gpu.py sizes --network resnet18 --policy {policy} --events"
_FEW = "--warmup 3 --steps 7"
_MANY = "--warmup 5 --steps 10"
_UNTUNED = {"TF_CUDNN_USE_AUTOTUNE": "0"}

STAGES = {
    "plain": Stage(f"{_SIZES} {_MANY} --plain {{side}}", 100),
    "plain-without-xla": Stage(f"{_SIZES} {_MANY} --plain-without-xla {{side}}", 80),
    "operations": Stage("gpu_operations.py --side {side}", 60),
    "streamed": Stage(f"{_SIZES} {_MANY} --streamed {{side}} --device {{30GB}}", 100),
    "compiled": Stage(
        f"{_SIZES} {_MANY} --streamed {{side}} --device {{30GB}} --compile-strips", 150
    ),
    "within-8GB": Stage(f"{_SIZES} {_FEW} --streamed {{double}} --device {{8GB}}", 150),
    "compiled-within-8GB": Stage(
        f"{_SIZES} {_FEW} --streamed {{double}} --device {{8GB}} --compile-strips", 200
    ),
    "default": Stage(f"{_SIZES} {_MANY} --default {{side}} --device {{30GB}}", 100),
    "plain-double": Stage(f"{_SIZES} {_FEW} --plain {{double}}", 120),
    "streamed-untuned": Stage(
        f"{_SIZES} {_FEW} --streamed {{side}} --device {{30GB}}", 80, _UNTUNED
    ),
}
"""Stages by name, in order of worth. Untuned: cuDNN does not try its kernels, to see what trials take."""


@dataclass(frozen=True)
class Arguments:
    stages: Annotated[Sequence[str], tuple(STAGES)] = tuple(STAGES)
    side: Annotated[int, "rows and columns"] = FULL_SIDE
    policy: Annotated[str, "dtype policy of Keras"] = "mixed_float16"
    factor: Annotated[float, "of the time limits"] = 1.0
    out: Annotated[Path | None, "file that lines are added to"] = None
    list: Annotated[bool, "print the commands, and run nothing"] = False


def main() -> None:
    arguments = harness.read(Arguments)
    if arguments.list:
        for name in arguments.stages:
            print(f"{name:18} {' '.join(command(STAGES[name], arguments))}")
        return
    for name in arguments.stages:
        for line in lines_of(name, STAGES[name], arguments):
            print(line, flush=True)
            if arguments.out is not None:
                with arguments.out.open("a") as file:
                    file.write(line + "\n")


def command(stage: Stage, arguments: Arguments) -> list[str]:
    """Return the script of a stage and its arguments."""
    area = (arguments.side / FULL_SIDE) ** 2
    budgets = {f"{size}GB": f"{max(round(size * 1000 * area), 1)}MB" for size in (8, 30)}
    side, policy = arguments.side, arguments.policy
    return stage.words.format(side=side, double=2 * side, policy=policy, **budgets).split()


def lines_of(name: str, stage: Stage, arguments: Arguments) -> Iterator[str]:
    """Run a stage; yield its JSON lines, then one on how it ended if it failed. Its other output goes to stderr."""
    script, *words = command(stage, arguments)
    settings = [f"{key}={value}" for key, value in stage.environment.items()]
    how = " ".join([*settings, f"python benchmarks/{script}", *words])
    print(f"{name}: {how}", file=sys.stderr, flush=True)
    limit, began = stage.limit * arguments.factor, time.monotonic()
    last: deque[str] = deque(maxlen=LAST_LINES)
    with subprocess.Popen(
        [sys.executable, str(HERE / script), *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **stage.environment},
    ) as process:
        assert process.stdout is not None
        stop = threading.Timer(limit, process.kill)
        stop.start()
        try:
            for text in process.stdout:
                if text.startswith("{"):
                    yield json.dumps(json.loads(text) | {"how": how})
                else:
                    last.append(text.rstrip()[:300])
                    print(text, end="", file=sys.stderr, flush=True)
        finally:
            stop.cancel()
            process.kill()
    seconds = time.monotonic() - began
    if process.returncode:
        reason = f"not done in {limit:.0f} s" if seconds >= limit else "failed"
        yield report.line(
            "gpu series", [arguments.side], what=name, how=how, error=reason, last=list(last)
        )
    print(f"{name}: {seconds:.1f} s", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
