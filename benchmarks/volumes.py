"""Time and memory of a training step of the 3-D U-Net of nnU-Net on a whole volume, streamed or in plain Keras.

    python benchmarks/volumes.py [--size 388 512 512 --features 8 16 32 64 80 80 --host 10GB --strips 2GB]
    python benchmarks/volumes.py --plain --size 96 128 128
    python benchmarks/volumes.py --plain --size 96 128 128 --steps 0 --precision float64      # the loss alone

The loss is Dice and cross-entropy of two classes. Prints the plan and one JSON line: seconds of the last step and of
its sweeps (tracing is in the first sweep of the first step), and the peak memory of the process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
sys.path[0] = str(Path(__file__).resolve().parent.parent)

import numpy as np

from benchmarks import harness, report
from benchmarks.sweep_times import SweepTimes


@dataclass(frozen=True)
class Arguments:
    size: Annotated[Sequence[int], "D H W"] = (388, 512, 512)
    features: Sequence[int] = (32, 64, 128, 256, 320, 320)
    deep: Annotated[bool, "with deep supervision"] = False
    plain: Annotated[bool, "the plain Keras model"] = False
    tensors: Annotated[bool, "train on tensors; TensorFlow copies NumPy arrays"] = False
    host: Annotated[str | None, "bytes of host memory; by default what is available"] = None
    disk: Annotated[str | None, "bytes of disk; by default what is free"] = None
    scratch: Annotated[str | None, "directory of the scratch file"] = None
    strips: Annotated[str, "bytes of strips"] = "1GB"
    store: Annotated[str | None, "element type of stored images"] = None
    steps: Annotated[int, "training steps; the last is counted"] = 1
    precision: Annotated[str, ("float32", "float64")] = "float32"
    only_plan: Annotated[bool, "print the plan, and end"] = False


def main() -> None:
    print(step(harness.read(Arguments)))


def step(arguments: Arguments) -> str:
    """Return the JSON line of one step."""
    import tensorflow as tf

    import tfbig
    from tfbig.losses import DiceCrossentropy, deep_supervision

    size = tuple(arguments.size)
    base, _ = report.memory_bytes()
    model = network(arguments)
    count, parameters = len(model.outputs), model.count_params()
    if not arguments.plain:
        budget = tfbig.Budget(
            arguments.strips, arguments.host, disk=arguments.disk, scratch=arguments.scratch
        )
        model = tfbig.stream(model, budget, store=arguments.store, plain_if_small=False)
    losses = [DiceCrossentropy() for _ in range(count)]
    weights = deep_supervision.loss_weights(count) if count > 1 else None
    model.compile("sgd", losses if count > 1 else losses[0], loss_weights=weights)
    figures: dict[str, Any] = {"way": "plain" if arguments.plain else "streamed"}
    if not arguments.plain:
        plan = model.plan((1, *size, 1))
        print(plan, file=sys.stderr, flush=True)
        figures |= planned(plan, base)
    if not arguments.only_plan:
        labels, volume = data(size)
        volume = volume.astype(arguments.precision)
        if arguments.tensors:
            labels, volume = tf.constant(labels), tf.constant(volume)
        figures["data_bytes"] = report.memory_bytes()[0] - base
        targets = deep_supervision.labels_of_outputs(labels, count)
        figures |= timed(model, volume, targets if count > 1 else targets[0], arguments.steps)
    return report.line(
        "unet3d step",
        [*size, 1],
        features=arguments.features,
        deep_supervision=arguments.deep,
        tensors=arguments.tensors,
        precision=arguments.precision,
        parameters=parameters,
        store=arguments.store or arguments.precision,
        base_bytes=base,
        **figures,
    )


def network(arguments: Arguments) -> Any:
    """Return the network with weights that are drawn in float32, and then have the precision of the arguments."""
    import keras

    from tfbig.models.unet3d import unet3d

    def made(precision: str) -> Any:
        keras.config.set_floatx(precision)
        keras.config.set_dtype_policy(precision)
        keras.utils.set_random_seed(0)
        sizes, deep = tuple(arguments.size), arguments.deep
        return unet3d(2, 1, arguments.features, sizes=sizes, deep_supervision=deep, name="unet3d")

    drawn = made("float32")
    if arguments.precision == "float32":
        return drawn
    model = made(arguments.precision)
    model.set_weights(drawn.get_weights())
    return model


def data(size: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return labels `[1, D, H, W, 1]`, a ball, and a volume that shows it behind noise."""
    grid = np.ogrid[tuple(slice(-1, 1, n * 1j) for n in size)]
    ball = sum(np.asarray(axis, np.float32) ** 2 for axis in grid) < 0.3
    volume = np.random.default_rng(0).standard_normal(size, np.float32) + ball
    return ball[None, ..., None].astype(np.uint8), volume[None, ..., None]


def planned(plan: Any, base: int) -> dict[str, Any]:
    """Return the figures of a plan."""
    return {
        "predicted_seconds": round(plan.seconds, 1),
        "planned_bytes": base + plan.total_bytes,
        "disk_bytes": plan.projected.disk,
    }


def timed(model: Any, volume: Any, targets: Any, steps: int) -> dict[str, Any]:
    """Train some steps, and return the figures of the last; without steps, the loss."""
    if not steps:
        return {"loss": float(np.ravel(model.test_on_batch(volume, targets))[0])}
    times = SweepTimes()
    for _ in range(steps):
        times.begin()
        loss = model.train_on_batch(volume, targets)
        measured = times.end()
    peak = report.memory_bytes()[1]
    return {**measured, "peak_bytes": peak, "loss": float(np.ravel(loss)[0])}


if __name__ == "__main__":
    main()
