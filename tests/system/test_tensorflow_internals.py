"""Graphs and gradient tapes through the private names of TensorFlow."""

from __future__ import annotations

import subprocess
import sys

import pytest
import tensorflow as tf
from samples import ENVIRONMENT
from tensorflow.core.protobuf import config_pb2
from tensorflow.python.eager import context

from tfbig.system import tensorflow_internals


def test_watched_tensors() -> None:
    x = tf.constant(1.0)
    assert not tensorflow_internals.is_watched(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        assert tensorflow_internals.is_watched(x)
        with tensorflow_internals.stop_recording():
            assert not tensorflow_internals.is_watched(x)


def test_callbacks_of_a_graph() -> None:
    trace = tf.function(lambda: tf.numpy_function(lambda: 1, [], tf.int64)).get_concrete_function()
    assert tensorflow_internals.callbacks_of(trace.graph) == []  # the outermost graph holds it
    tensorflow_internals.set_callbacks(trace.graph, [print])
    assert tensorflow_internals.callbacks_of(trace.graph) == [print]


def test_a_dismantled_graph_holds_nothing() -> None:
    weight = tf.Variable(1.0)
    trace = tf.function(lambda x: x * weight).get_concrete_function(tf.TensorSpec([]))
    graph = trace.graph
    tensorflow_internals.dismantle(graph)
    assert not graph.inputs
    assert not graph.outputs
    assert not graph.captures


def test_devices_exist_after_the_first_tensor() -> None:
    tf.constant(1)
    assert tensorflow_internals.has_devices()


def test_graphs_are_optimized_once() -> None:
    options = context.context().function_call_options
    with tensorflow_internals.optimized_once():
        inner = context.context().function_call_options
        proto = config_pb2.ConfigProto.FromString(inner.config_proto_serialized)
        assert proto.graph_options.rewrite_options.meta_optimizer_iterations == 1
        assert tf.function(lambda x: x + 1)(tf.constant(2)) == 3
    assert context.context().function_call_options is options


@pytest.mark.slow
@pytest.mark.parametrize("uses", [False, True])
def test_onednn(uses: bool) -> None:
    program = "from tfbig.system import tensorflow_internals as t; print(t.uses_onednn())"
    printed = subprocess.run(
        [sys.executable, "-c", program],
        env={**ENVIRONMENT, "TF_ENABLE_ONEDNN_OPTS": str(int(uses))},
        capture_output=True,
        text=True,
        check=True,
    )
    assert printed.stdout.split() == [str(uses)]
