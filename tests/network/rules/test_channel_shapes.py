"""Images whose channels have several axes in the model, or none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops

import tfbig

Check = Callable[[Any, Any], None]


pytestmark = pytest.mark.usefixtures("float64")


def image(channels: int = 6) -> Any:
    return keras.Input((7, 6, channels))


@pytest.mark.slow
def test_outputs_have_the_shapes_of_the_model(check: Check) -> None:
    inputs = image()
    split = ops.reshape(layers.Conv2D(6, 3, padding="same")(inputs), (-1, 7, 6, 2, 3))
    check(inputs, [split, ops.transpose(split, (0, 1, 2, 4, 3)), ops.max(inputs, -1)])


def test_layers_and_operations_on_several_axes(check: Check) -> None:
    inputs = image()
    x = ops.reshape(layers.Conv2D(6, 3, padding="same")(inputs), (-1, 7, 6, 2, 3))
    gate = ops.mean(x, (1, 2), keepdims=True)
    outputs = [
        layers.ReLU()(x),
        ops.softmax(x, -1) * np.arange(3.0),
        layers.Add()([x, gate]),
        ops.concatenate([x, 2.0 * x], 3),
        ops.sum(x * gate, -2),
        ops.matmul(x, ops.swapaxes(x, -1, -2)),
        ops.max(x, (1, 2)),
    ]
    check(inputs, outputs)


def test_layers_without_a_rule_for_it_get_the_whole_image(check: Check) -> None:
    """If its size is fixed."""
    inputs = image()
    x = ops.reshape(layers.Conv2D(6, 3, padding="same")(inputs), (-1, 7, 6, 2, 3))
    check(inputs, layers.Conv3D(2, 2)(x))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda x: layers.Dense(2)(ops.stack([x, x], -1)),
            "whose channels have several axes or none",
        ),
        (lambda x: x + ops.expand_dims(x, -1), "give them the same number of axes first"),
        (
            lambda x: ops.max(x, -1) + np.ones((1, 1, 1, 3)),
            r"combines an image with a tensor of shape \(1, 1, 1, 3\)",
        ),
    ],
)
def test_refused(build: Any, message: str) -> None:
    start = keras.Input((None, None, 3))
    with pytest.raises(tfbig.UnsupportedLayerError, match=message):
        tfbig.stream(keras.Model(start, build(start)))


def test_losses_need_one_channel_axis() -> None:
    start = keras.Input((None, None, 3))
    model = tfbig.stream(keras.Model(start, ops.max(start, -1, keepdims=False)), strip_rows=2)
    model.compile("sgd", "mse")
    message = r"output 'max.*' has shape \(None, None, None\); .* keras.ops.expand_dims"
    with pytest.raises(tfbig.UnsupportedLayerError, match=message):
        model.evaluate(np.ones((1, 5, 4, 3)), np.ones((1, 5, 4)), verbose=0)
