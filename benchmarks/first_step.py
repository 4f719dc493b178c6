"""Time the first step and the first prediction of plain and streamed networks, each in a process of its own.

    python benchmarks/first_step.py [--networks ResNet50 MobileNetV2 --side 512 --rounds 1 --ways plain small streamed]

The ways: `plain` is Keras without XLA, `small` is `tfbig.stream` as it is, which runs small images in plain Keras, and
`streamed` streams them too (`plain_if_small=False`); `kept` names the device, so that images are kept on it as on an
accelerator. One JSON line for each network and way has the seconds of the first prediction and of the first step, of
the steps after it, and of the first step of another size; the ratios are to the first way, medians over rounds. Of
streamed steps it has the traced functions and the operations in their graphs too, which do not depend on the machine.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)

from benchmarks import harness, report
from benchmarks.networks import NETWORKS, application

WAYS = ("plain", "small", "streamed", "kept")
FIGURES = ("first_prediction", "prediction", "first_step", "step", "first_step_of_another_size")


@dataclass(frozen=True)
class Arguments:
    networks: Sequence[str] = ("ResNet50", "EfficientNetB0", "MobileNetV2")
    side: int = 512
    rounds: int = 1
    ways: Annotated[Sequence[str], WAYS] = WAYS[:3]


def measure(arguments: Arguments, network: str, way: str) -> dict[str, Any]:
    """Return the figures of one way, in this process."""
    import keras
    import numpy as np
    import tensorflow as tf

    import tfbig

    side = arguments.side
    keras.utils.set_random_seed(0)
    model: Any = NETWORKS[network]() if network in NETWORKS else application(network)
    if way != "plain":
        devices = "/CPU:0" if way == "kept" else None
        model = tfbig.stream(model, plain_if_small=way == "small", devices=devices)
    model.compile("sgd", "mse", jit_compile=False)
    x = np.random.default_rng(0).random((1, side, side, 3), np.float32)
    y = np.ones((1, 1), np.float32)
    image, label = tf.constant(x), tf.constant(y)
    figures = {
        "first_prediction": seconds(lambda: model.predict_on_batch(image)),
        "prediction": seconds(lambda: model.predict_on_batch(image)),
        "first_step": seconds(lambda: model.train_on_batch(image, label)),
    }
    steps = [seconds(lambda: model.train_on_batch(image, label)) for _ in range(3)]
    figures["step"] = statistics.median(steps)
    other = tf.constant(x[:, : side - 32])
    figures["first_step_of_another_size"] = seconds(lambda: model.train_on_batch(other, label))
    figures = {name: round(value, 2) for name, value in figures.items()}
    return figures | (graph_size(model, (image, label)) if way != "plain" else {})


def seconds(run: Callable[[], Any]) -> float:
    """Return the seconds that a call takes."""
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def graph_size(model: Any, data: Any) -> dict[str, int]:
    """Return the number of traced functions of a training step, and of the operations in all of its graphs."""
    step = model.traced(model.train_step)
    step.ready(data)
    (trace,) = step._traced.values()
    definition = trace.graph.as_graph_def()
    functions = definition.library.function
    operations = len(definition.node) + sum(len(f.node_def) for f in functions)
    return {"functions": len(functions), "operations": operations}


def lines(arguments: Arguments, network: str) -> Iterator[str]:
    """Yield the lines of a network, whose ways run in turn."""
    found = harness.in_turn(
        arguments.ways,
        arguments.rounds,
        lambda way: harness.apart(measure, arguments, network, way),
    )
    for way, runs in found.items():
        ratios = {
            f"{name}_ratio": harness.ratio(runs, found[arguments.ways[0]], name) for name in FIGURES
        }
        size = [arguments.side, arguments.side, 3]
        case = f"{network} first step"
        yield report.line(case, size, network=network, way=way, **ratios, **runs[0])


def main() -> None:
    arguments = harness.read(Arguments)
    for network in arguments.networks:
        for line in lines(arguments, network):
            print(line, flush=True)


if __name__ == "__main__":
    main()
