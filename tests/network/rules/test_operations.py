"""`keras.ops` in functional models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from exactness import assert_same
from keras import layers, ops
from twins import images

import tfbig
from tfbig.network.rules import operations

pytestmark = pytest.mark.usefixtures("float64")

Check = Callable[[Any, Any], None]


def image(channels: int = 4) -> Any:
    return keras.Input((None, None, channels))


def test_names_of_operations() -> None:
    for names in (operations.ELEMENTWISE, operations.CHANNELWISE):
        assert [c.__name__ for c in operations.operations(names)] == names.split()


def test_images_constants_and_vectors(check: Check) -> None:
    inputs, other = image(3), image(3)
    vector = layers.GlobalAveragePooling2D(keepdims=True)(other)
    a, b, table = ops.exp(inputs), 2.0 + ops.square(other), np.array([0.5, 1.5, -2.0])
    outputs = [
        (1.0 - a * 0.5) / b,
        ops.power(a, 2.0) % b,
        a * table - b,
        ops.add(vector, ops.maximum(a, vector)),
        ops.where(ops.greater(a, b), a, vector),
        ops.clip(inputs, -0.5, 0.7),
        ops.hypot(a, x2=b),
        ops.stop_gradient(a) * a,
    ]
    check([inputs, other], outputs)


def test_channels(check: Check) -> None:
    inputs = image(6)
    x = layers.Conv2D(6, 3, padding="same")(inputs)
    first, second, third = ops.split(x, 3, axis=-1)
    gate = ops.sigmoid(ops.mean(x, axis=-1, keepdims=True) + ops.max(x, axis=-1, keepdims=True))
    check(
        inputs,
        [
            ops.concatenate([third, first * gate, ops.relu(second)], axis=-1),
            ops.softmax(x),
            x[..., 1:4],
            x[:, :, :, ::2],
        ],
    )


def test_normalize() -> None:
    """Keras computes it in float32: a sum of six squares, its root and a quotient."""
    inputs = keras.Input((None, None, 6), dtype="float32")
    model = keras.Model(inputs, ops.normalize(inputs, axis=-1))
    x = images(model, 2, 7, 6)
    assert_same(tfbig.stream(model, strip_rows=2)(x), model(x), 8 * 2**-24)


@pytest.mark.slow
def test_reductions_over_the_image(check: Check) -> None:
    inputs = image(3)
    x = layers.Conv2D(3, 3)(inputs)
    scale = ops.sum(x, axis=(1, 2), keepdims=True)
    check(inputs, [x * scale, ops.mean(x, axis=[1, 2]), ops.max(x, axis=(2, 1))])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda x: ops.trace(x, axis1=1, axis2=2),
            r"\(Trace\) has no rule.* keras.ops: use a layer",
        ),
        (
            lambda x: ops.sum(x, axis=1),
            "axis=.* cannot run strip by strip; reduce the channels, axis=-1, or",
        ),
        (lambda x: ops.softmax(x, axis=1), "needs the whole image; use axis=-1"),
        (lambda x: ops.concatenate([x, x], axis=0), "over the channels, axis=-1; received axis=0"),
        (
            lambda x: x * np.ones((1, 5, 1, 1, 4)),
            r"combines an image with a tensor of shape \(1, 5, 1, 1, 4\)",
        ),
        (
            lambda x: x + ops.mean(x, (1, 2)),
            r"combines an image with a tensor of shape \(None, 4\)",
        ),
        (
            lambda x: ops.sort(x, axis=1),
            r"\(Sort\) only runs strip by strip over the channels.*axis=1.*='device'",
        ),
    ],
)
def test_unsupported_operations(build: Any, message: str) -> None:
    inputs = keras.Input((5, 4, 4))
    with pytest.raises(tfbig.UnsupportedLayerError, match=message):
        tfbig.stream(keras.Model(inputs, build(inputs)))
