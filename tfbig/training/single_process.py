"""Training and test steps in one process, on one device or on the devices of the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfbig.engine import traced_steps
from tfbig.streaming import gradient_step
from tfbig.system import replication, tf_errors
from tfbig.training.collective import Alone, Collective
from tfbig.training.gradient_sums import Sums

Gradients = Sequence[Any]
Batches = Sequence[Any]
SecondPass = Callable[[], Callable[[], dict[str, Any]]]


def traced(model: keras.Model, step: Callable[[Any], Any]) -> traced_steps.Traced:
    """Trace a step of a model with the method `traced` of the model, if it has one."""
    trace = getattr(model, "traced", None)
    if trace is None:
        return traced_steps.Traced(step, jit_compile=model.jit_compile)
    return trace(step)


class Single:
    """The only worker, with one replica of the model.

    A training step has two phases: `prepare` returns the function that computes gradients and adds them to those that
    are accumulated, and `apply` updates the weights.

    Args:
        model: Compiled model.

    Attributes:
        accumulated: Gradients since the last update of the weights; replaced, never changed in place.
        collective: Exchange with other workers.
        replicas: Number of replicas of all workers.
        local_replicas: Indices of the replicas of this worker.
        two_phase: Whether gradients and updates are separate; if not, the optimizer updates the weights inside the
            training step (PatchGD with `accumulate`).
        prepare_second_pass: Function that is called after all workers have run the function that `prepare` returned.
            It returns the function that computes gradients, whose logs are empty if the batch is skipped. By default,
            the function that `prepare` returned computes gradients.
    """

    collective: Alone | Collective = Alone()
    replicas = 1
    local_replicas = range(1)
    prepare_second_pass: SecondPass | None = None

    def __init__(self, model: keras.Model) -> None:
        replication.check()
        self.model = model
        self.two_phase = getattr(model, "accumulate", None) is None
        self._first = traced(
            model, gradient_step.gradient_function(model) if self.two_phase else model.train_step
        )
        self._test = traced(model, model.test_step)
        self._apply: Any = None
        self.accumulated = Sums()
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)

    def reset(self, steps: int) -> None:
        """Reset the metrics.

        Args:
            steps: Number of batches of the pass over the data that begins.
        """
        self.model.reset_metrics()

    def prepare(self, batches: Batches, specs: Any) -> Callable[[], dict[str, Any]]:
        """Return the traced first phase of a step, which computes gradients and returns logs."""
        (batch,) = batches
        run = tf_errors.unwrapped(self._first.ready(batch, specs))

        def first_phase() -> dict[str, Any]:
            if not self.two_phase:
                return run()
            gradients, logs = run()
            self.accumulated = self.accumulated.with_more(gradients, items(batch))
            return logs

        return first_phase

    def apply(self) -> None:
        """Update the weights with the mean of the accumulated gradients, and reset the sum."""
        if not self.two_phase:
            return
        if self._apply is None:
            self._apply = tf.function(self._apply_gradients, autograph=False)
        self._apply(self.accumulated.means())
        self.accumulated = Sums()

    def finalize(self) -> None:
        """Set the final weights, such as the averages of an optimizer with `use_ema`."""
        self.model.optimizer.finalize_variable_values(self.model.trainable_variables)

    def prepare_test(self, batches: Batches, specs: Any, step: int) -> Callable[[], dict[str, Any]]:
        """Return the traced test step, which updates the metrics and returns logs.

        Args:
            batches: Batches of the round.
            specs: Element spec of their dataset.
            step: Number of the first batch of the round.
        """
        (batch,) = batches
        return tf_errors.unwrapped(self._test.ready(batch, specs))

    def results(self) -> dict[str, float]:
        """Return the metrics since they were reset."""
        return as_numbers(self.model.get_metrics_result())

    def metric_values(self, variables: dict[str, Any]) -> dict[str, Any]:
        """Return the values of metric variables, aggregated over all replicas."""
        return dict(variables)

    def sums(self) -> Sums:
        """Return the accumulated gradients of all replicas."""
        return self.accumulated

    def set_sums(self, sums: Sums) -> None:
        """Set the accumulated gradients."""
        self.accumulated = sums

    def _apply_gradients(self, gradients: Gradients) -> None:
        gradient_step.apply_gradients(self.model, gradients)


def items(batch: Any) -> int:
    """Return the number of items in a batch."""
    return int(next(t for t in keras.tree.flatten(batch) if t is not None).shape[0])


def as_numbers(logs: dict[str, Any]) -> dict[str, float]:
    """Flatten logs to numbers, as `fit` passes them to callbacks."""
    flat: dict[str, float] = {}
    for name, value in logs.items():
        flat |= as_numbers(value) if isinstance(value, dict) else {name: float(value)}
    return flat
