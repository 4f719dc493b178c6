"""Parts of a step that XLA compiles, one program each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfbig.system import traces

Structure = Any


def call(
    function: Callable[..., Structure], arguments: tuple[Structure, ...], device: str | None
) -> Structure:
    """Return `function(*arguments)`, compiled with XLA as one program.

    XLA has to know the size of everything when the program runs first. It compiles another one for other sizes, and for
    other numbers in a tensor that sizes are computed from.

    Args:
        function: Function of structures of tensors.
        arguments: The structures.
        device: Device that runs the program.
    """
    structure: list[Structure] = []

    def program(*flat: tf.Tensor) -> list[tf.Tensor]:
        structure[:] = [function(*tf.nest.pack_sequence_as(arguments, flat))]
        return tf.nest.flatten(structure)

    flat = tf.nest.flatten(arguments)
    specs = [tf.TensorSpec(t.shape, t.dtype) for t in flat]
    with tf.device(device):
        trace = traces.concrete(tf.function(program, autograph=False, jit_compile=True), *specs)
        results: Any = trace(*flat)
    return tf.nest.pack_sequence_as(structure[0], tf.nest.flatten(results))
