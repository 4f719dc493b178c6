"""The computation of one strip or tile of a sweep: run the nodes, reduce, and the pullback of the reductions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import tensorflow as tf

from tfbig.engine.sweep_state import Interval, StripGeometry, Structure, SweepTensors
from tfbig.network.graph import Graph, Node
from tfbig.ops.kernels import Copies, InputRows, Strip, pad, take
from tfbig.plan.sweeps import Sweep
from tfbig.stores import device_store
from tfbig.system.backend import HOST


class StripStep:
    """One strip of a sweep.

    Args:
        graph: Graph of the sweep.
        sweep: The sweep.
        tensors: Tensors of the sweep.
        geometry: Geometry of the strip.
    """

    def __init__(
        self,
        graph: Graph,
        sweep: Sweep,
        tensors: SweepTensors,
        geometry: StripGeometry,
    ) -> None:
        self.graph = graph
        self.sweep = sweep
        self.tensors = tensors
        self.geometry = geometry
        count, axes = len(graph.values), graph.spatial
        sizes = tf.unstack(tf.reshape(tensors.extents, [-1]), num=count * axes)
        self._sizes = [sizes[first : first + axes] for first in range(0, len(sizes), axes)]

    def write_kept(
        self, kept: dict[int, tf.Tensor], rows: dict[int, tf.Tensor]
    ) -> dict[int, tf.Tensor]:
        """Write the rows that the strip owns to images on the device, and return the changed images by value.

        Args:
            kept: Images on the device, by value.
            rows: The rows, by value.
        """
        if self.sweep.single:
            return {v: rows[v] for v in kept}
        written = {}
        for v, image in kept.items():
            ((start, stop),) = self.geometry.part(v, own=True)
            written[v] = device_store.write(image, self.tensors.buffers[v], start, stop, rows[v])
        return written

    def add_to_kept(
        self, kept: dict[int, tf.Tensor], rows: dict[int, tf.Tensor], fresh: frozenset[int]
    ) -> dict[int, tf.Tensor]:
        """Add the rows that the strip reads to images on the device, and return the changed images by value.

        Args:
            kept: Images on the device, by value.
            rows: The rows, by value.
            fresh: Images to which only this sweep has added so far.
        """
        return {v: self._added(v, image, rows[v], v in fresh) for v, image in kept.items()}

    def _added(self, value: int, image: tf.Tensor, rows: tf.Tensor, fresh: bool) -> tf.Tensor:
        """Return an image on the device with the rows that the strip reads added."""
        ((start, stop),) = self.geometry.part(value)
        if self.sweep.single:
            with tf.device(HOST):
                around = start, self._sizes[value][0] - stop
            whole = pad(rows, around, *[(0, 0)] * (rows.shape.rank - 3))
            return whole if fresh else image + whole
        buffer = self.tensors.buffers[value]
        if not fresh:
            return device_store.add(image, buffer, start, stop, rows)
        covered, until = self.geometry["covered", value], self.geometry["until", value]
        return device_store.add_first(image, buffer, (start, stop), covered, until, rows)

    def values(self, tiles: dict[int, tf.Tensor]) -> dict[int, Structure]:
        """Run the local nodes and return every image of the sweep on the strip, by value."""
        values, geometry = dict(tiles), self.geometry
        for node in self.sweep.locals:
            images = node.image_positions
            inputs = [
                self._input_rows(values, node, p) if p in images else self.tensors.wholes[i]
                for p, i in enumerate(node.inputs)
            ]
            read = [
                self._read(node, p) if p in images else [None] * geometry.axes
                for p in range(len(node.inputs))
            ]
            strip = self._strip(node.output, geometry.part(node.output), read)
            given = self.tensors.prepared.get(node.output)
            if node.op.prepare is None:
                given = [self.tensors.weights[w] for w in node.weights]
            values[node.output] = node.op.function(inputs, given, strip)
        return values

    def _strip(self, value: int, part: list[Interval], read: list[list[Any]]) -> Strip:
        """Return the position of a part of an image; `read` has what it reads of each input, along each axis."""
        axes = [
            Strip(*interval, self._sizes[value][axis], tuple(rows[axis] for rows in read))
            for axis, interval in enumerate(part)
        ]
        return replace(axes[0], others=tuple(axes[1:]))

    def _read(self, node: Node, p: int) -> list[InputRows]:
        """Return what a node reads of its input `p`, along each axis."""
        names = ("start", "stop", "before", "after")
        numbers = zip(*(self.geometry.along(name, node.output, p) for name in names), strict=True)
        sizes = self._sizes[node.inputs[p]]
        return [
            InputRows(start, stop, before, after, size)
            for (start, stop, before, after), size in zip(numbers, sizes, strict=False)
        ]

    def _input_rows(self, values: dict[int, tf.Tensor], node: Node, p: int) -> tf.Tensor:
        """Return the rows of input `p` that a node reads; all of them if nothing else reads the image."""
        value = node.inputs[p]
        if self.sweep.num_reads[value] == 1:
            return values[value]
        return self._cut(values, value, [(rows.start, rows.stop) for rows in self._read(node, p)])

    def _cut(self, values: dict[int, tf.Tensor], value: int, part: list[Interval]) -> tf.Tensor:
        """Return a part of an image of the strip; a copy if the image is memory of a store."""
        is_store = value in self.tensors.images and value not in self.tensors.buffers
        firsts = self.geometry.along("start", value)
        pairs = zip(part, firsts, strict=True)
        parts = [(start - first, stop - start) for (start, stop), first in pairs]
        return take(values[value], parts, copy=is_store)

    def owned(self, values: dict[int, tf.Tensor]) -> dict[int, tf.Tensor]:
        """Return the rows that the strip owns of every image that is stored or reduced."""
        owned, geometry = {}, self.geometry
        for v in self.sweep.observed:
            is_only_use = self.sweep.num_reads[v] == 1
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
        of_pattern = self.tensors.copies[value]
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
            cotangent = self.tensors.d_wholes.get(node.output)
            if cotangent is None:
                continue
            inputs = [owned[v] for v in node.inputs]
            strip = self._owned_strip(node)
            if strip.copies is not None:
                cotangent = _times(cotangent, strip.copies)
            if partials is None:
                result = self.tensors.wholes[node.output]
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
