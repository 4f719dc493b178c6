"""A rectangle predicted alone has the pixels of a prediction of the whole image, bit for bit on integers."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from tfbig.geometry.windows import Interval
from tfbig.network import keras_reader
from tfbig.network.graph import Graph
from tfbig.plan import regions


def unet() -> keras.Model:
    """Down and up twice, by a strided convolution and by pooling, with skips."""
    image = keras.Input((None, None, 2))
    one = layers.Conv2D(3, 3, padding="same")(image)
    two = layers.Conv2D(3, 5, strides=2, padding="same")(one)
    three = layers.Conv2D(4, 3, padding="same", dilation_rate=2)(layers.MaxPooling2D(2)(two))
    up = layers.Conv2DTranspose(3, 4, strides=2, padding="same")(three)
    up = layers.UpSampling2D(2)(layers.Add()([up, two]))
    return keras.Model(image, layers.Conv2D(2, 3, padding="same")(layers.Concatenate()([up, one])))


def plain(*stack: Any) -> keras.Model:
    return keras.Sequential([keras.Input((None, None, 2)), *stack])


MODELS = {
    "unet": unet,
    "dilated": lambda: plain(layers.Conv2D(3, 3, padding="same", dilation_rate=4)),
    "average": lambda: plain(
        layers.AveragePooling2D(3, 3, padding="same"), layers.UpSampling2D(3), layers.Conv2D(1, 1)
    ),
    "normalised": lambda: plain(layers.Conv2D(3, 3, padding="same"), layers.BatchNormalization()),
    "even kernel": lambda: plain(layers.Conv2D(3, 6, padding="same"), layers.ReLU()),
}


def integers(model: keras.Model) -> keras.Model:
    """Give a model small whole numbers as weights, so that its sums are exact."""
    rng = np.random.default_rng(0)
    for weight in model.weights:
        if not weight.path.endswith("variance"):
            weight.assign(rng.integers(-2, 3, weight.shape))
    return model


def graph_of(model: keras.Model) -> Graph:
    return keras_reader.read(model, False, ["float32"])


@pytest.mark.parametrize("name", MODELS)
def test_parts_equal_the_whole(name: str) -> None:
    model = integers(MODELS[name]())
    graph, rng = graph_of(model), np.random.default_rng(1)
    step = regions.step(graph)
    assert step is not None
    size = (step[0] * 24, step[1] * 19)
    image = rng.integers(-3, 4, (1, *size, 2)).astype("float32")
    whole = np.asarray(model(image))
    for _ in range(6):
        top, left = (int(rng.integers(n - 9)) for n in size)
        owned = Interval(top, top + 9), Interval(left, left + 7)
        read = regions.read_for(graph, size, owned)
        assert read is not None
        rows, columns = read
        alone = np.asarray(model(image[:, slice(*rows), slice(*columns)]))
        inside = alone[:, top - rows.start :, left - columns.start :][:, :9, :7]
        np.testing.assert_array_equal(inside, whole[:, top : top + 9, left : left + 7])


def test_the_rectangle_is_as_small_as_the_receptive_field() -> None:
    model = plain(layers.Conv2D(1, 3, padding="same"), layers.Conv2D(1, 5, padding="same"))
    owned = Interval(40, 60), Interval(0, 10)
    read = regions.read_for(graph_of(model), (100, 100), owned)
    assert read == (Interval(37, 63), Interval(0, 13))


def test_step_is_the_total_stride() -> None:
    assert regions.step(graph_of(unet())) == (4, 4)
    both = plain(layers.MaxPooling2D((2, 3)), layers.UpSampling2D((2, 3)))
    assert regions.step(graph_of(both)) == (2, 3)


def test_statistics_of_the_whole_image_have_no_parts() -> None:
    image = keras.Input((None, None, 4))
    pooled = layers.GlobalAveragePooling2D(keepdims=True)(image)
    squeezed = keras.Model(image, layers.Multiply()([image, layers.Dense(4)(pooled)]))
    grouped = keras.Model(image, layers.GroupNormalization(2)(image))
    for model in (squeezed, grouped):
        assert regions.step(graph_of(model)) is None
        owned = Interval(0, 8), Interval(0, 8)
        assert regions.read_for(graph_of(model), (32, 32), owned) is None


def test_an_image_whose_padding_differs_has_no_parts() -> None:
    """A stride of 2 over an odd length pads other rows than over an even one."""
    graph = graph_of(plain(layers.Conv2D(1, 2, strides=2, padding="same"), layers.UpSampling2D(2)))
    owned = Interval(0, 4), Interval(0, 4)
    assert regions.read_for(graph, (32, 32), owned) == (Interval(0, 4), Interval(0, 4))
    kernel = graph_of(plain(layers.Conv2D(1, 3, strides=2, padding="same"), layers.UpSampling2D(2)))
    assert regions.read_for(kernel, (33, 32), owned) is None
