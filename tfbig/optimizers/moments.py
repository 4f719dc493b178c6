"""Base class of optimisers with moving averages of the gradient and of its square."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from tfbig.system import keras_internals


class MomentOptimizer(keras.optimizers.Optimizer):
    """Base class of optimisers with moving averages of the gradient and of its square.

    One update of weights `w` with the gradient `g` is

        g = g + l2 * w
        m = beta_1 * m + (1 - beta_1) * g
        v = beta_2 * v + (1 - beta_2) * g**2
        w = w - learning_rate * self._step(m, v)

    Args:
        learning_rate: Number, schedule, or function without arguments.
        beta_1: Decay of `m`.
        beta_2: Decay of `v`.
        epsilon: Added to a denominator.
        **kwargs: Arguments of every Keras optimiser.
    """

    l2 = 0.0

    def __init__(
        self, learning_rate: Any, beta_1: float, beta_2: float, epsilon: float, **kwargs: Any
    ) -> None:
        super().__init__(learning_rate, **kwargs)
        self.beta_1 = beta_1
        self.beta_2 = beta_2
        self.epsilon = epsilon

    def build(self, variables: Sequence[Any]) -> None:
        """Create the state for the given variables."""
        if self.built:
            return
        super().build(variables)
        self._m, self._v = self.add_optimizer_variables(variables, ["momentum", "velocity"])

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update one variable and its averages; called by Keras after clipping."""
        index = keras_internals.variable_index(self, variable)
        m, v = self._m[index], self._v[index]
        g = ops.cast(gradient, variable.dtype)
        if self.l2 and keras_internals.decays(self, variable):
            g = ops.add(g, ops.multiply(self.l2, variable))
        self.assign_add(m, ops.multiply(ops.subtract(g, m), 1 - self._beta_1(variable.dtype)))
        self.assign_add(v, ops.multiply(ops.subtract(ops.square(g), v), 1 - self.beta_2))
        step = self._step(m, v)
        self.assign_sub(variable, ops.multiply(ops.cast(learning_rate, variable.dtype), step))

    def get_config(self) -> dict[str, Any]:
        """The configuration for serialisation."""
        moments = {"beta_1": self.beta_1, "beta_2": self.beta_2, "epsilon": self.epsilon}
        return {**super().get_config(), **moments}

    def _step(self, m: Any, v: Any) -> Any:
        """The step of an update for a learning rate of 1."""
        raise NotImplementedError

    def _beta_1(self, dtype: str) -> Any:
        return self.beta_1

    def adam_step(self, m: Any, v: Any, beta_1_product: Any) -> Any:
        """The step of Adam, Algorithm 1 of its paper: averages are corrected for starting at 0."""
        m_hat = ops.divide(m, ops.cast(1 - beta_1_product, m.dtype))
        v_hat = ops.divide(v, ops.cast(1 - self.power(self.beta_2), v.dtype))
        return ops.divide(m_hat, ops.add(ops.sqrt(v_hat), self.epsilon))

    def count(self) -> Any:
        """The number of this update, from 1, as float64: `1 - beta_2**t` cancels in float32."""
        return ops.cast(self.iterations + 1, "float64")

    def power(self, beta: float) -> Any:
        """The power `beta**t` as float64."""
        # Not ops.cast: it converts a Python number to float32 first.
        return ops.power(ops.convert_to_tensor(beta, "float64"), self.count())


def check_count(owner: str, name: str, value: Any) -> None:
    """Check that an argument is a positive integer.

    Args:
        owner: Class name, for the error message.
        name: Name of the argument.
        value: Its value.

    Raises:
        ValueError: It is not a positive integer.
    """
    if not isinstance(value, int) or value < 1:
        raise ValueError(f"{owner}: {name} is {value!r}, expected an integer of 1 or more.")
