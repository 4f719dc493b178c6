"""Upsampling, padding and cropping."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import pytest
from exactness import assert_same
from keras import layers
from twins import images

import tfbig

pytestmark = pytest.mark.usefixtures("float64")

Check = Callable[[Any, Any], None]


def test_sizes(check: Check) -> None:
    inputs = keras.Input((None, None, 2))
    x = layers.ZeroPadding2D(((3, 1), (0, 2)))(inputs)
    x = layers.UpSampling2D((2, 1))(x)
    check(inputs, layers.Cropping2D(((1, 4), (2, 0)))(x))


def test_bilinear_upsampling() -> None:
    """Keras computes it in float32, whatever the floatx."""
    inputs = keras.Input((None, None, 2))
    model = keras.Model(inputs, layers.UpSampling2D(2, interpolation="bilinear")(inputs))
    x = images(model, 2, 7, 6)
    assert_same(tfbig.stream(model, strip_rows=2)(x), model(x), 8 * 2**-24)
