"""Geometry of a strip by name."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

from tfbig.engine.sweep_tensors import StripGeometry
from tfbig.network import keras_reader
from tfbig.plan.sweeps import schedule


def test_geometry_of_strips() -> None:
    """Six rows in two strips: the second reads one row of halo and ends with one row of padding."""
    inputs = keras.Input((None, None, 2))
    model = keras.Model(inputs, keras.layers.Conv2D(3, 3, padding="same")(inputs))
    graph = keras_reader.read(model, False)
    (sweep,) = schedule(graph)
    table = sweep.table(dict.fromkeys(range(len(graph.values)), 6), 2)
    extents = tf.fill([len(graph.values), 2], 6)
    geometry = StripGeometry.in_image(sweep, tf.constant(table[1]), extents)
    (image,), output = sweep.reads, graph.outputs[0]
    assert [int(geometry[key, image]) for key in ("start", "stop")] == [2, 6]
    assert [int(geometry[key, output]) for key in ("start", "stop")] == [3, 6]
    assert [int(geometry[key, output, 0]) for key in ("before", "after")] == [0, 1]
    with pytest.raises(KeyError):
        geometry["start", 99]
