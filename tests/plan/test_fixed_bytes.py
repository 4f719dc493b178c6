"""Fixed bytes: what a trace takes, which sweeps share one, and the gradients of the weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import keras
from graphs import conv, image, read, with_loss
from keras import layers

from tfbig.network import keras_reader
from tfbig.network.graph import Graph
from tfbig.plan.fixed_bytes import (
    COMPILER_BYTES,
    FREED_BYTES,
    INFERENCE,
    TRAINING,
    TraceBytes,
    TraceSize,
    fixed_bytes,
    freed_bytes,
    replay_bytes,
)
from tfbig.plan.sweeps import Sweep, schedule

PARTS = TraceBytes(runtime=10**6, sweep=10**3, node=1, whole=0)


def blocks(count: int, kernel: int = 3) -> Graph:
    """Return `count` blocks of a convolution and BatchNormalization, each with 4 channels."""
    x = start = image(4)
    for number in range(count):
        x = layers.BatchNormalization()(conv(4, f"conv{number}", kernel)(x))
    return read(keras.Model(start, x))


def traced(graph: Graph, axes: Sequence[int] = ()) -> list[TraceSize]:
    """Return the sweeps of a graph, the first ones cut along the given numbers of axes."""
    sweeps: list[Sweep] = schedule(graph)
    sweeps[: len(axes)] = [replace(s, axes=n) for s, n in zip(sweeps, axes, strict=False)]
    return [TraceSize.of(graph, sweep) for sweep in sweeps]


def test_equal_sweeps_share_the_bytes_of_their_nodes() -> None:
    """The first sweep reads the image, the last normalises; all between are equal."""
    few, many = blocks(4), blocks(9)
    assert len(schedule(many)) == len(schedule(few)) + 5
    assert PARTS.of(traced(many)) == PARTS.of(traced(few)) + 5 * PARTS.sweep


def test_sweeps_that_are_cut_along_other_axes_share_nothing() -> None:
    """Two of five equal sweeps, cut into tiles, share a second trace."""
    graph = blocks(7)
    strips, tiles = traced(graph), traced(graph, [1, 2, 1, 2])
    assert len({each.key for each in tiles}) == len({each.key for each in strips}) + 1
    assert PARTS.of(tiles) == PARTS.of(strips) + strips[1].nodes


def test_different_sweeps_have_their_own_bytes() -> None:
    graph = blocks(2)
    sweeps = schedule(graph)
    nodes = sum(len(s.nodes) for s in sweeps)
    assert PARTS.of(traced(graph)) == 10**6 + 10**3 * len(sweeps) + nodes
    assert PARTS.of(traced(graph)[:1]) == 10**6 + 10**3 + len(sweeps[0].nodes)


def test_casts_of_inputs_are_not_counted() -> None:
    """A plan for images of another type allows the same step."""
    start = image(4)
    model = keras.Model(start, conv(4, "conv")(start))
    plain, cast = (keras_reader.read(model, True, [dtype]) for dtype in ("float32", "uint8"))
    assert len(cast.nodes) == len(plain.nodes) + 1
    assert PARTS.of(traced(cast)) == PARTS.of(traced(plain))


def test_gradients_of_weights() -> None:
    """One for each weight, and three more for the largest; a kernel of 5 x 5 has 16 more taps than one of 3 x 3."""
    small, large = blocks(2), blocks(2, kernel=5)
    training, prediction = (
        fixed_bytes(large, traced(large), training) - fixed_bytes(small, traced(small), training)
        for training in (True, False)
    )
    assert training == (2 + 3) * 16 * 4 * 4 * 4
    assert prediction == 0


def test_compiled_losses() -> None:
    """XLA compiles the gradients of Keras' losses only."""

    class Squares(keras.losses.MeanSquaredError):
        pass

    start = image(4)
    model = keras.Model(start, conv(4, "conv")(start))
    compiled, plain = (
        with_loss(model, loss()) for loss in (keras.losses.MeanSquaredError, Squares)
    )
    (first, second), (third, fourth) = (
        [fixed_bytes(graph, traced(graph), training) for graph in (compiled, plain)]
        for training in (True, False)
    )
    assert first - second == COMPILER_BYTES
    assert third == fourth


def test_graph_without_weights() -> None:
    start = image(4)
    graph = read(keras.Model(start, layers.MaxPooling2D()(start)))
    assert fixed_bytes(graph, traced(graph), True) == TRAINING.of(traced(graph))


def test_replays_have_the_traces_of_a_forward_pass() -> None:
    graph = blocks(4)
    first, second, *_ = schedule(graph)
    expected = 2 * INFERENCE.sweep + (len(first.nodes) + len(second.nodes)) * INFERENCE.node
    assert replay_bytes([first, second]) == expected
    assert replay_bytes([]) == 0


def test_freed_strips() -> None:
    assert freed_bytes(1000, {0: 600, 1: 600}) == 500
    assert freed_bytes(1000, {0: 500, 1: 100}) == 300
    assert freed_bytes(2**30, {0: 2**30}) == FREED_BYTES


def test_backward_passes_have_traces() -> None:
    few, many = blocks(3), blocks(20)
    assert fixed_bytes(many, traced(many), False) == INFERENCE.of(traced(many))
    training, inference = (
        parts.of(traced(many)) - parts.of(traced(few)) for parts in (TRAINING, INFERENCE)
    )
    assert training > 2 * inference > 0


def test_nodes_on_whole_values_have_their_own_bytes() -> None:
    """Two squeeze-excite blocks share the traces of their sweeps, but not the layers on the pooled vector."""
    start = x = image(4)
    for number in range(2):
        x = conv(4, f"conv{number}")(x)
        vector = layers.GlobalAveragePooling2D(keepdims=True)(x)
        x = layers.Multiply()([x, layers.Conv2D(4, 1, name=f"squeeze{number}")(vector)])
    graph = read(keras.Model(start, x))
    sweeps = traced(graph)
    wholes = sum(sweep.wholes for sweep in sweeps)
    assert wholes >= 2
    counted = TraceBytes(runtime=0, sweep=0, node=0, whole=5)
    assert counted.of(sweeps) == 5 * wholes
