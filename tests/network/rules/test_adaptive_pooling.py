"""Pooling to a fixed number of windows; `tests/conformance` compares the layers with plain Keras."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from exactness import FLOAT64, assert_same, gradients, integers
from hypothesis import given
from hypothesis import strategies as st
from keras import layers
from streamed_pairs import slow

import tfbig
from tfbig.network.rules import adaptive_pooling


@tf.function(autograph=False)
def _bounds(size: tf.Tensor, windows: int) -> Any:
    """Compute the bounds in a graph, whose arithmetic TensorFlow changes."""
    return adaptive_pooling.bounds(size, windows)


@pytest.mark.parametrize(
    "windows", [1, 2, 7, 40, *(slow(n) for n in range(1, 41) if n not in (1, 2, 7, 40))]
)
@given(size=st.integers(1, 4000))
def test_bounds(windows: int, size: int) -> None:
    start, stop = _bounds(tf.constant(size), windows)
    index = np.arange(windows)
    np.testing.assert_array_equal(start, index * size // windows)
    np.testing.assert_array_equal(stop, -(-(index + 1) * size // windows))


@pytest.mark.parametrize(
    ("windows", "rank"),
    [(2, 3), *(slow(*case) for case in ((2, 1), (5, 1), (2, 2), (5, 2), (5, 3)))],
)
def test_gradients_of_equal_pixels(rank: int, windows: int) -> None:
    """TensorFlow gives the gradient of a window to one of several largest pixels, or to all in a volume."""
    start = keras.Input((*[None] * rank, 2))
    layer = getattr(layers, f"AdaptiveMaxPooling{rank}D")((windows,) * rank)
    model = keras.Model(start, layer(start))
    x = tf.constant(integers((2, *(9, 4, 6)[:rank], 2), top=1))
    big = tfbig.stream(model, strip_rows=2)
    dy = tf.constant(integers((2, *[windows] * rank, 2)))
    results = [gradients(m, x, [], dy) for m in (big, model)]
    assert_same(*results)


def largest_of_windows(x: np.ndarray, dy: np.ndarray) -> np.ndarray:
    """Return the gradient of maxima over windows of a volume: each has one largest pixel, which gets that of `dy`."""
    gradient = np.zeros_like(x)
    for place in np.ndindex(*dy.shape):
        image, *windows, channel = place
        sides = zip(windows, x.shape[1:-1], dy.shape[1:-1], strict=True)
        box = tuple(slice(i * size // n, -(-(i + 1) * size // n)) for i, size, n in sides)
        pixels = x[(image, *box, channel)]
        first = [s.start for s in box]
        largest = np.add(first, np.unravel_index(pixels.argmax(), pixels.shape))
        gradient[(image, *largest, channel)] += dy[place]
    return gradient


@pytest.mark.parametrize("windows", [4, 7])
def test_gradients_of_windows_that_overlap(windows: int) -> None:
    """Plain Keras pools a volume along one axis after the other, which makes ties, and counts their gradient twice."""
    start = keras.Input((7, 6, 5, 2))
    model = keras.Model(start, layers.AdaptiveMaxPooling3D(windows)(start))
    x = np.random.default_rng(0).permutation(2 * 7 * 6 * 5 * 2).reshape(2, 7, 6, 5, 2)
    dy = integers((2, windows, windows, windows, 2))
    big = tfbig.stream(model, strip_rows=2)
    _, actual, _ = gradients(big, tf.constant(x, tf.float32), [], tf.constant(dy))
    np.testing.assert_array_equal(actual, largest_of_windows(x.astype("float32"), dy))


def test_one_window(float64: None) -> None:
    """Plain Keras cannot compute this in a graph."""
    start = keras.Input((None, None, 2))
    pools = [layers.AdaptiveAveragePooling2D(1)(start), layers.AdaptiveMaxPooling2D(1)(start)]
    big = tfbig.stream(keras.Model(start, pools), strip_rows=2)
    x = np.random.default_rng(0).normal(size=(2, 7, 5, 2))
    expected = [f(x, axis=(1, 2), keepdims=True) for f in (np.mean, np.max)]
    assert_same([t.numpy() for t in big(x)], expected, FLOAT64)


def test_layers_behind(float64: None) -> None:
    """Any layer runs on the pooled image."""

    def build() -> keras.Model:
        keras.utils.set_random_seed(0)
        start = keras.Input((None, None, 2))
        x = layers.AdaptiveAveragePooling2D((4, 6))(layers.Conv2D(3, 3)(start))
        y = layers.UpSampling2D(2)(layers.Conv2D(4, 3, padding="same")(x))
        return keras.Model(start, layers.Dense(2)(layers.Flatten()(y)))

    model, twin = build(), build()
    x, y = np.random.default_rng(0).normal(size=(3, 11, 14, 2)), np.ones((3, 2))
    big = tfbig.stream(model, strip_rows=3)
    for each in (big, twin):
        each.compile("sgd", "mse")
        each.train_on_batch(x, y)
    assert_same(model.get_weights(), twin.get_weights(), FLOAT64)
