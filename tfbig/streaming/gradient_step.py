"""A training step in two halves: the gradients of a batch, and what the optimizer makes of them.

Between them nothing that is trained has changed. So gradients of several batches, or of several workers, can be added
up before the optimizer steps; and a batch that fails, or is stopped, leaves the weights of the step before.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import keras
import tensorflow as tf

Gradients = tuple[list[Any], dict[str, Any]]
"""One for each trainable variable, None where there is none, and the logs.

They are in the scale of the optimizer's loss, and divided by the number of replicas, as Keras' are (but for sums, see
`tfbig.system.replication.check`): those of all replicas add up.
"""


def first(model: keras.Model) -> Callable[[Any], Gradients]:
    """The first half of a step on data: the model's own `compute_gradients`, or that of Keras' `train_step`."""
    own: Any = getattr(model, "compute_gradients", None)
    return own or partial(plain, model)


def plain(model: keras.Model, data: Any) -> Gradients:
    """The first half of Keras' own `train_step`: a tape over the whole model."""
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    with tf.GradientTape() as tape:
        predicted = model(x, training=True)
        loss = model.compute_loss(x, y, predicted, sample_weight, training=True)
        scaled = model.optimizer.scale_loss(loss)
    found = tape.gradient(scaled, [v._value for v in model.trainable_variables])
    first = next(t for t in keras.tree.flatten(x) if t is not None)
    model._loss_tracker.update_state(unscaled(loss), sample_weight=tf.shape(first)[0])
    return found, model.compute_metrics(x, y, predicted, sample_weight)


def unscaled(loss: tf.Tensor) -> tf.Tensor:
    """The loss of a replica, which Keras divides by their number."""
    return loss * tf.cast(replicas(), loss.dtype)


def replicas() -> int:
    """How many replicas of a model there are where this is called."""
    return int(tf.distribute.get_strategy().num_replicas_in_sync)


def whole(model: keras.Model, data: Any) -> dict[str, Any]:
    """Both halves: a `train_step`; gives the logs."""
    found, logs = first(model)(data)
    model.optimizer.apply_gradients(zip(found, model.trainable_variables, strict=True))
    return logs
