"""Variables, seeds and moving statistics between Keras and a program."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from exactness import assert_same
from graphs import make_planner

from tfbig.engine.bound_program import BoundProgram, raw
from tfbig.engine.program import Program
from tfbig.network import keras_reader


def program_of(model: keras.Model, training: bool, order: tuple[int, ...] | None = None) -> Program:
    graph = keras_reader.read(model, training, order=order)
    return Program(graph, make_planner(graph, 2**28, strip_rows=2, training=training))


def test_raw_is_not_cast() -> None:
    variable = keras.Variable(np.ones(3, "float32"))
    with keras.src.backend.common.variables.AutocastScope("bfloat16"):
        assert variable.value.dtype == tf.bfloat16
        assert raw(variable).dtype == tf.float32


def test_raw_in_a_stateless_scope() -> None:
    variable = keras.Variable(np.ones(3, "float32"))
    with keras.StatelessScope([(variable, tf.zeros(3))]):
        assert_same(raw(variable), tf.zeros(3))
    assert_same(raw(variable), tf.ones(3))


def test_call_updates_moving_statistics() -> None:
    image = keras.Input((None, None, 2))
    layer = keras.layers.BatchNormalization(momentum=0.0)
    model = keras.Model(image, layer(image))
    x = tf.constant(np.random.default_rng(0).normal(4.0, 2.0, (2, 7, 5, 2)), tf.float32)
    (y,) = BoundProgram(program_of(model, True), [x]).outputs()
    mean, variance = tf.nn.moments(x, [0, 1, 2])
    assert_same(
        [v.numpy() for v in layer.non_trainable_variables], [*map(np.array, (mean, variance))], 1e-5
    )
    assert_same(y, (x - mean) / tf.sqrt(variance + layer.epsilon), 1e-5)


def test_every_call_draws_a_new_seed() -> None:
    image = keras.Input((None, None, 1))
    program = program_of(keras.Model(image, keras.layers.Dropout(0.5)(image)), True)
    x = tf.ones([1, 4, 4, 1])
    ((seed, _),) = program.graph.seeds
    bound = BoundProgram(program, [x])
    first, second = (bound._arguments()[seed] for _ in range(2))
    assert not np.array_equal(first, second)


@pytest.mark.parametrize(("order", "shape"), [(None, [1, 4, 9, 2]), ((1, 0), [1, 9, 4, 2])])
def test_images_are_transposed(order: tuple[int, ...] | None, shape: list[int]) -> None:
    image, vector = keras.Input((None, None, 2)), keras.Input((3,))
    x = keras.layers.GlobalAveragePooling2D()(keras.layers.Conv2D(3, 1)(image))
    model = keras.Model([image, vector], keras.layers.Add()([x, vector]))
    program = program_of(model, False, order)
    inputs = [tf.zeros([1, 4, 9, 2]), tf.zeros([1, 3])]
    assert list(BoundProgram(program, inputs).image_shapes.values()) == [tuple(shape)]
