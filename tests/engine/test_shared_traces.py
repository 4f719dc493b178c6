"""Sweeps that compute the same function share a trace, and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from exactness import assert_same
from streamed_pairs import slow

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


def stage(x: Any, filters: int) -> Any:
    """Return a stage of a network, with most of the layers that accept any number of channels."""
    x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(filters, 1)(x)))
    y = layers.DepthwiseConv2D(3, padding="same")(x)
    y = layers.LeakyReLU(0.5)(layers.BatchNormalization()(y))
    scale = layers.GlobalAveragePooling2D(keepdims=True)(y)
    y = layers.Multiply()([y, layers.Conv2D(filters, 1, activation="sigmoid")(scale)])
    y = layers.Concatenate()([y, layers.Add()([x, y]), layers.MaxPooling2D(3, 1, "same")(y)])
    y = layers.BatchNormalization()(layers.AveragePooling2D(2)(layers.ZeroPadding2D(1)(y)))
    y = layers.UpSampling2D(2)(y)
    return layers.BatchNormalization()(layers.Cropping2D(1)(layers.Activation("relu")(y * 2.0)))


def short_stage(x: Any, filters: int) -> Any:
    """Return a stage of the layers that add or multiply channels."""
    x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(filters, 3, padding="same")(x)))
    scale = layers.Conv2D(filters, 1)(layers.GlobalAveragePooling2D(keepdims=True)(x))
    return layers.Add()([x, layers.Multiply()([x, scale])])


def stages(*widths: int, of: Callable[[Any, int], Any] = stage) -> keras.Model:
    """Return a model of stages with these numbers of filters."""
    start = x = keras.Input((None, None, 3), dtype=keras.config.dtype_policy().name)
    for filters in widths:
        x = of(x, filters)
    return keras.Model(start, layers.GlobalMaxPooling2D()(x))


def test_layers_share_if_only_channels_differ() -> None:
    widths = chain(*(layers.Conv2D(n, 3, padding="same") for n in (4, 8, 1)))
    traces = keys(widths)
    assert traces[1] == traces[2] == traces[3]


def test_stages_of_other_widths_add_no_traces() -> None:
    """The first stage reads the image and the last is pooled; all between share their traces."""
    assert len(set(keys(stages(4, 6, 5, 3)))) == len(set(keys(stages(4, 6, 3))))


@pytest.mark.parametrize(
    ("of", "widths"),
    [
        (short_stage, (3, 1, 3)),
        *(slow(stage, widths) for widths in [(2, 5, 3, 4), (1, 3, 1), (4, 1, 1, 1)]),
    ],
)
def test_stages_of_other_widths_are_exact(
    of: Callable[[Any, int], Any], widths: tuple[int, ...]
) -> None:
    """One channel is special: TensorFlow would repeat it where another image has more."""
    keras.config.set_dtype_policy("float64")
    try:
        model = stages(*widths, of=of)
    finally:
        keras.config.set_dtype_policy("float32")
    big = tfbig.stream(model, strip_rows=3)
    x = tf.constant(np.random.default_rng(0).normal(size=(2, 11, 9, 3)))
    weights, results = model.get_weights(), []
    for each in (model, big):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = each(x, training=True)
            loss = tf.reduce_sum(y * tf.range(1.0, y.shape[-1] + 1.0, dtype=y.dtype))
        gradients = tape.gradient(loss, [x, *(v._value for v in model.trainable_variables)])
        results.append((y, gradients, [w.copy() for w in model.get_weights()]))
        model.set_weights(weights)
    assert_same(results[1], results[0], 1e-10)


@pytest.mark.slow
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
    specs = tf.TensorSpec([1, 9, 9, 4]), tf.TensorSpec([1, model.output.shape[-1]])
    traced = tf.function(lambda x, y: big.train_step((x, y))).get_concrete_function(*specs)
    return [op for op in traced.graph.get_operations() if op.type == "StatefulPartitionedCall"]


def folds(op: tf.Operation) -> bool:
    """Return whether TensorFlow can replace an operation by a constant."""
    if op.op_def.is_stateful or not op.inputs:
        return op.type == "Const"
    return all(folds(i.op) for i in op.inputs)


@pytest.mark.parametrize("filters", [slow((4, 4, 4)), (4, 8, 2)])
def test_calls_do_not_make_tensorflow_copy_a_function(filters: tuple[int, ...]) -> None:
    """TensorFlow copies a function for every call with a constant input or an unused result."""
    model = chain(*(layers.Conv2D(n, 3, padding="same") for n in filters))
    operations = calls(model)
    assert len(operations) > len({op.get_attr("f").name for op in operations}) > 1
    for op in operations:
        assert not [i.name for i in op.inputs if folds(i.op)]
        assert not [o.name for o in op.outputs if not o.consumers()]
