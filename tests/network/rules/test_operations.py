"""`keras.ops` in functional models."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from exactness import assert_same
from keras import layers, ops
from twins import assert_streams, images

import tfbig
from tfbig.network.rules import operations

pytestmark = pytest.mark.usefixtures("float64")

Check = Callable[[Any, Any], None]

MULTIPLE_INPUTS = """
    Add Arctan2 Cast Clip Divide DivideNoNan Equal FloorDivide Fmax Fmin Fmod FullLike Greater GreaterEqual Heaviside
    Hypot Isclose Ldexp Less LessEqual Logaddexp Logaddexp2 LogicalAnd LogicalNot LogicalOr LogicalXor Maximum Minimum
    Mod Multiply Nextafter NotEqual Power SaturateCast Select StopGradient Subtract Threshold TrueDivide Where
"""
"""Operations that accept more than one image, or need more arguments."""

OF_INTEGERS = """
    BitwiseAnd BitwiseInvert BitwiseLeftShift BitwiseNot BitwiseOr BitwiseRightShift BitwiseXor Gcd Lcm LeftShift
    RightShift
"""
"""Operations on integers."""

UNARY = [
    n
    for n in operations.ELEMENTWISE.split()
    if n not in (*MULTIPLE_INPUTS.split(), *OF_INTEGERS.split())
]
UNARY.remove("Exp2")  # Keras on TensorFlow only supports it in float32


def image(channels: int = 4) -> Any:
    return keras.Input((None, None, channels))


def function_of(name: str) -> Callable[..., Any]:
    """Return the function of an operation class: `LogSigmoid -> keras.ops.log_sigmoid`."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    special = {"isfinite": ops.isfinite, "na_nto_num": ops.nan_to_num, "nan_to_num": ops.nan_to_num}
    return special.get(words) or getattr(ops, words)


def test_names_of_operations() -> None:
    for names in (operations.ELEMENTWISE, operations.CHANNELWISE):
        assert [c.__name__ for c in operations.operations(names)] == names.split()


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(UNARY[::6], id="some"),
        pytest.param(
            [n for n in UNARY if n not in UNARY[::6]], id="others", marks=pytest.mark.slow
        ),
    ],
)
def test_unary_operations(names: list[str]) -> None:
    """All in one model; the values lie in (0, 1), where all operations are defined."""
    inputs = image(2)
    x = 0.1 + 0.8 * ops.sigmoid(inputs)
    results = [function_of(n)(1.5 + x if n == "Arccosh" else x) for n in names]
    outputs = [ops.cast(y, "float64") for y in results]
    model = keras.Model(inputs, outputs)
    assert_streams(model, images(model, 1, 5, 3), 2, training=False)


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
        (lambda x: ops.concatenate([x, x], axis=2), "over the channels, axis=-1; received axis=2"),
        (lambda x: x * np.ones((5, 1, 4)), r"combines an image with a tensor of shape \(5, 1, 4\)"),
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
