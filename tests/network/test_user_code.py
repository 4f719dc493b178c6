"""Checks of custom code: overridden methods, and functions that are not per pixel."""

from __future__ import annotations

from typing import Any

import keras
import pytest
import tensorflow as tf
from keras import layers, ops

import tfbig
from tfbig.network import user_code

PER_PIXEL = {
    "elementwise": lambda x: tf.nn.relu(x) - 1,
    "of the channels": lambda x: ops.softmax(x, axis=-1),
    "one value per pixel": lambda x: tf.reduce_mean(x**2, -1),
    "that fails": lambda x: tf.reshape(x, [7]),
}
NOT_PER_PIXEL = {
    "less the mean": lambda x: x - tf.reduce_mean(x, [1, 2], keepdims=True),
    "share of the image": lambda x: tf.exp(x) / tf.reduce_sum(tf.exp(x), [1, 2], keepdims=True),
    "along columns": lambda x: tf.cumsum(x, 2),
    "backwards": lambda x: tf.cumsum(x, 1, reverse=True),
    "without rows": lambda x: tf.reduce_max(x, 1),
    "of the image": tf.reduce_mean,
    "random": lambda x: x + tf.random.normal(tf.shape(x), dtype=x.dtype),
}


@pytest.mark.parametrize("name", [*PER_PIXEL, *NOT_PER_PIXEL])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_is_per_pixel(name: str, dtype: str) -> None:
    function = (PER_PIXEL | NOT_PER_PIXEL)[name]
    assert user_code.is_per_pixel(function, [3], 2, dtype) == (name in PER_PIXEL)


def test_is_per_pixel_of_losses() -> None:
    def edges(y: Any, p: Any) -> Any:
        rows, columns = tf.image.image_gradients(y - p)
        return tf.reduce_mean(tf.abs(rows) + tf.abs(columns), -1)

    sparse = keras.losses.sparse_categorical_crossentropy
    assert user_code.is_per_pixel(sparse, [1, 4], 2, "float32")
    assert user_code.is_per_pixel(keras.losses.binary_crossentropy, [1, 1], 3, "float64")
    assert not user_code.is_per_pixel(edges, [2, 2], 2, "float32")


def test_overridden() -> None:
    class Mixin:
        def call(self, x: Any) -> Any:
            return x

    mixed = type("Mixed", (Mixin, layers.Dense), {})(1)
    assert user_code.overridden(mixed, "build", "call") == "call"
    assert user_code.overridden(mixed, "build") is None
    assert user_code.overridden(layers.Dense(1), "call") is None


@pytest.mark.parametrize("method", ["train_step", "compute_loss"])
def test_model_with_own_step(method: str) -> None:
    kind = type("Custom", (keras.Model,), {method: lambda self, *a, **k: None})
    start = keras.Input((None, None, 2))
    with pytest.raises(tfbig.UnsupportedLayerError, match=rf"\(Custom\) overrides `{method}`"):
        tfbig.stream(kind(start, layers.Conv2D(1, 3, padding="same")(start)))
