"""A training step in two halves: compute the gradients of a batch, then apply them with the optimizer.

Between the two no trainable weight has changed. So gradients of several batches, or of several workers, can be added
up before the optimizer steps; and a batch that fails, or is stopped, leaves the weights of the previous step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from tfbig.streaming import compiled_update
from tfbig.system import keras_internals

Gradients = tuple[list[Any], dict[str, Any]]
"""Gradients per trainable variable, None for a variable without one, and the logs.

As in Keras, gradients have the loss scale of the optimizer and are divided by the number of replicas (except for sums,
see `tfbig.system.replication.check`), so the gradients of all replicas add up to those of the round.
"""


def gradient_function(model: keras.Model) -> Callable[[Any], Gradients]:
    """Return the function that computes the gradients of a batch: the model's `compute_gradients`, else Keras'."""
    method: Any = getattr(model, "compute_gradients", None)
    return method or partial(keras_gradients, model)


def keras_gradients(model: keras.Model, data: Any) -> Gradients:
    """Run the first half of Keras' `train_step`: a tape over the whole model."""
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    with tf.GradientTape() as tape:
        predicted = model(x, training=True)
        loss = model.compute_loss(x, y, predicted, sample_weight, training=True)
        scaled = model.optimizer.scale_loss(loss)
    gradients = tape.gradient(scaled, keras_internals.tensors_of(model.trainable_variables))
    first = next(t for t in keras.tree.flatten(x) if t is not None)
    keras_internals.track_loss(model, unscaled(loss), tf.shape(first)[0])
    return gradients, model.compute_metrics(x, y, predicted, sample_weight)


def with_penalty(
    model: keras.Model, losses: Callable[[], list[Any]], gradients: list[Any], dtype: tf.DType
) -> tuple[list[Any], tf.Tensor]:
    """Add the regularisation losses to gradients.

    Args:
        model: The compiled model.
        losses: Function that returns its regularisation losses.
        gradients: Gradient per trainable variable, None for a variable without one.
        dtype: Element type of the loss.

    Returns:
        The gradients, and the sum of the regularisation losses.
    """
    with tf.GradientTape() as tape:
        total = penalty(losses(), dtype)
        scaled = model.optimizer.scale_loss(total / replicas())
    extra = tape.gradient(scaled, keras_internals.tensors_of(model.trainable_variables))
    pairs = ([g for g in both if g is not None] for both in zip(gradients, extra, strict=True))
    return [tf.add_n(terms) if terms else None for terms in pairs], total


def penalty(losses: list[Any], dtype: tf.DType) -> tf.Tensor:
    """Return the sum of regularisation losses."""
    return sum((tf.cast(loss, dtype) for loss in losses), tf.zeros([], dtype))


def unscaled(loss: tf.Tensor) -> tf.Tensor:
    """Undo the division of a loss by the number of replicas."""
    return loss * tf.cast(replicas(), loss.dtype)


def replicas() -> int:
    """Return the number of replicas of the current strategy."""
    return int(tf.distribute.get_strategy().num_replicas_in_sync)


def train_step(model: keras.Model, data: Any) -> dict[str, Any]:
    """Run both halves, a complete `train_step`, and return the logs."""
    gradients, logs = gradient_function(model)(data)
    apply_gradients(model, gradients)
    return logs


def apply_gradients(model: keras.Model, gradients: Sequence[Any]) -> None:
    """Run the second half: update the weights, with one program of XLA if it is to compile.

    Args:
        model: The compiled model.
        gradients: Gradient per trainable variable, None for a variable without one.
    """
    pairs = zip(gradients, model.trainable_variables, strict=True)
    if replicas() > 1:
        model.optimizer.apply_gradients(pairs)
        return
    update = compiled_update.find(model, gradients)
    if update is not None:
        update()
        return
    # The sum over one replica is a `tf.custom_gradient`, whose trace TensorFlow holds forever.
    with keras_internals.without_gradient_sums(model.optimizer):
        model.optimizer.apply_gradients(pairs)
