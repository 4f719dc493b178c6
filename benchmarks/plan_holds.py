"""Measured peak memory of the first steps of a network, divided by what its plan projects.

    python benchmarks/plan_holds.py [--networks MobileNetV2 --sizes 224x224 --budgets large least]

Each case runs in a process of its own and prints one JSON line: a network, the rows and columns of its images, a
budget, and training or inference. Measured is the peak of the resident memory while a step is planned, traced and run
three times, above that of the compiled model with its optimizer; `Plan.peak_bytes` is the projection. Memory that the
process had freed before is returned to the system first, so that steps do not reuse it unnoticed. `files` is what the
pages of files grew by: if it is far below zero, the system was short of memory and took them back, and the measurement
is too low. `--fixed` measures images so small that nothing but the fixed part is left, `--plain` those that run in
plain Keras.

The budgets: `large` is the default; `least` has the fewest bytes for strips with which a plan is found (in steps of a
tenth), and 0.5, 0.7 or 0.85 of the bytes for stores, the first with which one is found; `medium` has the geometric mean
of both for strips.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
sys.path[0] = str(Path(__file__).resolve().parent.parent)

from benchmarks import harness, report

STEPS = 3
SHARES = (0.5, 0.7, 0.85)
BUDGETS = ("large", "medium", "least")
KINDS = ("training", "inference")

SIZES: dict[str, tuple[str, ...]] = {
    "resnet18": ("256x256", "1024x1024"),
    "resnet50": ("64x2048", "1024x1024"),
    "MobileNetV2": ("256x256", "1024x1024"),
    "VGG16": ("384x384", "768x768"),
    "MobileNetV3Small": ("224x224", "1536x1536"),
    "Xception": ("299x299", "768x768"),
    "InceptionV3": ("299x299", "768x768"),
    "EfficientNetB0": ("224x224", "768x768"),
    "EfficientNetV2B0": ("224x224", "768x768"),
    "DenseNet121": ("224x224", "768x768"),
    "ResNet50V2": ("224x224", "1024x1024"),
    "ConvNeXtTiny": ("224x224", "512x512"),
    "mil": ("16x64", "200x96"),
}
"""Rows and columns of the images of each network; instances, and rows and columns of each, of the bags of `mil`."""

PLAIN: dict[str, tuple[str, ...]] = {
    "MobileNetV2": ("96x96", "288x288", "544x480"),
    "MobileNetV3Small": ("96x96", "416x352"),
    "EfficientNetB0": ("96x96", "352x416"),
    "EfficientNetB1": ("448x448",),
    "EfficientNetV2B0": ("96x96", "416x352"),
    "ResNet50": ("96x96", "416x352"),
    "VGG16": ("96x96", "320x288"),
    "DenseNet121": ("96x96", "320x352"),
    "DenseNet169": ("256x320",),
    "Xception": ("96x96", "352x320"),
    "InceptionV3": ("96x96", "400x352"),
    "ConvNeXtTiny": ("96x96", "256x320"),
    "ResNet50V2": ("288x352",),
    "ResNet101": ("224x256",),
    "VGG19": ("224x160",),
    "NASNetMobile": ("224x224",),
    "MobileNet": ("320x256",),
}
"""Rows and columns of images that run in plain Keras, where `plain_if_small` allows it."""

FIXED_SIZE = {"mil": "2x32", "Xception": "75x75", "InceptionV3": "75x75"}
"""The smallest images that a network accepts, where 64 x 64 is not enough."""


@dataclass(frozen=True)
class Arguments:
    networks: Annotated[Sequence[str] | None, tuple(SIZES | PLAIN), "by default all"] = None
    sizes: Annotated[Sequence[str] | None, "such as 224x224; by default small and large"] = None
    budgets: Annotated[Sequence[str], BUDGETS] = BUDGETS
    kinds: Annotated[Sequence[str], KINDS] = KINDS[:1]
    fixed: Annotated[bool, "the smallest images"] = False
    plain: Annotated[bool, "images that run in plain Keras"] = False


def main() -> None:
    arguments = harness.read(Arguments)
    for network, size, budget, kind in cases(arguments):
        figures = harness.apart(measure, arguments, network, size, budget, kind)
        name = f"{network} {budget} {kind}"
        kinds = {"fixed": arguments.fixed, "plain": arguments.plain}
        case = " ".join(["plan_holds", *(name for name, chosen in kinds.items() if chosen)])
        print(report.line(case, [int(n) for n in size.split("x")], way=name, **figures), flush=True)


def cases(arguments: Arguments) -> Iterator[tuple[str, str, str, str]]:
    """Yield network, size, budget and kind of each case."""
    known = PLAIN if arguments.plain else SIZES
    budgets = ["plain"] if arguments.plain else ["large"] if arguments.fixed else arguments.budgets
    for network in arguments.networks or known:
        sizes = [FIXED_SIZE.get(network, "64x64")] if arguments.fixed else known[network]
        for size in arguments.sizes or sizes:
            for kind in arguments.kinds:
                for budget in budgets:
                    yield network, size, budget, kind


def measure(_: Arguments, network: str, size: str, budget: str, kind: str) -> dict[str, Any]:
    """Return measured and projected bytes of one case, in this process."""
    import keras

    keras.utils.set_random_seed(0)
    training = kind == "training"
    with tempfile.TemporaryDirectory() as folder:
        streamed, x, y, shape = problem(network, [int(n) for n in size.split("x")], folder)
        limits = limits_of(streamed, shape, budget, training)
        options = {"plain_if_small": True} if budget == "plain" else {}
        big = compiled(streamed(limits, **options), training)
        base, files = resident_bytes_at_start(), file_bytes()
        plan = big.plan(shape, training)
        began = time.perf_counter()
        seconds = []
        for _ in range(STEPS):
            if training:
                big.train_on_batch(x, y)
            else:
                big.predict_on_batch(x)
            seconds.append(round(time.perf_counter() - began, 2))
    now, peak = report.memory_bytes()
    sweeps = [*plan.sweeps, *plan.layout.replays]
    return {
        "ratio": round((peak - base) / plan.peak_bytes, 3),
        "measured": peak - base,
        "planned": plan.peak_bytes,
        "after": now - base,
        "held": now - released_bytes(),
        "files": file_bytes() - files,
        "device": plan.projected.device,
        "host": plan.projected.host,
        "fixed": plan.projected.fixed,
        "limits": {key: value for key, value in vars(limits).items() if value is not None},
        "sweeps": len(plan.sweeps),
        "replays": len(plan.layout.replays),
        "nodes": sum(len(s.nodes) for s in sweeps),
        "strips": sum(c.strips for c in (*plan.costs, *plan.replay_costs)),
        "variables": len(big.trainable_variables),
        "weights": sum(
            v.value.dtype.size * v.shape.num_elements() for v in big.trainable_variables
        ),
        "seconds": seconds,
    }


def problem(network: str, size: Sequence[int], folder: str) -> tuple[Any, Any, Any, Any]:
    """Return a function from a budget to the streamed network, and the input, target and shape of a step."""
    import numpy as np
    import tensorflow as tf

    import tfbig
    from benchmarks.networks import NETWORKS, application
    from tfbig.models import encoders

    random = np.random.default_rng(0)
    if network != "mil":
        plain = NETWORKS[network]() if network in NETWORKS else application(network)
        x = tf.constant(random.random((1, *size, 3), np.float32))

        def streamed(limits: Any, plain_if_small: bool = False) -> Any:
            return tfbig.stream(plain, limits, plain_if_small=plain_if_small)

        return streamed, x, tf.ones((1, 1)), tuple(x.shape)
    count, side = size
    tiles = random.integers(0, 256, (count, side, side, 3), np.uint8)
    np.save(f"{folder}/bag.npy", tiles)
    handle = tf.constant([tfbig.sources.NpyBag(f"{folder}/bag.npy").handle])
    parts = encoders.make("resnet18", (side, side, 3)), tfbig.mil.ABMIL(1)
    return (
        (lambda limits: tfbig.mil.MIL(*parts, budget=limits)),
        handle,
        tf.ones((1, 1)),
        (1, *tiles.shape),
    )


def compiled(big: Any, training: bool) -> Any:
    """Return the model with a loss and an optimizer, and the variables of both."""
    if training:
        big.compile("adam", "mse")
        big.optimizer.build(big.trainable_variables)
    return big


def limits_of(streamed: Any, shape: Any, budget: str, training: bool) -> Any:
    """Return a budget by its name, see above."""
    import tfbig

    if budget == "plain":
        return tfbig.Budget(device="4GB", disk=0)
    large = tfbig.Budget(disk=0)
    if budget == "large":
        return large
    least = least_strips(streamed, shape, training)
    if budget == "medium":
        most = compiled(streamed(large), training).plan(shape, training).projected.device
        return tfbig.Budget(device=round((least * max(most, least)) ** 0.5), disk=0)
    plan = compiled(streamed(tfbig.Budget(device=least, disk=0)), training).plan(shape, training)
    for share in SHARES:
        host = plan.total_bytes - round((1 - share) * plan.projected.host)
        limits = tfbig.Budget(device=least, host=host, disk=0)
        with contextlib.suppress(tfbig.BudgetError):
            compiled(streamed(limits), training).plan(shape, training)
            return limits
    return tfbig.Budget(device=least, disk=0)


def least_strips(streamed: Any, shape: Any, training: bool) -> int:
    """Return the fewest bytes for strips with which a plan is found, in steps of a tenth."""
    import tfbig

    device = 1000
    while True:
        try:
            compiled(streamed(tfbig.Budget(device=device, disk=0)), training).plan(shape, training)
        except tfbig.BudgetError as error:
            device = max(error.need_bytes, device * 11 // 10)
        else:
            return device


def resident_bytes_at_start() -> int:
    """Return the resident memory without freed memory, and start a new peak."""
    gc.collect()
    released_bytes()
    Path("/proc/self/clear_refs").write_text("5")
    return report.memory_bytes()[0]


def file_bytes() -> int:
    """Return the part of the resident memory that are pages of files, which the system may take back at any time."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssFile"))


def released_bytes() -> int:
    """Return freed memory to the system, and then the resident memory."""
    ctypes.CDLL(None).malloc_trim(0)
    return report.memory_bytes()[0]


if __name__ == "__main__":
    main()
