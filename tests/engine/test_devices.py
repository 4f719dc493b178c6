"""With logical CPU devices, some playing accelerators: what is placed on them, and that several give what one gives."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from samples import ROOT

BUDGET = 125_000
SHAPE = (1, 64, 64, 3)
FORWARDED = {"EnsureShape", "ExpandDims", "Identity", "IdentityN", "Reshape", "Squeeze"}
"""Operations that give their input on, without memory of their own."""


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    """What a training step did: this file, run as a program."""
    found = subprocess.run(
        [sys.executable, __file__],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "TF_CPP_MIN_LOG_LEVEL": "2"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert found.returncode == 0, found.stderr
    result: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    return result


def test_the_accelerator_computes(measured: dict[str, Any]) -> None:
    """Every convolution runs there, none on the host."""
    kinds = {"Conv2D", "Conv2DBackpropFilter", "Conv2DBackpropInput"}
    assert kinds <= set(measured["device types"])
    assert not kinds & set(measured["host types"])
    assert "PyFunc" not in measured["device types"]  # stores stay on the host


def test_no_tensor_on_the_accelerator_is_larger_than_a_strip(measured: dict[str, Any]) -> None:
    assert measured["strips"] > 8
    assert measured["largest image"] == 4 * 64 * 64 * 8 > BUDGET  # stored on the host
    assert measured["largest on device"] <= BUDGET


def test_the_strips_on_the_accelerator_stay_inside_the_budget(measured: dict[str, Any]) -> None:
    assert measured["live on device"] <= measured["planned"] <= BUDGET
    assert measured["live on device"] >= 0.2 * BUDGET  # it was not measured past the strips


def test_two_devices_give_the_bits_of_one(measured: dict[str, Any]) -> None:
    """On integers: otherwise the kernels of each device add up in an order of their own."""
    assert measured["weights from two devices"] == measured["weights from one device"]


def test_devices_that_share_strips_give_the_bits_of_one(measured: dict[str, Any]) -> None:
    assert measured["weights from three sharing"] == measured["weights from one device"]


def test_every_device_computes(measured: dict[str, Any]) -> None:
    """Convolutions of the forward, and of the gradient of the weights, ran on each in turn of the strips."""
    for kind in ("Conv2D", "Conv2DBackpropFilter"):
        counts = measured["shared"][kind]
        assert set(counts) == {"CPU:1", "CPU:2"}
        assert abs(counts["CPU:1"] - counts["CPU:2"]) <= measured["shared sweeps"]


def test_what_stays_on_an_accelerator_does_not_pass_the_host(measured: dict[str, Any]) -> None:
    """Nothing there is larger than the image that came from it."""
    assert measured["kept in host memory"] == 0
    assert measured["largest if kept"] == 4 * 64 * 64 * 3 < measured["largest image"]


def test_several_devices_are_exact(measured: dict[str, Any]) -> None:
    """Normalisation, in float64: after two steps every weight and statistic is that of the plain model."""
    assert measured["error of several"] <= 1e-10
    assert measured["strips of several"] >= 3


def test_a_prediction_to_a_file_comes_in_the_order_of_its_rows(measured: dict[str, Any]) -> None:
    assert measured["error of prediction"] <= 1e-10


# ------------------------------------------------------------------- the program that is measured


def main() -> None:
    """Prints what a training step places on the second device, measured while it runs."""
    import keras
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    four = [tf.config.LogicalDeviceConfiguration()] * 4
    tf.config.set_logical_device_configuration(cpu, four)
    keras.config.disable_traceback_filtering()

    result: dict[str, Any] = {
        "weights from one device": integer_step(None),
        "weights from two devices": integer_step("/CPU:1"),
        "weights from three sharing": integer_step(["/CPU:1", "/CPU:2", "/CPU:3"]),
    }
    result |= several()
    plan, found = dumped(lambda: step("/CPU:1").plan(SHAPE), read)
    shared, runs = dumped(lambda: step(["/CPU:1", "/CPU:2"]).plan(SHAPE), places)
    result |= {**found, "shared": runs, "shared sweeps": len(shared.sweeps)}
    kept, found = dumped(lambda: step("/CPU:1", 2**30).plan(SHAPE), read)
    result |= {"kept in host memory": kept.host_bytes, "largest if kept": found["largest image"]}
    print(json.dumps({**result, "planned": plan.device_bytes, "strips": plan.strips}))


def dumped(work: Callable[[], Any], reader: Callable[[str], Any]) -> tuple[Any, Any]:
    """What `work` gives, and what a reader finds in TensorFlow's dump of all that ran meanwhile."""
    import tensorflow as tf

    with tempfile.TemporaryDirectory() as folder:
        tf.debugging.experimental.enable_dump_debug_info(
            folder, tensor_debug_mode="SHAPE", circular_buffer_size=-1
        )
        done = work()
        tf.debugging.experimental.disable_dump_debug_info()
        return done, reader(folder)


def several() -> dict[str, Any]:
    """How far a model on three devices is from the plain one."""
    import keras
    import numpy as np
    from keras import layers

    import tfbig

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
        found = big.predict_to(tfbig.open(np.uint8(image[0] * 255)), f"{folder}/found.npy")
        rows = found.read(0, 64)
        expected = plain(np.uint8(image[:1] * 255), training=False)[0]
        predicted = float(np.abs(rows - expected).max())
    strips = min(c.strips for c in big.plan(image.shape).costs)
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")
    return {
        "error of several": error,
        "strips of several": strips,
        "error of prediction": predicted,
    }


def places(folder: str) -> dict[str, Counter[str]]:
    """How often operations of each type ran on each device."""
    from tensorflow.python.debug.lib import debug_events_reader

    found: dict[str, Counter[str]] = defaultdict(Counter)
    with debug_events_reader.DebugDataReader(folder) as reader:
        reader.update()
        for trace in reader.graph_execution_traces():
            found[trace.op_type][trace.device_name.split("device:")[-1]] += 1
    return found


def step(device: str | list[str], budget: int = BUDGET) -> Any:
    """A streamed model with BatchNormalization, after a training step."""
    import keras
    import numpy as np
    import tensorflow as tf
    from keras import layers

    import tfbig

    inputs = keras.Input((None, None, 3))
    x = layers.Conv2D(8, 3, padding="same")(inputs)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    model = keras.Model(inputs, layers.Conv2D(1, 3, padding="same", activation="sigmoid")(x))
    big = tfbig.stream(model, tfbig.Budget(device=budget, host="1GB"), devices=device)
    big.compile("adam", "mse")
    random = np.random.default_rng(0)
    pair = [random.random((*SHAPE[:3], c)).astype("float32") for c in (3, 1)]
    with tf.device(big.devices[0]):  # as beside a GPU, where all runs that does not say otherwise
        big.train_on_batch(*pair)
    return big


def integer_step(device: str | list[str] | None) -> list[list[float]]:
    """The weights after a step whose every sum is exact: of integers, divided by powers of two."""
    import keras
    from exactness import integers
    from keras import layers

    import tfbig

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


def read(folder: str) -> dict[str, Any]:
    """Sizes and places of all tensors of all functions that ran, from TensorFlow's debug dump."""
    import tensorflow as tf
    from tensorflow.python.debug.lib import debug_events_reader

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
            own = place == "device" and trace.op_type not in FORWARDED
            functions[trace.graph_id].append((trace.op_name, trace.output_slot, size * own))
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
    """Most bytes alive at once in one run of a function: a tensor lives until its last reader has run.

    Args:
        events: `(operation, output slot, bytes)` in the order in which they ran, run after run.
        graph: of the function.
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
    """When the last operation runs that reads an output of `name`, itself or forwarded."""
    last, waiting = order[name], [name]
    while waiting:
        for _, reader, _ in graph.get_op_consumers(waiting.pop()):
            last = max(last, order.get(reader, 0))
            if graph.get_op_creation_digest(reader).op_type in FORWARDED:
                waiting.append(reader)
    return last


if __name__ == "__main__":
    main()
