"""Conversion of everything that training changes to named arrays and plain values, and back."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import keras
import numpy as np
import tensorflow as tf

from tfbig.system import keras_internals
from tfbig.training.checkpoint_files import Arrays, Checkpoint, Refused
from tfbig.training.gradient_sums import Sums

METRIC, SUM = "metric ", "sum "
"""Prefixes of array names that do not belong to the model or the optimizer."""


def variables_of(model: keras.Model) -> dict[str, Any]:
    """Return the variables of the model, with seeds and moving statistics, and of its optimizer.

    Names start with a number, because a layer may have another name in another process. The optimizer must be built.
    """
    metrics = {id(v) for v in model.metrics_variables}
    listed = [*model.variables, *model.optimizer.variables]
    unique = {id(v): v for v in listed if id(v) not in metrics}
    return _numbered(unique.values())


def metrics_of(model: keras.Model) -> dict[str, Any]:
    """Return the metric variables that exist so far."""
    return _numbered(model.metrics_variables, METRIC)


def others_of(model: keras.Model) -> list[Any]:
    """Return the variables that a batch changes before the update: moving statistics, seeds, metrics."""
    trainable = {id(v) for v in model.trainable_variables}
    return [v for v in (*model.variables, *model.metrics_variables) if id(v) not in trainable]


def sums_of(sums: Sums) -> dict[str, Any]:
    """Return accumulated gradients, named by the number of their variable."""
    return {f"{SUM}{i:05d}": gradient for i, gradient in enumerate(sums.gradients)}


def sums_from(arrays: Arrays, batches: int, items: int, variables: int) -> Sums:
    """Return the accumulated gradients that `sums_of` named.

    Args:
        arrays: Arrays of a checkpoint.
        batches: Number of batches.
        items: Number of items of all batches.
        variables: Number of trainable variables.

    Returns:
        The sums.
    """
    if not batches:
        return Sums()
    gradients = [arrays.get(f"{SUM}{i:05d}") for i in range(variables)]
    return Sums([None if g is None else tf.constant(g) for g in gradients], batches, items)


def to_arrays(named: Mapping[str, Any]) -> Arrays:
    """Return the values of variables or tensors; bfloat16, which NumPy lacks, as uint16 bits."""
    return {name: _bits(np.asarray(_tensor(v))) for name, v in named.items() if v is not None}


def check(named: Mapping[str, Any], checkpoint: Checkpoint) -> None:
    """Check that a checkpoint has the variables of this model.

    Args:
        named: Variables from `variables_of`.
        checkpoint: Checkpoint to check.

    Raises:
        Refused: The number of variables, a shape or a dtype differs.
    """
    stored = [name for name in checkpoint.arrays if not name.startswith((METRIC, SUM))]
    if len(stored) != len(named):
        raise Refused(f"has {len(stored)} variables; the model and its optimizer have {len(named)}")
    for name, other in zip(named, stored, strict=True):
        expected, array = _bits(np.asarray(_tensor(named[name]))), checkpoint.arrays[other]
        if (array.shape, array.dtype) != (expected.shape, expected.dtype):
            raise Refused(
                f"'{other}' is {array.shape} {array.dtype}; in the model '{name}' is {expected.shape} {expected.dtype}"
            )


def assign(named: Mapping[str, Any], values: Iterable[np.ndarray]) -> None:
    """Assign values from `to_arrays` to variables, in the same order."""
    for variable, array in zip(named.values(), values, strict=True):
        variable.assign(_value(array, variable.dtype))


def assign_sums(named: Mapping[str, Any], values: Iterable[np.ndarray], first: bool) -> None:
    """Assign values from `to_arrays` that are sums over replicas to the first replica, and 0 to the others.

    Assigning them to the variables of all replicas would divide them by the number of replicas, and round integers
    down. Variables that are not summed get the value in all replicas.

    Args:
        named: Variables of metrics.
        values: Their values, in the same order.
        first: Whether the first replica is one of this process.
    """
    for variable, array in zip(named.values(), values, strict=True):
        value = _value(array, variable.dtype)
        for number, part in enumerate(keras_internals.local_tensors_of([variable])):
            is_other = variable.aggregation == "sum" and not (first and number == 0)
            part.assign(tf.zeros_like(value) if is_other else value)


def _value(array: np.ndarray, dtype: Any) -> Any:
    """Return the value of a variable from that of `to_arrays`."""
    return tf.bitcast(array, tf.bfloat16) if tf.as_dtype(dtype) == tf.bfloat16 else array


class Undo:
    """Saved values of variables, to restore them later; nothing is copied until a variable changes.

    Under a tf.distribute strategy these are the values of each replica of this process: reading the variable itself
    would sum a metric over replicas.
    """

    def __init__(self) -> None:
        self._pairs: list[tuple[Any, tf.Tensor]] = []

    def save(self, variables: Sequence[Any]) -> None:
        """Save the current values of `variables`."""
        local = keras_internals.local_tensors_of(variables)
        self._pairs = [(v, tf.convert_to_tensor(v)) for v in local]

    def restore(self) -> None:
        """Restore the saved values, if any."""
        for variable, value in self._pairs:
            variable.assign(value)


def generators() -> dict[str, Any]:
    """Return the states of the random generators of Python and NumPy."""
    version, numbers, gauss = random.getstate()
    legacy = np.random.get_state(legacy=False)  # noqa: NPY002
    state = legacy | {"state": {k: np.asarray(v).tolist() for k, v in legacy["state"].items()}}
    return {"python": [version, list(numbers), gauss], "numpy": state}


def set_generators(states: Mapping[str, Any]) -> None:
    """Restore the random generators to saved states."""
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers), gauss))
    np.random.set_state(states["numpy"])  # noqa: NPY002


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


def resumable(callbacks: Iterable[Any]) -> dict[str, Resumable]:
    """Return the callbacks with state, by the name of their class.

    Raises:
        ValueError: Two of them are of the same class.
    """
    selected = [c for c in callbacks if isinstance(c, Resumable)]
    named = {type(c).__name__: c for c in selected}
    if len(named) < len(selected):
        names = [type(c).__name__ for c in selected]
        raise ValueError(f"callbacks {names}: expected at most one of each class.")
    return named


def _numbered(variables: Iterable[Any], kind: str = "") -> dict[str, Any]:
    return {f"{kind}{i:05d} {v.path}": v for i, v in enumerate(variables)}


def _tensor(value: Any) -> Any:
    return keras_internals.tensor_of(value) if isinstance(value, keras.Variable) else value


def _bits(array: np.ndarray) -> np.ndarray:
    return array.view(np.uint16) if array.dtype == tf.bfloat16.as_numpy_dtype else array
