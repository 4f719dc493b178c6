"""Activations as nodes of a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf
from keras import layers

import tfbig

Check = Callable[[Any, Any], None]


def test_activation_layers(check: Check, float64: None) -> None:
    """Layers with weights as activations of other layers."""
    inputs = keras.Input((None, None, 4))
    x = layers.Conv2D(3, 3, activation=layers.PReLU("uniform", shared_axes=[1, 2]))(inputs)
    x = layers.Dense(4, activation=layers.LeakyReLU(0.2))(x)
    check(inputs, layers.Activation(layers.ELU())(layers.PReLU("uniform", shared_axes=[1, 2])(x)))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x - tf.reduce_mean(x, [1, 2], keepdims=True),
        lambda x: tf.cumsum(x, 2),
        "glu",
    ],
    ids=["less the mean", "along columns", "glu"],
)
@pytest.mark.parametrize("separate", [True, False])
def test_activation_beyond_the_pixel(function: Any, separate: bool) -> None:
    start = keras.Input((None, None, 2))
    if separate:
        x = layers.Activation(function)(start)
    else:
        x = layers.Conv2D(2, 3, padding="same", activation=function)(start)
    with pytest.raises(tfbig.UnsupportedLayerError, match="not computed pixel by pixel"):
        tfbig.stream(keras.Model(start, x))
