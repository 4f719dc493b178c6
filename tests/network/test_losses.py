"""Losses as nodes of a graph: which are refused, and the shape of the others."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from exactness import FLOAT64, assert_same
from keras import layers, ops

import tfbig
from tfbig.network import keras_reader, losses
from tfbig.network.graph import Graph


def model(activation: str | None = None) -> keras.Model:
    start = keras.Input((None, None, 2))
    return keras.Model(start, layers.Conv2D(2, 3, padding="same", activation=activation)(start))


class DiceAndMore(keras.losses.Dice):
    def call(self, y_true: Any, y_pred: Any) -> Any:
        return super().call(y_true, y_pred) + ops.mean(y_pred)


class Whole(keras.losses.Loss):
    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return ops.mean((y_true - y_pred) ** 2)


def less_the_mean(y: Any, p: Any) -> Any:
    return y - p - tf.reduce_mean(y - p, [1, 2], keepdims=True)


UNSUPPORTED: dict[str, tuple[Any, str]] = {
    "custom dice": (DiceAndMore(), "combines pixels itself"),
    "own __call__": (Whole(), "overrides __call__"),
    "axis": (keras.losses.CosineSimilarity(axis=1), "has axis=1"),
    "binary axis": (keras.losses.BinaryCrossentropy(axis=1, reduction="sum"), "axis=1"),
    "less the mean": (less_the_mean, "combines pixels itself"),
    "without rows": (lambda y, p: tf.reduce_max(abs(y - p), 1), "combines pixels itself"),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_losses(name: str) -> None:
    loss, message = UNSUPPORTED[name]
    big = tfbig.stream(model(), strip_rows=2)
    big.compile("sgd", loss)
    x = np.ones((2, 7, 6, 2), np.float32)
    with pytest.raises(tfbig.UnsupportedLayerError, match=message):
        big.train_on_batch(x, x)


def test_resolve() -> None:
    def custom(y: Any, p: Any) -> Any:
        return abs(y - p)

    assert type(losses.resolve("mse")) is keras.losses.MeanSquaredError
    assert type(losses.resolve(keras.losses.dice)) is keras.losses.Dice
    dice = keras.losses.Dice()
    assert losses.resolve(dice) is dice
    resolved = losses.resolve(custom)
    assert (resolved.name, resolved.call(3, 5)) == ("custom", 2)
    with pytest.raises(ValueError, match="pass `loss=` to compile"):
        losses.resolve(None)


def with_loss(loss: keras.losses.Loss, activation: str | None = None) -> Graph:
    graph = keras_reader.read(model(activation), True)
    target = graph.input("labels", True, 2, "float32")
    graph.outputs = [losses.add(graph, graph.outputs[0], target, loss, 2.0)]
    return graph


def test_mean_is_fused_and_ratio_is_a_barrier() -> None:
    mean = with_loss(keras.losses.MeanSquaredError()).nodes[-1]
    assert mean.op.fusible
    *_, sums, mean = with_loss(keras.losses.Dice()).nodes
    assert not sums.op.fusible
    assert mean.inputs == (sums.output,)


def test_activation_moves_into_the_loss() -> None:
    """Keras then computes the cross-entropy from logits."""
    names = [n.name.split("/")[-1] for n in with_loss(keras.losses.Dice(), "sigmoid").nodes]
    assert names == ["convolution", "dice", "mean"]


@pytest.mark.parametrize(
    "loss", [keras.losses.Huber(), keras.losses.Tversky(alpha=0.3), keras.losses.Poisson()]
)
def test_value(loss: keras.losses.Loss, float64: None) -> None:
    """Against the loss of the plain model."""
    loss = type(loss).from_config(loss.get_config() | {"dtype": "float64"})
    plain = model("sigmoid")
    big = tfbig.stream(plain, strip_rows=2)
    big.compile("sgd", loss)
    random = np.random.default_rng(0)
    x, y = random.normal(size=(2, 7, 6, 2)), random.random((2, 7, 6, 2))
    expected = np.float64(loss(y, plain(x)))
    assert_same(np.float64(big.test_on_batch(x, y)), expected, FLOAT64)


def test_total() -> None:
    graph = Graph()
    values = [graph.input(name, False) for name in "ab"]
    assert losses.total(graph, values[:1]) == values[0]
    losses.total(graph, values, [0.5, 2.0], "float64")
    total = graph.nodes[-1].op.function([tf.constant(3.0), tf.constant(4.0)], [])
    assert (float(total), total.dtype) == (9.5, tf.float64)
