"""Rectified Adam, with and without Lookahead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from tfbig.optimizers.moments import MomentOptimizer, check_count
from tfbig.system import keras_internals


@keras.saving.register_keras_serializable(package="tfbig")
class RAdam(MomentOptimizer):
    """Rectified Adam, which takes plain momentum steps until the second moment is reliable.

        g = g + l2 * w
        m = beta_1 * m + (1 - beta_1) * g
        v = beta_2 * v + (1 - beta_2) * g**2
        m_hat = m / (1 - beta_1**t)
        longest = 2 / (1 - beta_2) - 1
        length = longest - 2 * t * beta_2**t / (1 - beta_2**t)
        if length > 5:
            r = sqrt((length - 4) * (length - 2) * longest
                     / ((longest - 4) * (longest - 2) * length))
            w = w - learning_rate * r * m_hat * sqrt(1 - beta_2**t) / (sqrt(v) + epsilon)
        else:
            w = w - learning_rate * m_hat

    for the update t = 1, 2, ... (Algorithm 2 of Liu et al., "On the variance of the adaptive learning
    rate and beyond", 2020). The limit of the paper is 4, where the variance becomes finite; the
    authors' code and PyTorch use 5, which the default `beta_2` exceeds from the sixth update on.

    Args:
        learning_rate: Number, schedule, or function without arguments.
        beta_1: Decay of the average of the gradient.
        beta_2: Decay of the average of its square.
        epsilon: Added to the root, as in the authors' code and PyTorch.
        l2: Coupled penalty, as `weight_decay` in PyTorch's RAdam. `weight_decay` is decoupled, as in
            every Keras optimiser and in the authors' code.
        **kwargs: Arguments of every Keras optimiser.

    Example:
        >>> weight = keras.Variable([1.0])
        >>> optimizer = tfbig.optimizers.RAdam(0.25)
        >>> optimizer.apply([tf.constant([2.0])], [weight])
        >>> weight.numpy()  # the first steps are learning_rate * gradient
        array([0.5], dtype=float32)
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-8,
        l2: float = 0.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, beta_1, beta_2, epsilon, **kwargs)
        self.l2 = l2

    def _step(self, m: Any, v: Any) -> Any:
        m_hat = ops.divide(m, ops.cast(1 - self.power(self.beta_1), m.dtype))
        scale, trusted = self._rectification()
        root = ops.add(ops.sqrt(v), self.epsilon)
        return ops.where(trusted, m_hat * ops.cast(scale, m.dtype) / root, m_hat)

    def _rectification(self) -> tuple[Any, Any]:
        """The factor `r * sqrt(1 - beta_2**t)`, and whether rectification applies at this update."""
        power = self.power(self.beta_2)
        longest = 2 / (1 - self.beta_2) - 1
        length = longest - 2 * self.count() * power / (1 - power)
        trusted = length > 5
        length = ops.where(trusted, length, 5)
        r2 = (length - 4) * (length - 2) / length * longest / ((longest - 4) * (longest - 2))
        return ops.sqrt(r2 * (1 - power)), trusted

    def get_config(self) -> dict[str, Any]:
        """The configuration for serialisation."""
        return {**super().get_config(), "l2": self.l2}


@keras.saving.register_keras_serializable(package="tfbig")
class LookaheadRAdam(RAdam):
    """RAdam with Lookahead, the optimiser of TransMIL.

        slow = w                                before the first update
        w = an update of RAdam(w)               at every update
        slow = w = slow + alpha * (w - slow)    after each k-th update

    (Algorithm 1 of Zhang et al., "Lookahead optimizer: k steps forward, 1 step back", 2019). When the
    weights step back, the averages of RAdam do not change. The slow weights start as the weights at
    the first update, so weights may be loaded after the optimiser is built.

    Args:
        learning_rate: Number, schedule, or function without arguments.
        weight_decay: Decoupled decay, in units of the learning rate; TransMIL uses 1e-5.
        alpha: Fraction of the way that the slow weights move, above 0 and at most 1.
        k: Updates per step of the slow weights.
        l2: Coupled penalty, instead of or in addition to `weight_decay`.
        **kwargs: Arguments of `RAdam`.

    Memory:
        Three numbers per weight: `m`, `v` and the slow weight.

    Raises:
        ValueError: `alpha` or `k` is out of range.

    Example:
        >>> weight = keras.Variable([1.0])
        >>> optimizer = tfbig.optimizers.LookaheadRAdam(0.25, weight_decay=None, k=2)
        >>> for _ in range(2):
        ...     optimizer.apply([tf.constant([1.0])], [weight])
        >>> weight.numpy()  # half of the way from 1.0 to 0.5
        array([0.75], dtype=float32)
    """

    def __init__(
        self,
        learning_rate: Any = 2e-4,
        weight_decay: float | None = 1e-5,
        alpha: float = 0.5,
        k: int = 6,
        l2: float = 0.0,
        **kwargs: Any,
    ) -> None:
        if not 0 < alpha <= 1:
            raise ValueError(
                f"LookaheadRAdam: alpha is {alpha}, expected a number above 0 and at most 1."
            )
        check_count("LookaheadRAdam", "k", k)
        super().__init__(learning_rate, l2=l2, weight_decay=weight_decay, **kwargs)
        self.alpha = alpha
        self.k = k

    def build(self, variables: Sequence[Any]) -> None:
        """Create the state for the given variables."""
        if self.built:
            return
        super().build(variables)
        self._slow = self.add_optimizer_variables(variables, "slow")

    def _backend_apply_gradients(self, grads: Any, trainable_variables: Any) -> None:
        """Store the slow weights before Keras applies weight decay, which precedes `update_step`."""
        ops.cond(self.iterations == 0, self._start, lambda: None)
        super()._backend_apply_gradients(grads, trainable_variables)

    def _start(self) -> None:
        variables = keras_internals.trainable_variables_of(self)
        for slow, variable in zip(self._slow, variables, strict=True):
            self.assign(slow, variable)

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update one variable with RAdam, and step back after every k-th update."""
        super().update_step(gradient, variable, learning_rate)
        slow = self._slow[keras_internals.variable_index(self, variable)]

        def step_back() -> None:
            self.assign_add(slow, ops.multiply(self.alpha, ops.subtract(variable, slow)))
            self.assign(variable, slow)

        ops.cond((self.iterations + 1) % self.k == 0, step_back, lambda: None)

    def get_config(self) -> dict[str, Any]:
        """The configuration for serialisation."""
        return {**super().get_config(), "alpha": self.alpha, "k": self.k}
