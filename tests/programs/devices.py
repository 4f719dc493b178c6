"""Training steps on logical CPU devices, which stand in for accelerators.

Usage: python devices.py PART...  prints results as JSON; sizes and devices come from TensorFlow's debug dump.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from exactness import integers
from keras import layers
from skipped_background import mask_of, small_tiles
from tensorflow.python.debug.lib import debug_events_reader
from tensorflow.python.eager import context

import tfbig

BUDGET = 125_000
SHAPE = (1, 64, 64, 3)
FORWARDED = {"EnsureShape", "ExpandDims", "Identity", "IdentityN", "Reshape", "Squeeze"}
"""Operations that forward their input without allocating memory."""


def main(names: list[str]) -> None:
    """Print the results of some of `PARTS`, as JSON."""
    cpu = tf.config.list_physical_devices("CPU")[0]
    four = [tf.config.LogicalDeviceConfiguration()] * 4
    tf.config.set_logical_device_configuration(cpu, four)
    keras.config.disable_traceback_filtering()
    print(json.dumps({name: PARTS[name]() for name in names}))


def placement() -> dict[str, Any]:
    """Return the sizes and devices of all tensors of a training step on the second device."""
    plan, tensors = dumped(lambda: step("/CPU:1").plan(SHAPE), read)
    return {**tensors, "planned": plan.projected.device, "strips": plan.strips}


def kept() -> dict[str, Any]:
    """Return the largest tensor on the host if images stay on the device."""
    plan, tensors = dumped(lambda: step("/CPU:1", 2**30).plan(SHAPE), read)
    return {"host bytes": plan.projected.host, "largest image": tensors["largest image"]}


def shared() -> dict[str, Any]:
    """Return the devices of all operations of a training step on two devices."""
    plan, runs = dumped(lambda: step(["/CPU:1", "/CPU:2"]).plan(SHAPE), devices_of)
    return {"runs": runs, "sweeps": len(plan.sweeps)}


def sent() -> list[str]:
    """Return the floating-point tensors that the second device sends to the host in a step of a classifier."""
    context.context().enable_graph_collection()
    with tf.device("/CPU:1"):  # as on a machine with a GPU, the default device
        inputs = x = keras.Input((None, None, 3))
        for _ in range(3):
            x = layers.Conv2D(8, 3, padding="same", use_bias=False)(x)
            x = layers.ReLU()(layers.BatchNormalization()(x))
        model = keras.Model(inputs, layers.Dense(1)(layers.GlobalAveragePooling2D()(x)))
        big = tfbig.stream(
            model, tfbig.Budget(device=2**30), devices="/CPU:1", plain_if_small=False
        )
        big.compile("sgd", "mse")
        big.train_on_batch(np.ones(SHAPE, "float32"), np.ones((1, 1), "float32"))
    metadata = context.context().export_run_metadata()
    graphs = [g for each in metadata.function_graphs for g in each.partition_graphs]
    sends = [node for g in graphs for node in g.node if node.op == "_Send"]
    assert sends, "no graph was collected"
    names = [
        node.attr["tensor_name"].s.decode()
        for node in sends
        if node.attr["send_device"].s.endswith(b"CPU:1")
        and node.attr["recv_device"].s.endswith(b"CPU:0")
        and tf.as_dtype(node.attr["T"].type).is_floating
    ]
    order = "control_node", "NoOp"  # these say that something has run
    return sorted(name for name in names if not any(word in name for word in order))


def dumped(work: Callable[[], Any], reader: Callable[[str], Any]) -> tuple[Any, Any]:
    """Return the result of `work`, and the result of `reader` on TensorFlow's debug dump of it."""
    with tempfile.TemporaryDirectory() as folder:
        tf.debugging.experimental.enable_dump_debug_info(
            folder, tensor_debug_mode="SHAPE", circular_buffer_size=-1
        )
        result = work()
        tf.debugging.experimental.disable_dump_debug_info()
        return result, reader(folder)


def several() -> dict[str, Any]:
    """Return how much a model on three devices differs from the plain one after two steps."""
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    inputs = keras.Input((None, None, 3))
    x = layers.Conv2D(6, 5, strides=2, padding="same", use_bias=False)(inputs)
    x = layers.MaxPooling2D(3, 2, padding="same")(layers.ReLU()(layers.BatchNormalization()(x)))
    y = layers.BatchNormalization()(layers.Conv2D(6, 3, padding="same")(x))
    y = layers.GroupNormalization(2)(layers.Add()([x, y]))
    y = layers.Conv2DTranspose(1, 4, strides=4, padding="same")(y)
    plain = keras.Model(inputs, y)
    copied = keras.models.clone_model(plain)
    copied.set_weights(plain.get_weights())
    budget = tfbig.Budget(device=400_000, host="1GB")
    big = tfbig.stream(copied, budget, devices=["CPU:3", "CPU:1", "CPU:2"])
    random = np.random.default_rng(0)
    image, label = (random.random((2, 64, 48, channels)) for channels in (3, 1))
    for model in (plain, big):
        model.compile(keras.optimizers.SGD(0.1), "mse")
        for _ in range(2):
            model.train_on_batch(image, label)
    pairs = zip(plain.get_weights(), big.get_weights(), strict=True)
    error = max(float(np.abs(a - b).max() / max(np.abs(a).max(), 1e-3)) for a, b in pairs)
    with tempfile.TemporaryDirectory() as folder:
        prediction = big.predict_to(tfbig.open(np.uint8(image[0] * 255)), f"{folder}/y.npy")
        rows = prediction.read(0, 64)
        expected = plain(np.uint8(image[:1] * 255), training=False)[0]
        prediction_error = float(np.abs(rows - expected).max())
    strips = min(c.strips for c in big.plan(image.shape).costs)
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")
    return {
        "error of weights": error,
        "error of prediction": prediction_error,
        "strips": strips,
    }


def background() -> dict[str, Any]:
    """Return how much a model on two devices that skips background differs from the plain one after two steps."""
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    inputs = keras.Input((None, None, 3))
    x = layers.Conv2D(6, 5, strides=2, padding="same", use_bias=False)(inputs)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.BatchNormalization()(layers.Conv2D(6, 3, padding="same", use_bias=False)(x))
    x = layers.Dense(2)(layers.GlobalAveragePooling2D()(x))
    plain = keras.Model(inputs, x)
    copied = keras.models.clone_model(plain)
    copied.set_weights(plain.get_weights())
    mask = mask_of((120, 100), 1)
    noise = np.random.default_rng(0).random((*mask.shape, 3))
    image = tfbig.masked(tfbig.open(noise), mask, 0.25, cell=2)
    with pytest.MonkeyPatch.context() as patch:
        record = small_tiles(patch)
        big = tfbig.stream(
            copied, source_dtype="float64", devices=["CPU:1", "CPU:2"], plain_if_small=False
        )
        for model, data in ((plain, image.read(0, 120)[None]), (big, np.array([image.handle]))):
            model.compile(keras.optimizers.SGD(0.1), "mse")
            for _ in range(2):
                model.train_on_batch(data, np.ones((1, 2)))
    pairs = zip(plain.get_weights(), big.get_weights(), strict=True)
    error = max(float(np.abs(a - b).max() / max(np.abs(a).max(), 1e-3)) for a, b in pairs)
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")
    return {"error of weights": error, "active": min(record.active())}


def devices_of(folder: str) -> dict[str, Counter[str]]:
    """Return how often operations of each type ran on each device."""
    runs: dict[str, Counter[str]] = defaultdict(Counter)
    with debug_events_reader.DebugDataReader(folder) as reader:
        reader.update()
        for trace in reader.graph_execution_traces():
            runs[trace.op_type][trace.device_name.split("device:")[-1]] += 1
    return runs


def step(device: str | list[str], budget: int = BUDGET) -> Any:
    """Return a streamed model with BatchNormalization, after a training step."""
    inputs = keras.Input((None, None, 3))
    x = layers.Conv2D(8, 3, padding="same")(inputs)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    model = keras.Model(inputs, layers.Conv2D(1, 3, padding="same", activation="sigmoid")(x))
    big = tfbig.stream(
        model, tfbig.Budget(device=budget, host="1GB"), devices=device, plain_if_small=False
    )
    big.compile("adam", "mse")
    random = np.random.default_rng(0)
    pair = [random.random((*SHAPE[:3], c)).astype("float32") for c in (3, 1)]
    with tf.device(big.settings.strip_devices[0]):  # as on a machine with a GPU, the default device
        big.train_on_batch(*pair)
    return big


def integer_step(device: str | list[str] | None) -> list[list[float]]:
    """Return the weights after a step whose sums are all exact: of integers, divided by powers of two."""
    inputs = keras.Input((None, None, 1))
    x = layers.MaxPooling2D(2)(layers.Conv2D(2, 3, padding="same")(inputs))
    model = keras.Model(inputs, layers.Conv2DTranspose(1, 2, strides=2)(x))
    model.set_weights([integers(w.shape, seed=n, top=1) for n, w in enumerate(model.weights)])
    big = tfbig.stream(model, tfbig.Budget(device=20_000, host="1GB"), devices=device)
    big.compile(keras.optimizers.SGD(2.0**-4), "mse")
    shape = (*SHAPE[:3], 1)
    assert big.plan(shape).strips > 4
    big.train_on_batch(integers(shape, top=1), integers(shape, seed=1))
    return [w.ravel().tolist() for w in big.get_weights()]


def kept_strips() -> list[dict[str, Any]]:
    """Return the errors of steps whose images stay on the second device, in one strip and in strips of a few rows.

    The network leaves rows unread, adds to gradients from several sweeps, and its rows fill no whole number of words.
    """
    results = []
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    for rows, shape in ((7, (1, 61, 33, 3)), (1, (2, 50, 21, 3)), (None, (2, 61, 33, 3))):
        plain = residual_network()
        copied = keras.models.clone_model(plain)
        copied.set_weights(plain.get_weights())
        big = tfbig.stream(
            copied, tfbig.Budget(device=2**30), rows, devices="/CPU:1", plain_if_small=False
        )
        image = np.random.default_rng(0).random(shape)
        for model in (plain, big):
            model.compile(keras.optimizers.SGD(0.1), "mse")
            losses = [float(model.train_on_batch(image, np.ones((shape[0], 2)))) for _ in range(2)]
        plan = big.plan(shape)
        pairs = zip(plain.get_weights(), big.get_weights(), strict=True)
        errors = [float(np.abs(a - b).max() / max(np.abs(a).max(), 1e-3)) for a, b in pairs]
        results.append(
            {
                "error": max(errors),
                "kept": len(plan.layout.kept),
                "host bytes": plan.projected.host,
                "strips": plan.strips,
                "single": plan.layout.single,
                "changed": losses[1] != losses[0],
            }
        )
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")
    return results


def kept_integers(dtype: str, columns: int, channels: int) -> list[list[list[float]]]:
    """Return the weights after a step of integers, of the plain model and with images on the second device.

    Every number has few bits, so that sums are exact in any order.
    """
    keras.config.set_floatx(dtype)
    keras.config.set_dtype_policy(dtype)
    inputs = keras.Input((None, None, 1))
    x = layers.MaxPooling2D(2)(layers.Conv2D(channels, 3, padding="same")(inputs))
    x = layers.Multiply()([x, layers.GlobalAveragePooling2D(keepdims=True)(x)])
    plain = keras.Model(inputs, layers.Conv2DTranspose(1, 2, strides=2)(x))
    weights = [integers(w.shape, seed=n, top=1) for n, w in enumerate(plain.weights)]
    shape = (1, 64, columns, 1)
    image, label = integers(shape, top=1), integers(shape, seed=1, top=1)
    results = []
    for rows in (None, 3, 64):
        plain.set_weights(weights)
        model: Any = plain
        if rows is not None:
            budget = tfbig.Budget(device=2**30)
            model = tfbig.stream(plain, budget, rows, devices="/CPU:1", plain_if_small=False)
        model.compile(keras.optimizers.SGD(2.0**-4), "mse")
        model.train_on_batch(image, label)
        results.append([w.ravel().tolist() for w in plain.get_weights()])
        if rows is not None:
            plan = model.plan(shape)
            assert plan.layout.kept and plan.layout.single == (plan.strips == 1) == (rows == 64)
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")
    return results


def residual_network() -> keras.Model:
    """Return a network with a shortcut of every second pixel, and a convolution that leaves the last rows unread."""
    inputs = x = keras.Input((None, None, 3))
    x = layers.BatchNormalization()(layers.Conv2D(5, 3, padding="same")(x))
    x = layers.MaxPooling2D(3, 2, padding="same")(layers.ReLU()(x))
    y = layers.BatchNormalization()(layers.Conv2D(7, 3, 2, padding="same")(x))
    y = layers.BatchNormalization()(layers.Conv2D(7, 3, padding="same")(layers.ReLU()(y)))
    z = layers.BatchNormalization()(layers.Conv2D(7, 1, 2)(x))
    x = layers.ReLU()(layers.Add()([y, z]))
    x = layers.BatchNormalization()(layers.Conv2D(3, 2, 3)(x))
    return keras.Model(inputs, layers.Dense(2)(layers.GlobalAveragePooling2D()(x)))


def read(folder: str) -> dict[str, Any]:
    """Return the sizes and devices of all tensors of all functions that ran."""
    types: dict[str, set[str]] = defaultdict(set)
    largest: Counter[str] = Counter()
    functions: dict[str, list[tuple[str, int, int]]] = defaultdict(list)
    with debug_events_reader.DebugDataReader(folder) as reader:
        reader.update()
        for trace in reader.graph_execution_traces():
            _, number, _, count, *_ = (int(n) for n in trace.debug_tensor_value)
            dtype = tf.as_dtype(number)
            handle = dtype in (tf.string, tf.resource, tf.variant)
            size = 0 if handle else count * dtype.size
            place = "device" if trace.device_name.endswith("CPU:1") else "host"
            types[place].add(trace.op_type)
            largest[place] = max(largest[place], size)
            allocates = place == "device" and trace.op_type not in FORWARDED
            functions[trace.graph_id].append((trace.op_name, trace.output_slot, size * allocates))
        live = [
            peak(events, reader.graph_by_id(function)) for function, events in functions.items()
        ]
    return {
        "device types": sorted(types["device"]),
        "host types": sorted(types["host"]),
        "largest on device": largest["device"],
        "largest image": largest["host"],
        "live on device": max(live),
    }


def peak(events: list[tuple[str, int, int]], graph: Any) -> int:
    """Return the most bytes alive at once in one run of a function; a tensor lives until its last reader has run.

    Args:
        events: `(operation, output slot, bytes)` in the order in which they ran, run after run.
        graph: Graph of the function.
    """
    most = 0
    while events:
        count, seen = 0, set()
        while count < len(events) and events[count][:2] not in seen:
            seen.add(events[count][:2])
            count += 1
        run, events = events[:count], events[count:]
        order = {name: position for position, (name, _, _) in enumerate(run)}
        alive = [0] * count
        for position, (name, _, size) in enumerate(run):
            if size:
                for moment in range(position, last_use(name, order, graph) + 1):
                    alive[moment] += size
        most = max(most, *alive)
    return most


def last_use(name: str, order: dict[str, int], graph: Any) -> int:
    """Return the position of the last operation that reads an output of `name`, itself or forwarded."""
    last, waiting = order[name], [name]
    while waiting:
        for _, reader, _ in graph.get_op_consumers(waiting.pop()):
            last = max(last, order.get(reader, 0))
            if graph.get_op_creation_digest(reader).op_type in FORWARDED:
                waiting.append(reader)
    return last


PARTS: dict[str, Callable[[], Any]] = {
    "one device": lambda: integer_step(None),
    "second device": lambda: integer_step("/CPU:1"),
    "three devices": lambda: integer_step(["/CPU:1", "/CPU:2", "/CPU:3"]),
    "kept integers": lambda: [kept_integers("float64", 64, 2), kept_integers("float32", 2, 1)],
    "kept strips": kept_strips,
    "several": several,
    "background": background,
    "placement": placement,
    "shared": shared,
    "kept": kept,
    "sent": sent,
}

if __name__ == "__main__":
    main(sys.argv[1:])
