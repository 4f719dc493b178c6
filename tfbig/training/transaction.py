"""A step of training that is made wholly or not at all."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfbig.system import keras_internals
from tfbig.training.replicas import Replicas
from tfbig.training.single_process import Single


class Transaction:
    """Changes of a step, which an error undoes until they are committed.

        with transaction as changes:
            changes.begin()
            ...  # an error restores seeds, moving statistics, metrics and accumulated gradients
            changes.commit()
            ...  # an error leaves the model between two steps

    Nothing is copied until a variable changes. Under a tf.distribute strategy the values of each replica of this
    process are saved: reading the variable itself would sum a metric over replicas.

    Attributes:
        is_consistent: Whether the model is as before or after a step. If not, no checkpoint of it is written.
    """

    def __init__(self, model: keras.Model, worker: Single | Replicas) -> None:
        self.model, self.worker = model, worker
        self.is_consistent = True
        self._saved: tuple[list[tuple[Any, tf.Tensor]], Any] | None = None

    def begin(self) -> None:
        """Save what a step changes before the update of the weights."""
        trainable = {id(v) for v in self.model.trainable_variables}
        variables = (*self.model.variables, *self.model.metrics_variables)
        others = [v for v in variables if id(v) not in trainable]
        pairs = [(v, tf.convert_to_tensor(v)) for v in keras_internals.local_tensors_of(others)]
        self._saved = pairs, self.worker.accumulated

    def undo(self) -> None:
        """Restore what was saved, if anything."""
        if self._saved is not None:
            pairs, self.worker.accumulated = self._saved
            for variable, value in pairs:
                variable.assign(value)

    def commit(self) -> None:
        """Accept the changes; those that follow cannot be undone."""
        self._saved, self.is_consistent = None, False

    def __enter__(self) -> Transaction:
        """Start with nothing saved."""
        self._saved = None
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        """Undo the changes after an error."""
        if error is None:
            self.is_consistent = True
        else:
            self.undo()
        self._saved = None
