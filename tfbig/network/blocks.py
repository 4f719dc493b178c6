"""Reading a layer or model of one's own by calling it on symbolic tensors.

A layer whose `call` only uses Keras layers, `keras.ops` and its weights needs no rule: called on tensors without
values, it records the operations that it would compute, and these are read instead. Its own weights take part as
symbolic tensors too, so that what it computes from them is recorded and has gradients.
"""

from __future__ import annotations

import linecache
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from traceback import extract_tb
from typing import Any

import keras
import tensorflow as tf

from tfbig.errors import UnsupportedLayerError, reason_of
from tfbig.network import batches, user_code
from tfbig.network.rules.call import Slot
from tfbig.system import keras_internals

LIBRARIES = (
    Path(__file__).resolve().parents[1],
    *(Path(str(package.__file__)).resolve().parent for package in (keras, tf)),
)
"""Folders of tfbig, Keras and TensorFlow, whose lines are not those of the user."""
SIZES = ("newshape", "shape", "repeats")
"""Attributes of operations of Keras that are sizes of axes."""


@dataclass(frozen=True)
class Block:
    """The operations inside a layer or model, in the form of a functional model.

    Args:
        inputs: Keras tensors of the inputs.
        outputs: Keras tensors of the outputs.
        weights: `(Keras tensor, variable)` for each of its own weights that it uses, and `(Keras tensor, constant)` for
            each constant that a layer inside of it is called on.
        modes: Whether each call of a layer inside runs in training mode, by the `id` of the call.
    """

    inputs: list[Any]
    outputs: list[Any]
    weights: list[tuple[Any, Any]]
    modes: dict[int, bool]
    _inputs_struct: Any
    _outputs_struct: Any
    _nodes_by_depth: dict[int, list[Any]]  # the names are those of `keras.Model`


def read(layer: Any, arguments: Any, inputs: Sequence[Any], training: bool) -> Block:
    """Return the operations inside a layer or model.

    Args:
        layer: The layer, which is built.
        arguments: `(args, kwargs)` of its call, with a `Slot` for every tensor.
        inputs: Keras tensors, `inputs[i]` for `Slot(i)`, in the element type that the layer computes in.
        training: Whether the layer runs in training mode.

    Raises:
        UnsupportedLayerError: Its `call` needs values or the size of the batch, or uses other functions than those of
            Keras.
    """
    args, kwargs = keras.tree.map_structure(
        lambda a: inputs[a.position] if isinstance(a, Slot) else a, arguments
    )
    if keras_internals.takes(layer, "training"):
        kwargs = {**kwargs, "training": training}
    with (
        _symbolic_weights(layer) as weights,
        keras_internals.without_new_calls(layer) as number,
        keras_internals.in_phase(layer, training) as modes,
        keras_internals.with_symbolic_constants(layer) as constants,
        keras_internals.noting_reads(layer.variables) as read,
        batches.recorded(inputs) as made,
    ):
        try:
            outputs = layer.call(*args, **kwargs)
        except Exception as error:  # the code of the user may raise anything
            raise _unreadable(layer, error) from error
        flat = keras.tree.flatten(outputs)
        _check_outputs(layer, flat)
        _check_reads(layer, read)
        used = [
            (t, v) for t, v in (*weights, *constants, *made.constants) if keras_internals.is_used(t)
        ]
        calls = _calls_between({id(t) for t in (*inputs, *(t for t, _ in used))}, flat)
        calls = _in_order(calls, made.draws)
        _settle_sizes(layer, calls)
        of_calls = {
            id(call): modes[id(call.operation)][number(call)]
            for call in calls
            if id(call.operation) in modes
        }
    structure = inputs[0] if len(inputs) == 1 else list(inputs)
    return Block(list(inputs), flat, used, of_calls, structure, outputs, {0: calls})


def _check_outputs(layer: Any, outputs: Sequence[Any]) -> None:
    """Raise if a layer returns anything but Keras tensors.

    Raises:
        UnsupportedLayerError: It does.
    """
    if not outputs or not all(isinstance(t, keras.KerasTensor) for t in outputs):
        found = ", ".join(type(t).__name__ for t in outputs) or "nothing"
        raise UnsupportedLayerError(
            f"layer '{layer.name}' ({type(layer).__name__}) returns {found} where its inputs are symbolic; expected "
            "tensors that it computes from its inputs with Keras layers and keras.ops."
        )


def _check_reads(layer: Any, read: Sequence[Any]) -> None:
    """Raise if a layer computes with the values of its weights: they would be lost to gradients, and never change.

    Raises:
        UnsupportedLayerError: It does.
    """
    if read:
        paths = ", ".join(dict.fromkeys(f"'{variable.path}'" for variable in read))
        raise UnsupportedLayerError(
            f"layer '{layer.name}' ({type(layer).__name__}) has no rule and cannot be read by calling it on symbolic "
            f"tensors: it computes with the values of {paths} before they meet its inputs, so that they would be "
            "constants. Make them attributes of the layer itself, or add a rule with @tfbig.rule, see "
            "help(tfbig.rule)."
        )


def _settle_sizes(layer: Any, calls: Sequence[Any]) -> None:
    """Replace the size of the batch, None where a call is recorded, in the sizes that operations hold.

    A reshape finds it out as the size -1. Its own -1 then needs the sizes of the other axes.

    Raises:
        UnsupportedLayerError: An operation needs the size itself.
    """
    for call in calls:
        for name in SIZES:
            sizes = getattr(call.operation, name, None)
            if not isinstance(sizes, (list, tuple)) or None not in sizes:
                continue
            settled = None
            before = call.arguments.keras_tensors[0].shape
            if name == "newshape":
                settled = _settled(sizes, before)
            elif len(before) == len(sizes) and before[0] == 1 and None not in sizes[1:]:
                settled = (1, *sizes[1:])  # broadcast where it meets a batch
            if settled is None:
                raise UnsupportedLayerError(
                    f"layer '{layer.name}' ({type(layer).__name__}) has no rule and cannot be read by calling it on "
                    f"symbolic tensors: {type(call.operation).__name__} needs the sizes {tuple(sizes)}, of which None "
                    "is known only when the network runs. Use -1 in a reshape, or add a rule with @tfbig.rule, see "
                    "help(tfbig.rule)."
                )
            setattr(call.operation, name, settled)


def _settled(sizes: Sequence[int | None], shape: Sequence[int | None]) -> tuple[int, ...] | None:
    """Return the sizes of a reshape of one batch with -1 for the batch; None if another size is unknown too."""
    if sizes[0] is not None or None in sizes[1:]:
        return None
    others = [n for n in sizes[1:] if n is not None]
    if -1 in others:
        if None in shape[1:]:
            return None
        known = prod(n for n in others if n != -1)
        rest = prod(n for n in shape[1:] if n is not None)
        others = [rest // known if n == -1 else n for n in others]
    return (-1, *others)


def _calls_between(known: set[int], outputs: Sequence[Any]) -> list[Any]:
    """Return the calls that compute Keras tensors from those with an `id` in `known`, in topological order."""
    ordered: dict[int, Any] = {}
    waiting = [keras_internals.producer_of(t) for t in outputs if id(t) not in known]
    while waiting:
        call = waiting[-1]
        tensors = call.arguments.keras_tensors
        sources = [keras_internals.producer_of(t) for t in tensors if id(t) not in known]
        missing = [source for source in sources if id(source) not in ordered]
        if missing:
            waiting.extend(missing)
        else:
            ordered[id(waiting.pop())] = call
    return list(ordered.values())


def _in_order(calls: list[Any], drawn: Sequence[Any]) -> list[Any]:
    """Return calls with the operations that draw random numbers, which only need N, first and in their order."""
    places = {id(draw): place for place, draw in enumerate(drawn)}
    return sorted(calls, key=lambda call: places.get(id(call.operation), len(places)))


@contextmanager
def _symbolic_weights(layer: Any) -> Iterator[list[tuple[Any, Any]]]:
    """Replace the variables that are attributes of a layer by Keras tensors in a `with` block, and yield both."""
    pairs: list[tuple[Any, Any]] = []

    def symbolic(variable: Any) -> Any:
        if not isinstance(variable, keras.Variable):
            return variable
        for tensor, known in pairs:
            if known is variable:
                return tensor
        computes = layer.autocast and keras.backend.is_float_dtype(variable.dtype)
        dtype = layer.compute_dtype if computes else variable.dtype
        pairs.append((keras.KerasTensor(variable.shape, dtype, name=variable.name), variable))
        return pairs[-1][0]

    attributes = vars(layer)
    replaced = {
        name: value
        for name, value in attributes.items()
        if name not in keras_internals.LISTS_OF_VARIABLES and _holds_variables(value)
    }
    try:
        for name, value in replaced.items():
            attributes[name] = _mapped(symbolic, value)
        yield pairs
    finally:
        attributes.update(replaced)


def _holds_variables(value: Any) -> bool:
    """Return whether an attribute is a variable, or a list or dict of variables."""
    if isinstance(value, dict):
        return any(map(_holds_variables, value.values()))
    if isinstance(value, (list, tuple)):
        return any(map(_holds_variables, value))
    return isinstance(value, keras.Variable)


def _mapped(function: Any, value: Any) -> Any:
    """Return a function of each item of nested lists, tuples and dicts."""
    if isinstance(value, dict):
        return {key: _mapped(function, item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_mapped(function, item) for item in value]
    return function(value)


def _unreadable(layer: Any, error: Exception) -> UnsupportedLayerError:
    """Return the error of a layer that cannot be called on symbolic tensors, with the line that is to blame."""
    own = [
        frame
        for frame in extract_tb(error.__traceback__)
        if not any(Path(frame.filename).resolve().is_relative_to(path) for path in LIBRARIES)
    ]
    place = ""
    if own:
        last = own[-1]
        line = linecache.getline(last.filename, last.lineno or 0).strip()
        place = f", in line {last.lineno} of {last.filename}, `{line}`"
    reason = reason_of(error)
    return UnsupportedLayerError(
        f"layer '{layer.name}' ({type(layer).__name__}) has no rule and cannot be read by calling it on symbolic "
        f"tensors{place}: {reason[:300]} Use Keras layers and keras.ops only, decide by static shapes and `training` "
        "only, or add a rule with @tfbig.rule, see help(tfbig.rule)."
    )


def is_own(layer: Any) -> bool:
    """Return whether a layer or model computes what the user wrote in `call`."""
    return isinstance(layer, keras.Layer) and user_code.overridden(layer, "call") is not None
