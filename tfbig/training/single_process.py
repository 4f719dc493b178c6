"""One process on one device, or on those that its model names: what computes gradients, steps and tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfbig.engine import traced_steps
from tfbig.streaming import gradient_step
from tfbig.system import replication, tf_errors
from tfbig.training.gradient_sums import Sums

Gradients = Sequence[Any]
Batches = Sequence[Any]


def traced(model: keras.Model, step: Callable[[Any], Any]) -> traced_steps.Traced:
    """A step of a model, as it has its steps traced."""
    own = getattr(model, "traced", None)
    return traced_steps.Traced(step, jit_compile=model.jit_compile) if own is None else own(step)


class Single:
    """The only worker, with one replica of the model.

    Args:
        model: compiled.

    Attributes:
        alone: whether there is no other process.
        chief: whether it is the worker that reads and writes files.
        replicas: of the model, on all workers.
        own: those of this worker.
        splits: whether its steps have halves; else the optimizer steps inside (PatchGD with `accumulate`).
    """

    alone = chief = True
    replicas = 1
    own = range(1)

    def __init__(self, model: keras.Model) -> None:
        replication.check()
        self.model = model
        self.splits = getattr(model, "accumulate", None) is None
        self._first = traced(model, gradient_step.first(model) if self.splits else model.train_step)
        self._test = traced(model, model.test_step)
        self._apply: Any = None
        self._sums = Sums()
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)

    def ready(self, batches: Batches, specs: Any) -> Callable[[], dict[str, Any]]:
        """The first half of a step on the batches of a round, traced; it adds to the gradients and gives logs."""
        (batch,) = batches
        run = tf_errors.unwrapped(self._first.ready(batch, specs))

        def half() -> dict[str, Any]:
            if not self.splits:
                return run()
            gradients, logs = run()
            self._found = self._sums.with_more(gradients, items(batch))
            return logs

        return half

    def nothing(self) -> None:
        """The round gave nothing."""
        self._found = self._sums

    def keep(self) -> None:
        """What the last round found counts."""
        if self.splits:
            self._sums = self._found

    def apply(self) -> None:
        """The second half: a step of the optimizer by the mean of what was added up."""
        if not self.splits:
            return
        if self._apply is None:
            self._apply = tf.function(self._stepped, autograph=False)
        self._apply(self._sums.means())
        self._sums = Sums()

    def finalize(self) -> None:
        """Weights become those that training ends with, such as averages (`use_ema` of an optimizer)."""
        self.model.optimizer.finalize_variable_values(self.model.trainable_variables)

    def test(self, batches: Batches, specs: Any) -> Callable[[], dict[str, Any]]:
        """What adds batches to the metrics, traced; it gives the logs so far."""
        (batch,) = batches
        return tf_errors.unwrapped(self._test.ready(batch, specs))

    def results(self) -> dict[str, float]:
        """Metrics over everything since they were reset."""
        return as_numbers(self.model.get_metrics_result())

    def values(self, variables: dict[str, Any]) -> dict[str, Any]:
        """Of metrics: what all replicas together have counted."""
        return dict(variables)

    def agree(self, *flags: bool) -> tuple[bool, ...]:
        """Each flag: whether any worker has it."""
        return flags

    def shared(self, text: str, arrays: dict[str, np.ndarray]) -> tuple[str, dict[str, np.ndarray]]:
        """What the chief has."""
        return text, arrays

    def sums(self) -> Sums:
        """Gradients that were added up by all replicas."""
        return self._sums

    def set_sums(self, sums: Sums) -> None:
        self._sums = sums

    def _stepped(self, gradients: Gradients) -> None:
        pairs = zip(gradients, self.model.trainable_variables, strict=True)
        self.model.optimizer.apply_gradients(pairs)


def items(batch: Any) -> int:
    """How many there are in a batch."""
    return int(next(t for t in keras.tree.flatten(batch) if t is not None).shape[0])


def as_numbers(logs: dict[str, Any]) -> dict[str, float]:
    """Logs, flat, as `fit` gives them to callbacks."""
    found: dict[str, float] = {}
    for name, value in logs.items():
        found |= as_numbers(value) if isinstance(value, dict) else {name: float(value)}
    return found
