"""Traces that several sweeps share.

Deep networks repeat their blocks, and tracing costs seconds. Two sweeps whose nodes have the same kinds and the same
connections compute the same function of their tensors; it is traced for the first and called for the others.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import tensorflow as tf

from tfbig.engine.sweep_state import SweepTensors
from tfbig.system import callbacks, tensorflow_internals, traces
from tfbig.system.backend import HOST

Structure = Any


class Functions:
    """Functions of `SweepTensors`, each traced once for tensors with the same structure and types.

    Args:
        device: Device that computes strips; None leaves it to TensorFlow. With one, all calls are inlined into one
            graph: a function that is called moves its arguments to the device that it runs on, images of another
            device included. Calls and their results are then on this device; what is inside a function names its own.
    """

    def __init__(self, device: str | None = None) -> None:
        self._device = device
        self._traced: dict[Any, tuple[Any, list[Structure]]] = {}

    def call(
        self, key: Any, function: Callable[[SweepTensors], Structure], tensors: SweepTensors
    ) -> Structure:
        """Return `function(tensors)`, computed by a trace of any function with the same key."""
        fields = dict(vars(tensors))
        batch = fields.pop("known_batch")
        flat = tf.nest.flatten(fields)
        specs = tf.nest.flatten({name: _specs(name, field) for name, field in fields.items()})
        shape = repr(tf.nest.map_structure(lambda _: 0, fields))
        whole = (key, shape, batch, tuple(map(repr, specs)))
        if whole not in self._traced:
            self._traced[whole] = _trace(function, fields, batch, specs, self._device)
        traced, structure = self._traced[whole]
        callbacks.hold_those_of(
            traced
        )  # the program may be dropped before the function that is being traced
        # The engine computes the gradients, so no tape records the call.
        with tensorflow_internals.stop_recording(), placed(self._device):
            results = traced(*flat)
        return tf.nest.pack_sequence_as(structure[0], tf.nest.flatten(results))


def _trace(
    function: Any,
    fields: dict[str, Any],
    batch: int | None,
    specs: list[tf.TensorSpec],
    device: str | None,
) -> Any:
    """Return the trace of a function, and the structure of its results.

    TensorFlow puts the results of a function on the device under which it is traced. On the host, images that are kept
    on an accelerator would be copied there and back after every sweep.
    """
    structure: list[Structure] = []

    def run(*flat: tf.Tensor) -> list[tf.Tensor]:
        with placed(device and HOST):
            packed = tf.nest.pack_sequence_as(fields, flat)
            results = function(SweepTensors(**packed, known_batch=batch))
        structure[:] = [results]
        return tf.nest.flatten(results)

    attributes = {} if device else {"_noinline": True}
    traced = tf.function(run, autograph=False, experimental_attributes=attributes)
    with placed(device):
        return traces.concrete(traced, *specs), structure


def placed(device: str | None) -> AbstractContextManager[Any]:
    """Place operations on a device; None leaves them where they are."""
    return nullcontext() if device is None else tf.device(device)


def _specs(name: str, field: Structure) -> Structure:
    """Return the specs of a field; those of images leave out their size, so that all sizes share a trace."""
    images = name in ("images", "stores", "written", "d_images")

    def spec(t: tf.Tensor) -> tf.TensorSpec:
        shape = t.shape
        if images and shape.rank:
            shape = [shape[0], *[None] * (shape.rank - 2), shape[-1]][: shape.rank]
        return tf.TensorSpec(shape, t.dtype)

    return tf.nest.map_structure(spec, field)
