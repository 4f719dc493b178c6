"""Adam with a coupled penalty, and with a momentum that decays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from tfbig.optimizers.moments import MomentOptimizer, check_count


@keras.saving.register_keras_serializable(package="tfbig")
class CoupledAdam(MomentOptimizer):
    """Adam on the gradient of the loss plus `l2 * w`, what `weight_decay` of PyTorch's Adam is.

        g = g + l2 * w
        m = beta_1 * m + (1 - beta_1) * g
        v = beta_2 * v + (1 - beta_2) * g**2
        w = w - learning_rate * m / (1 - beta_1**t) / (sqrt(v / (1 - beta_2**t)) + epsilon)

    for the update t = 1, 2, ..., Algorithm 1 of Kingma and Ba, "Adam" (2015). `l2` is coupled: it is
    scaled like the rest of the gradient. `weight_decay` of Keras' optimisers is decoupled, another
    method (that of AdamW), and refused here. `exclude_from_weight_decay` of Keras holds for `l2`.

    Args:
        learning_rate: Number, schedule, or function without arguments.
        l2: The coupled penalty on every weight, biases too, as in PyTorch.
        beta_1: Decay of the average of the gradient.
        beta_2: Decay of the average of its square.
        epsilon: Added to the root as above and in PyTorch. Keras' Adam adds it before the
            correction by `1 - beta_2**t`, where the same number weighs more in the first updates.
        **kwargs: Those of every Keras optimiser, without `weight_decay`.

    Raises:
        ValueError: `weight_decay` was given.
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
                "decoupled from the gradient. Give l2 for the coupled penalty, or use "
                "keras.optimizers.AdamW."
            )
        super().__init__(learning_rate, beta_1, beta_2, epsilon, **kwargs)
        self.l2 = l2

    def _step(self, m: Any, v: Any) -> Any:
        return self.adam_step(m, v, self.power(self.beta_1))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "l2": self.l2}


@keras.saving.register_keras_serializable(package="tfbig")
class DemonAdamW(MomentOptimizer):
    """AdamW whose momentum decays to 0 over a run.

        left = max(1 - t / steps, 0)
        beta_1(t) = beta_1 * left / ((1 - beta_1) + beta_1 * left)
        w = w - learning_rate * weight_decay * w
        m = beta_1(t) * m + (1 - beta_1(t)) * g
        v = beta_2 * v + (1 - beta_2) * g**2
        m_hat = m / (1 - beta_1(1) * beta_1(2) * ... * beta_1(t))
        w = w - learning_rate * m_hat / (sqrt(v / (1 - beta_2**t)) + epsilon)

    for the update t = 1, 2, ...: `beta_1(t)` is that of Chen et al., "Demon: improved neural network
    training with momentum decay" (2019; ICASSP 2022). The paper adds `g` to `m` in full, which makes
    steps longer by `1 / (1 - beta_1(t))`; here `m` stays an average, as in Adam and in Big-Layers. The
    weights of its gradients sum to one less the product of the decays so far, which `m_hat` divides
    by; the usual `1 - beta_1**t` is that product for a constant decay.

    From update `steps` on there is no momentum. `t` counts updates, not batches: with
    `gradient_accumulation_steps=n` a run of b batches has b // n. Big-Layers' runs counted batches in
    `steps` but updates in `t`, two batches each, and so ended at `t / steps == 0.5`: to repeat them
    give twice the number of updates.

    Args:
        learning_rate: Number, schedule, or function without arguments.
        steps: Updates until the momentum is 0.
        beta_1: Momentum before the first update.
        weight_decay: Decoupled decay, in units of the learning rate.
        beta_2: Decay of the average of the squared gradient.
        epsilon: Added to the root.
        **kwargs: Those of every Keras optimiser.

    Raises:
        ValueError: `steps` is not a positive integer.
    """

    def __init__(
        self,
        learning_rate: Any,
        steps: int,
        beta_1: float = 0.9,
        weight_decay: float = 1e-4,
        beta_2: float = 0.999,
        epsilon: float = 1e-8,
        **kwargs: Any,
    ) -> None:
        check_count("DemonAdamW", "steps", steps)
        kwargs["weight_decay"] = weight_decay
        super().__init__(learning_rate, beta_1, beta_2, epsilon, **kwargs)
        self.steps = steps

    def build(self, variables: Sequence[Any]) -> None:
        if self.built:
            return
        super().build(variables)
        self._product = self.add_variable((), "ones", "float64", name="beta_1_product")

    def _backend_update_step(self, *args: Any) -> None:
        """Once an update; `update_step` is called for each variable."""
        self.assign(self._product, self._product * self._beta_1("float64"))
        super()._backend_update_step(*args)

    def _beta_1(self, dtype: str) -> Any:
        left = self.beta_1 * ops.maximum(1 - self.count() / self.steps, 0)
        return ops.cast(left / (1 - self.beta_1 + left), dtype)

    def _step(self, m: Any, v: Any) -> Any:
        return self.adam_step(m, v, self._product)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "steps": self.steps}
