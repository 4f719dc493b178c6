"""Counts that decide how fast a step is on a GPU, found without one.

    python benchmarks/gpu_counts.py executed plain|streamed|compiled SIDE [--device 1GB --policy mixed_bfloat16]
    python benchmarks/gpu_counts.py copies SIDE [--device 8GB --policy mixed_float16]
    python benchmarks/gpu_counts.py kernels SIDE --compiler PYTHON [--what step|gradients|update]
    python benchmarks/gpu_counts.py programs SIDE --compiler PYTHON [--device 1GB]

`executed` counts the operations that TensorFlow executes in a training step, by device. A second logical CPU, CPU:1,
stands in for the GPU: the profiler names the operations, and the partitioned graphs say where each is placed. On a GPU,
operations on the device become about as many kernels and copies, each of which the host starts. `copies` plans a step
and counts the writes into images that are kept on the device (one for each strip that writes an image or adds to its
gradient), distinct convolutions of the forward pass, for each of which cuDNN tries its kernels in the first step, and
distinct shapes of strips. Plans are made for the speed of an H100. `kernels` counts the kernels of a step of plain
Keras with XLA on an H100, the bytes that they move, and its memory: XLA of another Python, that of `xla_kernels.py`,
compiles the step for that GPU; or only its gradients, or the update of the weights. `programs` counts the same of the
programs of a streamed step: it runs the step on CPU:1, and compiles what XLA was given there for that GPU. In one
strip, each program runs once a step. Each prints a JSON line.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
ROOT = Path(__file__).resolve().parent.parent
sys.path[0] = str(ROOT)

from benchmarks import profile, report
from benchmarks.networks import NETWORKS

H100 = {"operations": 8.86e13, "passes": 8.63e11, "copies": 9.7e9, "mapped": 2.1e9, "disk": 1.7e9}
"""Speed that plans are made for, see `tfbig.plan.plan.Rates`."""

ACCELERATOR = "CPU:1"
"""Logical device that stands in for a GPU."""

MOST_FREQUENT = 12
"""Types of operations that are printed with their number."""


def main() -> None:
    arguments = parse_arguments()
    commands = {"executed": executed, "copies": copies, "kernels": kernels, "programs": programs}
    commands[arguments.command](arguments)


def parse_arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parts = parser.add_subparsers(dest="command", required=True)
    part = parts.add_parser("executed", help="operations of a step, by device")
    part.add_argument("way", choices=["plain", "streamed", "compiled"])
    _add_step(part, device="1GB", policy="mixed_bfloat16")
    part = parts.add_parser("copies", help="copies, convolutions and shapes of a plan")
    _add_step(part, device="8GB", policy="mixed_float16")
    part = parts.add_parser("kernels", help="kernels of plain Keras with XLA")
    _add_step(part, device=None, policy="mixed_float16")
    part.add_argument("--compiler", required=True, help="a Python for xla_kernels.py")
    part.add_argument("--what", default="step", choices=list(PARTS))
    part.add_argument("--text", help="file for the compiled program, as text")
    part = parts.add_parser("programs", help="kernels of the programs of a streamed step")
    _add_step(part, device="1GB", policy="mixed_float16")
    part.add_argument("--compiler", required=True, help="a Python for xla_kernels.py")
    return parser.parse_args(words)


def _add_step(parser: argparse.ArgumentParser, *, device: str | None, policy: str) -> None:
    """Add the arguments that say which step is counted."""
    parser.add_argument("side", type=int, help="rows and columns of the image")
    if device is not None:
        parser.add_argument("--device", default=device, help="bytes for strips and kept images")
    parser.add_argument("--network", default="resnet18", choices=list(NETWORKS))
    parser.add_argument("--policy", default=policy, help="dtype policy of Keras")


# ------------------------------------------------------------------------------------ executed


def executed(arguments: argparse.Namespace) -> None:
    """Print the number of operations that a training step executes on each device."""
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    import keras
    import numpy as np
    from tensorflow.python.eager import context

    keras.config.set_dtype_policy(arguments.policy)
    side, figures = arguments.side, {}
    context.context().enable_graph_collection()
    with as_on_a_gpu(arguments.way == "compiled"), tf.device(ACCELERATOR):
        if arguments.way != "plain":
            model = streamed(arguments.network, arguments.device, "8GB", f"/{ACCELERATOR}")
            plan = model.plan((1, side, side, 3))
            figures = {"device": arguments.device, "strips": plan.strips}
            figures |= {"strips_of_all_sweeps": sum(cost.strips for cost in plan.costs)}
            figures |= {"kept": len(plan.layout.kept), "writes": writes(plan)}
        else:
            model = plain(arguments.network)
        image = tf.constant(np.random.default_rng(0).random((1, side, side, 3), np.float32))

        def step() -> float:
            return float(model.train_on_batch(image, tf.ones((1, 1))))

        step()
        placed = _placed(context.context().export_run_metadata())
        context.context().disable_graph_collection()
        step()
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for name, kind in _events(profile.record(step)):
            if name in placed:  # the others are marks of the profiler
                counts[placed[name]][kind] += 1
    print(
        report.line(
            f"gpu counts executed {arguments.network}",
            [side, side, 3],
            way=arguments.way,
            policy=arguments.policy,
            **figures,
            executed={device: sum(kinds.values()) for device, kinds in sorted(counts.items())},
            in_place=counts[ACCELERATOR]["InplaceUpdate"],
            most_frequent=dict(counts[ACCELERATOR].most_common(MOST_FREQUENT)),
        )
    )


def _placed(metadata: Any) -> dict[str, str]:
    """Return the device of each operation of the functions that were built while graphs were collected."""
    graphs = [g for function in metadata.function_graphs for g in function.partition_graphs]
    return {node.name: node.device.rpartition("device:")[2] for g in graphs for node in g.node}


def _events(space: Any) -> Iterator[tuple[str, str]]:
    """Yield the name and the type of each operation that was executed, and marks that look like these."""
    for plane in space.planes:
        for line in plane.lines:
            for event in line.events:
                text = plane.event_metadata[event.metadata_id].name.partition("#")[0]
                name, colon, kind = text.rpartition(":")
                is_operation = colon and "__inference" not in text
                if is_operation and profile._is_operation(kind.strip()):
                    yield name.strip(), kind.strip()


# -------------------------------------------------------------------------------------- models


@contextmanager
def as_on_a_gpu(compiles: bool = False) -> Iterator[None]:
    """Plan for the speed of an H100, and for kernels that do not copy the inputs of every output pixel.

    Args:
        compiles: Whether `compile(jit_compile=True)` compiles strips, which the default on a GPU does not.
    """
    from tfbig.engine import machine_rates
    from tfbig.plan.plan import Rates
    from tfbig.streaming import program_cache

    with (
        patch.object(machine_rates, "of", lambda *_: Rates(**H100)),
        patch.object(program_cache, "fills_matrices", lambda devices: False),
        patch.object(program_cache.Programs, "_compiles_strips", lambda _: compiles),
    ):
        yield


def plain(network: str) -> Any:
    """Return a network in plain Keras, without XLA, whose kernels are not operations."""
    import keras

    model = NETWORKS[network]()
    model.compile(keras.optimizers.AdamW(1e-5, 1e-4), "mse", jit_compile=False)
    return model


def streamed(network: str, device: str, host: str, accelerator: str) -> Any:
    """Return a network as it streams on a GPU, compiled by XLA where it is there, see `as_on_a_gpu`."""
    import keras

    import tfbig

    budget = tfbig.Budget(device=device, host=host, disk=0)
    model = tfbig.stream(NETWORKS[network](), budget, devices=accelerator, plain_if_small=False)
    model.compile(keras.optimizers.AdamW(1e-5, 1e-4), "mse", jit_compile=True)
    return model


# -------------------------------------------------------------------------------------- copies


def copies(arguments: argparse.Namespace) -> None:
    """Print what a plan says of copies within the device and of shapes that cuDNN meets."""
    import keras

    keras.config.set_dtype_policy(arguments.policy)
    side, device = arguments.side, arguments.device
    print(
        report.line(
            f"gpu counts copies {arguments.network}",
            [side, side, 3],
            policy=arguments.policy,
            device=device,
            **planned_counts(arguments.network, side, device),
        )
    )


def planned_counts(network: str, side: int, device: str, compiles: bool = False) -> dict[str, int]:
    """Return the counts of a training step that is only planned, see `counts_of`."""
    with as_on_a_gpu(compiles):
        # A plan does not depend on where an accelerator is.
        model = streamed(network, device, "100GB", accelerator="/CPU:0")
        return counts_of(planned(model, (1, side, side, 3)))


class PlannedStep(NamedTuple):
    """A planned training step.

    Args:
        graph: Its graph, a `tfbig.network.graph.Graph`.
        plan: Its plan, a `tfbig.plan.plan.Plan`.
        extents: Size of each image.
        sweeps: Sweeps of the forward pass, then those that are replayed.
        tables: Geometry of the strips of each of them, see `tfbig.plan.sweeps.Sweep.tiles`.
    """

    graph: Any
    plan: Any
    extents: dict[int, Any]
    sweeps: list[Any]
    tables: list[Any]


def planned(model: Any, shape: tuple[int, ...]) -> PlannedStep:
    """Plan a training step of a streamed model."""
    from tfbig.plan.planner import Planner

    made: list[tuple[Planner, dict[int, Any]]] = []
    plan_of = Planner.plan

    def recorded(planner: Planner, batch: int, sizes: dict[int, Any], *others: Any) -> Any:
        made.append((planner, sizes))
        return plan_of(planner, batch, sizes, *others)

    with patch.object(Planner, "plan", recorded):
        plan = model.plan(shape)
    planner, sizes = made[-1]
    sweeps = [*plan.sweeps, *plan.layout.replays]
    extents = planner.graph.extents(sizes)
    return PlannedStep(planner.graph, plan, extents, sweeps, planner.tables(plan, sizes))


def counts_of(step: PlannedStep) -> dict[str, int]:
    """Count what matters in a planned step.

    `strips` are the most of a sweep; `sweeps` include those that are replayed; `kept` images stay on the device, and
    `writes` go into these and their gradients; `strip_shapes` are distinct in each sweep; `convolutions` are distinct
    ones of the forward pass, and `plain_convolutions` the same of whole images. `programs` are those of strips that XLA
    compiles, in one pass over the sweeps.
    """
    streamed, whole = convolutions(step)
    return {
        "strips": step.plan.strips,
        "sweeps": len(step.sweeps),
        "strips_of_all_sweeps": sum(map(len, step.tables)),
        "kept": len(step.plan.layout.kept),
        "writes": writes(step.plan),
        "strip_shapes": strip_shapes(step),
        "convolutions": len(streamed),
        "plain_convolutions": len(whole),
        "programs": sum(programs_of(*each) for each in zip(step.sweeps, step.tables, strict=True)),
    }


def programs_of(sweep: Any, table: Any) -> int:
    """Return the number of programs of the strips of a sweep: those that differ in their cutouts."""
    return len({tuple(line[-sweep.cutout_columns :]) for line in table}) if sweep.is_compiled else 0


def writes(plan: Any) -> int:
    """Return how often strips of a step write into images that are kept on the device, or add to their gradients."""
    replays = {sweep.index: sweep for sweep in plan.layout.replays}
    count = 0
    for moment in plan.timeline.moments:
        sweep = (replays if moment.kind == "replay" else plan.sweeps)[moment.sweep]
        changed = sweep.writes if moment.kind in ("forward", "replay") else sweep.reads
        count += plan.cost_of(moment).strips * len(plan.layout.kept.intersection(changed))
    return count


def strip_shapes(step: PlannedStep) -> int:
    """Return the number of strips that differ from all others of their sweep in the rows of an image or of padding."""
    count = 0
    for sweep, table in zip(step.sweeps, step.tables, strict=True):
        shapes = [_inputs(sweep, line) for line in table]
        outputs = [[_size(sweep, line, n.output) for n in sweep.locals] for line in table]
        count += len({str(each) for each in zip(shapes, outputs, strict=True)})
    return count


def convolutions(step: PlannedStep) -> tuple[set[tuple[Any, ...]], set[tuple[Any, ...]]]:
    """Return the distinct convolutions of the strips of a step, and those of whole images.

    They differ in what a kernel is given: channels, window, and rows and further axes of the padded strip; where
    TensorFlow pads (`tfbig.ops.kernels.windowed`), of the strip without its padding.
    """
    from tfbig.ops import kernels

    streamed, whole = set(), set()
    values = step.graph.values
    for sweep, table in zip(step.sweeps, step.tables, strict=True):
        nodes = {n.output: n for n in sweep.locals if n.op.im2col}
        for line in table:
            for output, position, rows, before, after in _inputs(sweep, line):
                if output not in nodes:
                    continue
                node = nodes[output]
                source, axes = node.inputs[position], node.op.axes[position]
                if kernels.is_same(axes):
                    given = _size(sweep, line, source) if sweep.even and node.op.around else rows
                else:
                    given = rows + before + after
                height, *others = step.extents[source]
                channels = values[source].channels, values[output].channels
                streamed.add((*channels, str(axes), *others, given))
                whole.add((*channels, str(axes), *others, height))
    return streamed, whole


def _inputs(sweep: Any, line: Any) -> list[tuple[int, ...]]:
    """Return output, position, rows, and rows of padding before and after, of each input of the layers of a strip."""
    columns = sweep.columns
    found = []
    for node in sweep.locals:
        for p in node.image_positions:
            start, stop, before, after = (
                int(line[columns[name, node.output, p]])
                for name in ("start", "stop", "before", "after")
            )
            found.append((node.output, p, stop - start, before, after))
    return found


def _size(sweep: Any, line: Any, value: int) -> int:
    """Return the rows of an image that a strip computes."""
    return int(line[sweep.columns["stop", value]] - line[sweep.columns["start", value]])


# ------------------------------------------------------------------------------------- kernels


def kernels(arguments: argparse.Namespace) -> None:
    """Print the kernels of plain Keras with XLA, compiled for an H100, the bytes they move, and its memory."""
    import keras

    keras.config.set_dtype_policy(arguments.policy)
    side = arguments.side
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "program")
        program.write_bytes(serialized(arguments.network, side, arguments.what))
        words = [ROOT / "benchmarks/xla_kernels.py", program]
        words += ["--text", arguments.text] if arguments.text else []
        figures = report.in_own_process(words, arguments.compiler)
    print(
        report.line(
            f"gpu counts kernels {arguments.network}",
            [side, side, 3],
            way="plain with XLA",
            what=arguments.what,
            policy=arguments.policy,
            **figures,
        )
    )


def programs(arguments: argparse.Namespace) -> None:
    """Print the kernels of the programs of a streamed step, compiled for an H100, and the bytes they move."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XLA_FLAGS"] = f"--xla_dump_to={folder} --xla_dump_hlo_as_proto"
        plan = _step_with_programs(arguments)
        files = []
        for file in sorted(Path(folder).glob("*.before_optimizations.hlo.pb")):
            if "_add_one" not in file.name:  # which only tries whether XLA works
                files.append(Path(folder, f"{len(files)}.program"))
                files[-1].write_bytes(_module(file.read_bytes()))
        words = [arguments.compiler, ROOT / "benchmarks/xla_kernels.py", *files]
        done = subprocess.run(map(str, words), stdout=subprocess.PIPE, text=True, check=True)
    found = [json.loads(text) for text in done.stdout.splitlines()]
    kernels = sorted(f["kernels"] for f in found)
    print(
        report.line(
            f"gpu counts programs {arguments.network}",
            [arguments.side] * 2 + [3],
            policy=arguments.policy,
            device=arguments.device,
            strips_of_all_sweeps=sum(cost.strips for cost in plan.costs),
            programs=len(found),
            kernels=sum(kernels),
            kernels_of_programs=kernels,
            moved_bytes=sum(f["moved_bytes"] for f in found),
            compile_seconds=round(sum(f["compile_seconds"] for f in found), 1),
        )
    )


def _step_with_programs(arguments: argparse.Namespace) -> Any:
    """Run a training step on a pretended accelerator, with programs of its own for each sweep; return its plan."""
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    import keras
    import numpy as np

    from tfbig.engine.sweep_calls import SweepCalls

    keras.config.set_dtype_policy(arguments.policy)
    side, call = arguments.side, SweepCalls.call

    def unshared(calls: SweepCalls, function: Any, sweep: Any, *others: Any) -> Any:
        calls.canonical(sweep).key += str(sweep.index)  # otherwise equal sweeps share a trace
        return call(calls, function, sweep, *others)

    with as_on_a_gpu(True), tf.device(ACCELERATOR), patch.object(SweepCalls, "call", unshared):
        model = streamed(arguments.network, arguments.device, "8GB", f"/{ACCELERATOR}")
        plan = model.plan((1, side, side, 3))
        image = np.random.default_rng(0).random((1, side, side, 3), np.float32)
        model.train_on_batch(image, np.ones((1, 1), np.float32))
    return plan


def _module(data: bytes) -> bytes:
    """Return the module of a serialized `HloProto`: its first field, whose length is a number in groups of 7 bits."""
    assert data[0] == 0b1010, "the first field of an HloProto is its module"
    size, place = 0, 1
    while data[place] >= 0x80:
        size |= (data[place] & 0x7F) << 7 * (place - 1)
        place += 1
    size |= data[place] << 7 * (place - 1)
    return data[place + 1 : place + 1 + size]


def serialized(network: str, side: int, what: str) -> bytes:
    """Return what XLA is to compile, a serialized `HloModuleProto`. Nothing of the size of the image is allocated."""
    import tensorflow as tf

    model = plain(network)
    model.optimizer.build(model.trainable_variables)
    model._symbolic_build(data_batch=(tf.zeros((1, 64, 64, 3)), tf.zeros((1, 1))))
    function = tf.function(partial(PARTS[what], model), autograph=False, jit_compile=True)
    specs = [tf.TensorSpec((1, side, side, 3)), tf.TensorSpec((1, 1))]
    if what == "update":
        specs = [tf.TensorSpec(v.shape, v.dtype) for v in model.trainable_variables]
    data: bytes = function.experimental_get_compiler_ir(*specs)(stage="hlo_serialized")
    return data


def _step(model: Any, image: Any, label: Any) -> Any:
    return model.train_step((image, label))


def _gradients(model: Any, image: Any, label: Any) -> Any:
    import tensorflow as tf

    with tf.GradientTape() as tape:
        predicted = model(image, training=True)
        loss = model.compute_loss(image, label, predicted, training=True)
        loss = model.optimizer.scale_loss(loss)
    return tape.gradient(loss, [v.value for v in model.trainable_variables])


def _update(model: Any, *gradients: Any) -> Any:
    model.optimizer.apply(list(gradients), model.trainable_variables)
    return gradients[0][..., 0]


PARTS = {"step": _step, "gradients": _gradients, "update": _update}
"""What `kernels` counts: a training step, its gradients, or the update of the weights."""


if __name__ == "__main__":
    main()
