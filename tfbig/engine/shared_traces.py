"""Traces that several sweeps share.

Deep networks repeat their blocks, and tracing costs seconds. Two sweeps whose nodes have the same kinds and the same
connections compute the same function of their tensors; it is traced for the first and called for the others. Most kinds
do not depend on numbers of channels, so that the blocks of a network share traces although later ones are wider.
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


class TraceCache:
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
        self,
        key: Any,
        function: Callable[[SweepTensors], Structure],
        tensors: SweepTensors,
        any_channels: bool = False,
    ) -> Structure:
        """Return `function(tensors)`, computed by a trace of any function with the same key.

        Args:
            key: Equal for functions that compute the same.
            function: The function.
            tensors: Its argument.
            any_channels: Whether a trace accepts images and weights with any numbers of channels.

        Returns:
            The result, with the structure that the function returns.
        """
        fields = dict(vars(tensors))
        batch = fields.pop("known_batch")
        flat = tf.nest.flatten(fields)
        specs = tf.nest.flatten(
            {name: _specs(name, field, any_channels) for name, field in fields.items()}
        )
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


IMAGES = ("images", "stores", "kept", "written", "d_images")
"""Fields of `SweepTensors` that hold images."""

CHANNEL_AXES = dict.fromkeys((*IMAGES, "wholes", "d_wholes"), 1) | {"weights": 2}
"""How many of the last axes of the tensors in a field count channels: of a kernel those of its input and output."""


def _specs(name: str, field: Structure, any_channels: bool) -> Structure:
    """Return the specs of a field; those of images leave out their size, so that all sizes share a trace."""
    unknown = CHANNEL_AXES.get(name, 0) if any_channels else 0

    def spec(t: tf.Tensor) -> tf.TensorSpec:
        rank, shape = t.shape.rank, t.shape
        if name in IMAGES and rank:
            shape = [shape[0], *[None] * (rank - 2), shape[-1]][:rank]
        if unknown and rank:
            kept = max(rank - unknown, 0)
            shape = [*shape[:kept], *[None] * (rank - kept)]
        return tf.TensorSpec(shape, t.dtype)

    return tf.nest.map_structure(spec, field)
