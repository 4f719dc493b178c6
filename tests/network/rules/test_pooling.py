"""Pooling over windows and whole images, and layers that need the whole image."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import pytest
from keras import layers, ops

import tfbig

pytestmark = pytest.mark.usefixtures("float64")

Check = Callable[[Any, Any], None]


def test_flatten_and_reshape(check: Check) -> None:
    inputs = keras.Input((7, 6, 4))
    x = layers.Conv2D(3, 3, padding="same")(inputs)
    flat = layers.Dense(2)(layers.Flatten()(x))
    check(inputs, [flat, layers.Reshape((6, 21))(x), ops.reshape(x, (-1, 126))])


def test_flatten_of_another_size() -> None:
    inputs = keras.Input((7, 6, 4))
    big = tfbig.stream(keras.Model(inputs, layers.Flatten()(inputs)))
    with pytest.raises(ValueError, match=r"has 8 rows or columns, but this layer was built for 7"):
        big.plan((1, 8, 6, 4))
    open_size = keras.Input((None, None, 4))
    with pytest.raises(tfbig.UnsupportedLayerError, match="give the model a fixed input size"):
        tfbig.stream(keras.Model(open_size, layers.Flatten()(open_size)))
