"""What layers of one's own make for each image: random numbers, which are those of plain Keras, and constants."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers, ops
from streamed_pairs import slow
from twins import assert_streams, images

import tfbig

pytestmark = pytest.mark.usefixtures("float64")


class OfImages(layers.Layer):
    """A layer with a rate, and a generator of random numbers."""

    def __init__(self, rate: float = 0.5, seed: int | None = 3, **options: Any) -> None:
        super().__init__(**options)
        self.rate, self.seed = rate, keras.random.SeedGenerator(seed)

    def compute_output_shape(self, shape: Any) -> Any:
        return shape


class DropPath(OfImages):
    """Stochastic depth as KerasCV has it."""

    def call(self, x: Any, training: bool | None = None) -> Any:
        if not training:
            return x
        batch = x.shape[0] or ops.shape(x)[0]
        shape = (batch,) + (1,) * (len(x.shape) - 1)
        kept = ops.cast(keras.random.uniform(shape, seed=self.seed) > self.rate, x.dtype)
        return x / (1 - self.rate) * kept


class Floor(OfImages):
    """Stochastic depth as the example "Compact Convolutional Transformers" of Keras has it."""

    def call(self, x: Any, training: bool | None = None) -> Any:
        if not training:
            return x
        shape = (ops.shape(x)[0],) + (1,) * (len(x.shape) - 1)
        return (
            x / self.rate * ops.floor(self.rate + keras.random.uniform(shape, 0, 1, seed=self.seed))
        )


class Two(OfImages):
    """A factor for each channel and a shift, drawn in another order than they are used."""

    def call(self, x: Any, training: bool | None = None) -> Any:
        ones = (1,) * (len(x.shape) - 2)
        shift = keras.random.normal((ops.shape(x)[0], *ones, 1), seed=self.seed)
        factor = keras.random.randint((ops.shape(x)[0], *ones, x.shape[-1]), 1, 4, seed=self.seed)
        return x * ops.cast(factor, x.dtype) + shift


class Block(layers.Layer):
    """A branch that is dropped, in a layer of its own."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.dense, self.drop = layers.Dense(4), DropPath()

    def call(self, x: Any) -> Any:
        return x + self.drop(self.dense(x))


class Filled(layers.Layer):
    """Channels that are the same for all images."""

    def call(self, x: Any) -> Any:
        ones = (1,) * (len(x.shape) - 2)
        shape = (ops.shape(x)[0], *ones, 2)
        parts = [ops.ones(shape), ops.full(shape, 3.0), ops.broadcast_to(np.arange(2.0), shape)]
        tiled = ops.tile(ops.ones((1, *ones, 2)), (ops.shape(x)[0], *ones, 1))
        return x * ops.concatenate([parts[0] + tiled, parts[1] * parts[2]], -1)


KINDS = [Filled, DropPath, slow(Floor), Two, slow(Block)]


@pytest.mark.parametrize("kind", KINDS)
def test_of_images(kind: Any) -> None:
    inputs = keras.Input((None, None, 3))
    x = kind()(layers.Conv2D(4, 3, padding="same")(inputs))
    model = keras.Model(inputs, layers.Conv2D(2, 3)(x))
    assert_streams(model, images(model, 3, 9, 7), 2, training=True)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(None,), pytest.param((None,) * 3, marks=pytest.mark.slow)])
def test_of_series_and_volumes(kind: Any, shape: Any) -> None:
    inputs = keras.Input((*shape, 3))
    x = kind()(layers.Dense(4)(inputs))
    model = keras.Model(inputs, layers.Dense(2)(x))
    assert_streams(model, images(model, 3, *(7, 4, 3)[: len(shape)]), 2, training=True)


@pytest.mark.parametrize(
    ("size", "training"), [((6, 4), True), slow((6, 4), False), slow((None, None), True)]
)
def test_of_tokens(size: Any, training: bool) -> None:
    inputs = keras.Input((*size, 3))
    x = layers.Reshape((-1, 4))(layers.Conv2D(4, 3, padding="same")(inputs))
    x = layers.Add()([x, DropPath()(layers.Dense(4)(x))])
    model = keras.Model(inputs, layers.GlobalAveragePooling1D()(x))
    assert_streams(model, images(model, 3, 6, 4), 2, training)


@pytest.mark.slow
def test_fits_like_plain_keras() -> None:
    def fitted(stream: bool) -> list[np.ndarray]:
        keras.utils.set_random_seed(0)
        inputs = keras.Input((None, None, 3))
        x = layers.GlobalAveragePooling2D()(DropPath()(layers.Dense(4)(inputs)))
        model = keras.Model(inputs, layers.Dense(1)(x))
        model = tfbig.stream(model, strip_rows=2, plain_if_small=False) if stream else model
        model.compile("sgd", "mse")
        x = np.random.default_rng(0).normal(size=(5, 6, 4, 3))
        model.fit(x, np.arange(5.0), 2, epochs=2, shuffle=False, verbose=0)
        return [*model.get_weights(), model.predict(x, verbose=0)]

    for actual, expected in zip(fitted(True), fitted(False), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-10)


def test_refused() -> None:
    class OfPixels(OfImages):
        def call(self, x: Any) -> Any:
            return x + keras.random.normal((ops.shape(x)[0], *x.shape[1:]), seed=self.seed)

    class WithoutSeed(OfImages):
        def call(self, x: Any) -> Any:
            return x + keras.random.normal((ops.shape(x)[0], 1, 1, 1))

    inputs = keras.Input((6, 4, 3))
    for kind, message in ((OfPixels, "Dropout or GaussianNoise"), (WithoutSeed, "SeedGenerator")):
        model = keras.Model(inputs, kind()(inputs))
        with pytest.raises(tfbig.UnsupportedLayerError, match=message):
            tfbig.stream(model, strip_rows=2, plain_if_small=False)


def test_functions_of_keras_are_as_before() -> None:
    before = keras.random.uniform
    inputs = keras.Input((6, 4, 3))
    tfbig.stream(keras.Model(inputs, DropPath()(inputs)), strip_rows=2, plain_if_small=False)
    assert keras.random.uniform is before
