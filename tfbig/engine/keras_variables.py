"""Between a program and Keras: variables in, updates out, seeds drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf
from keras.src.backend.common.stateless_scope import get_stateless_scope, in_stateless_scope
from tensorflow.python.eager import record

from tfbig.engine.program import Program


def call(program: Program, tensors: Sequence[tf.Tensor]) -> list[Any]:
    """Runs a program on its inputs, updates moving statistics, gives the outputs; differentiable."""
    results = program.run(
        arguments(program, tensors), weights(program), _recorded(program, tensors)
    )
    update(program, results)
    graph = program.graph
    return [
        _turned(results[v], graph.turning_back) if graph.values[v].image else results[v]
        for v in graph.outputs
    ]


def images(program: Program, tensors: Sequence[tf.Tensor]) -> dict[int, tf.Tensor]:
    """The images among the inputs, by value id, turned so that their first axis is cut."""
    given = _given(program, tensors)
    return {i: t for i, t in given.items() if program.graph.values[i].image}


def _given(program: Program, tensors: Sequence[tf.Tensor]) -> dict[int, tf.Tensor]:
    """Inputs by value id, images turned."""
    graph = program.graph
    seeds = [value for value, _ in graph.seeds]
    given = zip([i for i in graph.inputs if i not in seeds], tensors, strict=True)
    return {i: _turned(t, graph.turning) if graph.values[i].image else t for i, t in given}


def _turned(image: tf.Tensor, turning: tuple[int, ...]) -> tf.Tensor:
    return image if list(turning) == sorted(turning) else tf.transpose(image, turning)


def arguments(program: Program, tensors: Sequence[tf.Tensor]) -> dict[int, tf.Tensor]:
    """Inputs by value id, and a fresh seed for every dropout."""
    seeds = {v: tf.cast(generator.next(), tf.int64) for v, generator in program.graph.seeds}
    return _given(program, tensors) | seeds


def weights(program: Program) -> list[tf.Tensor]:
    """The values of the variables of a graph."""
    return [raw(v) for v in program.graph.weights]


def raw(variable: Any) -> tf.Tensor:
    """The value of a Keras variable in its own dtype; inside `stateless_call`, the one that is given.

    `variable.value` is cast inside the autocast scope of a mixed-precision layer, and gradients of strips would
    then add up in the narrow type.
    """
    given = get_stateless_scope().get_current_value(variable) if in_stateless_scope() else None
    return tf.convert_to_tensor(variable._value if given is None else given)


def update(program: Program, results: dict[int, Any]) -> None:
    """Assigns what a step changes besides trained weights: moving statistics."""
    for variable, value, function in program.graph.updates:
        variable.assign(function(raw(variable), results[value]))


def _recorded(program: Program, tensors: Sequence[tf.Tensor]) -> list[int]:
    """Input images that a gradient tape watches; for the others no gradient is computed."""
    pairs = zip(program.graph.inputs, tensors, strict=False)
    return [i for i, t in pairs if t.dtype.is_floating and record.should_record_backprop([t])]
