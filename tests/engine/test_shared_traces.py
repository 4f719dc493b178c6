"""Sweeps that compute the same function share a trace, and no others."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from exactness import assert_same

import tfbig
from tfbig.network import keras_reader
from tfbig.plan.canonical import Canonical
from tfbig.plan.sweeps import schedule

layers = keras.layers


def keys(model: keras.Model) -> list[str]:
    """Return the trace key of every sweep."""
    graph = keras_reader.read(model, True)
    return [Canonical(graph, sweep).key for sweep in schedule(graph)]


def chain(*blocks: keras.Layer) -> keras.Model:
    """Return a model whose blocks are each followed by BatchNormalization, which ends a sweep."""
    start = keras.Input((None, None, 4))
    x = layers.BatchNormalization()(layers.Conv2D(4, 1, name="stem")(start))
    for block in blocks:
        x = layers.BatchNormalization()(block(x))
    return keras.Model(start, layers.GlobalAveragePooling2D()(x))


def test_equal_layers_share() -> None:
    first, second, third = (layers.Conv2D(4, 3, padding="same", name=n) for n in "abc")
    traces = keys(chain(first, second, third))
    assert traces[1] == traces[2] == traces[3]
    assert len(set(traces)) == 3  # the stem and the pooling have their own


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
def test_different_layers_do_not_share(other: dict) -> None:
    settings = {"filters": 4, "kernel_size": 3, "padding": "same"}
    traces = keys(chain(layers.Conv2D(**settings), layers.Conv2D(**(settings | other))))
    assert traces[1] != traces[2]


def test_layers_share_if_only_names_and_initializers_differ() -> None:
    renamed = layers.Conv2D(4, 3, padding="same", kernel_initializer="zeros", name="x")
    regularised = layers.Conv2D(4, 3, padding="same", kernel_regularizer="l2")
    traces = keys(chain(renamed, regularised))
    assert traces[1] == traces[2]


class Scaled(layers.Layer):
    """A user's layer, whose config does not determine what it computes."""

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
    traces = keys(model)
    assert traces[1] != traces[2]
    x = tf.constant(np.random.default_rng(0).normal(size=(1, 9, 7, 4)), tf.float32)
    assert_same(tfbig.stream(model, strip_rows=2)(x), model(x), 1e-5)


def test_shared_trace_with_other_weights_and_sizes() -> None:
    """Blocks of equal shape and different weights, on images of different sizes."""
    model = chain(*(layers.Conv2D(4, 3, padding="same") for _ in range(3)))
    big = tfbig.stream(model, strip_rows=3)
    for size in ((11, 6), (8, 9)):
        x = tf.random.stateless_normal((2, *size, 4), (3, 4))
        weights = model.get_weights()
        actual = big(x, training=True)
        model.set_weights(weights)
        assert_same(actual, model(x, training=True), 1e-5)


def calls(model: keras.Model) -> list[tf.Operation]:
    """Return the calls of shared functions in a training step."""
    big = tfbig.stream(model, tfbig.Budget(device="40MB"))
    big.compile("sgd", "mse")
    specs = tf.TensorSpec([1, 9, 9, 4]), tf.TensorSpec([1, 4])
    traced = tf.function(lambda x, y: big.train_step((x, y))).get_concrete_function(*specs)
    return [op for op in traced.graph.get_operations() if op.type == "StatefulPartitionedCall"]


def test_calls_do_not_make_tensorflow_copy_a_function() -> None:
    """TensorFlow copies a function for every call with a constant input or an unused result."""
    model = chain(*(layers.Conv2D(4, 3, padding="same", name=n) for n in "abc"))
    operations = calls(model)
    assert len(operations) > len({op.get_attr("f").name for op in operations}) > 1
    for op in operations:
        assert not [i.name for i in op.inputs if i.op.type == "Const"]
        assert not [o.name for o in op.outputs if not o.consumers()]
