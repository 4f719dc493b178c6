"""Programs: results and gradients of a small network, layouts, and files as output."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf
from exactness import FLOAT64, assert_same
from graphs import make_planner

from tfbig.engine.bound_program import weights_of
from tfbig.engine.program import Program
from tfbig.network import keras_reader
from tfbig.stores.sinks import sink


def network() -> keras.Model:
    image = keras.Input((None, None, 2), name="image")
    x = keras.layers.Conv2D(3, 3, padding="same")(image)
    x = keras.layers.ReLU()(keras.layers.BatchNormalization()(x))
    return keras.Model(image, keras.layers.Conv2D(1, 3, padding="same")(x))


def program_of(model: keras.Model, **options: Any) -> Program:
    graph = keras_reader.read(model, True)
    options = {"device": 2**28, "strip_rows": 3, **options}
    return Program(graph, make_planner(graph, **options))


def image(rows: int = 11) -> tf.Tensor:
    return tf.constant(np.random.default_rng(0).normal(size=(2, rows, 6, 2)), keras.config.floatx())


def test_run_is_the_model(float64: None) -> None:
    """Output, and gradients of the image and of the weights."""
    model = network()
    program, x = program_of(model), image()
    (source,), (output,) = program.graph.inputs, program.graph.outputs
    weights = weights_of(program.graph)
    with tf.GradientTape() as tape:
        tape.watch([x, weights])
        y = program.run({source: x}, weights, [source])[output]
        loss = tf.reduce_sum(y**2)
    trainable = [w for w, v in zip(weights, program.graph.weights, strict=True) if v.trainable]
    actual = [y, *tape.gradient(loss, [x, *trainable])]
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = model(x, training=True)
        loss = tf.reduce_sum(y**2)
    variables = [v for v in program.graph.weights if v.trainable]
    expected = [y, *tape.gradient(loss, [x, *(v._value for v in variables)])]
    assert_same(actual, expected, FLOAT64)


def test_forward_writes_rows_to_a_sink_in_order() -> None:
    model = network()
    program, x = program_of(model), image()
    (source,), (output,) = program.graph.inputs, program.graph.outputs
    written: list[tuple[int, np.ndarray]] = []
    weights = weights_of(program.graph)
    with sink(lambda start, rows: written.append((start, rows.copy()))) as key:
        results = program.forward({source: x[:1]}, weights, {output: tf.constant(key)})
    assert output not in results
    heights = [len(rows) for _, rows in written]
    assert len(heights) > 2
    assert [start for start, _ in written] == [sum(heights[:i]) for i in range(len(heights))]
    rows = np.concatenate([rows for _, rows in written])
    assert_same(rows, model(x[:1], training=True)[0].numpy(), 1e-5)
