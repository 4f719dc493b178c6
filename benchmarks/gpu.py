"""Exactness, copies and their overlap with arithmetic on a GPU.

    python benchmarks/gpu.py exact [--side 512 --device 64MB]
    python benchmarks/gpu.py copies [--bytes 268435456]
    python benchmarks/gpu.py overlap [--network conv_chain --side 4096 --device 1GB --way default]
    python benchmarks/gpu.py sizes [--network resnet18 --plain 4096 --streamed 4096 16384 --device 60GB --steps 10]

`exact` compares one streamed training step with the plain one: in float64, and in float32 with and without TF32.
`copies` times copies between host and device: of pageable memory, of rows staged in page-locked memory as the engine
stages them without a driver that page-locks, and of page-locked memory, as stores are; and rates that plans are made
with. `overlap` traces a training step and prints the share of the time of copies during which a kernel ran; ways:
`default`; `staged`, stores in memory that is not page-locked; `two`, the GPU divided into two logical devices;
`timestamped`, TensorFlow's allocator that lets copies start before earlier kernels end. `sizes` times steps of images
of some sizes with AdamW, plain and streamed, in one process; with `--policy mixed_float16`, five warm-up and ten steps
it is the protocol of Big-Layers. `--plain` are sides in plain Keras as it is by default, which on a GPU is compiled by
XLA, and `--plain-without-xla` the same with `jit_compile=False`; until commit f4ae64f, the way "plain" was without XLA.
`--default` are sides that run as `tfbig.stream` chooses, so in plain Keras where all fits. With `--events`, each is
traced afterwards and has a second line, with what ran on the GPU. With `--compile-strips`, XLA compiles what computes
strips, in `exact` too. Each prints JSON lines. Several of these that share a GPU, with the same `--turns FOLDER`,
measure in turn, while the others are stopped. Without a GPU, `sizes` runs on the CPU, to try it.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)

from benchmarks import harness, report, turns
from benchmarks.gpu_profile import events_of, overlap_figures
from benchmarks.networks import NETWORKS

GPU = "/GPU:0"


@dataclass(frozen=True)
class Arguments:
    what: Annotated[str, harness.WORD, ("exact", "copies", "overlap", "sizes")]
    network: Annotated[str, tuple(NETWORKS)] = "conv_chain"
    side: Annotated[int | None, "rows and columns; by default 512, or 4096"] = None
    device: Annotated[str | None, "bytes for strips"] = None
    way: Annotated[str, ("default", "staged", "two", "timestamped")] = "default"
    policy: Annotated[str, "dtype policy of Keras"] = "float32"
    steps: Annotated[int, "timed steps"] = 3
    warmup: Annotated[int, "steps before"] = 2
    plain: Annotated[Sequence[int], "sides, for `sizes`"] = ()
    plain_without_xla: Annotated[Sequence[int], "sides"] = ()
    streamed: Annotated[Sequence[int], "sides"] = ()
    default: Annotated[Sequence[int], "sides"] = ()
    host: Annotated[str | None, "bytes of host memory; by default what is available"] = None
    compile_strips: Annotated[bool, "let XLA compile strips, for `exact` and `sizes`"] = False
    bytes: Annotated[int, "of a copy"] = 2**28
    turns: Annotated[Path | None, "folder of processes that share the GPU"] = None
    events: Annotated[bool, "trace a step of each size too"] = False
    trace: Annotated[
        Path | None,
        "file for the trace, .xplane.pb.gz; of `sizes`, one for each size, with --events",
    ] = None


def main() -> None:
    arguments = harness.read(Arguments)
    turns.join(arguments.turns)
    {"exact": exact, "copies": copies, "overlap": overlap, "sizes": sizes}[arguments.what](
        arguments
    )


# ----------------------------------------------------------------------------------- exactness


def exact(arguments: Arguments) -> None:
    """Print the errors of a streamed step in float64, in float32, and in float32 with TF32."""
    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(0)
    weights = NETWORKS["resnet18"]().get_weights()
    side, reference = arguments.side or 512, None
    for dtype, tf32 in (("float64", False), ("float32", False), ("float32", True)):
        tf.config.experimental.enable_tensor_float_32_execution(tf32)
        keras.config.set_floatx(dtype)
        keras.config.set_dtype_policy(dtype)
        device, compiles = arguments.device or "64MB", arguments.compile_strips
        strips, (ours, plain, again) = step_results(weights, side, device, dtype, compiles)
        reference = reference or plain
        compared = {
            "streamed_to_plain": (ours, plain),
            "plain_twice": (again, plain),
            "streamed_to_float64": (ours, reference),
            "plain_to_float64": (plain, reference),
        }
        errors = {name: differences(*pair) for name, pair in compared.items()}
        print(
            report.line(
                "gpu exact",
                [side, side, 3],
                dtype=dtype,
                tf32=tf32,
                strips=strips,
                compiled=compiles,
                **errors,
            ),
            flush=True,
        )


Results = dict[str, list[Any]]
"""Arrays of the loss, the gradients of the weights and the statistics of BatchNormalization after a step."""


def step_results(
    weights: list[Any], side: int, device: str, dtype: str, compiles: bool
) -> tuple[int, list[Results]]:
    """Return the strips of a streamed step, and the results of that step and of the plain one, which runs twice."""
    import numpy as np
    import tensorflow as tf

    import tfbig

    twin = NETWORKS["resnet18"]()
    big = tfbig.stream(twin, tfbig.Budget(device=device), plain_if_small=False)
    big.compile(jit_compile=compiles or "auto")
    image = tf.constant(np.random.default_rng(0).random((1, side, side, 3)).astype(dtype))

    def results(model: Any) -> Results:
        twin.set_weights(weights)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.cast(model(image, training=True), "float64") ** 2)
        gradients = tape.gradient(loss, [v._value for v in twin.trainable_variables])
        return {
            "loss": [loss.numpy()],
            "gradients": [g.numpy() for g in gradients],
            "statistics": [v.numpy() for v in twin.non_trainable_variables],
        }

    return big.plan(tuple(image.shape)).strips, [results(model) for model in (big, twin, twin)]


def differences(ours: Results, theirs: Results) -> dict[str, float]:
    """Return the Euclidean norm of the difference of each kind of result, relative to that of `theirs`."""
    import numpy as np

    def norm(arrays: Any) -> float:
        return float(np.sqrt(sum(np.square(a, dtype="float64").sum() for a in arrays)))

    return {
        kind: norm(
            [
                np.subtract(a, b, dtype="float64")
                for a, b in zip(ours[kind], theirs[kind], strict=True)
            ]
        )
        / norm(theirs[kind])
        for kind in ours
    }


# -------------------------------------------------------------------------------------- copies


def copies(arguments: Arguments) -> None:
    """Print the bytes per second of copies, and the rates of this machine."""
    import numpy as np
    import tensorflow as tf

    from tfbig.engine import machine_rates
    from tfbig.stores import host_store
    from tfbig.stores.host_memory import LockedPool
    from tfbig.stores.page_pool import Pool

    tf.ones([1])  # the driver locks memory once TensorFlow uses it
    shape = 1, 64, arguments.bytes // 256
    rows = Pool(2 * arguments.bytes).array(shape, np.float32)
    rows[...] = 1
    began = time.perf_counter()
    pool = LockedPool(8 * arguments.bytes)
    lock_seconds = time.perf_counter() - began
    registered = pool.array(shape, np.float32)
    registered[...] = 1

    def to_device(rows: np.ndarray, staged: bool) -> Callable[[], float]:
        @tf.function
        def copy() -> tf.Tensor:
            with tf.device("/CPU:0"):
                part = tf.numpy_function(lambda: rows, [], tf.float32)
                part = tf.ensure_shape(part, rows.shape)
                part = host_store.staged(part) if staged else part
            with tf.device("/GPU:0"):
                return tf.identity(part)[0, 0, 0]

        return lambda: float(copy())

    with tf.device("/GPU:0"):
        there = tf.ones(rows.shape)

    @tf.function
    def from_device() -> tf.Tensor:
        with tf.device("/GPU:0"):
            changed = there + 1
        with tf.device("/CPU:0"):
            return tf.numpy_function(lambda x: x[0, 0, 0], [changed], tf.float32)

    def timed(work: Callable[[], object]) -> float:
        return round(rows.nbytes / machine_rates._seconds(work), -6)

    rates = {"pageable": timed(to_device(rows, False)), "staged": timed(to_device(rows, True))}
    rates["to_host"] = timed(lambda: float(from_device()))
    rates["registered"] = timed(to_device(registered, False)) if pool.is_locked else None
    measured = machine_rates.measure("/GPU:0")
    print(
        report.line(
            "gpu copies",
            [arguments.bytes],
            bytes_per_second=rates,
            memory_by_threads=by_threads(timed, np.empty_like(rows), rows),
            locked_bytes_per_second=round(pool.size / lock_seconds, -6),
            machine_rates={k: round(v, -6) for k, v in vars(measured).items()},
            kernels=kernel_rates(),
        )
    )


def by_threads(
    timed: Callable[[Callable[[], object]], float], target: Any, rows: Any
) -> dict[int, float]:
    """Return what `timed` says of a copy within the host, by the number of threads that share it."""
    from tfbig.stores import parallel_copies

    found = {}
    for threads in (1, 2, 4, 8):
        with patch.object(parallel_copies, "THREADS", threads):
            found[threads] = timed(lambda: parallel_copies.assign(target, rows))
    return found


def kernel_rates() -> dict[str, float]:
    """Return operations per second of 20 convolutions in a row, and numbers per second of 20 sums."""
    import tensorflow as tf

    from tfbig.engine import machine_rates

    found = {}
    for dtype, tf32 in (
        ("float32", False),
        ("float32", True),
        ("float16", True),
        ("float64", True),
    ):
        tf.config.experimental.enable_tensor_float_32_execution(tf32)
        with tf.device("/GPU:0"):
            image = tf.random.normal((1, 1024, 1024, 64), dtype="float32")
            image, kernel = tf.cast(image, dtype), tf.ones((3, 3, 64, 64), dtype) / 576

            def convolve(x: Any, kernel: Any = kernel) -> float:
                for _ in range(20):
                    x = tf.nn.conv2d(x, kernel, 1, "SAME")
                return float(x[0, 0, 0, 0])

            def add(x: Any) -> float:
                for _ in range(20):
                    x = x + x
                return float(x[0, 0, 0, 0])

            name = dtype + (" tf32" if tf32 and dtype == "float32" else "")
            seconds = machine_rates._seconds(lambda x=image, f=convolve: f(x)) / 20
            found[name] = round(2 * 9 * 64 * 1024 * 1024 * 64 / seconds, -9)
            seconds = machine_rates._seconds(lambda x=image, f=add: f(x)) / 20
            found[f"{name} bytes"] = round(3 * 1024 * 1024 * 64 * image.dtype.size / seconds, -9)
    return found


# ------------------------------------------------------------------------------------- overlap


def overlap(arguments: Arguments) -> None:
    """Print the share of copies that kernels hide in a streamed step, and its time next to the plain step."""
    import keras
    import numpy as np
    import tensorflow as tf

    import tfbig

    devices = configure(arguments.way)
    keras.config.set_dtype_policy(arguments.policy)
    keras.utils.set_random_seed(0)
    side = arguments.side or 4096
    image = np.random.default_rng(0).random((1, side, side, 3), np.float32)
    label = np.ones((1, 1), np.float32)
    plain = NETWORKS[arguments.network]()
    budget = tfbig.Budget(device=arguments.device or "1GB", disk=0)
    big = tfbig.stream(plain, budget, devices=devices, plain_if_small=False)
    big.compile("adam", "mse")
    plan = big.plan(image.shape)
    print(plan, file=sys.stderr, flush=True)
    seconds = step_seconds(big, image, label, arguments)["seconds"]
    with turns.alone(arguments.turns):
        events = events_of(lambda: big.train_on_batch(image, label), arguments.trace)
    figures = overlap_figures(events)
    if arguments.way == "default":
        constants = tf.constant(image), tf.constant(label)
        for name, xla in (("plain_seconds_without_xla", False), ("plain_seconds_with_xla", "auto")):
            plain.compile("adam", "mse", jit_compile=xla)
            figures[name] = step_seconds(plain, *constants, arguments)["seconds"]
    print(
        report.line(
            f"gpu overlap {arguments.network}",
            [side, side, 3],
            way=arguments.way,
            policy=arguments.policy,
            device=arguments.device or "1GB",
            strips=big.plan(tuple(image.shape)).strips,
            seconds=seconds,
            predicted_seconds=round(plan.seconds, 3),
            **figures,
        )
    )


def configure(way: str) -> list[str] | None:
    """Configure the devices for a way; return the devices that share the strips, if there are several."""
    import tensorflow as tf
    from tensorflow.core.protobuf import config_pb2

    from tfbig.system import cuda_driver, tensorflow_internals

    if way == "staged":
        cuda_driver.library = lambda: None
    if way == "two":
        card = tf.config.list_physical_devices("GPU")[0]
        half = tf.config.LogicalDeviceConfiguration(memory_limit=30_000)
        tf.config.set_logical_device_configuration(card, [half, half])
        return ["GPU:0", "GPU:1"]
    if way == "timestamped":
        config = config_pb2.ConfigProto()
        config.gpu_options.experimental.timestamped_allocator = True
        config.gpu_options.experimental.kernel_tracker_max_interval = 1
        tensorflow_internals.set_session_config(config)
    return None


def step_seconds(
    model: Any, image: Any, label: Any, arguments: Arguments
) -> dict[str, float | None]:
    """Return the median seconds of the steps after the warm-up, the first step, the peaks on the GPU, and the loss."""
    import tensorflow as tf

    def timed() -> tuple[float, float]:
        began = time.perf_counter()
        loss = float(model.train_on_batch(image, label))
        seconds = time.perf_counter() - began
        print(f"step: {seconds:.3f} s", file=sys.stderr, flush=True)
        return seconds, loss

    def peak() -> int | None:
        if device() != GPU:
            return None
        return int(tf.config.experimental.get_memory_info("GPU:0")["peak"])

    def reset() -> None:
        if device() == GPU:
            tf.config.experimental.reset_memory_stats("GPU:0")

    reset()
    first, _ = timed()
    first_peak = peak()
    with turns.alone(arguments.turns):
        reset()
        steps = [timed() for _ in range(arguments.warmup - 1 + arguments.steps)]
        return {
            "seconds": round(statistics.median(s for s, _ in steps[-arguments.steps :]), 4),
            "first_seconds": round(first, 1),
            "device_peak_bytes": peak(),
            "first_device_peak_bytes": first_peak,
            "loss": steps[-1][1],
        }


# --------------------------------------------------------------------------------------- sizes


def device() -> str:
    """Return the device that steps run on: the GPU; the CPU without one, to try this benchmark."""
    import tensorflow as tf

    return GPU if tf.config.list_physical_devices("GPU") else "/CPU:0"


def sizes(arguments: Arguments) -> None:
    """Print the time and the peak memory of plain and streamed steps."""
    import keras

    keras.config.set_dtype_policy(arguments.policy)
    for way in ("plain", "plain_without_xla", "default", "streamed"):
        for side in getattr(arguments, way):
            one_size(way, side, arguments)


def one_size(way: str, side: int, arguments: Arguments) -> None:
    """Print the time and the peak memory of a step, and then, if asked for, what ran on the GPU."""
    import keras
    import numpy as np
    import tensorflow as tf

    import tfbig
    from tfbig.system import xla

    keras.utils.set_random_seed(0)
    model, is_plain = NETWORKS[arguments.network](), way.startswith("plain")
    figures: dict[str, Any] = {"policy": arguments.policy}
    with tf.device(device() if is_plain else "/CPU:0"):
        part = np.random.default_rng(0).random((1, side // 8, side, 3), np.float32)
        image, label = tf.constant(np.tile(part, (1, 8, 1, 1))), tf.ones((1, 1))
    optimizer = keras.optimizers.AdamW(1e-5, 1e-4)
    if is_plain:
        model.compile(optimizer, "mse", jit_compile="auto" if way == "plain" else False)
        way = "plain with XLA" if model.jit_compile else "plain without XLA"
    else:
        budget = tfbig.Budget(device=arguments.device, host=arguments.host, disk=0)
        model = tfbig.stream(model, budget, devices=device(), plain_if_small=way == "default")
        model.compile(optimizer, "mse", jit_compile=arguments.compile_strips or "auto")
        way += ", compiled strips" if arguments.compile_strips else ""
        plan = model.plan(tuple(image.shape))
        figures |= {"device": arguments.device, "predicted_seconds": round(plan.seconds, 3)}
        figures |= {"strips": plan.strips, "planned_device_bytes": plan.projected.device}
        figures |= {"planned_host_bytes": plan.projected.host, "xla": xla.wanted(model, device())}

    def show(case: str, **measured: Any) -> None:
        name = f"gpu {case} {arguments.network}"
        print(report.line(name, [side, side, 3], way=way, **figures, **measured), flush=True)

    show("sizes", steps=arguments.steps, **step_seconds(model, image, label, arguments))
    if arguments.events:
        file = arguments.trace
        if file is not None:
            file = file.with_name(f"{way.replace(' ', '-')}-{side}-{file.name}")
        with turns.alone(arguments.turns):
            events = events_of(partial(model.train_on_batch, image, label), file)
        show("events", **overlap_figures(events))


if __name__ == "__main__":
    main()
