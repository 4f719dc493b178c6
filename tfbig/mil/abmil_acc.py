"""The training step of ABMIL-ACC as published, for comparison with `MIL`.

Andersson, Koriakina, Sladoje, Lindblad: "End-to-end multiple instance learning with gradient accumulation" (2022), and
its code:

    Z = encoder(every slice), without a tape; statistics of BatchNormalization are those of the slice
    gradients of the aggregator from loss(aggregator(Z))
    for every slice i:
        Z_i = encoder(slice i), with a tape
        gradients of the encoder += those of loss(aggregator([Z_i, other features of Z]))

It differs from the exact step of `MIL`: the aggregator runs once more for every slice; the slice comes first, so the
aggregator must not depend on the order; dropout draws other numbers in the two passes; BatchNormalization never sees
the whole bag.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfbig.engine import read_ahead
from tfbig.ops import slices
from tfbig.streaming import gradient_step
from tfbig.system import keras_internals
from tfbig.units import ceil_div


def gradients(model: Any, data: Any) -> gradient_step.Gradients:
    """Return the gradients and logs of one training step."""
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    bags = _BagSlices(model, x)
    features = bags.features()
    with tf.GradientTape() as tape:
        predicted = model.aggregator(features, training=True)
        loss = model.compute_loss(x, y, predicted, sample_weight, training=True)
        scaled = model.optimizer.scale_loss(loss)
    variables = keras_internals.tensors_of(model.trainable_variables)
    whole = tape.gradient(scaled, variables, unconnected_gradients="zero")

    compiled_loss = keras_internals.compiled_loss(model)

    def slice_loss(z: tf.Tensor, start: tf.Tensor, stop: tf.Tensor) -> tf.Tensor:
        bag = tf.concat([z, features[:, :start], features[:, stop:]], axis=1)
        logits = model.aggregator(bag, training=True)
        return model.optimizer.scale_loss(compiled_loss(y, logits, sample_weight))

    encoder_variables = keras_internals.tensors_of(model.encoder.trainable_variables)
    encoder_gradients = bags.gradients(encoder_variables, slice_loss)
    by_variable = {v.ref(): g for v, g in zip(encoder_variables, encoder_gradients, strict=True)}
    gradients = [
        g + by_variable[v.ref()] if v.ref() in by_variable else g
        for v, g in zip(variables, whole, strict=True)
    ]
    keras_internals.track_loss(model, gradient_step.unscaled(loss), tf.shape(features)[0])
    return gradients, model.compute_metrics(x, y, predicted, sample_weight)


class _BagSlices:
    """A batch of bags in slices of `instances_at_once`; the last slice may be smaller."""

    def __init__(self, model: Any, bags: tf.Tensor) -> None:
        self.model, self.bags = model, bags
        self.size = model.instances_at_once
        self.shape = model.instance_shape
        by_handle = bags.dtype == tf.string
        shape = read_ahead.source_shape(bags, len(self.shape) + 2) if by_handle else tf.shape(bags)
        self.count = tf.cast(shape[1], tf.int32)
        self.num_slices = ceil_div(self.count, self.size)

    def read(self, index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Return the instances `[N, k, ...]` of a slice, its first index, and the index after its last one."""
        start = index * self.size
        stop = tf.minimum(start + self.size, self.count)
        if self.bags.dtype == tf.string:
            dtype = tf.as_dtype(self.model.settings.source_dtype)
            instances = read_ahead.read_source(self.bags, [(start, stop)], dtype)
            instances = tf.cast(instances, self.model.twin.inputs[0].dtype)
        else:
            instances = self.bags[:, start:stop]
        return tf.ensure_shape(instances, [None, None, *self.shape]), start, stop

    def features(self) -> tf.Tensor:
        """Return the features `[N, n, d]`; no variable changes except random generators."""
        encoder = self.model.encoder

        def encode_slice(index: tf.Tensor, _: Any) -> Any:
            instances, *_ = self.read(index)
            weights, state = encoder.trainable_variables, encoder.non_trainable_variables
            z, new_state = encoder.stateless_call(
                weights, state, slices.merged(instances), training=True
            )
            for variable, value in zip(state, new_state, strict=True):
                if not keras.backend.is_float_dtype(variable.dtype):
                    variable.assign(value)
            return slices.divided(z, instances), ()

        code = encoder.outputs[0]
        features, _ = slices.joined(encode_slice, self.num_slices, code.dtype)
        return tf.ensure_shape(features, [None, None, *code.shape[1:]])

    def gradients(self, variables: list[Any], loss: Any) -> list[tf.Tensor]:
        """Return the sum over slices of the gradients of `loss(features of the slice, start, stop)`."""

        def of_slice(index: tf.Tensor, _: Any) -> Any:
            instances, start, stop = self.read(index)
            with tf.GradientTape() as tape:
                z = self.model.encoder(slices.merged(instances), training=True)
                value = loss(slices.divided(z, instances), start, stop)
            return tape.gradient(value, variables, unconnected_gradients="zero"), ()

        return slices.summed(of_slice, self.num_slices, [tf.zeros_like(v) for v in variables])
