"""Gradients of nested structures that may contain integer tensors."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import tensorflow as tf

Structure = Any


def is_float(t: tf.Tensor) -> bool:
    """Return whether gradients flow through a tensor."""
    return t.dtype.is_floating


def floats(structure: Structure) -> list[tf.Tensor]:
    """Return the tensors of a structure that a tape can watch."""
    return [t for t in tf.nest.flatten(structure) if is_float(t)]


def zeros(t: tf.Tensor) -> tf.Tensor:
    """Return a gradient of zero: zeros shaped like the tensor, or a scalar zero for an integer tensor."""
    return tf.zeros_like(t) if is_float(t) else tf.zeros([], tf.float32)


def gradients(
    tape: tf.GradientTape, outputs: Structure, seeds: Structure, sources: Structure
) -> Structure:
    """Compute the gradients of `outputs` with respect to `sources`.

    Args:
        tape: Tape that recorded the outputs.
        outputs: Structure of tensors; integer tensors are ignored.
        seeds: Cotangents of the outputs, in the same structure; None where an output has none.
        sources: Structure of tensors that the tape watched.

    Returns:
        Gradients in the structure of `sources`, dense: zeros where a source is not connected to an output, and a
        scalar zero for an integer source.
    """
    pairs = [
        (o, s)
        for o, s in zip(tf.nest.flatten(outputs), tf.nest.flatten(seeds), strict=True)
        if s is not None and is_float(o)
    ]
    flat = tf.nest.flatten(sources)
    watched = [t for t in flat if is_float(t)]
    of_watched = iter(
        tape.gradient(
            [o for o, _ in pairs],
            watched,
            [s for _, s in pairs],
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
    )
    flat_gradients = [  # that of a lookup, as in an Embedding, has only the rows that it read
        tf.convert_to_tensor(next(of_watched)) if is_float(t) else tf.zeros([], tf.float32)
        for t in flat
    ]
    return tf.nest.pack_sequence_as(sources, flat_gradients)


def zero_sum(t: tf.Tensor) -> tf.Tensor:
    """Return zeros to which the gradients of a tensor on many strips are added: of a vector in float64."""
    narrow = is_float(t) and t.shape.rank is not None and t.shape.rank <= 1
    return tf.zeros_like(t, tf.float64) if narrow else zeros(t)


def add(a: Structure, b: Structure) -> Structure:
    """Return the sum of two gradients, in the dtype of the first; those of integer tensors stay a scalar zero."""
    return tf.nest.map_structure(lambda x, y: x + tf.cast(y, x.dtype) if is_float(x) else y, a, b)


def accumulate(sums: dict[int, Structure], value: int, new: Structure) -> None:
    """Add the gradient `new` to the entry `value` of `sums`, which may not exist yet."""
    sums[value] = add(sums[value], new) if value in sums else new


def sum_seeds(
    owned: dict[int, tf.Tensor], seeds: list[dict[int, tf.Tensor]]
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Add up the cotangents of each image.

    Args:
        owned: Images by value number.
        seeds: Cotangents by value number, from several places.

    Returns:
        The images that have a cotangent, and the sum of the cotangents of each.
    """
    total: dict[int, tf.Tensor] = {}
    for cotangents in seeds:
        for value, gradient in cotangents.items():
            total[value] = total[value] + gradient if value in total else gradient
    return [owned[v] for v in total], list(total.values())


@cache
def waiting_tensors(function: Callable[[tf.Tensor], tf.Tensor]) -> int:
    """Return the number of tensors of the size of the input that wait inside a function for its gradient.

    Args:
        function: Elementwise function.

    Returns:
        Their number, without the input and the output.
    """
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [2, 3, 5])
        y = function(x)
        inside = {t.ref() for op in graph.get_operations() for t in op.outputs} - {x.ref(), y.ref()}
        forward = len(graph.get_operations())
        tf.gradients(y, x)
        read = {t.ref() for op in graph.get_operations()[forward:] for t in op.inputs}
    return sum(t.deref().shape == x.shape for t in inside & read)
