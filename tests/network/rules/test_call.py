"""Nodes that custom rules add with `call.local` and `call.reduce`, and what calls are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf
from keras import layers, ops
from twins import images

import tfbig
from tfbig.geometry.windows import Window

pytestmark = pytest.mark.usefixtures("float64")

Check = Callable[[Any, Any], None]


def image(channels: int = 4) -> Any:
    return keras.Input((None, None, channels))


class Shift(layers.Layer):
    """Dilated and strided convolution that adds a vector to every pixel."""

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(shape=(3, 2, shape[0][-1], 5))

    def call(self, inputs: Any) -> Any:
        x, vector = inputs
        x = tf.pad(x, [[0, 0], [2, 3], [0, 0], [0, 0]])
        y = tf.nn.convolution(x, self.kernel, (1, 1), "VALID", dilations=(1, 2))[:, ::2]
        return y + vector[:, None, None, :]


def test_padding_dilation_stride_and_vector(check: Check) -> None:
    @tfbig.rule(Shift)
    def shift(call: Any) -> int:
        def run(x: Any, w: Any, strip: Any) -> Any:
            y = tf.nn.convolution(x[0], w[0], (1, 1), "VALID", dilations=(1, 2))[:, ::2]
            return y + x[1][:, None, None, :]

        windows = [Window(3, 2, 1, (2, 3)), Window(2, 1, 2)]
        return call.local(run, windows, [call.layer.kernel])

    inputs = image()
    vector = layers.Dense(5)(layers.GlobalMaxPooling2D()(inputs))
    check(inputs, Shift()([layers.Conv2D(4, 3)(inputs), vector]))


class Attention(layers.Layer):
    """Mean of the pixels, weighted by the exponential of a score; `[N, C]`."""

    def build(self, shape: Any) -> None:
        self.score = self.add_weight(shape=(shape[-1], 1))
        self.scale = self.add_weight(shape=(shape[-1],))

    def call(self, x: Any) -> Any:
        weights = tf.exp(tf.tensordot(x, self.score, 1))
        mean = tf.reduce_sum(weights * x, [1, 2]) / tf.reduce_sum(weights, [1, 2])
        return mean * self.scale


def test_reduction_of_two_sums_with_weights(check: Check) -> None:
    @tfbig.rule(Attention)
    def attention(call: Any) -> int:
        def weigh(x: Any, w: Any, strip: Any) -> Any:
            return tf.exp(tf.tensordot(x[0], w[0], 1))

        def sums(x: Any, strip: Any) -> Any:
            return tf.reduce_sum(x[0] * x[1], [1, 2]), tf.reduce_sum(x[0], [1, 2])

        (value,) = call.inputs
        weights = call.local(weigh, weights=[call.layer.score], channels=1, name="weights")
        return call.reduce(
            sums,
            lambda total, pixels, w: total[0] / total[1] * w[0],
            [call.layer.scale],
            inputs=[weights, value],
        )

    inputs = image()
    x = layers.Conv2D(3, 3, padding="same")(inputs)
    check(inputs, layers.Multiply()([x, Attention()(x)]))


def test_reduction_uses_the_strip_position(check: Check) -> None:
    class Centre(layers.Layer):
        """Centre of mass along the rows."""

        def call(self, x: Any) -> Any:
            rows = tf.range(tf.cast(tf.shape(x)[1], x.dtype), dtype=x.dtype)
            return tf.reduce_sum(x * rows[:, None, None], [1, 2])

    @tfbig.rule(Centre)
    def centre(call: Any) -> int:
        def sum_of_strip(x: Any, strip: Any) -> Any:
            rows = tf.cast(strip.start + tf.range(tf.shape(x[0])[1]), x[0].dtype)
            return tf.reduce_sum(x[0] * rows[:, None, None], [1, 2])

        return call.reduce(sum_of_strip)

    inputs = image()
    check(inputs, Centre()(layers.ReLU()(inputs)))


def test_add_loss_is_refused() -> None:
    class Adds(layers.Layer):
        def call(self, x: Any) -> Any:
            self.add_loss(tf.reduce_sum(x))
            return x

    inputs = image()
    model = keras.Model(inputs, Adds()(layers.GlobalMaxPooling2D()(inputs)))
    with pytest.raises(tfbig.UnsupportedLayerError, match="calls add_loss"):
        tfbig.stream(model)(images(model, 1, 4, 4))


def test_global_seed_generator_is_refused() -> None:
    class Noisy(layers.Layer):
        def call(self, x: Any) -> Any:
            return x + keras.random.normal(ops.shape(x))

    inputs = image()
    model = keras.Model(inputs, Noisy()(layers.GlobalMaxPooling2D()(inputs)))
    with pytest.raises(tfbig.UnsupportedLayerError, match="SeedGenerator in the layer"):
        tfbig.stream(model)(images(model, 1, 4, 4))
