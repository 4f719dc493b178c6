"""Layers on whole values: gates, heads, nested models, moving statistics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import pytest
from keras import layers, ops

pytestmark = pytest.mark.usefixtures("float64")

Check = Callable[[Any, Any], None]


def image(channels: int = 4) -> Any:
    return keras.Input((None, None, channels))


def squeeze_and_excite(x: Any) -> Any:
    """Gate with BatchNormalization, whose statistics move, and convolutions of a single pixel."""
    gate = layers.GlobalAveragePooling2D(keepdims=True)(x)
    gate = layers.BatchNormalization(momentum=0.7)(layers.Conv2D(3, 1)(gate))
    gate = layers.Conv2D(x.shape[-1], 1)(layers.Activation("hard_swish")(gate))
    return layers.Multiply()([x, layers.ReLU(6.0)(gate + 3.0) * (1.0 / 6.0)])


def test_squeeze_and_excite(check: Check) -> None:
    inputs = image()
    check(inputs, squeeze_and_excite(layers.Conv2D(4, 3, padding="same")(inputs)))


class Head(layers.Layer):
    """Layers inside a layer that does not pass `training` on."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = [layers.Dense(6), layers.BatchNormalization(), layers.Dropout(0.5, seed=3)]

    def build(self, shape: Any) -> None:
        for layer in self.inner:
            layer.build(shape)
            shape = layer.compute_output_shape(shape)

    def call(self, x: Any) -> Any:
        for layer in self.inner:
            x = layer(x)
        return x


def test_dropout_of_heads(check: Check) -> None:
    """A custom composite layer and a nested model draw the masks of the plain model."""
    inner = keras.Sequential(
        [keras.Input((6,)), layers.Dropout(0.4, seed=5), layers.Dense(3, activation="softmax")]
    )
    inputs = image()
    x = layers.GlobalMaxPooling2D()(layers.Conv2D(5, 3)(inputs))
    check(inputs, inner(layers.GaussianNoise(0.3, seed=8)(Head()(x))))


@pytest.mark.slow
def test_shared_batch_norm(check: Check) -> None:
    """Each call of a shared layer updates the moving statistics."""
    shared = layers.BatchNormalization(momentum=0.6)
    inputs = image()
    x = layers.GlobalAveragePooling2D()(inputs)
    check(inputs, shared(ops.square(shared(x))))


def test_batch_norm_shared_with_an_image(check: Check) -> None:
    shared = layers.BatchNormalization(momentum=0.6)
    inputs = image()
    x = shared(layers.Conv2D(4, 1)(inputs))
    check(inputs, shared(layers.GlobalAveragePooling2D(keepdims=True)(x)))


def test_multiple_outputs(check: Check) -> None:
    class Two(layers.Layer):
        def call(self, x: Any, scale: float = 1.0) -> Any:
            return {"a": x * scale, "b": (x + 1.0, x - 1.0)}

    inputs = image()
    outputs = Two()(layers.GlobalAveragePooling2D()(inputs), scale=3.0)
    check(inputs, [outputs["b"][1], outputs["a"]])
