"""Convolutions of every kind, and Dense."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from exactness import FLOAT64, assert_same
from keras import layers
from twins import assert_streams, images

import tfbig

pytestmark = pytest.mark.usefixtures("float64")

Check = Callable[[Any, Any], None]


@pytest.mark.parametrize(
    "layer",
    [
        pytest.param(
            lambda: layers.Conv2D(5, 3, dilation_rate=2, padding="same"), marks=pytest.mark.slow
        ),
        lambda: layers.DepthwiseConv2D(3, dilation_rate=2, padding="same"),
        lambda: layers.Conv2D(4, 3, groups=4, strides=(2, 1), padding="same"),
    ],
    ids=["dilated", "dilated depthwise", "groups and unequal strides"],
)
def test_prediction_where_channels_are_unknown(layer: Callable[[], Any]) -> None:
    """A trace serves any number of channels if all layers of a sweep allow that: here there is one."""
    inputs = keras.Input((None, None, 4))
    model = keras.Model(inputs, layer()(inputs))
    x = images(model, 1, 11, 9)
    streamed = tfbig.stream(model, strip_rows=2)
    assert_same(streamed.predict(x, verbose=0), model.predict(x, verbose=0), FLOAT64)


def with_lora(model: keras.Model) -> keras.Model:
    for seed, layer in enumerate(model.layers):
        if hasattr(layer, "enable_lora"):
            layer.enable_lora(2, lora_alpha=3)
            shape = layer.lora_kernel_b.shape
            layer.lora_kernel_b.assign(np.random.default_rng(seed).normal(size=shape))
    return model


def test_lora_in_float32_factors_of_a_float64_layer() -> None:
    """Keras multiplies the factors in float32, and so do strips: the results differ by sums in float64 only."""
    inputs = keras.Input((None, None, 4))
    x = layers.Conv2D(6, 3, strides=2, groups=2, padding="same", activation="relu")(inputs)
    model = with_lora(keras.Model(inputs, layers.Dense(3, "tanh")(x)))
    assert_streams(model, images(model, 2, 9, 8), 2, training=True)


def test_lora_after_streaming() -> None:
    """A streamed model reads the layers again."""
    inputs = keras.Input((None, None, 4))
    model = keras.Model(inputs, layers.Conv2D(3, 3)(inputs))
    streamed, x = tfbig.stream(model, strip_rows=2), images(model, 1, 8, 8)
    with_lora(model)
    assert_same(streamed.predict(x, verbose=0), model.predict(x, verbose=0), FLOAT64)
