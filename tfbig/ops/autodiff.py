"""Gradients of structures of tensors, integers among them."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

Structure = Any


def is_float(t: tf.Tensor) -> bool:
    """Whether gradients flow through a tensor."""
    return t.dtype.is_floating


def floats(structure: Structure) -> list[tf.Tensor]:
    """The tensors of a structure that a tape can watch."""
    return [t for t in tf.nest.flatten(structure) if is_float(t)]


def zeros(t: tf.Tensor) -> tf.Tensor:
    """No gradient: zeros like the tensor, one zero for integers."""
    return tf.zeros_like(t) if is_float(t) else tf.zeros([], tf.float32)


def gradients(
    tape: tf.GradientTape, outputs: Structure, seeds: Structure, sources: Structure
) -> Structure:
    """Gradients structured as `sources`, zeros where there is none."""
    pairs = [
        (o, s)
        for o, s in zip(tf.nest.flatten(outputs), tf.nest.flatten(seeds), strict=True)
        if s is not None and is_float(o)
    ]
    flat = tf.nest.flatten(sources)
    watched = [t for t in flat if is_float(t)]
    found = iter(
        tape.gradient(
            [o for o, _ in pairs],
            watched,
            [s for _, s in pairs],
            unconnected_gradients=tf.UnconnectedGradients.ZERO,
        )
    )
    flat_gradients = [next(found) if is_float(t) else tf.zeros([], tf.float32) for t in flat]
    return tf.nest.pack_sequence_as(sources, flat_gradients)


def add(a: Structure, b: Structure) -> Structure:
    """Sum of two gradients; integers have none."""
    return tf.nest.map_structure(lambda x, y: x + y if is_float(x) else y, a, b)


def accumulate(sums: dict[int, Structure], value: int, new: Structure) -> None:
    """Adds a gradient to those of a value."""
    sums[value] = add(sums[value], new) if value in sums else new


def sum_seeds(
    owned: dict[int, tf.Tensor], seeds: list[dict[int, tf.Tensor]]
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """Images that have a gradient, and the sum of what was given for each."""
    total: dict[int, tf.Tensor] = {}
    for given in seeds:
        for value, gradient in given.items():
            total[value] = total[value] + gradient if value in total else gradient
    return [owned[v] for v in total], list(total.values())
