"""Sweeps that do the same share a trace, and no others."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from exactness import assert_same

import tfbig
from tfbig.engine.shared_traces import Canonical
from tfbig.network import keras_reader
from tfbig.plan.sweeps import schedule

layers = keras.layers


def keys(model: keras.Model) -> list[str]:
    graph = keras_reader.read(model, True)
    return [Canonical(graph, sweep).key for sweep in schedule(graph)]


def chain(*blocks: keras.Layer) -> keras.Model:
    """Every block is followed by BatchNorm, which ends a sweep."""
    start = keras.Input((None, None, 4))
    x = layers.BatchNormalization()(layers.Conv2D(4, 1, name="stem")(start))
    for block in blocks:
        x = layers.BatchNormalization()(block(x))
    return keras.Model(start, layers.GlobalAveragePooling2D()(x))


def test_like_layers_share() -> None:
    first, second, third = (layers.Conv2D(4, 3, padding="same", name=n) for n in "abc")
    found = keys(chain(first, second, third))
    assert found[1] == found[2] == found[3]
    assert len(set(found)) == 3  # the stem and the pooling are others


@pytest.mark.parametrize(
    "other",
    [
        {"dilation_rate": 2},
        {"use_bias": False},
        {"activation": "relu"},
        {"kernel_size": 5},
        {"filters": 8},
        {"groups": 2},
        {"dtype": "float64"},
    ],
)
def test_other_settings_do_not(other: dict) -> None:
    settings = {"filters": 4, "kernel_size": 3, "padding": "same"}
    found = keys(chain(layers.Conv2D(**settings), layers.Conv2D(**(settings | other))))
    assert found[1] != found[2]


def test_what_does_not_change_the_computation_may_differ() -> None:
    frozen = layers.Conv2D(4, 3, padding="same", kernel_initializer="zeros", name="x")
    plain = layers.Conv2D(4, 3, padding="same", kernel_regularizer="l2")
    found = keys(chain(frozen, plain))
    assert found[1] == found[2]


class Scaled(layers.Layer):
    """A layer of a user's, whose config does not say what it does."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        return self.factor * tf.nn.relu(inputs) + inputs**2

    def get_config(self) -> dict:
        return layers.Layer().get_config()


@tfbig.rule(Scaled)
def scaled(call: Any) -> int:
    return call.local(lambda x, w, strip: call.layer.call(x[0]))


def test_layers_of_users_do_not_share() -> None:
    model = chain(Scaled(2.0), Scaled(3.0))
    found = keys(model)
    assert found[1] != found[2]
    x = tf.constant(np.random.default_rng(0).normal(size=(1, 9, 7, 4)), tf.float32)
    assert_same(tfbig.stream(model, strip_rows=2)(x), model(x), 1e-5)


def test_a_shared_trace_serves_other_weights_and_sizes() -> None:
    """Blocks of equal shape and different weights, on images of different sizes."""
    model = chain(*(layers.Conv2D(4, 3, padding="same") for _ in range(3)))
    big = tfbig.stream(model, strip_rows=3)
    for size in ((11, 6), (8, 9)):
        x = tf.random.stateless_normal((2, *size, 4), (3, 4))
        weights = model.get_weights()
        found = big(x, training=True)
        model.set_weights(weights)
        assert_same(found, model(x, training=True), 1e-5)


def calls(model: keras.Model) -> list[tf.Operation]:
    """Calls of shared functions in a training step."""
    big = tfbig.stream(model, tfbig.Budget(device="40MB"))
    big.compile("sgd", "mse")
    specs = tf.TensorSpec([1, 9, 9, 4]), tf.TensorSpec([1, 4])
    traced = tf.function(lambda x, y: big.train_step((x, y))).get_concrete_function(*specs)
    return [op for op in traced.graph.get_operations() if op.type == "StatefulPartitionedCall"]


def test_calls_leave_tensorflow_no_reason_to_copy_a_function() -> None:
    """It makes a copy for every call with a constant among the inputs or a result that nothing takes."""
    model = chain(*(layers.Conv2D(4, 3, padding="same", name=n) for n in "abc"))
    found = calls(model)
    assert len(found) > len({op.get_attr("f").name for op in found}) > 1
    for op in found:
        assert not [i.name for i in op.inputs if i.op.type == "Const"]
        assert not [o.name for o in op.outputs if not o.consumers()]
