"""Attention pooling of images, streamed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import pytest
from keras import layers

from tfbig.layers import AttentionPooling

pytestmark = pytest.mark.usefixtures("float64")

Check = Callable[[Any, Any], None]


@pytest.mark.slow
@pytest.mark.parametrize("gated", [True, False])
def test_all_pixels(gated: bool, check: Check) -> None:
    inputs = keras.Input((None, None, 2))
    x = layers.Conv2D(4, 3, padding="same")(inputs)
    check(inputs, layers.Dense(2)(AttentionPooling(5, gated, "relu")(x)))


def test_weighted_pixels(check: Check) -> None:
    """Weights are 0 or positive."""
    inputs = keras.Input((None, None, 2))
    x = layers.Conv2D(4, 3, strides=2, padding="same")(inputs)
    weights = layers.MaxPooling2D(2, padding="same")(layers.ReLU()(inputs[..., :1]))
    check(inputs, AttentionPooling(3)([x, weights]))
