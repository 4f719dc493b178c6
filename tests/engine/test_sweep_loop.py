"""Loops over the strips of a sweep: on one device and on several, forward and backward."""

from __future__ import annotations

import time
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from exactness import assert_same, integer_weights, integers

from tfbig.engine import sweep_loop
from tfbig.engine.input_images import InputImage
from tfbig.engine.sweep_tensors import (
    SweepGeometry,
    SweepStores,
    SweepTensors,
    SweepValues,
    TracedSweep,
)
from tfbig.network import keras_reader
from tfbig.plan.canonical import Canonical
from tfbig.plan.sweeps import Sweep, schedule
from tfbig.stores import host_store, transfers
from tfbig.stores.host_store import HostImage
from tfbig.system import callbacks

ROWS, STRIPS = 11, 4
DEVICES = [
    (None,),
    pytest.param(("/CPU:0",), marks=pytest.mark.slow),
    ("/CPU:0", "/CPU:0", "/CPU:0"),
]


@pytest.fixture
def model() -> keras.Model:
    image = keras.Input((None, None, 2))
    x = keras.layers.Conv2D(3, 3, padding="same")(image)
    model = keras.Model(image, keras.layers.GlobalMaxPooling2D()(x))
    model.set_weights(integer_weights(model))
    return model


def sweep_of(model: keras.Model, image: tf.Tensor) -> tuple[Canonical, SweepTensors]:
    """The only sweep of a model, and its tensors."""
    graph = keras_reader.read(model, True)
    (sweep,) = schedule(graph)
    canonical = Canonical(graph, sweep)
    sizes = graph.extents({graph.inputs[0]: tuple(image.shape[1:-1])})
    counts = {canonical.position[v]: tf.constant(graph.values[v].channels) for v in sweep.observed}
    return canonical, SweepTensors(
        SweepGeometry(
            label=tf.strings.join(["forward", "1/1"]),
            before=tf.constant(0),
            table=tf.constant(sweep.table({v: size[0] for v, size in sizes.items()}, STRIPS)),
            extents=tf.constant([sizes.get(v, (1, 1)) for v in canonical.ids]),
            batch=tf.constant(image.shape[0]),
            channels=counts,
            copies={},
        ),
        SweepStores({canonical.position[graph.inputs[0]]: InputImage(image)}, {}, {}, {}, {}),
        SweepValues({}, [graph.weights[slot]._value for slot in canonical.slots], {}, {}),
    )


def traced(canonical: Canonical, devices: Any, image: tf.Tensor) -> TracedSweep:
    return TracedSweep(canonical.graph, canonical.sweep, devices, image.shape[0])


@pytest.mark.parametrize("devices", DEVICES)
def test_forward_sums_over_all_strips(model: keras.Model, devices: Any) -> None:
    image = tf.constant(integers((2, ROWS, 5, 2)))

    @tf.function(autograph=False)
    def run() -> Any:
        canonical, tensors = sweep_of(model, image)
        done, (partials, _) = sweep_loop.forward(traced(canonical, devices, image), tensors)
        (node,) = canonical.sweep.reductions
        with tf.control_dependencies([done]):
            return node.op.finalize(partials[0], tf.constant(ROWS * 5, tf.int64))[0]

    assert_same(tf.reshape(run(), [2, 3]), model(image))


@pytest.mark.parametrize("devices", DEVICES)
def test_backward_sums_gradients_of_weights(model: keras.Model, devices: Any) -> None:
    image = tf.constant(integers((1, ROWS, 5, 2)))
    with tf.GradientTape() as tape:
        output = model(image)
    variables = [v._value for v in model.trainable_variables]
    cotangent = tf.constant([[1.0, -2.0, 3.0]])
    expected = tape.gradient(output, variables, cotangent)

    @tf.function(autograph=False)
    def run() -> Any:
        canonical, tensors = sweep_of(model, image)
        (node,) = canonical.sweep.reductions
        _, (partials, _) = sweep_loop.forward(traced(canonical, devices, image), tensors)
        result = node.op.finalize(partials[0], tf.constant(ROWS * 5, tf.int64))
        d_result = tf.reshape(cotangent, tf.shape(result[0])), tf.zeros_like(result[1])
        values = tensors.values._replace(
            wholes={node.output: result}, d_wholes={node.output: d_result}
        )
        tensors = tensors._replace(values=values)
        options = sweep_loop.Backward(
            frozenset(), False, frozenset(canonical.position.values()), (0, 1)
        )
        done, (_, d_weights, _, _) = sweep_loop.backward(
            traced(canonical, devices, image), tensors, options
        )
        with tf.control_dependencies([done]):
            return [tf.identity(d_weights[p]) for p in (0, 1)]

    assert_same(run(), expected, 1e-6)


@pytest.mark.parametrize("devices", DEVICES)
def test_fold_adds_gradients_of_statistics(devices: Any) -> None:
    """The gradient of the sum of an image is added to what its store holds, two rows at a time."""
    start = keras.Input((None, None, 2))
    model = keras.Model(start, keras.layers.GlobalAveragePooling2D()(start))
    image = tf.constant(integers((1, ROWS, 4, 2)))
    before = tf.constant(integers((1, ROWS, 4, 2)))
    cotangent = tf.constant([[4.0, -8.0]])

    @tf.function(autograph=False)
    def run() -> Any:
        canonical, tensors = sweep_of(model, image)
        (value,), (node,) = tensors.stores.images, canonical.sweep.reductions
        _, (partials, _) = sweep_loop.forward(traced(canonical, devices, image), tensors)
        total, *others = node.op.finalize(partials[0], tf.constant(ROWS * 4, tf.int64))
        d_total = tf.reshape(cotangent, tf.shape(total))
        gradient = HostImage(host_store.copy(before))
        starts = tf.range(0, ROWS, 2)
        tensors = tensors._replace(
            geometry=tensors.geometry._replace(
                table=tf.stack([starts, tf.minimum(starts + 2, ROWS)], 1)
            ),
            stores=SweepStores({}, {}, {value: InputImage(image)}, {value: gradient}, {}),
            values=tensors.values._replace(
                wholes={node.output: (total, *others)},
                d_wholes={node.output: (d_total, *map(tf.zeros_like, others))},
            ),
        )
        owner = Sweep(0, canonical.sweep.nodes, (), (value,), (value,), ())
        single = traced(canonical, devices, image)._replace(sweep=owner)
        return gradient.after(transfers.finish(sweep_loop.fold(single, tensors))).array

    assert_same(run(), before + cotangent)


def test_strips_are_read_while_another_is_computed() -> None:
    """An accelerator computes strips in turn; the next ones are requested before it has ended."""
    events: list[tuple[str, int]] = []

    def read(i: np.ndarray) -> np.ndarray:
        events.append(("read", int(i)))
        return np.float32(i)

    def compute(i: np.ndarray) -> np.ndarray:
        events.append(("begin", int(i)))
        time.sleep(0.1)
        events.append(("end", int(i)))
        return np.float32(i)

    def body(strips: Any, i: tf.Tensor, before: tf.Tensor, sums: tf.Tensor) -> Any:
        tile = callbacks.numpy_function(read, [i], tf.float32, stateful=False)
        tile = tf.ensure_shape(strips.in_turn(tile), [])
        result = callbacks.numpy_function(compute, [tile], tf.float32, stateful=False)
        result = tf.ensure_shape(result, [])
        return sweep_loop._StripResult(before, sums + result, [result])

    @tf.function(autograph=False)
    def run() -> tf.Tensor:
        count, first = tf.constant(8), tf.constant(0)
        strips = sweep_loop._DeviceStrips(None, "/CPU:0", None, count, count - 1, at_once=4)
        return sweep_loop._in_turns(strips, first, first, body, tf.constant(0.0))[1]

    assert float(run()) == sum(range(8))
    computed = [event for event in events if event[0] != "read"]
    assert computed == [(what, i) for i in range(8) for what in ("begin", "end")]
    assert {("read", i) for i in range(4)} <= set(events[: events.index(("end", 0))])
