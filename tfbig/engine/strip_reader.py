"""The rows that a strip or tile of a sweep needs, from stores, images on the device, tensors and files."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfbig.engine import read_ahead
from tfbig.engine.sweep_state import Interval, StripGeometry, SweepTensors
from tfbig.network.graph import Graph
from tfbig.ops.kernels import take
from tfbig.plan.sweeps import Sweep
from tfbig.stores import device_store, host_store
from tfbig.stores.host_memory import MEMORY
from tfbig.system import backend


class StripReader:
    """Reads the rows of the strips of a sweep.

    Args:
        graph: Graph of the sweep.
        sweep: The sweep.
        tensors: Tensors of the sweep.
        device: Device that computes the strips; None leaves it to TensorFlow.
        at_once: Number of strips in flight, after which comes the one whose files are read ahead.
    """

    def __init__(
        self,
        graph: Graph,
        sweep: Sweep,
        tensors: SweepTensors,
        device: str | None = None,
        at_once: int = 1,
    ) -> None:
        self.graph = graph
        self.sweep = sweep
        self.tensors = tensors
        self.device = device
        self.at_once = at_once

    def geometry(self, index: tf.Tensor) -> StripGeometry:
        """Return the geometry of a strip.

        Args:
            index: Index of the strip.
        """
        return StripGeometry(self.sweep, tf.gather(self.tensors.table, index))

    def read(
        self, geometry: StripGeometry, index: tf.Tensor, last: tf.Tensor
    ) -> tuple[dict[int, Any], dict[int, Any], dict[int, Any]]:
        """Read the rows that a strip needs, and let the files of the next one be read ahead.

        Args:
            geometry: Geometry of the strip.
            index: Index of the strip.
            last: Index of the last strip that runs on the same device.

        Returns:
            Rows of the images that the sweep reads, owned rows of the images that it wrote, and owned rows of the
            gradients of these, each by value.
        """
        tensors = self.tensors
        requests = {
            ("image", v): (tensors.images[v], geometry.part(v))
            for v in self.sweep.reads
            if v not in self.graph.inputs
        }
        for kind, images in (("written", tensors.written), ("gradient", tensors.d_images)):
            requests |= {(kind, v): (t, geometry.part(v, own=True)) for v, t in images.items()}
        stored = [key for key in requests if key[1] not in tensors.buffers]
        rows = host_store.read([requests[key] for key in stored], geometry.is_pattern)
        are_tiles = self.sweep.axes > 1 or self.sweep.skips
        send = self.staged if are_tiles else self.sent
        results = dict(zip(stored, [send(t, self.device) for t in rows], strict=True))
        with tf.device(self.device):
            for key, (image, part) in requests.items():
                if key not in results:
                    results[key] = self._read_kept(key[1], image, part[0])
            shaped = {key: self._shaped(key[1], t) for key, t in results.items()}
            for kind, v in shaped:
                if kind == "gradient" and geometry.is_pattern is not None:
                    rows, store = shaped[kind, v], requests[kind, v][0]
                    shaped[kind, v] = self._with_sums(geometry.is_pattern, v, rows, store)
        tiles, written, gradients = (
            {v: t for (kind, v), t in shaped.items() if kind == each}
            for each in ("image", "written", "gradient")
        )
        inputs = {
            v: self._read_input(v, geometry, index, last)
            for v in self.sweep.reads
            if v in self.graph.inputs
        }
        tiles |= {v: self.staged(t, self.device) for v, t in inputs.items()}
        return tiles, written, gradients

    def _read_kept(self, value: int, image: tf.Tensor, rows: Interval) -> tf.Tensor:
        """Return rows of an image on the device."""
        if self.sweep.single:
            return device_store.part(image, rows[0], rows[1] - rows[0])
        buffer, dtype = self.tensors.buffers[value], self.graph.values[value].dtype
        return device_store.read(image, buffer, dtype, *rows, self.tensors.known_batch)

    def _with_sums(
        self, is_pattern: tf.Tensor, value: int, rows: tf.Tensor, store: tf.Tensor
    ) -> tf.Tensor:
        """Return rows of a gradient; those of the pattern are sums, which are not rounded to the dtype of the store."""
        if rows.dtype.size <= store.dtype.size:
            return rows
        return tf.cond(
            is_pattern > 0,
            lambda: self._shaped(value, host_store.rest(store, rows.dtype)),
            lambda: rows,
        )

    @staticmethod
    def staged(rows: tf.Tensor, device: str | None) -> tf.Tensor:
        """Return rows in memory from which a device can copy while it computes."""
        return host_store.staged(rows) if backend.is_gpu(device) else rows

    @staticmethod
    def sent(rows: tf.Tensor, device: str | None) -> tf.Tensor:
        """Return rows of a store as `staged` does; page-locked stores are such memory."""
        if backend.is_gpu(device) and MEMORY.can_lock():
            return rows
        return StripReader.staged(rows, device)

    def _read_input(
        self, value: int, geometry: StripGeometry, index: tf.Tensor, last: tf.Tensor
    ) -> tf.Tensor:
        """Return rows of an input of the model: a tensor, or files behind handles, which read the next rows ahead."""
        image, info = self.tensors.images[value], self.graph.values[value]
        part = geometry.part(value)
        if image.dtype != tf.string:
            return take(image, [(start, stop - start) for start, stop in part])
        ahead = self._next_part(value, index, last)
        rows = read_ahead.read_source(image, part, tf.as_dtype(info.dtype), ahead)
        return tf.ensure_shape(rows, self._shape(value, image.shape[0]))

    def _next_part(self, value: int, index: tf.Tensor, last: tf.Tensor) -> list[Interval]:
        """Return what the strip reads that is requested when this one ends; no rows after the last."""
        following = index + self.at_once
        (start, stop), *others = self.geometry(tf.minimum(following, last)).part(value)
        return [(start, tf.where(following > last, start, stop)), *others]

    def _shaped(self, value: int, rows: tf.Tensor) -> tf.Tensor:
        """Set the static shape of rows from a store, and cast them to the dtype of the image."""
        rows = tf.ensure_shape(rows, self._shape(value, self.tensors.known_batch))
        return tf.cast(rows, self.graph.values[value].dtype)

    def _shape(self, value: int, count: int | None) -> list[int | None]:
        return [count, *[None] * self.graph.spatial, self.graph.traced_channels(value)]
