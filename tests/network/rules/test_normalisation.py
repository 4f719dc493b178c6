"""Normalisation by statistics of the image, of a pixel, and by constants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

pytestmark = pytest.mark.usefixtures("float64")

Check = Callable[[Any, Any], None]


def test_constants(check: Check) -> None:
    adapted = layers.Normalization()
    adapted.adapt(np.random.default_rng(3).normal(size=(5, 6, 4)) * [1, 2, 3, 4])
    second = layers.Normalization()
    second.adapt(np.random.default_rng(4).normal(size=(5, 6, 4)) + 2)
    inputs = keras.Input((None, None, 4))
    fixed = layers.Normalization(mean=[1.0] * 4, variance=[2.0] * 4)
    check(inputs, second(fixed(adapted(inputs))))
