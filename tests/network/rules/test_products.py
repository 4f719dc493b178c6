"""Products of each pixel with a matrix: several axes of channels, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops
from twins import assert_streams, images

import tfbig
from tfbig.network import keras_reader

Check = Callable[[Any, Any], None]


MATRIX = np.random.default_rng(0).normal(size=(3, 2))


def test_several_axes_of_channels(check: Check, float64: None) -> None:
    inputs = keras.Input((7, 6, 6))
    x = layers.Conv2D(6, 3, padding="same")(inputs)
    split = ops.reshape(x, (-1, 7, 6, 2, 3))
    outputs = [
        ops.matmul(split, MATRIX),
        ops.tensordot(split, MATRIX.T, 2),
        ops.einsum("nhwgc,cd->nhwgd", split, MATRIX),
        layers.EinsumDense("abcde,ef->abcdf", (None, None, None, 4), bias_axes="f")(split),
    ]
    check(inputs, outputs)


def test_lora(float64: None) -> None:
    """The factors are float32, and multiplied in float32, as Keras does."""
    inputs = keras.Input((None, None, 3))
    layer = layers.EinsumDense("abcd,de->abce", (None, None, 4), bias_axes="e")
    model = keras.Model(inputs, layer(layers.Conv2D(3, 3)(inputs)))
    layer.enable_lora(2)
    layer.lora_kernel_b.assign(np.random.default_rng(1).normal(size=(2, 4)))
    assert_streams(model, images(model, 2, 7, 6), 2, training=True)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda x: ops.matmul(np.ones((5, 4)), x), "over more than the pixel"),
        (lambda x: ops.matmul(x, ops.transpose(x, (0, 1, 3, 2))), "differs between pixels"),
        (lambda x: ops.matmul(x, np.ones((5, 3, 2))), "differs between pixels"),
        (lambda x: ops.tensordot(x, np.ones((4, 3)), 2), "strips can only sum over channels"),
        (lambda x: ops.dot(np.ones((2, 4)), x), "expected an image times a matrix of known shape"),
        (lambda x: ops.einsum("nhwc,hc->nhwc", x, np.ones((5, 3))), "does more than multiply"),
        (lambda x: ops.einsum("nhwc->nwhc", x), "does more than multiply"),
        (
            lambda x: ops.einsum("nhwc,cd", x, MATRIX),
            "expected one term for each operand, and '->'",
        ),
        (
            lambda x: layers.EinsumDense("abcd,de->abce", (5, 4, 2), bias_axes="be")(x),
            "has bias_axes='be'",
        ),
    ],
)
def test_refused(build: Any, message: str) -> None:
    start = keras.Input((5, 4, 3))
    with pytest.raises(tfbig.UnsupportedLayerError, match=message):
        tfbig.stream(keras.Model(start, build(start)))


@pytest.mark.parametrize(
    ("build", "operations"),
    [
        (lambda x: ops.matmul(x, MATRIX), 2 * 3 * (2 * 2)),
        (lambda x: ops.matmul(x, ops.transpose(x, (0, 1, 2, 4, 3))), 2 * 3 * (2 * 2)),
        (lambda x: ops.matmul(ops.transpose(x, (0, 1, 2, 4, 3)), x), 2 * 2 * (3 * 3)),
        (lambda x: ops.dot(x, MATRIX), 2 * 3 * (2 * 2)),
        (lambda x: ops.tensordot(x, np.ones((2, 3, 5)), 2), 2 * (2 * 3) * 5),
        (lambda x: ops.einsum("nhwgc,nhwkc->nhwgk", x, x), 2 * 3 * (2 * 2)),
        (lambda x: layers.EinsumDense("nhwgc,cd->nhwgd", (None, None, 2, 7))(x), 2 * 3 * (2 * 7)),
    ],
)
def test_operations(build: Any, operations: int) -> None:
    """Every term of every sum of a pixel counts as a multiplication and an addition."""
    start = keras.Input((5, 4, 6))
    graph = keras_reader.read(keras.Model(start, build(ops.reshape(start, (-1, 5, 4, 2, 3)))), True)
    assert graph.nodes[-1].op.operations == operations
