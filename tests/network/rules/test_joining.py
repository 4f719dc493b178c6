"""Images side by side, which strips cut anywhere."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from exactness import FLOAT64, assert_same
from keras import layers, ops
from layer_paths import float_type

import tfbig
from tfbig.errors import UnsupportedLayerError


@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize("rows", [1, 3])
def test_parts_of_different_sizes(axis: int, rows: int) -> None:
    """A part may be smaller than a strip, and its windows reach into the parts beside it."""
    with float_type("float64"):
        image = keras.Input((9, 8, 2))
        x = layers.Conv2D(3, 3, padding="same")(image)
        parts = [x, layers.MaxPooling2D(4, 1)(x), x[:, :1] if axis == 1 else x[:, :, 5:6]]
        parts[1] = layers.ZeroPadding2D(((0, 0), (1, 2)) if axis == 1 else ((1, 2), (0, 0)))(
            parts[1]
        )
        x = layers.Concatenate(axis=axis)(parts)
        model = keras.Model(image, layers.Conv2D(2, 3, padding="same")(x))
        pixels = np.random.default_rng(0).normal(size=(2, 9, 8, 2))
        expected = model(pixels, training=False)
        big = tfbig.stream(model, strip_rows=rows)
        assert_same(big(pixels, training=False), expected, FLOAT64)
        big.compile(keras.optimizers.SGD(0.1), "mse")
        twin = keras.models.clone_model(model)
        twin.set_weights(model.get_weights())
        twin.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=True)
        target = np.ones_like(expected)
        for each in (big, twin):
            each.train_on_batch(pixels, target)
        assert_same(model.get_weights(), twin.get_weights(), FLOAT64)


def test_an_image_that_goes_round() -> None:
    """A cyclic shift as a model can write it."""
    image = keras.Input((10, 6, 2))
    x = layers.Conv2D(3, 3, padding="same")(image)
    x = ops.concatenate([x[:, 4:], x[:, :4]], axis=1)
    model = keras.Model(image, layers.Conv2D(2, 3, padding="same")(x))
    pixels = np.random.default_rng(0).normal(size=(1, 10, 6, 2)).astype("float32")
    assert_same(tfbig.stream(model, strip_rows=2)(pixels), model(pixels), 1e-5)


def test_sizes_have_to_be_known() -> None:
    image = keras.Input((None, None, 2))
    model = keras.Model(image, layers.Concatenate(axis=1)([image, image]))
    with pytest.raises(UnsupportedLayerError, match="unknown size along axis=1; expected a keras"):
        tfbig.stream(model)


def test_a_pixel_is_no_part() -> None:
    image = keras.Input((4, 4, 2))
    pooled = ops.tile(layers.GlobalAveragePooling2D(keepdims=True)(image), (1, 1, 4, 1))
    with pytest.raises(UnsupportedLayerError, match="expected equal sizes"):
        tfbig.stream(keras.Model(image, ops.concatenate([image, pooled], axis=1)))
