"""Models of one and three spatial axes, and other orders of axes, compared with the plain model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from exactness import FLOAT64, assert_same, integer_weights, integers
from graphs import make_planner
from keras import layers, ops
from twins import assert_close, assert_streams, images, step, unlike_at_start

import tfbig
from tfbig.engine.bound_program import BoundProgram
from tfbig.engine.program import Program
from tfbig.geometry.windows import Window
from tfbig.network import keras_reader


def series() -> keras.Model:
    """Return a model with every layer of one axis."""
    inputs = keras.Input((None, 3))
    x = layers.Conv1D(4, 3, padding="causal", dilation_rate=2)(inputs)
    x = layers.MaxPooling1D(2, padding="same")(layers.ReLU()(layers.BatchNormalization()(x)))
    x = layers.SeparableConv1D(5, 3, padding="same")(x)
    x = layers.DepthwiseConv1D(3, strides=2, depth_multiplier=2)(layers.UpSampling1D(2)(x))
    x = layers.Conv1DTranspose(6, 3, strides=2, padding="same")(x)
    x = layers.ZeroPadding1D((2, 1))(layers.Cropping1D((1, 2))(x))
    x = layers.SpatialDropout1D(0.4, seed=1)(layers.Conv1D(6, 3, groups=3)(x))
    x = layers.GroupNormalization(3)(layers.AveragePooling1D(3, 2, padding="same")(x))
    gate = layers.Dense(6, "sigmoid")(layers.GlobalAveragePooling1D()(x))
    top = layers.GlobalMaxPooling1D()(x)
    return keras.Model(inputs, [layers.Multiply()([x, gate]), top, ops.mean(x, axis=1)])


def stack() -> keras.Model:
    """Return a model with every layer of three axes except window pooling, which TensorFlow has in float32 only."""
    inputs = keras.Input((None, None, None, 2))
    x = layers.Conv3D(4, 3, padding="same", activation="relu")(inputs)
    x = layers.Conv3D(4, (1, 2, 3), strides=(1, 1, 2))(layers.BatchNormalization()(x))
    x = layers.Conv3D(4, (3, 1, 2), strides=(2, 1, 1), padding="same", groups=2)(x)
    x = layers.UpSampling3D((1, 2, 3))(layers.GroupNormalization(2)(x))
    x = layers.Conv3DTranspose(3, (2, 3, 1), strides=(2, 1, 1), padding="same")(x)
    x = layers.ZeroPadding3D(((1, 0), (2, 1), (0, 3)))(x)
    x = layers.Cropping3D(((0, 1), (1, 0), (2, 1)))(x)
    x = layers.SpatialDropout3D(0.5, seed=1)(x)
    gate = layers.Conv3D(3, 1)(layers.GlobalAveragePooling3D(keepdims=True)(x))
    return keras.Model(inputs, [x * gate, layers.Dense(2)(layers.GlobalMaxPooling3D()(x))])


def plane() -> keras.Model:
    """Return layers of two axes that differ between the axes (bilinear upsampling is always float32 in Keras)."""
    inputs = keras.Input((None, None, 3))
    x = layers.Conv2D(4, (3, 2), strides=(2, 1), padding="same")(inputs)
    x = layers.DepthwiseConv2D((2, 3), padding="same")(layers.BatchNormalization()(x))
    x = layers.SeparableConv2D(4, (1, 3), dilation_rate=(1, 2), padding="same")(x)
    x = layers.MaxPooling2D((1, 2), padding="same")(x)
    x = layers.AveragePooling2D((3, 2), (1, 2), padding="same")(x)
    x = layers.UpSampling2D((2, 3))(layers.Conv2DTranspose(3, (3, 2), strides=(1, 2))(x))
    x = layers.Cropping2D(((1, 0), (0, 2)))(layers.ZeroPadding2D(((0, 1), (2, 3)))(x))
    x = layers.SpatialDropout2D(0.5, seed=1)(x)
    return keras.Model(inputs, [x, layers.Dense(2)(layers.GlobalAveragePooling2D()(x))])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("training", "rows"),
    [
        pytest.param(True, 1, marks=pytest.mark.slow),
        (True, 4),
        pytest.param(False, 3, marks=pytest.mark.slow),
    ],
)
def test_one_axis(training: bool, rows: int, float64: None) -> None:
    model = series()
    unlike_at_start(model)
    assert_streams(model, images(model, 2, 29), rows, training)


@pytest.mark.slow
@pytest.mark.parametrize(("training", "rows"), [(True, 2), (False, 3)])
def test_three_axes(training: bool, rows: int, float64: None) -> None:
    model = stack()
    unlike_at_start(model)
    assert_streams(model, images(model, 2, 9, 7, 8), rows, training)


@pytest.mark.parametrize(
    "layer",
    [
        lambda: layers.MaxPooling3D((3, 2, 1), (2, 2, 1), padding="same"),
        lambda: layers.AveragePooling3D((2, 2, 4)),
        lambda: layers.Conv3D(3, 2, strides=(2, 1, 1), padding="same"),
        lambda: layers.Dense(3),
    ],
    ids=["maximum", "average", "convolution", "dense"],
)
def test_three_axes_bitwise(layer: Callable[[], Any]) -> None:
    """Integers in float32: sums are exact, averages of sixteen too."""
    inputs = keras.Input((None, None, None, 2))
    model = keras.Model(inputs, layer()(inputs))
    model.set_weights(integer_weights(model))
    x = tf.constant(integers((2, 7, 6, 8, 2)))
    for rows in (1, 3):
        assert_same(tfbig.stream(model, strip_rows=rows)(x), model(x))


def test_padded_averages_of_three_axes() -> None:
    """Means of up to twelve numbers in float32."""
    inputs = keras.Input((None, None, None, 2))
    model = keras.Model(inputs, layers.AveragePooling3D((3, 2, 2), 2, padding="same")(inputs))
    x = tf.constant(integers((2, 7, 6, 5, 2)))
    assert_same(tfbig.stream(model, strip_rows=1)(x), model(x), 12 * 2**-24)


# ------------------------------------------------------------------------------- another axis is cut


@pytest.mark.parametrize(
    ("size", "order"),
    [
        ((5,), None),
        ((5, 5), None),
        ((4, 5), (1, 0)),
        ((7, 5, 7), None),
        ((3, 5, 4), (1, 0, 2)),
        ((3, 5, 6), (2, 0, 1)),
    ],
)
def test_longest_axis_comes_first(size: tuple[int, ...], order: Any) -> None:
    assert keras_reader.longest_first(size) == order


def transposed(model: keras.Model, order: tuple[int, ...], rows: int, training: bool) -> Any:
    """Return the model with its axes in another order, as a function of images in the usual order."""
    graph = keras_reader.read(model, training, order=order)
    program = Program(graph, make_planner(graph, 2**28, strip_rows=rows, training=training))
    return lambda x, training: BoundProgram(program, [x]).outputs()


PLANE, FIRST_STACK, SECOND_STACK = (
    (plane, (6, 17), (1, 0)),
    (stack, (5, 9, 8), (1, 0, 2)),
    (stack, (5, 6, 9), (2, 0, 1)),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "size", "order", "training"),
    [
        (*PLANE, False),
        (*FIRST_STACK, True),
        (*PLANE, True),
        (*FIRST_STACK, False),
        (*SECOND_STACK, True),
        (*SECOND_STACK, False),
    ],
)
def test_order_of_axes(
    build: Any, size: tuple[int, ...], order: tuple[int, ...], training: bool, float64: None
) -> None:
    model = build()
    unlike_at_start(model)
    x = images(model, 2, *size)
    expected = step(model, model, x, training)
    assert_close(step(transposed(model, order, 2, training), model, x, training), expected)


SIZES = (((4, 5, 9), (2, 0, 1)), ((6, 5, 4), None), ((3, 8, 5), (1, 0, 2)))


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [SIZES[:2], SIZES])
def test_volume_is_cut_along_its_longest_axis(sizes: Any, float64: None) -> None:
    """Outputs, gradients and a step of `fit` whose labels are volumes too, for several sizes in turn."""

    def build() -> keras.Model:
        keras.utils.set_random_seed(2)
        inputs = keras.Input((None, None, None, 2))
        x = layers.Conv3D(4, 3, padding="same", activation="relu")(inputs)
        return keras.Model(
            inputs, layers.Conv3D(1, (1, 2, 3), padding="same")(layers.BatchNormalization()(x))
        )

    twin, other = build(), build()
    big = tfbig.stream(twin, strip_rows=2)
    for model in (big, other):
        model.compile(keras.optimizers.SGD(0.1), "mse")
    for size, order in sizes:
        x = images(twin, 2, *size)
        assert_close(step(big, twin, x, True), step(twin, twin, x, True))
        assert big._programs.order == order
        assert big.plan((2, *size, 2)).shape == (2, *size, 2)
        y = np.random.default_rng(1).normal(size=(2, *size, 1))
        losses = [model.train_on_batch(x, y) for model in (big, other)]
        assert float(losses[0]) == pytest.approx(float(losses[1]), rel=FLOAT64)
    assert_same(twin.get_weights(), other.get_weights(), FLOAT64)


def test_custom_rule_and_flatten_in_another_order(float64: None) -> None:
    class Down(layers.Layer):
        """Subtract from every pixel twice the one above it."""

        def call(self, x: Any) -> Any:
            return x[:, 1:, :, :] - 2 * x[:, :-1, :, :]

    @tfbig.rule(Down)
    def down(call: Any) -> int:
        return call.local(lambda x, w, strip: call.layer.call(x[0]), [Window(2), Window()])

    inputs = keras.Input((4, 9, 3))
    x = Down()(layers.Conv2D(3, (1, 2))(inputs))
    model = keras.Model(inputs, [x, layers.Dense(2)(layers.Flatten()(x))])
    x = images(model, 2, 4, 9)
    expected = step(model, model, x, True)
    assert_close(step(transposed(model, (1, 0), 2, True), model, x, True), expected)


def test_permutation_and_its_inverse() -> None:
    inputs = keras.Input((None, None, None, 2))
    graph = keras_reader.read(keras.Model(inputs, inputs), False, order=(2, 0, 1))
    assert graph.permutation == (0, 3, 1, 2, 4)
    assert graph.inverse_permutation == (0, 2, 3, 1, 4)
    assert graph.to_graph_order("abc") == ("c", "a", "b")
    x = np.zeros((1, 4, 5, 6, 2))
    assert x.transpose(graph.permutation).transpose(graph.inverse_permutation).shape == x.shape
    assert x.transpose(graph.permutation).shape == (1, 6, 4, 5, 2)


def test_model_without_an_image() -> None:
    inputs = keras.Input((3,))
    with pytest.raises(tfbig.UnsupportedLayerError, match="has no image among its inputs"):
        tfbig.stream(keras.Model(inputs, layers.Dense(2)(inputs)))
