"""Traces that several sweeps share.

Deep networks repeat their blocks, and tracing costs seconds. Two sweeps whose nodes have the same kinds and the same
connections compute the same function of their tensors; it is traced for the first and called for the others. Most kinds
do not depend on numbers of channels, so that the blocks of a network share traces although later ones are wider.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import tensorflow as tf

from tfbig.engine.sweep_tensors import SweepStores, SweepTensors
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
            key: Equal for functions that compute the same, with the same N if it is known.
            function: The function.
            tensors: Its argument.
            any_channels: Whether a trace accepts images and weights with any numbers of channels.

        Returns:
            The result, with the structure that the function returns.
        """
        flat = tf.nest.flatten(tensors)
        specs = tf.nest.flatten(_specs(tensors, any_channels))
        structure_key = repr(tf.nest.map_structure(lambda _: 0, tensors))
        whole = (key, structure_key, tuple(map(repr, specs)))
        if whole not in self._traced:
            self._traced[whole] = _trace(function, tensors, specs, self._device)
        traced, structure = self._traced[whole]
        callbacks.hold_those_of(
            traced
        )  # the program may be dropped before the function that is being traced
        # The engine computes the gradients, so no tape records the call.
        with tensorflow_internals.stop_recording(), placed(self._device):
            results = traced(*flat)
        return tf.nest.pack_sequence_as(structure[0], tf.nest.flatten(results))


def _trace(
    function: Callable[[SweepTensors], Structure],
    tensors: SweepTensors,
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
            results = function(tf.nest.pack_sequence_as(tensors, flat))
        structure[:] = [results]
        return tf.nest.flatten(results)

    attributes = {} if device else {"_noinline": True}
    traced = tf.function(run, autograph=False, experimental_attributes=attributes)
    with placed(device):
        return traces.concrete(traced, *specs), structure


def placed(device: str | None) -> AbstractContextManager[Any]:
    """Place operations on a device; None leaves them where they are."""
    return nullcontext() if device is None else tf.device(device)


def _specs(tensors: SweepTensors, any_channels: bool) -> Structure:
    """Return the specs of tensors; those of images leave out their size, so that all sizes share a trace.

    With `any_channels`, they leave out numbers of channels too: the last axis, of a kernel the last two.
    """
    free = int(any_channels)

    def image(t: tf.Tensor) -> tf.TensorSpec:
        rank = t.shape.rank
        sizes = [t.shape[0], *[None] * (rank - 2), t.shape[-1]][:rank] if rank else []
        return tf.TensorSpec(_without_last(sizes, free), t.dtype)

    def plain(structure: Structure, last: int = 0) -> Structure:
        return tf.nest.map_structure(
            lambda t: tf.TensorSpec(_without_last(t.shape, last), t.dtype), structure
        )

    values = tensors.values
    return SweepTensors(
        plain(tensors.geometry),
        SweepStores(
            *({v: _spec(s, image) for v, s in stores.items()} for stores in tensors.stores)
        ),
        values._replace(
            wholes=plain(values.wholes, free),
            weights=plain(values.weights, 2 * free),
            d_wholes=plain(values.d_wholes, free),
            prepared=plain(values.prepared),
        ),
    )


def _spec(store: Any, image: Callable[[tf.Tensor], tf.TensorSpec]) -> Structure:
    """Return the specs of a store; `image` returns that of the tensor that holds the image."""
    return tf.nest.map_structure(
        lambda t: t if isinstance(t, tf.TensorSpec) else tf.TensorSpec(t.shape, t.dtype),
        store.map(image),
    )


def _without_last(shape: Sequence[int | None], axes: int) -> list[int | None]:
    """Return a shape whose last axes are unknown."""
    sizes = list(shape)
    kept = max(len(sizes) - axes, 0)
    return [*sizes[:kept], *[None] * (len(sizes) - kept)]
