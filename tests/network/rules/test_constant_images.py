"""A pooled pixel that is enlarged to an image, and combined with one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from exactness import assert_same
from keras import layers, ops

import tfbig

Check = Callable[[Any, Any], None]


pytestmark = pytest.mark.usefixtures("float64")


def pooled(x: Any) -> Any:
    return layers.GlobalAveragePooling2D(keepdims=True)(x)


def test_ways_to_enlarge(check: Check) -> None:
    inputs = keras.Input((None, None, 3))
    x = layers.Conv2D(3, 3, padding="same")(inputs)
    pixel = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(3, 1)(pooled(x))))
    outputs = [
        layers.Concatenate()([layers.UpSampling2D((7, 6))(pixel), x]),
        ops.concatenate([x, ops.repeat(ops.repeat(pixel, 7, 1), 6, 2), x], -1),
        ops.concatenate([ops.tile(pixel, (1, 7, 6, 1)), x], 3),
        ops.image.resize(pixel, (7, 6), interpolation="nearest") + x,
        x * ops.broadcast_to(pixel, (2, 7, 6, 3)),
        layers.Multiply()([x, layers.UpSampling2D((7, 6))(pixel)]),
        layers.Conv2D(2, 3)(layers.UpSampling2D((7, 6))(pixel)),
    ]
    check(inputs, outputs)


def test_bilinear() -> None:
    """TensorFlow computes it in float32, so all pixels are the same float32 number."""
    inputs = keras.Input((7, 6, 3))
    enlarged = layers.UpSampling2D((7, 6), interpolation="bilinear")(pooled(inputs))
    model = keras.Model(inputs, layers.Concatenate()([inputs, enlarged]))
    x = np.random.default_rng(0).integers(-3, 4, (2, 7, 6, 3)).astype("float64")
    assert_same(tfbig.stream(model, strip_rows=2)(x), model(x), 2 * 2**-24)


def test_other_sizes_are_refused() -> None:
    inputs = keras.Input((None, None, 3))
    enlarged = layers.UpSampling2D((7, 6))(pooled(inputs))
    big = tfbig.stream(keras.Model(inputs, layers.Add()([inputs, enlarged])), strip_rows=2)
    with pytest.raises(ValueError, match=r"the image has 8 rows or columns, .* for 7"):
        big(np.ones((1, 8, 6, 3)))
