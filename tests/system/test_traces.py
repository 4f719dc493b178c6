"""Traces are freed with the last reference to them."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfbig.system import callbacks, traces


@pytest.fixture(scope="module", autouse=True)
def _fast_collections() -> None:
    """Leave the objects of earlier tests out of the many collections of these tests."""
    gc.collect()
    gc.freeze()


def collect() -> None:
    """Collect garbage, also what the finalizers of garbage leave."""
    for _ in range(3):
        gc.collect()


class Owner:
    """Object with a method that a graph calls."""

    def double(self, x: np.ndarray) -> np.ndarray:
        return 2 * x


def graph_of(owner: Any) -> Any:
    """Return a `tf.function` with a callback inside a function inside a loop."""

    def called(x: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(callbacks.numpy_function(owner.double, [x], x.dtype), x.shape)

    inner = traces.concrete(tf.function(called, autograph=False), tf.TensorSpec([2], tf.float32))

    def run(x: tf.Tensor) -> tf.Tensor:
        callbacks.hold_those_of(inner)
        return tf.while_loop(lambda i, _: i < 3, lambda i, x: (i + 1, inner(x)), (0, x))[1]

    return tf.function(run, autograph=False)


def test_graph_is_freed_with_its_trace() -> None:
    owner = Owner()
    trace = traces.concrete(graph_of(owner), tf.TensorSpec([2], tf.float32))
    references = [weakref.ref(each) for each in (owner, trace)]
    operations = [weakref.ref(operation) for operation in trace.graph.get_operations()]
    assert trace(tf.ones([2])).numpy().tolist() == [8, 8]
    del owner, trace
    collect()
    assert [r() for r in references] == [None, None]
    assert [r() for r in operations] == [None] * len(operations)


def test_callbacks_live_as_long_as_the_trace() -> None:
    """No one else holds the object whose method is called, nor the function that was traced."""
    trace = traces.concrete(graph_of(Owner()), tf.TensorSpec([2], tf.float32))
    collect()
    assert trace(tf.ones([2])).numpy().tolist() == [8, 8]


def test_inner_trace_outlives_the_outer_one() -> None:
    owner = Owner()

    @tf.function(autograph=False)
    def called(x: tf.Tensor) -> tf.Tensor:
        return tf.ensure_shape(callbacks.numpy_function(owner.double, [x], x.dtype), [2])

    inner: list[Any] = []

    def outer(x: tf.Tensor) -> tf.Tensor:
        inner[:] = inner or [traces.concrete(called, tf.TensorSpec([2], tf.float32))]
        return inner[0](x)

    for _ in range(2):
        trace = traces.concrete(tf.function(outer, autograph=False), tf.TensorSpec([2], tf.float32))
        assert trace(tf.ones([2])).numpy().tolist() == [2, 2]
        del trace
        collect()


def test_call_frees_every_trace_with_the_function() -> None:
    references = []

    def function_of_owner() -> Any:
        owner = Owner()
        references.append(weakref.ref(owner))
        return tf.function(
            lambda x: callbacks.numpy_function(owner.double, [x], x.dtype), autograph=False
        )

    function = function_of_owner()
    for size in (2, 3, 3):
        assert traces.call(function, tf.ones([size])).numpy().tolist() == [2] * size
    assert function.experimental_get_tracing_count() == 2
    del function
    collect()
    assert references[0]() is None


def test_dataset_keeps_its_callbacks() -> None:
    def dataset() -> Any:
        owner = Owner()
        data = tf.data.Dataset.range(4)
        return data.map(lambda x: callbacks.numpy_function(owner.double, [x], tf.int64)).prefetch(1)

    iterator = iter(dataset())
    collect()
    assert [int(x) for x in iterator] == [0, 2, 4, 6]


def test_custom_gradient_in_a_loop_inside_a_function_is_the_same() -> None:
    """TensorFlow looks the gradient up by its name when it differentiates the loop."""

    @traces.custom_gradient
    def doubled_gradient(x: tf.Tensor) -> Any:
        return x * x, lambda dy: 4 * x * dy

    @tf.function(autograph=False)
    def looped(x: tf.Tensor) -> tf.Tensor:
        return tf.while_loop(lambda i, _: i < 2, lambda i, y: (i + 1, doubled_gradient(y)), [0, x])[
            1
        ]

    x = tf.constant(3.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = looped(x)
    assert float(y) == 81
    assert float(tape.gradient(y, x)) == 4 * 4 * 27  # each of two squarings has twice its gradient
    assert float(doubled_gradient(x)) == 9
