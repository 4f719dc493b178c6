"""Geometry of a strip by name, and tensors of a sweep."""

from __future__ import annotations

from types import SimpleNamespace

import keras
import pytest
import tensorflow as tf

from tfbig.engine.sweep_state import StepState, StripGeometry
from tfbig.network import keras_reader
from tfbig.plan.sweeps import schedule


def test_geometry_of_strips() -> None:
    """Six rows in two strips: the second reads one row of halo and ends with one row of padding."""
    inputs = keras.Input((None, None, 2))
    model = keras.Model(inputs, keras.layers.Conv2D(3, 3, padding="same")(inputs))
    graph = keras_reader.read(model, False)
    (sweep,) = schedule(graph)
    table = sweep.table(dict.fromkeys(range(len(graph.values)), 6), 2)
    geometry = StripGeometry(sweep, tf.constant(table[1]))
    (image,), output = sweep.reads, graph.outputs[0]
    assert [int(geometry[key, image]) for key in ("start", "stop")] == [2, 6]
    assert [int(geometry[key, output]) for key in ("start", "stop")] == [3, 6]
    assert [int(geometry[key, output, 0]) for key in ("before", "after")] == [0, 1]
    with pytest.raises(KeyError):
        geometry["start", 99]


@pytest.mark.parametrize(
    ("shape", "count"), [([5, None, None, 2], 5), ([None, None, None, 2], None)]
)
def test_known_batch_is_that_of_any_image(shape: list[int | None], count: int | None) -> None:
    counts = []

    @tf.function(input_signature=[tf.TensorSpec(shape)])
    def trace(image: tf.Tensor) -> None:
        pages = tf.constant(["a"])[0]  # a scalar has no N
        state = SimpleNamespace(images={0: pages, 1: image})
        counts.append(StepState.known_batch.fget(state))  # type: ignore[attr-defined]

    trace.get_concrete_function()
    assert counts == [count]
