"""The computation of one strip of a sweep: run the nodes, reduce, and the pullback of the reductions."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfbig.engine.sweep_state import StripGeometry, Structure, SweepTensors, image_shape
from tfbig.network.graph import Graph, Node, image_positions
from tfbig.ops.kernels import InputRows, Strip, take_rows
from tfbig.plan.sweeps import Sweep
from tfbig.stores import device_store


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

    def add_to_pages(
        self, pages: dict[int, tf.Tensor], rows: dict[int, tf.Tensor], first: str
    ) -> dict[int, tf.Tensor]:
        """Add rows to images on the device.

        Args:
            pages: Images on the device, by value.
            rows: Rows to add, by value.
            first: Name of the column with the first row.

        Returns:
            The changed images.
        """
        return {
            v: device_store.add(
                image, image_shape(self.graph, self.tensors, v), self.geometry[first, v], rows[v]
            )
            for v, image in pages.items()
        }

    def values(self, tiles: dict[int, tf.Tensor]) -> dict[int, Structure]:
        """Run the local nodes and return every image of the sweep on the strip, by value."""
        values, geometry = dict(tiles), self.geometry
        for node in self.sweep.locals:
            images = image_positions(node)
            inputs = [
                self._input_rows(values, node, p) if p in images else self.tensors.wholes[i]
                for p, i in enumerate(node.inputs)
            ]
            rows = tuple(
                self._rows(node, p) if p in images else None for p in range(len(node.inputs))
            )
            value = node.output
            strip = Strip(
                geometry["start", value], geometry["stop", value], self._extent(value), rows
            )
            weights = [self.tensors.weights[w] for w in node.weights]
            values[value] = node.op.function(inputs, weights, strip)
        return values

    def _rows(self, node: Node, p: int) -> InputRows:
        """Return the rows that a node reads of its input `p`."""
        start, stop, before, after = (
            self.geometry[key, node.output, p] for key in ("start", "stop", "before", "after")
        )
        return InputRows(start, stop, before, after, self._extent(node.inputs[p]))

    def _extent(self, value: int) -> tf.Tensor:
        return self.tensors.extents[value, 0]

    def _input_rows(self, values: dict[int, tf.Tensor], node: Node, p: int) -> tf.Tensor:
        """Return the rows of input `p` that a node reads; the whole tile if nothing else reads the image."""
        value, geometry = node.inputs[p], self.geometry
        if self.sweep.uses[value] == 1:
            return values[value]
        start, stop = geometry["start", node.output, p], geometry["stop", node.output, p]
        return self._cut(values, value, start, stop)

    def _cut(self, values: dict[int, tf.Tensor], value: int, start: Any, stop: Any) -> tf.Tensor:
        """Return some rows of a tile; a copy if the tile is memory of a store."""
        image = self.tensors.images.get(value)
        is_store = image is not None and not device_store.is_list(image)
        return take_rows(
            values[value], start - self.geometry["start", value], stop - start, copy=is_store
        )

    def owned(self, values: dict[int, tf.Tensor]) -> dict[int, tf.Tensor]:
        """Return the rows that the strip owns of every image that is stored or reduced."""
        owned, geometry = {}, self.geometry
        for v in self.sweep.observed:
            start, stop = geometry["own start", v], geometry["own stop", v]
            is_only_use = self.sweep.uses[v] == 1
            owned[v] = values[v] if is_only_use else self._cut(values, v, start, stop)
        return owned

    def _owned_strip(self, node: Node) -> Strip:
        """Return the range of rows that this strip contributes to a reduction."""
        value, geometry = node.inputs[0], self.geometry
        return Strip(
            geometry["own start", value], geometry["own stop", value], self._extent(value), ()
        )

    def merge(self, owned: dict[int, tf.Tensor], partials: list[Structure]) -> list[Structure]:
        """Return the partial sums of the reductions, merged with those of this strip."""
        merged = []
        for node, before in zip(self.sweep.reductions, partials, strict=True):
            inputs = [owned[v] for v in node.inputs]
            new = node.op.partial(inputs, self._owned_strip(node))
            merged.append(node.op.merge(before, new))
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
            if partials is None:
                result = self.tensors.wholes[node.output]
                gradients = node.op.pullback(inputs, strip, result, cotangent)
            else:
                new, gradients = node.op.fused(inputs, strip, cotangent)
                merged.append(node.op.merge(partials[position], new))
            pairs = zip(node.inputs, gradients, strict=True)
            pulled.append({v: g for v, g in pairs if g is not None})
        return merged, pulled
