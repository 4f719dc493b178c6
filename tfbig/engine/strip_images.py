"""What a strip or tile reads of the stores of a sweep, and the changes that it makes there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfbig.engine.sweep_tensors import StripGeometry, SweepStores, TracedSweep
from tfbig.stores.image_store import Interval, StripPart
from tfbig.stores.transfers import Changes, Reads

Tiles = dict[int, tf.Tensor]
"""Strips or tiles of images, by position in the sweep."""


class StripImages:
    """Parts of the images of a sweep that one strip reads and changes.

    Args:
        traced: The sweep.
        stores: Stores of the sweep.
        geometry: Geometry of the strip in the image.
        device: Device that computes the strip; None leaves it to TensorFlow.
        ahead: Function of an image that returns the part of it that is read next; None if none is read ahead.
    """

    def __init__(
        self,
        traced: TracedSweep,
        stores: SweepStores,
        geometry: StripGeometry,
        device: str | None = None,
        ahead: Callable[[int], list[Interval]] | None = None,
    ) -> None:
        self.graph = traced.graph
        self.batch = traced.batch
        self.stores = stores
        self.geometry = geometry
        self.device = device
        self.ahead = ahead

    def part(self, value: int, own: bool = False, fresh: bool = False) -> StripPart:
        """Return the part of an image that the strip computes or reads, or that it owns.

        Args:
            value: The image.
            own: Whether to return what it owns.
            fresh: Whether the store of its gradient is uninitialised.
        """
        graph = self.graph
        ahead = self.ahead
        return StripPart(
            self.geometry.part(value, own),
            self.geometry.sizes[value],
            [self.batch, *[None] * graph.spatial, graph.traced_channels(value)],
            graph.values[value].dtype,
            self.device,
            self.geometry.is_pattern,
            (self.geometry["covered", value], self.geometry["until", value]) if fresh else None,
            None if ahead is None else lambda: ahead(value),
        )

    def read(self) -> tuple[Tiles, Tiles, Tiles]:
        """Return parts of images that the sweep reads, of images that it wrote, and of the gradients of these."""
        reads, stores = Reads(), self.stores
        requests = (
            {v: store.read(reads, self.part(v)) for v, store in stores.images.items()},
            {v: s.read(reads, self.part(v, own=True)) for v, s in stores.written.items()},
            {v: s.read(reads, self.part(v, own=True)) for v, s in stores.d_written.items()},
        )
        reads.make()
        images, written, gradients = (
            {v: result() for v, result in each.items()} for each in requests
        )
        return images, written, gradients

    def write(self, owned: Tiles, states: dict[int, Any], changes: Changes) -> dict[int, Any]:
        """Write what the strip owns to the stores of its images, and return their states by value.

        Args:
            owned: What the strip owns, by value.
            states: States of the stores before.
            changes: Changes of the strip.
        """
        targets = self.stores.targets
        return {
            v: store.with_state(states[v]).write(changes, self.part(v, own=True), owned[v]).state
            for v, store in targets.items()
        }

    def add(
        self, gradients: Tiles, states: dict[int, Any], changes: Changes, fresh: frozenset[int]
    ) -> dict[int, Any]:
        """Add the gradients of what the strip has read to their stores, and return the states of these by value.

        Args:
            gradients: The gradients, by value.
            states: States of the stores before.
            changes: Changes of the strip.
            fresh: Images of whose gradients the stores are uninitialised.
        """
        after = {}
        for v, store in self.stores.d_images.items():
            part = self.part(v, fresh=v in fresh)
            after[v] = store.with_state(states[v]).add(changes, part, gradients[v]).state
        return after
