"""Adam with a coupled L2 penalty, and AdamW with decaying momentum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from tfbig.optimizers.moments import MomentOptimizer, check_count


@keras.saving.register_keras_serializable(package="tfbig")
class CoupledAdam(MomentOptimizer):
    """Adam with a coupled L2 penalty, as `weight_decay` in PyTorch's Adam.

        g = g + l2 * w
        m = beta_1 * m + (1 - beta_1) * g
        v = beta_2 * v + (1 - beta_2) * g**2
        w = w - learning_rate * m / (1 - beta_1**t) / (sqrt(v / (1 - beta_2**t)) + epsilon)

    for the update t = 1, 2, ... (Algorithm 1 of Kingma and Ba, "Adam", 2015). `l2` is coupled: it is
    part of the gradient that Adam scales. `weight_decay` of Keras' optimisers is decoupled, as in
    AdamW, and refused here. `exclude_from_weight_decay` of Keras applies to `l2`.

    Args:
        learning_rate: Number, schedule, or function without arguments.
        l2: Coupled penalty on every weight, including biases, as in PyTorch.
        beta_1: Decay of the average of the gradient.
        beta_2: Decay of the average of its square.
        epsilon: Added to the root as above and in PyTorch. Keras' Adam adds it before the
            correction by `1 - beta_2**t`, where the same number has more effect in the first updates.
        **kwargs: Arguments of every Keras optimiser, without `weight_decay`.

    Raises:
        ValueError: `weight_decay` is set.

    Example:
        >>> weight = keras.Variable([1.0])
        >>> optimizer = tfbig.optimizers.CoupledAdam(0.5, l2=0.1)
        >>> optimizer.apply([tf.constant([2.0])], [weight])
        >>> weight.numpy()  # the first step of Adam has the length of the learning rate
        array([0.5], dtype=float32)
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        l2: float = 1e-4,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-8,
        **kwargs: Any,
    ) -> None:
        if kwargs.get("weight_decay"):
            raise ValueError(
                f"CoupledAdam: weight_decay is {kwargs['weight_decay']}, which Keras applies "
                "decoupled from the gradient. Use l2 for the coupled penalty, or "
                "keras.optimizers.AdamW."
            )
        super().__init__(learning_rate, beta_1, beta_2, epsilon, **kwargs)
        self.l2 = l2

    def _step(self, m: Any, v: Any) -> Any:
        return self.adam_step(m, v, self.power(self.beta_1))

    def get_config(self) -> dict[str, Any]:
        """The configuration for serialisation."""
        return {**super().get_config(), "l2": self.l2}


@keras.saving.register_keras_serializable(package="tfbig")
class DemonAdamW(MomentOptimizer):
    """AdamW with momentum that decays to 0 during a run (Demon).

        left = max(1 - t / steps, 0)
        beta_1(t) = beta_1 * left / ((1 - beta_1) + beta_1 * left)
        g = g + l2 * w
        w = w - learning_rate * weight_decay * w
        m = beta_1(t) * m + (1 - beta_1(t)) * g
        v = beta_2 * v + (1 - beta_2) * g**2
        m_hat = m / (1 - beta_1(1) * beta_1(2) * ... * beta_1(t))
        w = w - learning_rate * m_hat / (sqrt(v / (1 - beta_2**t)) + epsilon)

    for the update t = 1, 2, ..., with `beta_1(t)` from Chen et al., "Demon: improved neural network
    training with momentum decay" (2019; ICASSP 2022). The paper adds `g` to `m` unscaled, which makes
    steps longer by `1 / (1 - beta_1(t))`; here `m` is an average, as in Adam and in Big-Layers. The
    weights of the gradients in `m` sum to 1 minus the product of the decays so far, by which `m_hat`
    divides; for a constant decay this is the usual `1 - beta_1**t`.

    From update `steps` on there is no momentum. `t` counts updates, not batches: with
    `gradient_accumulation_steps=n` a run of b batches has b // n updates. Big-Layers' runs counted
    batches in `steps` but updates in `t`, two batches each, and so ended at `t / steps == 0.5`: to
    reproduce them, set `steps` to twice the number of updates.

    The text of Big-Layers has Adam with a weight decay, which in PyTorch is coupled: `l2=1e-4` and
    `weight_decay=0`. Its code has AdamW.

    Args:
        learning_rate: Number, schedule, or function without arguments.
        steps: Number of updates until the momentum is 0.
        beta_1: Momentum before the first update.
        weight_decay: Decoupled decay, in units of the learning rate.
        beta_2: Decay of the average of the squared gradient.
        epsilon: Added to the root.
        l2: Coupled penalty, part of the gradient, as in `CoupledAdam`.
        **kwargs: Arguments of every Keras optimiser.

    Raises:
        ValueError: `steps` is not a positive integer.

    Example:
        >>> weight = keras.Variable([1.0])
        >>> optimizer = tfbig.optimizers.DemonAdamW(0.25, steps=4, weight_decay=0.0)
        >>> for _ in range(4):  # equal gradients: each step has the length of the learning rate
        ...     optimizer.apply([tf.constant([2.0])], [weight])
        >>> round(float(weight.numpy()[0]), 4)
        0.0
    """

    def __init__(
        self,
        learning_rate: Any,
        steps: int,
        beta_1: float = 0.9,
        weight_decay: float = 1e-4,
        beta_2: float = 0.999,
        epsilon: float = 1e-8,
        l2: float = 0.0,
        **kwargs: Any,
    ) -> None:
        check_count("DemonAdamW", "steps", steps)
        kwargs["weight_decay"] = weight_decay
        super().__init__(learning_rate, beta_1, beta_2, epsilon, **kwargs)
        self.steps = steps
        self.l2 = l2

    def build(self, variables: Sequence[Any]) -> None:
        """Create the state for the given variables."""
        if self.built:
            return
        super().build(variables)
        self._product = self.add_variable((), "ones", "float64", name="beta_1_product")

    def _backend_update_step(self, *args: Any) -> None:
        """Update the product of decays once per update; `update_step` runs once per variable."""
        self.assign(self._product, self._product * self._beta_1("float64"))
        super()._backend_update_step(*args)

    def _beta_1(self, dtype: str) -> Any:
        left = self.beta_1 * ops.maximum(1 - self.count() / self.steps, 0)
        return ops.cast(left / (1 - self.beta_1 + left), dtype)

    def _step(self, m: Any, v: Any) -> Any:
        return self.adam_step(m, v, self._product)

    def get_config(self) -> dict[str, Any]:
        """The configuration for serialisation."""
        return {**super().get_config(), "steps": self.steps, "l2": self.l2}
