"""Everything that training changes, as named arrays and plain values, and back again."""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import keras
import numpy as np
import tensorflow as tf

from tfbig.training.checkpoint_files import Arrays, Checkpoint, Refused
from tfbig.training.gradient_sums import Sums

METRIC, SUM = "metric ", "sum "
"""How names of arrays begin that are no part of model or optimizer."""


def variables_of(model: keras.Model) -> dict[str, Any]:
    """Variables of the model (seeds and moving statistics among them) and of its optimizer, which has been built.

    Names begin with their number: a layer may be called otherwise in another process.
    """
    metrics = {id(v) for v in model.metrics_variables}
    listed = [*model.variables, *model.optimizer.variables]
    found = {id(v): v for v in listed if id(v) not in metrics}
    return _numbered(found.values())


def metrics_of(model: keras.Model) -> dict[str, Any]:
    """Variables of its metrics, those that there are before the first step."""
    return _numbered(model.metrics_variables, METRIC)


def others_of(model: keras.Model) -> list[Any]:
    """What a batch changes before the optimizer steps: moving statistics, seeds, metrics."""
    learned = {id(v) for v in model.trainable_variables}
    return [v for v in (*model.variables, *model.metrics_variables) if id(v) not in learned]


def sums_of(sums: Sums) -> dict[str, Any]:
    """Gradients that are added up, by the number of their variable."""
    return {f"{SUM}{i:05d}": gradient for i, gradient in enumerate(sums.gradients)}


def kept_sums(found: Arrays, batches: int, items: int, variables: int) -> Sums:
    """What `sums_of` named, of so many variables."""
    if not batches:
        return Sums()
    kept = [found.get(f"{SUM}{i:05d}") for i in range(variables)]
    return Sums([None if g is None else tf.constant(g) for g in kept], batches, items)


def arrays(named: Mapping[str, Any]) -> Arrays:
    """The values of variables, or of tensors; NumPy has no bfloat16, which goes as bits."""
    return {name: _bits(np.asarray(_tensor(v))) for name, v in named.items() if v is not None}


def check(named: Mapping[str, Any], found: Checkpoint) -> None:
    """Whether a checkpoint has the variables of this model.

    Raises:
        Refused: one is missing, or of another shape or element type.
    """
    kept = [name for name in found.arrays if not name.startswith((METRIC, SUM))]
    if len(kept) != len(named):
        raise Refused(f"has {len(kept)} variables, the model and its optimizer have {len(named)}")
    for own, other in zip(named, kept, strict=True):
        expected, array = _bits(np.asarray(_tensor(named[own]))), found.arrays[other]
        if (array.shape, array.dtype) != (expected.shape, expected.dtype):
            raise Refused(
                f"'{other}' is {array.shape} {array.dtype}, in the model '{own}' is {expected.shape} {expected.dtype}"
            )


def assign(named: Mapping[str, Any], values: Iterable[np.ndarray]) -> None:
    """Gives variables the values that `arrays` gave, in the same order."""
    for variable, array in zip(named.values(), values, strict=True):
        dtype = tf.as_dtype(variable.dtype)
        variable.assign(tf.bitcast(array, dtype) if dtype == tf.bfloat16 else array)


class Undo:
    """The values that variables had, to be given back; nothing is copied until a variable changes.

    Under a strategy of tf.distribute, those of each replica of this process: the sum of a metric would be exchanged.
    """

    def __init__(self) -> None:
        self._pairs: list[tuple[Any, tf.Tensor]] = []

    def keep(self, variables: Sequence[Any]) -> None:
        """The values that they have now."""
        own = [part for v in variables for part in getattr(v._value, "values", (v._value,))]
        self._pairs = [(v, tf.convert_to_tensor(v)) for v in own]

    def restore(self) -> None:
        """Gives them back; does nothing where none are kept."""
        for variable, value in self._pairs:
            variable.assign(value)


def generators() -> dict[str, Any]:
    """Where the generators of random numbers of Python and NumPy are."""
    version, numbers, gauss = random.getstate()
    legacy = np.random.get_state(legacy=False)  # noqa: NPY002
    kept = legacy | {"state": {k: np.asarray(v).tolist() for k, v in legacy["state"].items()}}
    return {"python": [version, list(numbers), gauss], "numpy": kept}


def set_generators(found: Mapping[str, Any]) -> None:
    """Has them go on from there."""
    version, numbers, gauss = found["python"]
    random.setstate((version, tuple(numbers), gauss))
    np.random.set_state(found["numpy"])  # noqa: NPY002


def digest(*parts: Any) -> str:
    """By which the same texts and numbers are known again."""
    return f"{zlib.crc32(json.dumps(parts, default=str).encode()):08x}"


@runtime_checkable
class Remembering(Protocol):
    """A callback that goes on where it was."""

    def remembered(self) -> Any:
        """What a checkpoint keeps, as JSON can hold it."""

    def remember(self, found: Any) -> None:
        """Goes on from there."""

    def written(self) -> None:
        """A checkpoint has been written."""


def remembering(callbacks: Iterable[Any]) -> dict[str, Remembering]:
    """Callbacks that remember something, by the name of their class.

    Raises:
        ValueError: there are two of a kind.
    """
    found = [c for c in callbacks if isinstance(c, Remembering)]
    named = {type(c).__name__: c for c in found}
    if len(named) < len(found):
        raise ValueError(f"callbacks {[type(c).__name__ for c in found]}: expected one of a kind.")
    return named


def _numbered(variables: Iterable[Any], kind: str = "") -> dict[str, Any]:
    return {f"{kind}{i:05d} {v.path}": v for i, v in enumerate(variables)}


def _tensor(value: Any) -> Any:
    return value._value if hasattr(value, "_value") else value


def _bits(array: np.ndarray) -> np.ndarray:
    return array.view(np.uint16) if array.dtype == tf.bfloat16.as_numpy_dtype else array
