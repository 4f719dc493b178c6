"""The engine and the reference with plain loops: the same images, statistics and gradients, and both those of Keras."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import small_networks
import tensorflow as tf
from exactness import FLOAT64, assert_same, integer_weights, integers
from graphs import make_planner, residual, squeeze_and_excite
from streamed_pairs import slow

from tfbig.engine.bound_program import weights_of
from tfbig.engine.program import Program
from tfbig.engine.reference import Reference
from tfbig.network import keras_reader
from tfbig.network.graph import Whole


def reference_step(program: Program, inputs: dict[int, Any], num_strips: int) -> Reference:
    """A forward pass, and the backward pass of half the sum of squares of the outputs."""
    graph, sweeps = program.graph, program.planner.sweeps
    step = Reference(
        graph,
        {v: np.array(t) for v, t in inputs.items() if graph.values[v].image},
        {v: t for v, t in inputs.items() if not graph.values[v].image},
        weights_of(program.graph),
        num_strips,
    )
    later = {n.output for sweep in sweeps for n in sweep.wholes}
    before = [n for n in graph.nodes if isinstance(n.op, Whole) and n.output not in later]
    step.run_wholes(before)
    for sweep in sweeps:
        step.forward(sweep)
    step.d_images = {v: step.images[v].copy() for v in graph.outputs if v in step.images}
    step.d_wholes = {v: step.wholes[v] for v in graph.outputs if v in step.wholes}
    for sweep in reversed(sweeps):
        step.backward(sweep)
    step.pull_wholes(before)
    return step


def engine_step(program: Program, inputs: dict[int, Any]) -> tuple[dict[int, Any], list[Any]]:
    """The results of the engine by value id, and the gradients of the images, then of the trained weights."""
    graph, weights = program.graph, weights_of(program.graph)
    images = [v for v in inputs if graph.values[v].image]
    with tf.GradientTape() as tape:
        tape.watch([*(inputs[v] for v in images), *weights])
        results = program.run(inputs, weights, images)
        loss = tf.add_n([tf.reduce_sum(results[v] ** 2) / 2 for v in graph.outputs])
    trained = [weights[w] for w in sorted(graph.trained)]
    return results, tape.gradient(loss, [*(inputs[v] for v in images), *trained])


NETWORKS = [
    small_networks.windows,
    small_networks.normalisations,
    slow(small_networks.resampling),
    slow(small_networks.decoder),
    slow(small_networks.volume),
    slow(small_networks.signal),
    slow(residual),
    slow(squeeze_and_excite),
]


def compare(model: keras.Model, pixels: Any, num_strips: int, tolerance: float) -> None:
    graph = keras_reader.read(model, True)
    program = Program(graph, make_planner(graph, device=2**28, strip_rows=6))
    inputs = {v: tf.constant(pixels) for v in graph.inputs}
    results, gradients = engine_step(program, inputs)
    step = reference_step(program, inputs, num_strips)
    known = step.images | step.wholes
    for value, result in results.items():
        assert_same(result, known[value], tolerance)
    expected = [
        *(step.d_images[v] for v in inputs),
        *(step.d_weights[w] for w in sorted(graph.trained)),
    ]
    assert_same(gradients, expected, tolerance)


@pytest.mark.parametrize("network", NETWORKS)
def test_images_statistics_and_gradients(network: Callable[[], keras.Model], float64: None) -> None:
    model = network()
    size = [32, 32, 16][: len(model.inputs[0].shape) - 2]
    pixels = np.random.default_rng(0).normal(size=(2, *size, model.inputs[0].shape[-1]))
    compare(model, pixels, 3, FLOAT64)


@pytest.mark.parametrize("num_strips", [4, slow(1), slow(16)])
def test_bitwise_on_integers(num_strips: int, float64: None) -> None:
    """Any number of strips, also more than there are rows in the coarsest image."""
    model = small_networks.windows()
    model.set_weights(integer_weights(model))
    compare(model, integers((1, 32, 24, model.inputs[0].shape[-1]), "float64"), num_strips, 0.0)
