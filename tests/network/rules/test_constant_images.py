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
from tfbig.errors import UnsupportedLayerError

Check = Callable[[Any, Any], None]


pytestmark = pytest.mark.usefixtures("float64")


def pooled(x: Any) -> Any:
    return layers.GlobalAveragePooling2D(keepdims=True)(x)


@pytest.mark.parametrize("ways", [slice(0, 4), pytest.param(slice(4, 8), marks=pytest.mark.slow)])
def test_ways_to_enlarge(ways: slice, check: Check) -> None:
    inputs = keras.Input((None, None, 3))
    x = layers.Conv2D(3, 3, padding="same")(inputs)
    pixel = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(3, 1)(pooled(x))))
    outputs = [
        layers.Concatenate()([layers.UpSampling2D((7, 6))(pixel), x]),
        ops.concatenate([x, ops.repeat(ops.repeat(pixel, 7, 1), 6, 2), x], -1),
        ops.image.resize(pixel, (7, 6), interpolation="nearest") + x,
        x * ops.broadcast_to(pixel, (2, 7, 6, 3)),
        ops.concatenate([ops.tile(pixel, (1, 7, 6, 1)), x], 3),
        layers.Multiply()([x, layers.UpSampling2D((7, 6))(pixel)]),
        layers.Conv2D(2, 3)(layers.UpSampling2D((7, 6))(pixel)),
        layers.Add()([x, 2 * layers.ReLU()(layers.UpSampling2D((7, 6))(pixel))]),
    ]
    check(inputs, outputs[ways])


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


def test_output_of_equal_pixels() -> None:
    """An output has all its pixels."""
    inputs = keras.Input((7, 6, 3))
    x = layers.Conv2D(2, 3, padding="same")(inputs)
    model = keras.Model(inputs, [layers.UpSampling2D((7, 6))(pooled(x)), x])
    x = np.random.default_rng(0).normal(size=(2, 7, 6, 3))
    assert_same(tfbig.stream(model, strip_rows=2)(x), model(x), 1e-12)


@keras.saving.register_keras_serializable("tests")
class ToSizeOf(layers.Layer):
    """Resizes an image to the size of another one."""

    def call(self, x: Any, other: Any) -> Any:
        """Return `x` with the rows and columns of `other`."""
        rows, columns = ops.shape(other)[1:3]
        return layers.Resizing(rows, columns, interpolation="bilinear", dtype=self.dtype_policy)(x)


@keras.saving.register_keras_serializable("tests")
class Pyramid(layers.Layer):
    """Joins an image with its mean, enlarged to its size."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.resize = ToSizeOf(dtype=self.dtype_policy)

    def call(self, x: Any) -> Any:
        """Return the image and its mean."""
        mean = self.resize(ops.mean(x, (1, 2), keepdims=True), x)
        return ops.concatenate([x, ops.cast(mean, x.dtype)], -1)


def test_size_of_another_image() -> None:
    """In a block, the size may be known only when the network runs, as in the DeepLabV3 of keras-hub."""
    inputs = keras.Input((None, None, 3))
    model = keras.Model(inputs, layers.Conv2D(2, 3)(Pyramid()(inputs)))
    x = np.random.default_rng(0).normal(size=(2, 7, 6, 3))
    big = tfbig.stream(model, strip_rows=2)
    assert_same(big(x), model(x), 9 * 2**-24)  # the mean is rounded to float32


def test_unknown_size_is_refused() -> None:
    inputs = keras.Input((None, None, 3))
    x = layers.Conv2D(3, 3, 2, padding="same")(inputs)
    pixel = ToSizeOf()(pooled(x), inputs)
    for output, message in (
        (ToSizeOf()(x, inputs), "resizes to a size that is known only when"),
        (pixel, "a pixel enlarged to a size that is known only when .* an output"),
        (layers.Conv2D(2, 3)(pixel), "'conv2d.* a pixel enlarged to a size that is known only"),
    ):
        with pytest.raises(UnsupportedLayerError, match=message):
            tfbig.stream(keras.Model(inputs, [x, output]), strip_rows=2)
