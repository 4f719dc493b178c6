"""The training step of ABMIL-ACC as it was published, to compare with.

Andersson, Koriakina, Sladoje, Lindblad: "End-to-end multiple instance learning with gradient accumulation" (2022),
and its code:

    Z = encoder(every slice), without tape; statistics of BatchNormalization are those of the slice
    gradients of the aggregator from loss(aggregator(Z))
    for every slice i:
        Z_i = encoder(slice i), with tape
        gradients of the encoder += those of loss(aggregator([Z_i, other features of Z]))

It differs from `MIL`'s own step: the aggregator runs once more for every slice; the slice comes first, so that an
aggregator must not depend on the order; dropout draws other numbers in the two passes; BatchNormalization never sees
the whole bag.
"""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfbig.engine import read_ahead
from tfbig.streaming import gradient_step


def gradients(model: Any, data: Any) -> gradient_step.Gradients:
    """Those of one step; `model` is a `tfbig.mil.MIL`, `data` as Keras has it."""
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
    slices = _Slices(model, x)
    features = slices.features()
    with tf.GradientTape() as tape:
        predicted = model.aggregator(features, training=True)
        loss = model.compute_loss(x, y, predicted, sample_weight, training=True)
        scaled = model.optimizer.scale_loss(loss)
    variables = [v._value for v in model.trainable_variables]
    whole = tape.gradient(scaled, variables, unconnected_gradients="zero")

    def of_slice(z: tf.Tensor, start: tf.Tensor, stop: tf.Tensor) -> tf.Tensor:
        bag = tf.concat([z, features[:, :start], features[:, stop:]], axis=1)
        found = model.aggregator(bag, training=True)
        return model.optimizer.scale_loss(model._compile_loss(y, found, sample_weight))

    encoder = [v._value for v in model.encoder.trainable_variables]
    summed = slices.gradients(encoder, of_slice)
    found = {v.ref(): g for v, g in zip(encoder, summed, strict=True)}
    both = [
        g + found[v.ref()] if v.ref() in found else g for v, g in zip(variables, whole, strict=True)
    ]
    model._loss_tracker.update_state(
        gradient_step.unscaled(loss), sample_weight=tf.shape(features)[0]
    )
    return both, model.compute_metrics(x, y, predicted, sample_weight)


class _Slices:
    """A batch of bags, slice by slice of `instances_at_once`; the last one may be smaller."""

    def __init__(self, model: Any, bags: tf.Tensor) -> None:
        self.model, self.bags = model, bags
        self.size = model.instances_at_once
        self.shape = model.instance_shape
        by_handle = bags.dtype == tf.string
        shape = read_ahead.source_shape(bags, len(self.shape) + 2) if by_handle else tf.shape(bags)
        self.count = tf.cast(shape[1], tf.int32)

    def read(self, start: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Instances `[N, k, ...]` from `start` on, and where they end."""
        stop = tf.minimum(start + self.size, self.count)
        if self.bags.dtype != tf.string:
            return self.bags[:, start:stop], stop
        dtype = tf.as_dtype(self.model.source_dtype)
        part = read_ahead.read_source(self.bags, start, stop, dtype)
        part = tf.ensure_shape(part, [None, None, *self.shape])
        return tf.cast(part, self.model.twin.inputs[0].dtype), stop

    def features(self) -> tf.Tensor:
        """`[N, n, d]`, nothing but generators of random numbers being changed."""
        encoder = self.model.encoder

        def one(start: tf.Tensor, found: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
            part, stop = self.read(start)
            flat = tf.reshape(part, [-1, *self.shape])
            trained, others = encoder.trainable_variables, encoder.non_trainable_variables
            z, after = encoder.stateless_call(trained, others, flat, training=True)
            for variable, value in zip(others, after, strict=True):
                if not keras.backend.is_float_dtype(variable.dtype):
                    variable.assign(value)
            z = tf.reshape(z, tf.concat([tf.shape(part)[:2], tf.shape(z)[1:]], 0))
            return stop, found.write(start // self.size, tf.einsum("ab...->ba...", z))

        made = encoder.outputs[0]
        found = tf.TensorArray(made.dtype, -(-self.count // self.size), infer_shape=False)
        _, found = tf.while_loop(self._left, one, (0, found), parallel_iterations=1)
        features = tf.einsum("ab...->ba...", found.concat())
        return tf.ensure_shape(features, [None, None, *made.shape[1:]])

    def gradients(self, variables: list[Any], loss: Any) -> list[tf.Tensor]:
        """Sums over slices of the gradients of `loss(features of the slice, start, stop)`."""

        def one(start: tf.Tensor, sums: list[tf.Tensor]) -> tuple[tf.Tensor, list[tf.Tensor]]:
            part, stop = self.read(start)
            with tf.GradientTape() as tape:
                z = self.model.encoder(tf.reshape(part, [-1, *self.shape]), training=True)
                z = tf.reshape(z, tf.concat([tf.shape(part)[:2], tf.shape(z)[1:]], 0))
                value = loss(
                    tf.ensure_shape(z, [None, None, *self.model.encoder.outputs[0].shape[1:]]),
                    start,
                    stop,
                )
            found = tape.gradient(value, variables, unconnected_gradients="zero")
            return stop, [s + g for s, g in zip(sums, found, strict=True)]

        zeros = [tf.zeros_like(v) for v in variables]
        _, sums = tf.while_loop(
            lambda start, _: self._left(start), one, (0, zeros), parallel_iterations=1
        )
        return sums

    def _left(self, start: tf.Tensor, *_: Any) -> tf.Tensor:
        return start < self.count
