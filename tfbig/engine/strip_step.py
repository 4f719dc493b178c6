"""The computation of one strip of a sweep: read, run the nodes, reduce, and the pullback of the reductions."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfbig.engine import read_ahead
from tfbig.engine.sweep_state import StripGeometry, Structure, SweepTensors
from tfbig.network.graph import Graph, Node, image_positions
from tfbig.ops.kernels import InputRows, Strip, take_rows
from tfbig.plan.sweeps import Sweep
from tfbig.stores import device_store, host_store


class StripStep:
    """One strip of a sweep.

    Args:
        graph: Graph of the sweep.
        sweep: The sweep.
        tensors: Tensors of the sweep.
        index: Index of the strip.
        last: Index of the last strip that runs on the same device.
        device: Device that computes the strip; None leaves it to TensorFlow.
    """

    def __init__(
        self,
        graph: Graph,
        sweep: Sweep,
        tensors: SweepTensors,
        index: tf.Tensor,
        last: tf.Tensor,
        device: str | None = None,
    ) -> None:
        self.graph = graph
        self.sweep = sweep
        self.tensors = tensors
        self.device = device
        self.geometry = StripGeometry(sweep, tensors.table[index])
        self._index = index
        self._last = last

    def read(self) -> tuple[dict[int, Any], dict[int, Any], dict[int, Any]]:
        """Read the rows that the strip needs.

        Returns:
            Rows of the images that the sweep reads, owned rows of the images that it wrote, and owned rows of the
            gradients of these, each by value.
        """
        geometry, tensors = self.geometry, self.tensors
        requests = {
            ("image", v): (tensors.images[v], geometry["start", v], geometry["stop", v])
            for v in self.sweep.reads
            if v not in self.graph.inputs
        }
        for kind, images in (("written", tensors.written), ("gradient", tensors.d_images)):
            requests |= {
                (kind, v): (t, geometry["own start", v], geometry["own stop", v])
                for v, t in images.items()
            }
        stored = [key for key, (image, *_) in requests.items() if not device_store.is_list(image)]
        rows = host_store.read([requests[key] for key in stored])
        results = dict(zip(stored, map(self._staged, rows), strict=True))
        with tf.device(self.device):
            for key, (image, start, stop) in requests.items():
                if key not in results:
                    dtype = self.graph.values[key[1]].dtype
                    results[key] = device_store.read(
                        image, self._image_shape(key[1]), dtype, start, stop
                    )
            shaped = {key: self._shaped(key[1], t) for key, t in results.items()}
        tiles, written, gradients = (
            {v: t for (kind, v), t in shaped.items() if kind == each}
            for each in ("image", "written", "gradient")
        )
        inputs = {v: self._read_input(v) for v in self.sweep.reads if v in self.graph.inputs}
        tiles |= {v: self._staged(t) for v, t in inputs.items()}
        return tiles, written, gradients

    def _staged(self, rows: tf.Tensor) -> tf.Tensor:
        """Return rows in memory from which a GPU can copy while it computes."""
        is_gpu = self.device is not None and "GPU" in self.device
        return host_store.staged(rows) if is_gpu else rows

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
            v: device_store.add(image, self._image_shape(v), self.geometry[first, v], rows[v])
            for v, image in pages.items()
        }

    def _image_shape(self, value: int) -> tf.Tensor:
        """Return the shape `[N, H, ..., C]` of a whole image."""
        channels = self.graph.values[value].channels
        return tf.concat([[self.tensors.batch], self.tensors.extents[value], [channels]], 0)

    def _read_input(self, value: int) -> tf.Tensor:
        """Return rows of an input of the model: a tensor, or files behind handles."""
        image, info = self.tensors.images[value], self.graph.values[value]
        start, stop = self.geometry["start", value], self.geometry["stop", value]
        if image.dtype != tf.string:
            return take_rows(image, start, stop - start)
        ahead = self._next_rows(value)
        rows = read_ahead.read_source(image, start, stop, tf.as_dtype(info.dtype), ahead)
        return tf.ensure_shape(rows, self._shape(value, image.shape[0]))

    def _next_rows(self, value: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Return `(start, stop)` of the rows of the strip that starts when this one ends; empty after the last."""
        index = self._index + self.graph.at_once
        geometry = StripGeometry(self.sweep, self.tensors.table[tf.minimum(index, self._last)])
        start, stop = geometry["start", value], geometry["stop", value]
        return start, tf.where(index > self._last, start, stop)

    def _shaped(self, value: int, rows: tf.Tensor) -> tf.Tensor:
        """Set the static shape of rows from a store, and cast them to the dtype of the image."""
        rows = tf.ensure_shape(rows, self._shape(value, self.tensors.count))
        return tf.cast(rows, self.graph.values[value].dtype)

    def _shape(self, value: int, count: int | None) -> list[int | None]:
        return [count, *[None] * self.graph.spatial, self.graph.values[value].channels]

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
