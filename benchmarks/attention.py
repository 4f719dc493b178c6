"""Time and memory of a training step of a transformer on all patches of an image at once, streamed or in plain Keras.

    python benchmarks/attention.py [--tokens 64 --width 64 --heads 4 --depth 2 --host 2GB]
    python benchmarks/attention.py --network swin [--tokens 224 --host 4GB]
    python benchmarks/attention.py --plain --tokens 64

Every block attends from each of the `tokens` x `tokens` patches to all of them, or those of Swin-T to the ones of their
windows. Prints the plan and one JSON line: seconds of the first step and the median of the others, and the peak memory
that the process adds in them.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
sys.path[0] = str(Path(__file__).resolve().parent.parent)

import numpy as np

from benchmarks import harness, report


@dataclass(frozen=True)
class Arguments:
    network: Annotated[str, ("transformer", "swin")] = "transformer"
    tokens: Annotated[int, "patches along the rows and columns"] = 64
    width: Annotated[int, "width of a token of the transformer"] = 64
    heads: Annotated[int, "of the transformer"] = 4
    depth: Annotated[int, "number of blocks of the transformer"] = 2
    plain: Annotated[bool, "the plain Keras model"] = False
    host: Annotated[str | None, "bytes of host memory; by default what is available"] = None
    steps: Annotated[int, "training steps after the first"] = 3


def main() -> None:
    print(step(harness.read(Arguments)))


def step(arguments: Arguments) -> str:
    """Return the JSON line of some steps."""
    import keras
    import tensorflow as tf

    import tfbig
    from benchmarks import networks

    keras.utils.set_random_seed(0)
    side, sizes = networks.PATCH * arguments.tokens, {}
    if arguments.network == "swin":
        model = networks.swin(side)
    else:
        sizes = {name: getattr(arguments, name) for name in ("width", "heads", "depth")}
        model = networks.transformer(**sizes)
    image = tf.constant(np.random.default_rng(0).standard_normal((1, side, side, 3), np.float32))
    figures: dict[str, Any] = {"way": "plain" if arguments.plain else "streamed"}
    base, _ = report.memory_bytes()
    if not arguments.plain:
        model = tfbig.stream(model, tfbig.Budget(host=arguments.host), plain_if_small=False)
    model.compile("sgd", "mse")
    if not arguments.plain:
        plan = model.plan((1, side, side, 3))
        print(plan, file=sys.stderr, flush=True)
        figures["predicted_seconds"] = round(plan.seconds, 2)
        figures["planned_bytes"] = base + plan.total_bytes
    durations = []
    for _ in range(1 + arguments.steps):
        began = time.perf_counter()
        model.train_on_batch(image, tf.zeros((1, 1)))
        durations.append(time.perf_counter() - began)
    figures["first_seconds"] = round(durations[0], 2)
    figures["seconds"] = round(statistics.median(durations[1:] or durations), 2)
    figures |= {"base_bytes": base, "peak_bytes": report.memory_bytes()[1]}
    case = {"transformer": "attention step", "swin": "window attention step"}[arguments.network]
    return report.line(case, [side, side, 3], tokens=arguments.tokens**2, **sizes, **figures)


if __name__ == "__main__":
    main()
