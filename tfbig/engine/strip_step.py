"""The computation of one strip or tile of a sweep: read, run the nodes, reduce, pull back, and change stores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import tensorflow as tf

from tfbig.engine.sweep_tensors import StripGeometry, Structure, SweepTensors, TracedSweep
from tfbig.geometry.windows import is_pixelwise, may_be_empty
from tfbig.network.graph import Node, axes_of
from tfbig.ops.kernels import Copies, InputRows, Strip, take
from tfbig.stores.image_store import Interval, StripPart
from tfbig.stores.transfers import Changes, Reads

Tiles = dict[int, tf.Tensor]
"""Strips or tiles of images, by position in the sweep."""


class StripStep:
    """One strip of a sweep.

    Args:
        traced: The sweep.
        tensors: Tensors of the sweep.
        geometry: Geometry of the strip.
        device: Device that computes the strip; None leaves it to TensorFlow.
        ahead: Function of an image that returns the part of it that is read next; None if none is read ahead.
    """

    def __init__(
        self,
        traced: TracedSweep,
        tensors: SweepTensors,
        geometry: StripGeometry,
        device: str | None = None,
        ahead: Callable[[int], list[Interval]] | None = None,
    ) -> None:
        self.graph, self.sweep = traced.graph, traced.sweep
        self.is_even = self.sweep.even and not self.sweep.single
        self.batch = traced.batch
        self.tensors = tensors
        self.geometry = geometry
        self.device = device
        self.ahead = ahead
        count, axes = len(self.graph.values), self.graph.spatial
        sizes = tf.unstack(tf.reshape(tensors.geometry.extents, [-1]), num=count * axes)
        self._sizes = [sizes[first : first + axes] for first in range(0, len(sizes), axes)]

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
            self._sizes[value],
            [self.batch, *[None] * graph.spatial, graph.traced_channels(value)],
            graph.values[value].dtype,
            self.device,
            self.geometry.is_pattern,
            (self.geometry["covered", value], self.geometry["until", value]) if fresh else None,
            None if ahead is None else lambda: ahead(value),
        )

    def read(self) -> tuple[Tiles, Tiles, Tiles]:
        """Return parts of images that the sweep reads, of images that it wrote, and of the gradients of these."""
        reads, stores = Reads(), self.tensors.stores
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
        targets = self.tensors.stores.targets
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
        for v, store in self.tensors.stores.d_images.items():
            part = self.part(v, fresh=v in fresh)
            after[v] = store.with_state(states[v]).add(changes, part, gradients[v]).state
        return after

    def values(self, tiles: Tiles) -> dict[int, Structure]:
        """Run the local nodes and return every image of the sweep on the strip, by value."""
        values, geometry = dict(tiles), self.geometry
        for node in self.sweep.locals:
            images = node.image_positions
            inputs = [
                self._input_rows(values, node, p) if p in images else self.tensors.values.wholes[i]
                for p, i in enumerate(node.inputs)
            ]
            read = [
                self._rows_read(node, p) if p in images else [None] * geometry.axes
                for p in range(len(node.inputs))
            ]
            strip = self._strip(node.output, geometry.part(node.output), read)
            if node.op.prepare is None:
                given = [self.tensors.values.weights[w] for w in node.weights]
            else:
                given = self.tensors.values.prepared[node.output]
            values[node.output] = node.op.function(inputs, given, strip)
        return values

    def _strip(self, value: int, part: list[Interval], read: list[list[Any]]) -> Strip:
        """Return the position of a part of an image; `read` has what it reads of each input, along each axis."""
        axes = [
            Strip(*interval, self._sizes[value][axis], tuple(rows[axis] for rows in read))
            for axis, interval in enumerate(part)
        ]
        return replace(axes[0], others=tuple(axes[1:]))

    def _rows_read(self, node: Node, p: int) -> list[InputRows]:
        """Return what a node reads of its input `p`, along each axis."""
        names = ("start", "stop", "before", "after")
        numbers = zip(*(self.geometry.along(name, node.output, p) for name in names), strict=True)
        sizes = self._sizes[node.inputs[p]]
        rows = [
            InputRows(start, stop, before, after, size)
            for (start, stop, before, after), size in zip(numbers, sizes, strict=False)
        ]
        if not self._reads_all(node):
            return rows
        given = self.geometry.part(node.inputs[p])
        return [
            replace(r, start=first, stop=stop) for r, (first, stop) in zip(rows, given, strict=True)
        ]

    def _reads_all(self, node: Node) -> bool:
        """Return whether a node gets rows around those that it needs, so that all strips have one size."""
        return self.is_even and node.op.around

    def _input_rows(self, values: dict[int, tf.Tensor], node: Node, p: int) -> tf.Tensor:
        """Return the rows of input `p` that a node reads; all of them if nothing else reads the image."""
        value = node.inputs[p]
        is_only_use = self.sweep.num_reads[value] == 1
        axes = axes_of(node, p)[: self.sweep.axes]
        if any(map(may_be_empty, axes)):  # the strip has a row all the same
            is_only_use = False
        if self.is_even:  # the strip may have rows that no window needs
            is_only_use &= all(map(is_pixelwise, axes_of(node, p)))
        if is_only_use or self._reads_all(node):
            return values[value]
        return self._cut(
            values, value, [(rows.start, rows.stop) for rows in self._rows_read(node, p)]
        )

    def _cut(self, values: dict[int, tf.Tensor], value: int, part: list[Interval]) -> tf.Tensor:
        """Return a part of an image of the strip; a copy if the image is memory of a store."""
        store = self.tensors.stores.images.get(value)
        firsts = self.geometry.along("start", value)
        pairs = zip(part, firsts, strict=True)
        parts = [(start - first, stop - start) for (start, stop), first in pairs]
        return take(values[value], parts, copy=store is not None and store.needs_copy)

    def owned(self, values: dict[int, tf.Tensor]) -> dict[int, tf.Tensor]:
        """Return the rows that the strip owns of every image that is stored or reduced."""
        owned, geometry = {}, self.geometry
        for v in self.sweep.observed:
            is_only_use = self.sweep.num_reads[v] == 1 and not self.is_even
            part = geometry.part(v, own=True)
            owned[v] = values[v] if is_only_use else self._cut(values, v, part)
        return owned

    def _owned_strip(self, node: Node) -> Strip:
        """Return the range of rows that this strip contributes to a reduction, and how often."""
        value = node.inputs[0]
        strip = self._strip(value, self.geometry.part(value, own=True), [])
        return replace(strip, copies=self._copies(value))

    def _copies(self, value: int) -> Copies | None:
        """Return how often the pixels of the strip occur in an observed image; None if nothing is skipped."""
        is_pattern = self.geometry.is_pattern
        if is_pattern is None:
            return None
        of_pattern = self.tensors.geometry.copies[value]
        return Copies(tf.where(is_pattern > 0, of_pattern, tf.ones_like(of_pattern)))

    def merge(self, owned: dict[int, tf.Tensor], partials: list[Structure]) -> list[Structure]:
        """Return the partial sums of the reductions, merged with those of this strip."""
        merged = []
        for node, before in zip(self.sweep.reductions, partials, strict=True):
            inputs = [owned[v] for v in node.inputs]
            strip = self._owned_strip(node)
            merged.append(_added(node, before, node.op.partial(inputs, strip), strip))
        return merged

    def pull(
        self, owned: dict[int, tf.Tensor], partials: list[Structure] | None
    ) -> tuple[list[Structure], list[dict[int, tf.Tensor]]]:
        """Run the pullback of the reductions.

        Args:
            owned: Owned rows, by value.
            partials: Partial sums to merge with those of this strip, for a fused sweep; else None.

        Returns:
            Merged partial sums (empty without `partials`), and per reduction the gradients of its images by value.
        """
        pulled, merged = [], []
        for position, node in enumerate(self.sweep.reductions):
            cotangent = self.tensors.values.d_wholes.get(node.output)
            if cotangent is None:
                continue
            inputs = [owned[v] for v in node.inputs]
            strip = self._owned_strip(node)
            if strip.copies is not None:
                cotangent = _times(cotangent, strip.copies)
            if partials is None:
                result = self.tensors.values.wholes[node.output]
                gradients = node.op.pullback(inputs, strip, result, cotangent)
            else:
                new, gradients = node.op.fused(inputs, strip, cotangent)
                merged.append(_added(node, partials[position], new, strip))
            pairs = zip(node.inputs, gradients, strict=True)
            pulled.append({v: g for v, g in pairs if g is not None})
        return merged, pulled


def _added(node: Node, before: Structure, new: Structure, strip: Strip) -> Structure:
    """Return the partial result of a reduction, merged with that of a strip as often as it occurs."""
    repeated = new if strip.copies is None else node.op.times(new, strip.copies)
    return node.op.merge(before, repeated)


def _times(cotangent: Structure, copies: Copies) -> Structure:
    """Return the gradient of a result for a strip that occurs several times; pullbacks are linear in it."""
    return tf.nest.map_structure(
        lambda t: copies.of(t) if tf.is_tensor(t) and t.dtype.is_floating else t, cotangent
    )
