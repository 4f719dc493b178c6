"""Variables of losses, metrics and the optimizer, created before a step is traced."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import keras
import tensorflow as tf

from tfbig.streaming.model_inputs import ModelInputs
from tfbig.system import keras_internals, replication

map_structure = keras.tree.map_structure


def build_optimizer(model: keras.Model) -> None:
    """Create the variables of the optimizer; a step that creates variables is traced twice.

    Args:
        model: The compiled model.

    Raises:
        ValueError: The optimizer cannot be used under the current strategy.
    """
    replication.check(model.optimizer)
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)


def build(model: keras.Model, reader: ModelInputs, data: Any) -> None:
    """Create the variables of losses and metrics that Keras computes.

    Args:
        model: The compiled model.
        reader: Reader of its inputs.
        data: `(x, y)` or `(x, y, sample_weight)`.
    """
    compiled = (keras_internals.compiled_loss(model), keras_internals.compiled_metrics(model))
    if all(t is None or t.built for t in compiled):
        return
    x, y, weights = (
        map_structure(reader.placeholder, item)
        for item in keras.utils.unpack_x_y_sample_weight(data)
    )
    batch = keras.tree.flatten(x)[0].shape[0]
    outputs = map_structure(
        lambda t: keras.KerasTensor((batch, *t.shape[1:]), t.dtype),
        keras_internals.output_structure(reader.functional),
    )
    with suppress(ValueError, TypeError, tf.errors.OpError):  # then the first step creates them
        for function in (model.compute_loss, model.compute_metrics):
            keras_internals.compute_output_spec(function, x, y, outputs, weights)
