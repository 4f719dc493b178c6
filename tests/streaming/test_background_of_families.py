"""Families of `keras.applications` on images with background: in float64 results equal those of plain Keras."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from exactness import FLOAT64
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import applications, layers
from keras.src.random.seed_generator import global_seed_generator
from skipped_background import Skipping, image_of, mask_of, projected, small_tiles
from twins import ROUNDING, unlike_at_start, weighted_sum

import tfbig

pytestmark = pytest.mark.usefixtures("float64")

OPEN = {"weights": None, "include_top": False, "input_shape": (None, None, 3)}


@pytest.fixture
def skipping(monkeypatch: pytest.MonkeyPatch) -> Skipping:
    return small_tiles(monkeypatch, least=32)


def results(run: Any, model: keras.Model, x: tf.Tensor) -> dict[str, dict[str, Any]]:
    """Return outputs in training, gradients of their weighted sum, and all variables; then restore the variables."""
    state = [*model.variables, global_seed_generator().state]
    before = [v.numpy() for v in state]
    with tf.GradientTape() as tape:
        outputs = run(x, training=True)
        total = weighted_sum(outputs)
    variables = [v._value for v in model.trainable_variables]
    gradients = tape.gradient(total, variables, unconnected_gradients="zero")
    changed = [v.numpy() for v in state]
    for variable, value in zip(state, before, strict=True):
        variable.assign(value)
    names = [f"{i} {v.path}" for i, v in enumerate(model.trainable_variables)]
    return {
        "outputs": {"": outputs},
        "gradients": dict(zip(names, gradients, strict=True)),
        "variables": {
            f"{i} {v.path}": c for i, (v, c) in enumerate(zip(state, changed, strict=True))
        },
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "ConvNeXtTiny",
        "DenseNet121",
        "EfficientNetB0",
        "EfficientNetV2B0",
        "InceptionV3",
        "MobileNet",
        "MobileNetV2",
        "MobileNetV3Small",
        "ResNet50",
        "ResNet50V2",
        "VGG16",
        "Xception",
    ],
)
def test_training(name: str, skipping: Skipping) -> None:
    size = (448, 416)
    mask = mask_of(size, 3, patches=2, side=200)
    model = getattr(applications, name)(**OPEN)
    unlike_at_start(model)
    x = tf.constant(image_of(mask, 3))
    big, expected = tfbig.stream(model), results(model, model, x)
    computed = results(big, model, x)
    skipping.known[size] = projected(mask, 4)
    actual = results(big, model, x)
    assert min(skipping.active()) < 0.9
    assert_no_worse(actual, computed, expected)


def assert_no_worse(actual: Any, computed: Any, expected: Any) -> None:
    """Assert that errors are below 1e-10, or like those of strips that compute the background.

    The variances of an image that is mostly of one colour are small, and networks of many layers magnify rounding:
    another last digit of the image changes gradients of the plain MobileNetV2 by 2e-11.
    """
    for what, tensors in expected.items():
        largest = max(float(np.abs(t).max(initial=0)) for t in tensors.values())
        for name, e in tensors.items():
            scale = max(float(np.abs(e).max(initial=0)), ROUNDING * largest)
            skipped, done = (
                float(np.abs(r[what][name] - e).max(initial=0)) for r in (actual, computed)
            )
            assert skipped <= max(FLOAT64 * scale, 2 * done), f"{what} of {name}"


@pytest.mark.slow
@settings(max_examples=25, deadline=None, database=None)
@given(
    kernel=st.integers(1, 5),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 2),
    padding=st.sampled_from(["same", "valid"]),
    up=st.sampled_from(["transposed", "nearest", "none"]),
    seed=st.integers(0, 10_000),
    patches=st.integers(1, 4),
    size=st.tuples(st.integers(40, 90), st.integers(40, 90)),
    cell=st.sampled_from([1, 2, 8]),
)
def test_any_geometry(
    kernel: int,
    stride: int,
    dilation: int,
    padding: str,
    up: str,
    seed: int,
    patches: int,
    size: tuple[int, int],
    cell: int,
) -> None:
    """Random windows, masks and borders."""
    if stride > 1:
        dilation = 1
    start = keras.Input((None, None, 2))
    x = layers.Conv2D(3, kernel, stride, padding, dilation_rate=dilation)(start)
    x = layers.BatchNormalization()(x)
    if up == "transposed":
        x = layers.Conv2DTranspose(3, kernel, strides=2, padding=padding)(x)
    elif up == "nearest":
        x = layers.UpSampling2D((2, 3))(x)
    x = layers.MaxPooling2D(2, padding=padding)(layers.ReLU()(x))
    x = layers.BatchNormalization()(layers.Conv2D(4, 3, padding=padding)(x))
    model = keras.Model(start, layers.GlobalAveragePooling2D()(x))
    unlike_at_start(model, seed)
    mask = mask_of(size, seed, patches)
    image = tf.constant(image_of(mask, 2))
    with pytest.MonkeyPatch.context() as patch:
        record = small_tiles(patch, least=2)
        record.known[size] = projected(mask, cell)
        actual = results(tfbig.stream(model), model, image)
    expected = results(model, model, image)
    for what, tensors in expected.items():
        largest = max(float(np.abs(t).max(initial=0)) for t in tensors.values())
        for name, e in tensors.items():  # a gradient that is zero is the rounding of others
            error = float(np.abs(actual[what][name] - e).max(initial=0))
            assert error <= FLOAT64 * max(float(np.abs(e).max(initial=0)), 0.1 * largest), name
