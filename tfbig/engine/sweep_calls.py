"""Calls of the shared traces of sweeps, and the stores that they fill."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import tensorflow as tf

from tfbig.engine import step_progress
from tfbig.engine.shared_traces import TraceCache, placed
from tfbig.engine.step_geometry import KINDS
from tfbig.engine.sweep_state import StepState, SweepTensors
from tfbig.plan.canonical import Canonical
from tfbig.plan.prepared_graph import PreparedGraph
from tfbig.plan.sweeps import Store, Sweep
from tfbig.stores import device_store, host_store
from tfbig.system.backend import HOST


class SweepCalls:
    """Calls functions of `tfbig.engine.sweep_loop` for the sweeps of one graph.

    Args:
        prepared: The graph with its sweeps.
        devices: Devices that compute strips; None leaves it to TensorFlow.
        folder: Scratch directory.
    """

    def __init__(self, prepared: PreparedGraph, devices: Sequence[str | None], folder: str) -> None:
        self.prepared = prepared
        self.graph = prepared.graph
        self.devices = devices
        self.folder = folder
        self._canonical: dict[Sweep, Canonical] = {}
        self._traces = TraceCache(devices[0])

    def on_host(self) -> AbstractContextManager[Any]:
        """Place operations on the host unless they name a device; an accelerator would hold whole images."""
        return placed(HOST if any(self.devices) else None)

    def on_accelerator(self) -> AbstractContextManager[Any]:
        """Place operations on the first device; otherwise the next sweep would wait for a small result of the host."""
        return placed(self.devices[0])

    def holding(self, values: Sequence[int]) -> AbstractContextManager[Any]:
        """Place operations that copy these values: on the host if one of them is an image, else on the first device."""
        has_images = any(self.graph.values[v].image for v in values)
        return self.on_host() if has_images else self.on_accelerator()

    def held_on_host(self, images: dict[int, tf.Tensor]) -> dict[int, tf.Tensor]:
        """Return the input images in host memory; otherwise every strip would copy a whole one from the device."""
        if not any(self.devices):
            return images
        with self.on_host():
            return {v: t if t.dtype == tf.string else tf.identity(t) for v, t in images.items()}

    def tensors(
        self, sweep: Sweep, state: StepState, label: str, table: tf.Tensor | None = None
    ) -> tuple[Canonical, SweepTensors]:
        """Return a sweep by positions, and its tensors from the state.

        Args:
            sweep: The sweep.
            state: State of the step.
            label: Name of the sweep in progress messages.
            table: Geometry of its strips. Default: that of the step.
        """
        step_progress.tracing(label)
        if sweep not in self._canonical:
            self._canonical[sweep] = Canonical(self.graph, sweep)
        canonical, geometry = self._canonical[sweep], state.geometry
        needed = {i for n in sweep.locals for i in n.inputs}
        wholes = {v: t for v, t in state.wholes.items() if v in needed}
        kept = state.layout.kept.intersection(sweep.images)
        return canonical, SweepTensors(
            geometry.label(label),
            state.done,
            geometry.table(sweep) if table is None else table,
            tf.gather(geometry.extents, canonical.ids),
            canonical.named({v: state.images[v] for v in sweep.reads}),
            geometry.batch,
            wholes=canonical.named(wholes),
            weights=[state.weights[w] for w in canonical.slots],
            copies=canonical.named(geometry.copies_of(sweep)),
            buffers=canonical.named({v: geometry.buffers[v] for v in kept}),
            known_batch=state.known_batch,
        )

    def channels(
        self, canonical: Canonical, sweep: Sweep, state: StepState
    ) -> dict[int, tf.Tensor]:
        """Return the numbers of channels of the observed images by position, if a trace serves any numbers."""
        observed = sweep.observed if canonical.any_channels else ()
        return canonical.named({v: state.geometry.channels[v] for v in observed})

    def call(
        self,
        function: Callable[..., Any],
        canonical: Canonical,
        tensors: SweepTensors,
        *options: Any,
    ) -> Any:
        """Call a function of `tfbig.engine.sweep_loop`, traced once for sweeps that compute the same.

        Args:
            function: The function.
            canonical: The sweep by positions.
            tensors: Tensors of the sweep.
            *options: Further arguments, part of the key of the trace.

        Returns:
            Its result.
        """

        def run(tensors: SweepTensors) -> Any:
            return function(canonical.graph, canonical.sweep, tensors, self.devices, *options)

        key = function.__name__, canonical.key, *options
        return self._traces.call(key, run, tensors, canonical.any_channels)

    def allocate(
        self, state: StepState, kind: str, values: list[int], writer: Sweep | None = None
    ) -> dict[int, tf.Tensor]:
        """Allocate stores; they reuse memory that is free once the previous sweep has ended.

        Args:
            state: State of the step.
            kind: One of `KINDS`.
            values: Ids of the images.
            writer: Sweep that writes the images. Default: for each, the one that does so in the forward pass.

        Returns:
            Stores by value id.
        """
        requests = [self._request(state, kind, value) for value in values]
        (shapes,) = host_store.after([state.geometry.shapes], state.done)
        places = state.geometry.places[KINDS.index(kind)]
        if state.layout.skips:
            tiles = [_tiles(state, v, writer or state.writer(v)) for v in values]
            stores = host_store.allocate(shapes, places, requests, tiles)
            return {v: tf.ensure_shape(s, [None]) for v, s in zip(values, stores, strict=True)}
        stores = host_store.allocate(shapes, places, requests)
        unknown = [None] * self.graph.spatial
        return {
            v: tf.ensure_shape(store, [state.known_batch, *unknown, self.graph.values[v].channels])
            for v, store in zip(values, stores, strict=True)
        }

    def _request(self, state: StepState, kind: str, value: int) -> host_store.NewStore:
        dtype = tf.as_dtype(self.prepared.stored_dtype(value))
        spilled = Store(kind, value) in state.layout.spilled
        folder = self.folder if spilled else None
        return host_store.NewStore(value, dtype, folder, sums=kind == "gradient")

    def kept(self, state: StepState, values: Sequence[int]) -> dict[int, tf.Tensor]:
        """Allocate images on the device, for those of `values` that stay there.

        Args:
            state: State of the step.
            values: Ids of images.

        Returns:
            Images by value id; if every sweep has one strip, numbers in place of the images that they will compute.
        """
        kept = [v for v in values if v in state.layout.kept]
        # Without this order they would be allocated when the step begins.
        shapes = host_store.after([state.geometry.buffers[v].shape for v in kept], state.done)
        with tf.device(self.devices[0]):
            if state.layout.single:
                return {v: tf.zeros([], self.graph.values[v].dtype) for v in kept}
            return {v: device_store.allocate(s) for v, s in zip(kept, shapes, strict=True)}


def _tiles(state: StepState, value: int, writer: Sweep | None) -> tf.Tensor:
    """Return the tiles of a store, `[n, 2 * axes + 1]`, see `host_store.allocate`: those that its writer computes.

    The gradient of an input of the graph has no writer; it is one tile.
    """
    if writer is None:
        sizes = state.geometry.extents[value, : min(state.geometry.extents.shape[1], 2)]
        whole = tf.reshape(tf.stack([tf.zeros_like(sizes), sizes], 1), [-1])
        return tf.concat([whole, [0]], 0)[None]
    places = writer.columns_of(value, "own start", "own stop")
    return tf.gather(state.geometry.table(writer), places, axis=1)
