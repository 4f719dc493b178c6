"""What classes and functions of one's own change is computed as in Keras, or refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import tfbig
from tfbig.network import user_code

PER_PIXEL = {
    "of a number": lambda x: tf.nn.relu(x) - 1,
    "of the channels": lambda x: ops.softmax(x, axis=-1),
    "to one number": lambda x: tf.reduce_mean(x**2, -1),
    "that fails": lambda x: tf.reshape(x, [7]),
}
BEYOND = {
    "less the mean": lambda x: x - tf.reduce_mean(x, [1, 2], keepdims=True),
    "share of the image": lambda x: tf.exp(x) / tf.reduce_sum(tf.exp(x), [1, 2], keepdims=True),
    "along columns": lambda x: tf.cumsum(x, 2),
    "backwards": lambda x: tf.cumsum(x, 1, reverse=True),
    "without rows": lambda x: tf.reduce_max(x, 1),
    "of the image": tf.reduce_mean,
    "random": lambda x: x + tf.random.normal(tf.shape(x), dtype=x.dtype),
}


@pytest.mark.parametrize("name", [*PER_PIXEL, *BEYOND])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_function_is_tried_on_parts_of_an_image(name: str, dtype: str) -> None:
    function = (PER_PIXEL | BEYOND)[name]
    assert user_code.per_pixel(function, [3], 2, dtype) == (name in PER_PIXEL)


def test_a_loss_is_tried_on_labels_and_prediction() -> None:
    def edges(y: Any, p: Any) -> Any:
        rows, columns = tf.image.image_gradients(y - p)
        return tf.reduce_mean(tf.abs(rows) + tf.abs(columns), -1)

    sparse = keras.losses.sparse_categorical_crossentropy
    assert user_code.per_pixel(sparse, [1, 4], 2, "float32")
    assert user_code.per_pixel(keras.losses.binary_crossentropy, [1, 1], 3, "float64")
    assert not user_code.per_pixel(edges, [2, 2], 2, "float32")


def test_what_a_class_overrides_is_found_below_keras() -> None:
    class Mixin:
        def call(self, x: Any) -> Any:
            return x

    mixed = type("Mixed", (Mixin, layers.Dense), {})(1)
    assert user_code.overridden(mixed, "build", "call") == "call"
    assert user_code.overridden(mixed, "build") is None
    assert user_code.overridden(layers.Dense(1), "call") is None


# ------------------------------------------------------------------------------------- models


def image() -> Any:
    return keras.Input((None, None, 2))


def conv(x: Any, filters: int = 1, **options: Any) -> Any:
    return layers.Conv2D(filters, 3, padding="same", **options)(x)


class Twice(keras.Model):
    def call(self, x: Any, training: Any = None, mask: Any = None) -> Any:
        return 2 * super().call(x, training=training)


class TwiceInARow(keras.Sequential):
    def call(self, x: Any, training: Any = None, mask: Any = None) -> Any:
        return 2 * super().call(x, training=training)


def test_a_model_with_a_call_of_its_own_is_refused() -> None:
    start = image()
    twice = Twice(start, conv(start))
    nested = keras.Model(start, conv(twice(start)))
    for model in (twice, nested, TwiceInARow([image(), layers.Conv2D(1, 3)])):
        with pytest.raises(tfbig.UnsupportedLayerError, match="overrides `call`"):
            tfbig.stream(model)


@pytest.mark.parametrize("method", ["train_step", "compute_loss"])
def test_a_model_with_a_step_of_its_own_is_refused(method: str) -> None:
    kind = type("Mine", (keras.Model,), {method: lambda self, *a, **k: None})
    start = image()
    with pytest.raises(tfbig.UnsupportedLayerError, match=rf"\(Mine\) overrides `{method}`"):
        tfbig.stream(kind(start, conv(start)))


def test_layers_that_change_what_a_rule_relies_on_are_refused() -> None:
    class Standardised(layers.Conv2D):
        @property
        def kernel(self) -> Any:
            return super().kernel - ops.mean(super().kernel, axis=(0, 1, 2), keepdims=True)

    class Wide(layers.BatchNormalization):
        def _moments(self, x: Any, mask: Any) -> Any:
            mean, variance = super()._moments(x, mask)
            return mean, 2 * variance

    for layer in (Standardised(1, 3), Wide()):
        start = image()
        with pytest.raises(tfbig.UnsupportedLayerError, match="has no rule"):
            tfbig.stream(keras.Model(start, layer(start)))


@pytest.mark.parametrize("function", [BEYOND["less the mean"], BEYOND["along columns"], "glu"])
@pytest.mark.parametrize("alone", [True, False])
def test_an_activation_that_looks_beyond_its_pixel_is_refused(function: Any, alone: bool) -> None:
    start = image()
    x = layers.Activation(function)(start) if alone else conv(start, 2, activation=function)
    with pytest.raises(tfbig.UnsupportedLayerError, match="not treat every pixel alone"):
        tfbig.stream(keras.Model(start, x))


def test_rules_that_give_something_else_are_named() -> None:
    class Plain(layers.Layer):
        def call(self, x: Any) -> Any:
            return x

    start = image()
    model = keras.Model(start, Plain()(start))
    window = tfbig.geometry.Window(3, padding="same")
    wrong: list[tuple[Callable[..., Any], str]] = [
        (lambda call: None, "a rule that gives None; expected the value"),
        (lambda call: call.local(lambda x, w, s: x[0], [window]), "1 windows; expected .* 2"),
    ]
    for rule, message in wrong:
        tfbig.rule(Plain)(rule)
        with pytest.raises(tfbig.UnsupportedLayerError, match=message):
            tfbig.stream(model)


# ----------------------------------------------------------------------------- losses, metrics


class DiceAndMore(keras.losses.Dice):
    def call(self, y_true: Any, y_pred: Any) -> Any:
        return super().call(y_true, y_pred) + ops.mean(y_pred)


class Whole(keras.losses.Loss):
    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return ops.mean((y_true - y_pred) ** 2)


class MeanOfSums(keras.metrics.Mean):
    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return super().update_state(ops.sum(y_true * y_pred), sample_weight=sample_weight)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "dice of its own": ({"loss": DiceAndMore()}, "is not a mean over pixels"),
    "own __call__": ({"loss": Whole()}, "overrides __call__"),
    "axis": ({"loss": keras.losses.CosineSimilarity(axis=1)}, "has axis=1"),
    "binary axis": ({"loss": keras.losses.BinaryCrossentropy(axis=1, reduction="sum")}, "axis=1"),
    "less the mean": ({"loss": lambda y, p: BEYOND["less the mean"](y - p)}, "not a mean over"),
    "without rows": ({"loss": lambda y, p: tf.reduce_max(abs(y - p), 1)}, "not a mean over"),
    "metric": ({"loss": "mse", "metrics": [lambda y, p: tf.reduce_max(p, 1)]}, "no number per"),
    "mean of sums": ({"loss": "mse", "metrics": [MeanOfSums()]}, "no number per pixel"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_losses_and_metrics_that_do_not_add_up_are_refused(name: str) -> None:
    options, message = REFUSED[name]
    start = image()
    big = tfbig.stream(keras.Model(start, conv(start, 2)), strip_rows=2)
    big.compile("sgd", **options)
    x = np.ones((2, 7, 6, 2), np.float32)
    with pytest.raises(tfbig.UnsupportedLayerError, match=message):
        big.train_on_batch(x, x)
