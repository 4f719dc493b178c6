"""Connects programs to Keras: reads variables, assigns updates, draws seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfbig.engine import backgrounds
from tfbig.engine.program import Program
from tfbig.geometry.background import Background
from tfbig.sources.handles import TURNED
from tfbig.system import keras_internals, tensorflow_internals


def call(program: Program, tensors: Sequence[tf.Tensor]) -> list[Any]:
    """Run a program on its inputs and update the moving statistics.

    Args:
        program: Program to run.
        tensors: Inputs of the model, tensors or string handles `[N]`.

    Returns:
        The outputs, differentiable.
    """
    results = program.run(arguments(program, tensors), weights(program), _watched(program, tensors))
    update(program, results)
    graph = program.graph
    return [
        _transposed(results[v], graph.inverse_permutation) if graph.values[v].image else results[v]
        for v in graph.outputs
    ]


def image_shapes(program: Program, shapes: Sequence[tuple[int, ...]]) -> dict[int, tuple[int, ...]]:
    """Return the shapes of the images among the inputs by value id, their first axis the one that is cut into strips.

    Args:
        program: Program to run.
        shapes: Shape `(N, ..., C)` of each input.
    """
    graph = program.graph
    inputs = zip(_data_inputs(program), shapes, strict=True)
    return {
        i: tuple(shape[axis] for axis in graph.permutation)
        for i, shape in inputs
        if graph.values[i].image
    }


def backgrounds_of(program: Program, tensors: Sequence[tf.Tensor]) -> dict[int, Background]:
    """Return the background of the images among the inputs that have one, by value id.

    Args:
        program: Program to run.
        tensors: Eager inputs: tensors, or string handles `[N]`.
    """
    return backgrounds.expected(_images(program, tensors))


def runs_plain(program: Program, tensors: Sequence[tf.Tensor]) -> bool:
    """Return whether the plain model is to run instead of a program, because it fits.

    Args:
        program: The program.
        tensors: Inputs of the model, tensors or string handles `[N]`.
    """
    return program.layouts.is_plain(_images(program, tensors))


def _images(program: Program, tensors: Sequence[tf.Tensor]) -> dict[int, tf.Tensor]:
    """Return the images among the inputs by value id."""
    pairs = _inputs(program, tensors).items()
    return {i: t for i, t in pairs if program.graph.values[i].image}


def _data_inputs(program: Program) -> list[int]:
    """Return the inputs that come from data: all but seeds."""
    seeds = [value for value, _ in program.graph.seeds]
    return [i for i in program.graph.inputs if i not in seeds]


def _inputs(program: Program, tensors: Sequence[tf.Tensor]) -> dict[int, tf.Tensor]:
    """Return inputs by value id, images transposed."""
    graph = program.graph
    pairs = zip(_data_inputs(program), tensors, strict=True)
    return {i: _transposed(t, graph.permutation) if graph.values[i].image else t for i, t in pairs}


def _transposed(image: tf.Tensor, axes: tuple[int, ...]) -> tf.Tensor:
    """Return an image, or the handles of images, with the axes in another order."""
    if list(axes) == sorted(axes):
        return image
    if image.dtype == tf.string:
        order = "".join(str(axis - 1) for axis in axes[1:-1])
        return tf.strings.join([image, f"{TURNED}{order}"])
    return tf.transpose(image, axes)


def arguments(program: Program, tensors: Sequence[tf.Tensor]) -> dict[int, tf.Tensor]:
    """Return inputs by value id, and a new seed for every dropout layer."""
    seeds = {v: tf.cast(generator.next(), tf.int64) for v, generator in program.graph.seeds}
    return _inputs(program, tensors) | seeds


def weights(program: Program) -> list[tf.Tensor]:
    """Return the values of the variables of a graph."""
    return [raw(v) for v in program.graph.weights]


def raw(variable: Any) -> tf.Tensor:
    """Return the value of a Keras variable in the dtype of the variable.

    Inside `stateless_call` it is the value that was passed for the variable. `variable.value` would be cast inside the
    autocast scope of a mixed-precision layer, and gradients of strips would then add up in the narrow type.
    """
    value = None
    if keras_internals.in_stateless_scope():
        value = keras_internals.get_stateless_scope().get_current_value(variable)
    return tf.convert_to_tensor(keras_internals.tensor_of(variable) if value is None else value)


def update(program: Program, results: dict[int, Any]) -> None:
    """Assign the moving statistics that a step changes.

    Args:
        program: Program that ran.
        results: Its results by value id.
    """
    for variable, value, function in program.graph.updates:
        variable.assign(function(raw(variable), results[value]))


def _watched(program: Program, tensors: Sequence[tf.Tensor]) -> list[int]:
    """Return the input images that a gradient tape watches; no gradient is computed for the others."""
    pairs = zip(program.graph.inputs, tensors, strict=False)
    return [i for i, t in pairs if t.dtype.is_floating and tensorflow_internals.is_watched(t)]
