"""Outputs and gradients of Big layers equal those of their Keras twins."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from exactness import FLOAT64, assert_same, gradients
from layer_pairs import IMAGE, TABLE, Row, compare, every_kind, images, pair

from tfbig import layers
from tfbig.system import backend


@pytest.mark.slow
@every_kind(TABLE)
def test_dynamic_sizes(kind: type) -> None:
    row = TABLE[kind] if kind is not layers.BigDropout else Row({"rate": 0.0})
    big, twin = pair(kind, row, max_elements=1)
    rtol = 0.0 if row.exact else FLOAT64
    compare(big, twin, row, [(2, 7, 6), (1, 4, 9), (3, 13, 5)], 4, rtol, training=True)


@pytest.mark.parametrize(
    "kind",
    [
        layers.BigConv2D,
        layers.BigBatchNormalization,
        layers.BigGlobalMaxPooling2D,
        layers.BigMultiply,
    ],
)
def test_eager_tape(kind: type) -> None:
    """TensorFlow then traces the gradient in a context that does not order stateful operations."""
    row = TABLE[kind]
    big, twin = pair(kind, row, max_elements=1)
    x = images(row, IMAGE, big.compute_dtype)
    for variables in ([], big.trainable_variables, []):
        actual = gradients(lambda x: big(x, training=True), x, variables)
        twin_variables = twin.trainable_variables if variables else []
        expected = gradients(lambda x: twin(x, training=True), x, twin_variables)
        assert_same(actual, expected, 0.0 if row.exact else FLOAT64)


@pytest.mark.parametrize(
    "kind", [layers.BigConv2D, layers.BigDepthwiseConv2D, layers.BigMaxPooling2D]
)
def test_strips_of_one_size(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """On an accelerator, here a CPU in its place, all strips have one size."""
    monkeypatch.setattr(backend, "accelerator", lambda: "/CPU:0")
    row = TABLE[kind]
    big, twin = pair(kind, row, max_elements=1)
    x = images(row, IMAGE, big.compute_dtype)
    actual = gradients(lambda x: big(x, training=True), x, big.trainable_variables)
    expected = gradients(lambda x: twin(x, training=True), x, twin.trainable_variables)
    assert_same(actual, expected, 0.0 if row.exact else FLOAT64)
    programs = [program for program in big._programs.values() if program is not None]
    assert programs and all(program.graph.even for program in programs)


def test_persistent_tape() -> None:
    """The gradient is traced twice, and is the same for every call."""
    row = TABLE[layers.BigConv2D]
    big, twin = pair(layers.BigConv2D, row, max_elements=1)
    x = images(row, IMAGE)
    results = []
    for layer in (big, twin):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = layer(x)
        sources = [x, *(v._value for v in layer.trainable_variables)]
        results.append([tape.gradient(y, sources, scale * tf.ones_like(y)) for scale in (1, 2, 1)])
    assert_same(*results)


@every_kind([kind for kind, row in TABLE.items() if row.linear])
def test_gradient_of_linear_layer_is_adjoint(kind: type) -> None:
    """`<v, J u> = <J^T v, u>`, `J u = f(u) - f(0)`; the terms of both sums are of order 1."""
    row = TABLE[kind]
    big, _ = pair(kind, row, dtype="float64", max_elements=1)
    random = np.random.default_rng(4)
    u = tf.nest.map_structure(
        lambda t: tf.constant(random.normal(size=t.shape)), images(row, IMAGE, "float64")
    )
    zero = big(tf.nest.map_structure(tf.zeros_like, u))
    v = tf.constant(random.normal(size=zero.shape))
    y, adjoint, _ = gradients(big, u, [], v)
    right = sum(
        np.vdot(a, b) for a, b in zip(tf.nest.flatten(adjoint), tf.nest.flatten(u), strict=True)
    )
    assert np.vdot(v, y - zero) == pytest.approx(right, rel=1e-12, abs=1e-12 * y.numpy().size)
