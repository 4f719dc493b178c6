"""Losses and metrics of compiled models, matched with outputs as in Keras."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import tfbig
from tfbig.network import keras_reader, objective


class MeanOfSums(keras.metrics.Mean):
    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return super().update_state(ops.sum(y_true * y_pred), sample_weight=sample_weight)


UNSUPPORTED: dict[str, tuple[Any, str]] = {
    "function": (lambda y, p: tf.reduce_max(p, 1), "does not return one value per"),
    "mean of sums": (MeanOfSums(), "does not return one value per pixel"),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_metrics(name: str) -> None:
    metric, message = UNSUPPORTED[name]
    start = keras.Input((None, None, 2))
    model = keras.Model(start, layers.Conv2D(2, 3, padding="same")(start))
    big = tfbig.stream(model, strip_rows=2)
    big.compile("sgd", "mse", metrics=[metric])
    x = np.ones((2, 7, 6, 2), np.float32)
    with pytest.raises(tfbig.UnsupportedLayerError, match=message):
        big.train_on_batch(x, x)


def two_outputs(**options: Any) -> tuple[keras.Model, objective.Objective]:
    """Return a compiled model with the outputs `mask` and `classes`, and its objective."""
    start = keras.Input((None, None, 2))
    mask = layers.Conv2D(1, 1, name="mask")(start)
    classes = layers.Conv2D(3, 1, name="classes")(layers.Conv2D(4, 1, name="hidden")(start))
    model = keras.Model(start, {"mask": mask, "classes": classes})
    model.compile("sgd", **options)
    specs = {
        name: tf.TensorSpec([None, None, None, c], "float32")
        for name, c in (("mask", 1), ("classes", 3))
    }
    return model, objective.read(model._compile_loss, model._compile_metrics, specs, specs, None)


LOSSES = {"mask": "mse", "classes": keras.losses.MeanAbsoluteError()}


def test_losses_are_matched_by_name() -> None:
    """Positions are those of the flat structure: `classes` before `mask`."""
    _, goal = two_outputs(loss=LOSSES, loss_weights={"mask": 0.5, "classes": 2.0})
    terms = {(type(t.loss).__name__, t.output, t.target, t.factor) for t in goal.terms}
    assert terms == {("MeanAbsoluteError", 0, 0, 2.0), ("MeanSquaredError", 1, 1, 0.5)}


def test_metrics_are_matched_by_name() -> None:
    _, goal = two_outputs(loss=LOSSES, metrics={"mask": ["mae"]})
    (scores,) = goal.scores
    assert (scores.output, scores.target, scores.weights) == (1, 1, None)
    assert [m.name for m in scores.plain] == ["mae"]


def test_output_without_a_loss_is_dropped() -> None:
    """Its nodes are removed, and its weights have no gradient."""
    model, goal = two_outputs(loss={"mask": "mse"})
    graph = keras_reader.read(model, True)
    specs = [tf.TensorSpec([None, None, None, c], "float32") for c in (3, 1)]
    assert goal.add_to(graph, specs, []) == [1]
    assert {n.layer for n in graph.nodes} == {"mask", "mean_squared_error"}
    weights = {graph.weights[i].path for i in objective.weights_with_gradient(graph)}
    assert weights == {"mask/kernel", "mask/bias"}


def test_missing_loss() -> None:
    spec = tf.TensorSpec([None, None, None, 1], "float32")
    with pytest.raises(ValueError, match="no loss to train with"):
        objective.read(None, None, spec, spec, None)


def test_expected() -> None:
    """The objective of a plan, with and without a compiled loss."""
    outputs = [tf.TensorSpec([None, None, None, c], "float32") for c in (3, 1)]
    label = tf.TensorSpec([None, None, None, None], "uint8")
    goal = objective.expected(None, outputs, label)
    assert [(type(t.loss), t.output, t.target) for t in goal.terms] == [
        (keras.losses.MeanSquaredError, 0, 0),
        (keras.losses.MeanSquaredError, 1, 1),
    ]
    start = keras.Input((None, None, 2))
    model = keras.Model(start, layers.Conv2D(3, 1)(start))
    model.compile("sgd", "sparse_categorical_crossentropy")
    goal = objective.expected(model._compile_loss, outputs[0], label)
    assert type(goal.terms[0].loss) is keras.losses.SparseCategoricalCrossentropy
    assert goal.channels([3]) == {0: 1}
    assert not model._compile_loss.built
