"""Convolutions of every kind, and Dense."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import pytest
from keras import layers

pytestmark = pytest.mark.usefixtures("float64")

Check = Callable[[Any, Any], None]


def test_groups(check: Check) -> None:
    inputs = keras.Input((None, None, 4))
    x = layers.Conv2D(8, (3, 5), groups=2, strides=(1, 2), padding="same")(inputs)
    check(inputs, layers.Conv2D(8, 3, groups=8, padding="same")(x))


def test_kinds(check: Check) -> None:
    inputs = keras.Input((None, None, 2))
    x = layers.DepthwiseConv2D((2, 3), depth_multiplier=2, padding="same")(inputs)
    x = layers.SeparableConv2D(3, 3, strides=2, padding="same", activation="tanh")(x)
    x = layers.Conv2DTranspose(2, 3, strides=(2, 1))(x)
    check(inputs, layers.Dense(3, use_bias=False)(x))
