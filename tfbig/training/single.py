"""One process on one device, or on those that its model names: what computes gradients, steps and tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfbig import failures, halves, steps


class Single:
    """Runs the halves of training steps.

    Args:
        model: compiled.

    Attributes:
        chief: whether it is the one that writes files.
        splits: whether its steps have halves; else the optimizer steps inside (PatchGD with `accumulate`).
    """

    chief = True

    def __init__(self, model: keras.Model) -> None:
        self.model = model
        self.splits = getattr(model, "accumulate", None) is None
        self._first = _traced(model, halves.first(model) if self.splits else model.train_step)
        self._test = _traced(model, model.test_step)
        self._apply: Any = None
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)

    def ready(self, batch: Any, specs: Any) -> Callable[[], tuple[list[Any], dict[str, Any]]]:
        """The first half of a step on a batch, traced; it gives gradients and logs."""
        run = self._first.ready(batch, specs)
        return failures.unwrapped(run) if self.splits else lambda: ([], failures.unwrapped(run)())

    def apply(self, gradients: Sequence[Any]) -> None:
        """The second half: one step of the optimizer."""
        if not self.splits:
            return
        if self._apply is None:
            self._apply = tf.function(self._stepped, autograph=False)
        self._apply(gradients)

    def test(self, batch: Any, specs: Any) -> dict[str, Any]:
        """Adds a batch to the metrics; gives the logs so far."""
        return failures.unwrapped(self._test.ready(batch, specs))()

    def results(self, logs: dict[str, Any]) -> dict[str, float]:
        """Metrics over everything since they were reset."""
        return {name: float(value) for name, value in logs.items()}

    def _stepped(self, gradients: Sequence[Any]) -> None:
        pairs = zip(gradients, self.model.trainable_variables, strict=True)
        self.model.optimizer.apply_gradients(pairs)


def _traced(model: keras.Model, step: Callable[[Any], Any]) -> steps.Traced:
    own = getattr(model, "traced", None)
    return steps.Traced(step, jit_compile=model.jit_compile) if own is None else own(step)
