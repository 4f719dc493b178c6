"""Which store an image gets, in host memory, in the scratch file or on the device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import tensorflow as tf

from tfbig.engine.sweep_state import StepState
from tfbig.plan.prepared_graph import PreparedGraph
from tfbig.plan.sweeps import Store, Sweep
from tfbig.stores import device_store, host_store, tiled_store, transfers
from tfbig.stores.device_store import DeviceImage, StripImage
from tfbig.stores.host_store import HostImage
from tfbig.stores.image_store import GradientStore, ImageStore
from tfbig.stores.tiled_store import TiledGradient, TiledImage


class StoreAllocator:
    """Allocates the stores of the images and gradients of one graph.

    Args:
        prepared: The graph with its sweeps.
        device: Device that images stay on; None leaves it to TensorFlow.
        folder: Scratch directory.
    """

    def __init__(self, prepared: PreparedGraph, device: str | None, folder: str) -> None:
        self.prepared = prepared
        self.graph = prepared.graph
        self.device = device
        self.folder = folder

    def images(self, state: StepState, sweep: Sweep) -> dict[int, ImageStore]:
        """Return new stores of the images that a sweep writes, but for those that a sink receives."""
        kind = "remat" if sweep.is_replay else "image"
        written = [v for v in sweep.writes if v not in state.sinks]
        on_device, elsewhere = self._on_device(state, written)
        if state.layout.skips:
            tiles = [_tiles(state, v, sweep) for v in elsewhere]
            allocate = partial(tiled_store.allocate, tiles=tiles, sums=False)
            arrays = self._arrays(state, kind, elsewhere, allocate)
            return on_device | {v: TiledImage(a) for v, a in arrays.items()}
        return on_device | self._host_images(state, kind, elsewhere)

    def gradients(self, state: StepState, values: Sequence[int]) -> dict[int, GradientStore]:
        """Return new stores of gradients.

        Args:
            state: State of the step.
            values: Ids of the images.
        """
        on_device, elsewhere = self._on_device(state, values)
        if state.layout.skips:
            tiles = [_tiles(state, v, state.writer(v)) for v in elsewhere]
            allocate = partial(tiled_store.allocate, tiles=tiles, sums=True)
            arrays = self._arrays(state, "gradient", elsewhere, allocate)
            return on_device | {v: TiledGradient(a) for v, a in arrays.items()}
        return on_device | self._host_images(state, "gradient", elsewhere)

    def _host_images(
        self, state: StepState, kind: str, values: Sequence[int]
    ) -> dict[int, HostImage]:
        unknown = [None] * self.graph.spatial
        return {
            v: HostImage(
                tf.ensure_shape(a, [state.known_batch, *unknown, self.graph.values[v].channels])
            )
            for v, a in self._arrays(state, kind, values, host_store.allocate).items()
        }

    def _arrays(
        self,
        state: StepState,
        kind: str,
        values: Sequence[int],
        allocate: Callable[..., list[tf.Tensor]],
    ) -> dict[int, tf.Tensor]:
        """Allocate arrays of stores; they reuse memory that is free once the previous sweep has ended.

        Args:
            state: State of the step.
            kind: One of `KINDS` of `tfbig.engine.step_geometry`.
            values: Ids of the images.
            allocate: Function of shapes, addresses and requests.
        """
        requests = [self._request(state, kind, value) for value in values]
        (shapes,) = transfers.after([state.geometry.shapes], state.done)
        addresses = state.geometry.addresses[kind]
        arrays = allocate(shapes, addresses, requests)
        return dict(zip(values, arrays, strict=True))

    def _request(self, state: StepState, kind: str, value: int) -> host_store.StoreRequest:
        dtype = tf.as_dtype(self.prepared.stored_dtype(value))
        is_spilled = state.layout.where(Store(kind, value)) == "disk"
        return host_store.StoreRequest(value, dtype, self.folder if is_spilled else None)

    def _on_device(
        self, state: StepState, values: Sequence[int]
    ) -> tuple[dict[int, Any], list[int]]:
        """Return new stores of the images that stay on the device, and the ids of the others."""
        kept = [v for v in values if v in state.layout.kept]
        others = [v for v in values if v not in state.layout.kept]
        # Without this order they would be allocated when the step begins.
        shapes = transfers.after([state.geometry.device_shapes[v].shape for v in kept], state.done)
        with tf.device(self.device):
            if state.layout.single:
                numbers = {v: tf.zeros([], self.graph.values[v].dtype) for v in kept}
                return {v: StripImage(t) for v, t in numbers.items()}, others
            return {
                v: DeviceImage(device_store.allocate(s), state.geometry.device_shapes[v])
                for v, s in zip(kept, shapes, strict=True)
            }, others


def _tiles(state: StepState, value: int, writer: Sweep | None) -> tf.Tensor:
    """Return the tiles of a store, `[n, 2 * axes + 1]`, see `tiled_store.allocate`: those that its writer computes.

    The gradient of an input of the graph has no writer; it is one tile.
    """
    if writer is None:
        sizes = state.geometry.extents[value][:2]
        whole = tf.reshape(tf.stack([tf.zeros_like(sizes), sizes], 1), [-1])
        return tf.concat([whole, [0]], 0)[None]
    places = writer.columns_of(value, "own start", "own stop")
    return tf.gather(state.geometry.table(writer), places, axis=1)
