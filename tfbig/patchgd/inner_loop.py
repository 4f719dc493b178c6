"""The inner steps of a training step: gradients add up, and the optimizer steps every few of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

Inner = Callable[[tf.Tensor, Any], tuple[list[Any], tf.Tensor, Any]]
"""From the number of an inner step and the state to gradients, the loss and the state after it."""


def run(model: keras.Model, total: Any, inner: Inner, state: Any, shapes: Any) -> Any:
    """All inner steps of a training step.

    Args:
        model: has `optimizer`, `trainable_variables`, and `accumulate`: after so many inner steps the optimizer applies
            the mean of their gradients; None: it does not, and the mean of all is given.
        total: how many inner steps.
        inner: one of them.
        state: tensors that go from one to the next, `[Z, ...]` and so on.
        shapes: what is known of their shapes in all of them.

    Returns:
        The mean of the gradients (None for a variable without one, or for all that were applied), the state after the
        last, and the mean of the losses.

    Raises:
        ValueError: the optimizer would step inside the loop under a distribution strategy, which cannot add up the
            gradients of its replicas there.
    """
    if model.accumulate is not None and tf.distribute.has_strategy():
        raise ValueError(
            f"'{model.name}': accumulate={model.accumulate} under a distribution strategy, where the optimizer can "
            "step once in a training step; pass accumulate=None."
        )
    return _Run(model, inner, shapes).all(tf.convert_to_tensor(total), state)


class _Run:
    def __init__(self, model: Any, inner: Inner, shapes: Any) -> None:
        self.model, self.inner, self.shapes = model, inner, shapes
        self.variables = [v._value for v in model.trainable_variables]
        self.learns = [True] * len(self.variables)

    def all(self, total: tf.Tensor, state: Any) -> Any:
        model, nothing = self.model, tf.zeros([], keras.config.floatx())
        if not model.optimizer.built:
            with tf.init_scope():
                model.optimizer.build(model.trainable_variables)
        if model.accumulate is None:
            means, losses, state = self._means(tf.constant(0), total, nothing, state)
            return self._learned(means), state, losses / tf.cast(total, losses.dtype)

        def one(step: tf.Tensor, losses: tf.Tensor, state: Any) -> Any:
            last = tf.minimum(step + model.accumulate, total)
            means, losses, state = self._means(step, last, losses, state)
            pairs = zip(self._learned(means), model.trainable_variables, strict=True)
            model.optimizer.apply_gradients(pairs)
            return last, losses, state

        _, losses, state = tf.while_loop(
            lambda step, *_: step < total,
            one,
            (tf.constant(0), nothing, state),
            (tf.TensorShape([]), tf.TensorShape([]), self.shapes),
            parallel_iterations=1,
        )
        return [None] * len(self.variables), state, losses / tf.cast(total, losses.dtype)

    def _learned(self, means: list[Any]) -> list[Any]:
        """Gradients, None where there are none."""
        return [mean if learns else None for mean, learns in zip(means, self.learns, strict=True)]

    def _means(self, first: tf.Tensor, last: tf.Tensor, losses: tf.Tensor, state: Any) -> Any:
        """Inner steps `first` to `last`: the mean of their gradients, the sum of losses and the state."""
        if self.model.accumulate == 1:
            sums, losses, state = self._one(first, losses, state)
        else:
            zeros = [tf.zeros_like(v) for v in self.variables]

            def one(step: tf.Tensor, sums: Any, losses: tf.Tensor, state: Any) -> Any:
                found, losses, state = self._one(step, losses, state)
                return step + 1, [s + g for s, g in zip(sums, found, strict=True)], losses, state

            sizes = [v.shape for v in self.variables]
            _, sums, losses, state = tf.while_loop(
                lambda step, *_: step < last,
                one,
                (first, zeros, losses, state),
                (tf.TensorShape([]), sizes, tf.TensorShape([]), self.shapes),
                parallel_iterations=1,
            )
        return [s / tf.cast(last - first, s.dtype) for s in sums], losses, state

    def _one(self, step: tf.Tensor, losses: tf.Tensor, state: Any) -> Any:
        """Gradients of one inner step, 0 where there are none, the sum of losses, and the state."""
        gradients, loss, state = self.inner(step, state)
        self.learns = [g is not None for g in gradients]
        known = [
            tf.zeros_like(v) if g is None else tf.convert_to_tensor(g)
            for g, v in zip(gradients, self.variables, strict=True)
        ]
        return known, losses + tf.cast(loss, losses.dtype), state
