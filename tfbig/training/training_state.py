"""Parts of what training changes, each converted to named arrays and plain values, and back."""

from __future__ import annotations

import json
import random
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import keras
import numpy as np
import tensorflow as tf

from tfbig.system import keras_internals
from tfbig.training.checkpoint_files import Arrays, Checkpoint, Refused
from tfbig.training.gradient_sums import Sums
from tfbig.training.replicas import Replicas
from tfbig.training.single_process import Single

METRIC, SUM = "metric ", "sum "
"""Prefixes of array names that do not belong to the model or the optimizer."""


class State(Protocol):
    """Part of what training changes, as checkpoints store it."""

    def state(self) -> tuple[Mapping[str, Any], Any]:
        """Return variables or tensors by name, and values that JSON can represent; all workers call this together."""

    def set_state(self, arrays: Arrays, values: Any) -> None:
        """Restore the state from all arrays of a checkpoint, and its values."""


class Variables:
    """Variables of the model, with seeds and moving statistics, and of its optimizer, which must be built.

    Names start with a number, because a layer may have another name in another process.
    """

    def __init__(self, model: keras.Model) -> None:
        self.model = model

    def state(self) -> tuple[dict[str, Any], None]:
        """Return the variables."""
        metrics = {id(v) for v in self.model.metrics_variables}
        listed = [*self.model.variables, *self.model.optimizer.variables]
        return _numbered({id(v): v for v in listed if id(v) not in metrics}.values()), None

    def set_state(self, arrays: Arrays, values: None) -> None:
        """Assign the values of a checkpoint, in the same order."""
        own, _ = self.state()
        for variable, array in zip(own.values(), _of_kind("", arrays).values(), strict=True):
            variable.assign(_value(array, variable.dtype))

    def check(self, checkpoint: Checkpoint) -> None:
        """Check that a checkpoint has the variables of this model.

        Raises:
            Refused: The number of variables, a shape or a dtype differs.
        """
        (own, _), stored = self.state(), _of_kind("", checkpoint.arrays)
        if len(stored) != len(own):
            raise Refused(
                f"has {len(stored)} variables; the model and its optimizer have {len(own)}"
            )
        for (name, variable), (other, array) in zip(own.items(), stored.items(), strict=True):
            expected = _bits(np.asarray(_tensor(variable)))
            if (array.shape, array.dtype) != (expected.shape, expected.dtype):
                raise Refused(
                    f"'{other}' is {array.shape} {array.dtype}; in the model '{name}' is {expected.shape} "
                    f"{expected.dtype}"
                )


class Metrics:
    """Metrics of the epoch, whose variables are created by the first batch; restored values wait for it."""

    def __init__(self, model: keras.Model, worker: Single | Replicas) -> None:
        self.model, self.worker = model, worker
        self._waiting: list[np.ndarray] = []

    def state(self) -> tuple[dict[str, Any], None]:
        """Return the variables that exist so far, aggregated over all replicas."""
        return self.worker.metric_values(_numbered(self.model.metrics_variables, METRIC)), None

    def set_state(self, arrays: Arrays, values: None) -> None:
        """Keep the values of a checkpoint for `assign`."""
        self._waiting = list(_of_kind(METRIC, arrays).values())

    def assign(self, in_epoch: bool) -> None:
        """Assign restored values once; within an epoch only, whose metrics they are.

        Values that are sums over replicas are assigned to the first replica, and 0 to the others: assigning them to
        the variables of all replicas would divide them by the number of replicas, and round integers down.
        """
        waiting, self._waiting = self._waiting, []
        if not (waiting and in_epoch):
            return
        for variable, array in zip(self.model.metrics_variables, waiting, strict=True):
            value = _value(array, variable.dtype)
            for number, part in enumerate(keras_internals.local_tensors_of([variable])):
                is_first = self.worker.collective.chief and number == 0
                is_other = variable.aggregation == "sum" and not is_first
                part.assign(tf.zeros_like(value) if is_other else value)


class Gradients:
    """Gradients since the last update of the weights, named by the number of their variable."""

    def __init__(self, model: keras.Model, worker: Single | Replicas) -> None:
        self.model, self.worker = model, worker

    def state(self) -> tuple[dict[str, Any], list[int]]:
        """Return the sums of all replicas, and the numbers of their batches and items."""
        sums = self.worker.sums()
        named = {f"{SUM}{i:05d}": gradient for i, gradient in enumerate(sums.gradients)}
        return named, [sums.batches, sums.items]

    def set_state(self, arrays: Arrays, values: Sequence[int]) -> None:
        """Restore the sums."""
        batches, items = values
        count = len(self.model.trainable_variables) if batches else 0
        stored = [arrays.get(f"{SUM}{i:05d}") for i in range(count)]
        gradients = [None if g is None else tf.constant(g) for g in stored]
        self.worker.set_sums(Sums(gradients, batches, items) if batches else Sums())


def to_arrays(named: Mapping[str, Any]) -> Arrays:
    """Return the values of variables or tensors; bfloat16, which NumPy lacks, as uint16 bits."""
    return {name: _bits(np.asarray(_tensor(v))) for name, v in named.items() if v is not None}


def _value(array: np.ndarray, dtype: Any) -> Any:
    """Return the value of a variable from that of `to_arrays`."""
    return tf.bitcast(array, tf.bfloat16) if tf.as_dtype(dtype) == tf.bfloat16 else array


class Generators:
    """Random generators of Python and NumPy."""

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the states of the generators."""
        version, numbers, gauss = random.getstate()
        legacy = np.random.get_state(legacy=False)  # noqa: NPY002
        state = legacy | {"state": {k: np.asarray(v).tolist() for k, v in legacy["state"].items()}}
        return {}, {"python": [version, list(numbers), gauss], "numpy": state}

    def set_state(self, arrays: Arrays, values: Mapping[str, Any]) -> None:
        """Restore the generators to saved states."""
        version, numbers, gauss = values["python"]
        random.setstate((version, tuple(numbers), gauss))
        np.random.set_state(values["numpy"])  # noqa: NPY002


def digest(*parts: Any) -> str:
    """Return a checksum that is equal for equal texts and numbers."""
    return f"{zlib.crc32(json.dumps(parts, default=str).encode()):08x}"


@runtime_checkable
class Resumable(Protocol):
    """Protocol of a callback with state in checkpoints."""

    def checkpoint_state(self) -> Any:
        """Return the state to store in a checkpoint, as JSON can represent it."""

    def restore_state(self, state: Any) -> None:
        """Restore the state of a checkpoint."""

    def checkpoint_written(self) -> None:
        """React to a new checkpoint."""


class Callbacks:
    """Callbacks with state, by the name of their class. The chief saves them, and all workers restore them.

    Raises:
        ValueError: Two callbacks with state are of the same class.
    """

    def __init__(self, callbacks: Iterable[Any], chief: bool) -> None:
        selected = [c for c in callbacks if isinstance(c, Resumable)]
        self.named = {type(c).__name__: c for c in selected}
        if len(self.named) < len(selected):
            names = [type(c).__name__ for c in selected]
            raise ValueError(f"callbacks {names}: expected at most one of each class.")
        self.chief = chief

    def state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the states of the callbacks, on the chief."""
        return {}, {n: c.checkpoint_state() for n, c in self.named.items() if self.chief}

    def set_state(self, arrays: Arrays, values: Mapping[str, Any]) -> None:
        """Restore the callbacks; the state of a callback that is not there is left out."""
        for name, state in values.items():
            if name in self.named:
                self.named[name].restore_state(state)

    def checkpoint_written(self) -> None:
        """Tell the callbacks of a new checkpoint."""
        for callback in self.named.values():
            callback.checkpoint_written()


def _numbered(variables: Iterable[Any], kind: str = "") -> dict[str, Any]:
    return {f"{kind}{i:05d} {v.path}": v for i, v in enumerate(variables)}


def _of_kind(kind: str, arrays: Arrays) -> dict[str, np.ndarray]:
    """Return the arrays whose names are a prefix and a number."""
    return {name: a for name, a in arrays.items() if re.match(rf"{kind}\d", name)}


def _tensor(value: Any) -> Any:
    return keras_internals.tensor_of(value) if isinstance(value, keras.Variable) else value


def _bits(array: np.ndarray) -> np.ndarray:
    return array.view(np.uint16) if array.dtype == tf.bfloat16.as_numpy_dtype else array
