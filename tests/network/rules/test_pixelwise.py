"""Layers that merge images and whole values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import pytest
from keras import layers
from keras.src.applications.inception_resnet_v2 import CustomScaleLayer

pytestmark = pytest.mark.usefixtures("float64")

Check = Callable[[Any, Any], None]


def test_image_and_vector(check: Check) -> None:
    inputs, vector = keras.Input((None, None, 4)), keras.Input((3,))
    check([inputs, vector], layers.Add()([inputs, layers.Dense(4)(vector)]))


def test_scaled_shortcut(check: Check) -> None:
    inputs = keras.Input((None, None, 4))
    x = layers.Conv2D(4, 3, padding="same")(inputs)
    check(inputs, CustomScaleLayer(0.3)([x, layers.Rescaling(0.5, offset=2.0)(inputs)]))
