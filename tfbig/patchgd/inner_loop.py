"""The loop over the inner steps of a training step: it sums gradients, which the optimizer applies every few steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfbig.streaming import gradient_step
from tfbig.system import keras_internals

InnerStep = Callable[[tf.Tensor, Any], tuple[list[Any], tf.Tensor, Any]]
"""Function `(number of the inner step, state) -> (gradients, loss, new state)`."""


def run(model: keras.Model, total: Any, inner: InnerStep, state: Any, shapes: Any) -> Any:
    """Run all inner steps of a training step.

    Args:
        model: Model with `optimizer`, `trainable_variables`, and `accumulate`: the number of inner steps after which
            the optimizer applies the mean of their gradients, or None to apply nothing and return the mean of all.
        total: Number of inner steps.
        inner: Function that computes one inner step.
        state: Tensors passed from one inner step to the next, such as Z.
        shapes: Static shapes of the state, the same in all inner steps.

    Returns:
        The mean gradients (None for a variable without one, and for all variables if they were applied), the last
        state, and the mean loss.

    Raises:
        ValueError: The optimizer would step inside the loop under a distribution strategy, which cannot add up the
            gradients of its replicas there.
    """
    if model.accumulate is not None and tf.distribute.has_strategy():
        raise ValueError(
            f"'{model.name}': accumulate={model.accumulate}, but under a distribution strategy the optimizer can step "
            "only once in a training step; pass accumulate=None."
        )
    return _InnerLoop(model, inner, shapes).run(tf.convert_to_tensor(total), state)


class _InnerLoop:
    """Gradient sums over the inner steps of a model."""

    def __init__(self, model: Any, inner: InnerStep, shapes: Any) -> None:
        self.model, self.inner, self.shapes = model, inner, shapes
        self.variables = keras_internals.tensors_of(model.trainable_variables)
        # Set while an inner step is traced, and read after it: a loop of TensorFlow returns tensors alone.
        self.has_gradient = [True] * len(self.variables)

    def run(self, total: tf.Tensor, state: Any) -> Any:
        model, zero = self.model, tf.zeros([], keras.config.floatx())
        if not model.optimizer.built:
            with tf.init_scope():
                model.optimizer.build(model.trainable_variables)
        if model.accumulate is None:
            means, losses, state = self._means(tf.constant(0), total, zero, state)
            return self._none_if_missing(means), state, losses / tf.cast(total, losses.dtype)

        def step_optimizer(step: tf.Tensor, losses: tf.Tensor, state: Any) -> Any:
            last = tf.minimum(step + model.accumulate, total)
            means, losses, state = self._means(step, last, losses, state)
            gradient_step.apply_gradients(model, self._none_if_missing(means))
            return last, losses, state

        _, losses, state = tf.while_loop(
            lambda step, *_: step < total,
            step_optimizer,
            (tf.constant(0), zero, state),
            (tf.TensorShape([]), tf.TensorShape([]), self.shapes),
            parallel_iterations=1,
        )
        return [None] * len(self.variables), state, losses / tf.cast(total, losses.dtype)

    def _none_if_missing(self, means: list[Any]) -> list[Any]:
        """Return the gradients, with None for variables that have none."""
        return [
            mean if exists else None for mean, exists in zip(means, self.has_gradient, strict=True)
        ]

    def _means(self, first: tf.Tensor, last: tf.Tensor, losses: tf.Tensor, state: Any) -> Any:
        """Run inner steps `first` to `last`; return the mean of their gradients, the sum of losses and the state."""
        if self.model.accumulate == 1:
            sums, losses, state = self._run_one(first, losses, state)
        else:
            zeros = [tf.zeros_like(v) for v in self.variables]

            def add_gradients(step: tf.Tensor, sums: Any, losses: tf.Tensor, state: Any) -> Any:
                gradients, losses, state = self._run_one(step, losses, state)
                return (
                    step + 1,
                    [s + g for s, g in zip(sums, gradients, strict=True)],
                    losses,
                    state,
                )

            sizes = [v.shape for v in self.variables]
            _, sums, losses, state = tf.while_loop(
                lambda step, *_: step < last,
                add_gradients,
                (first, zeros, losses, state),
                (tf.TensorShape([]), sizes, tf.TensorShape([]), self.shapes),
                parallel_iterations=1,
            )
        return [s / tf.cast(last - first, s.dtype) for s in sums], losses, state

    def _run_one(self, step: tf.Tensor, losses: tf.Tensor, state: Any) -> Any:
        """Run one inner step; return its gradients (0 where there are none), the sum of losses, and the state."""
        gradients, loss, state = self.inner(step, state)
        self.has_gradient = [g is not None for g in gradients]
        dense = [
            tf.zeros_like(v) if g is None else tf.convert_to_tensor(g)
            for g, v in zip(gradients, self.variables, strict=True)
        ]
        return dense, losses + tf.cast(loss, losses.dtype), state
