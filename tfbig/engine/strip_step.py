"""What a sweep computes on one strip, and the pullback of its reductions there."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfbig.engine import read_ahead
from tfbig.engine.sweep_state import Part, Row, Structure
from tfbig.network.graph import Graph, Node, image_positions
from tfbig.ops.kernels import Rows, Strip, take_rows
from tfbig.plan.sweeps import Sweep
from tfbig.stores import device_store, host_store


class Visit:
    """One strip of a sweep.

    Args:
        graph: of the sweep.
        sweep: what runs.
        part: what it works with.
        index: of the strip.
        last: the last strip that is worked on where this one is.
        device: where the strip is worked on.
    """

    def __init__(
        self,
        graph: Graph,
        sweep: Sweep,
        part: Part,
        index: tf.Tensor,
        last: tf.Tensor,
        device: str | None = None,
    ) -> None:
        self.graph = graph
        self.sweep = sweep
        self.part = part
        self.device = device
        self.row = Row(sweep, part.table[index])
        self._index = index
        self._last = last

    def read(self) -> tuple[dict[int, Any], dict[int, Any], dict[int, Any]]:
        """Tiles of what the sweep reads; own rows of what it wrote, and of the gradients of that."""
        row, part = self.row, self.part
        wanted = {
            ("image", v): (part.images[v], row["start", v], row["stop", v])
            for v in self.sweep.reads
            if v not in self.graph.inputs
        }
        for kind, images in (("written", part.written), ("gradient", part.d_images)):
            own = {v: (t, row["own start", v], row["own stop", v]) for v, t in images.items()}
            wanted |= {(kind, v): rows for v, rows in own.items()}
        stored = [key for key, (image, *_) in wanted.items() if not device_store.is_list(image)]
        rows = host_store.read([wanted[key] for key in stored])
        found = dict(zip(stored, map(self._staged, rows), strict=True))
        with tf.device(self.device):
            for key, (image, start, stop) in wanted.items():
                if key not in found:
                    dtype = self.graph.values[key[1]].dtype
                    found[key] = device_store.read(
                        image, self._whole_shape(key[1]), dtype, start, stop
                    )
            shaped = {key: self._shaped(key[1], t) for key, t in found.items()}
        tiles, written, gradients = (
            {v: t for (kind, v), t in shaped.items() if kind == each}
            for each in ("image", "written", "gradient")
        )
        given = {v: self._given(v) for v in self.sweep.reads if v in self.graph.inputs}
        tiles |= {v: self._staged(t) for v, t in given.items()}
        return tiles, written, gradients

    def _staged(self, rows: tf.Tensor) -> tf.Tensor:
        """Rows in memory from which a GPU copies while it computes."""
        is_gpu = self.device is not None and "GPU" in self.device
        return host_store.staged(rows) if is_gpu else rows

    def changed(
        self, pages: dict[int, tf.Tensor], rows: dict[int, tf.Tensor], first: str
    ) -> dict[int, tf.Tensor]:
        """Images that stay on the device, with rows added.

        Args:
            pages: the images.
            rows: what is added to each.
            first: name of the column that says from which row on.
        """
        return {
            v: device_store.add(image, self._whole_shape(v), self.row[first, v], rows[v])
            for v, image in pages.items()
        }

    def _whole_shape(self, value: int) -> tf.Tensor:
        """`[N, H, ..., C]` of a whole image."""
        channels = self.graph.values[value].channels
        return tf.concat([[self.part.batch], self.part.extents[value], [channels]], 0)

    def _given(self, value: int) -> tf.Tensor:
        """Rows of an image from outside: a tensor, or files behind handles."""
        image, known = self.part.images[value], self.graph.values[value]
        start, stop = self.row["start", value], self.row["stop", value]
        if image.dtype != tf.string:
            return take_rows(image, start, stop - start)
        ahead = self._ahead(value)
        rows = read_ahead.read_source(image, start, stop, tf.as_dtype(known.dtype), ahead)
        return tf.ensure_shape(rows, self._shape(value, image.shape[0]))

    def _ahead(self, value: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Rows of the strip that runs once this one is done; an empty range after the last."""
        index = self._index + self.graph.at_once
        row = Row(self.sweep, self.part.table[tf.minimum(index, self._last)])
        start, stop = row["start", value], row["stop", value]
        return start, tf.where(index > self._last, start, stop)

    def _shaped(self, value: int, rows: tf.Tensor) -> tf.Tensor:
        rows = tf.ensure_shape(rows, self._shape(value, self.part.count))
        return tf.cast(rows, self.graph.values[value].dtype)

    def _shape(self, value: int, count: int | None) -> list[int | None]:
        return [count, *[None] * self.graph.spatial, self.graph.values[value].channels]

    def values(self, tiles: dict[int, tf.Tensor]) -> dict[int, Structure]:
        """Every image of the sweep on the strip."""
        values, row = dict(tiles), self.row
        for node in self.sweep.locals:
            images = image_positions(node)
            inputs = [
                self._view(values, node, p) if p in images else self.part.wholes[i]
                for p, i in enumerate(node.inputs)
            ]
            rows = tuple(
                self._rows(node, p) if p in images else None for p in range(len(node.inputs))
            )
            value = node.output
            strip = Strip(row["start", value], row["stop", value], self._extent(value), rows)
            weights = [self.part.weights[w] for w in node.weights]
            values[value] = node.op.function(inputs, weights, strip)
        return values

    def _rows(self, node: Node, p: int) -> Rows:
        start, stop, before, after = (
            self.row[key, node.output, p] for key in ("start", "stop", "before", "after")
        )
        return Rows(start, stop, before, after, self._extent(node.inputs[p]))

    def _extent(self, value: int) -> tf.Tensor:
        return self.part.extents[value, 0]

    def _view(self, values: dict[int, tf.Tensor], node: Node, p: int) -> tf.Tensor:
        """The rows of an image that one node reads; all of the tile where nothing else asks for more."""
        value, row = node.inputs[p], self.row
        if self.sweep.uses[value] == 1:
            return values[value]
        start, stop = row["start", node.output, p], row["stop", node.output, p]
        return self._cut(values, value, start, stop)

    def _cut(self, values: dict[int, tf.Tensor], value: int, start: Any, stop: Any) -> tf.Tensor:
        """Some rows of a tile; a copy where the tile is a store's own memory."""
        read = self.part.images.get(value)
        is_store = read is not None and not device_store.is_list(read)
        return take_rows(
            values[value], start - self.row["start", value], stop - start, copy=is_store
        )

    def owned(self, values: dict[int, tf.Tensor]) -> dict[int, tf.Tensor]:
        """The rows that the strip owns of every image that is stored or reduced."""
        owned, row = {}, self.row
        for v in self.sweep.observed:
            start, stop = row["own start", v], row["own stop", v]
            alone = self.sweep.uses[v] == 1
            owned[v] = values[v] if alone else self._cut(values, v, start, stop)
        return owned

    def _own_strip(self, node: Node) -> Strip:
        value = node.inputs[0]
        return Strip(
            self.row["own start", value], self.row["own stop", value], self._extent(value), ()
        )

    def merge(self, owned: dict[int, tf.Tensor], partials: list[Structure]) -> list[Structure]:
        """The partial sums of the reductions with those of this strip."""
        merged = []
        for node, before in zip(self.sweep.reductions, partials, strict=True):
            inputs = [owned[v] for v in node.inputs]
            weights = [self.part.weights[w] for w in node.weights]
            new = node.op.partial(inputs, weights, self._own_strip(node))
            merged.append(node.op.merge(before, new))
        return merged

    def pull(
        self, owned: dict[int, tf.Tensor], partials: list[Structure] | None
    ) -> tuple[list[Structure], list[dict[int, tf.Tensor]]]:
        """Gradients that the reductions give to their images; with `partials`, these are merged as well."""
        pulled, merged = [], []
        for position, node in enumerate(self.sweep.reductions):
            cotangent = self.part.d_wholes.get(node.output)
            if cotangent is None:
                continue
            inputs = [owned[v] for v in node.inputs]
            weights = [self.part.weights[w] for w in node.weights]
            strip = self._own_strip(node)
            if partials is None:
                result = self.part.wholes[node.output]
                gradients = node.op.pullback(inputs, weights, strip, result, cotangent)
            else:
                new, gradients = node.op.together(inputs, weights, strip, cotangent)
                merged.append(node.op.merge(partials[position], new))
            pairs = zip(node.inputs, gradients, strict=True)
            pulled.append({v: g for v, g in pairs if g is not None})
        return merged, pulled
