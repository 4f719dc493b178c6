"""Geometry of a step: sizes, addresses of stores and strips, computed by the planner when the step begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from tfbig.engine import backgrounds, read_ahead
from tfbig.network.graph import Graph
from tfbig.plan.plan import Plan
from tfbig.plan.planner import Planner
from tfbig.plan.sweeps import Layout, Sweep, foldable
from tfbig.stores import device_store, file_pool
from tfbig.stores.device_store import DeviceShapes
from tfbig.stores.host_memory import MEMORY
from tfbig.system import backend, callbacks
from tfbig.units import counted, itemsize

KINDS = ("image", "remat", "gradient")
"""Kinds of `tfbig.plan.sweeps.Store`."""


@dataclass(frozen=True)
class StepGeometry:
    """Geometry of all sweeps of a step.

    Args:
        shapes: N, size and C of every image, `[number of values, axes]` int64.
        batch: N, int32 scalar.
        extents: Size of every image, `[spatial axes]` int32.
        pixels: Number of pixels of every image, int64 scalars.
        channels: Number of channels of every image, int32 scalars.
        addresses: First byte of every store by kind, `[number of values]` int64; -1 lets the store choose.
        tables: Geometry of the strips or tiles of each sweep, by index; see `Sweep.tiles`.
        replays: Geometry of each replay.
        parts: For each image whose statistics may be folded, first row and end of the parts that are read at a time,
            `[parts, 2]` int32, see `tfbig.engine.sweep_loop.fold`.
        device_shapes: Shapes of every image, if it is kept on the device; empty if none is.
        copies: For each sweep by index, how many patterns of background its observed images have, `[observed]` float64;
            empty if nothing is skipped.
        labels: Every `label` as a string tensor that is not a constant. A constant would undo the sharing of traces:
            for every call that passes one, or leaves a result unused, TensorFlow copies the function and optimises the
            copy (`SpecializeFunction` of its function optimizer).
    """

    shapes: tf.Tensor
    batch: tf.Tensor
    extents: tuple[tf.Tensor, ...]
    pixels: tuple[tf.Tensor, ...]
    channels: tuple[tf.Tensor, ...]
    addresses: Mapping[str, tf.Tensor]
    tables: tuple[tf.Tensor, ...]
    replays: Mapping[Sweep, tf.Tensor]
    parts: Mapping[int, tf.Tensor]
    device_shapes: tuple[DeviceShapes, ...]
    copies: tuple[tf.Tensor, ...]
    labels: Mapping[str, tf.Tensor]

    def table(self, sweep: Sweep) -> tf.Tensor:
        """Return the geometry of the strips or tiles of a sweep or a replay."""
        return self.replays[sweep] if sweep.is_replay else self.tables[sweep.index]

    def copies_of(self, sweep: Sweep) -> dict[int, tf.Tensor]:
        """Return how many patterns of background each observed image of a sweep has; empty if nothing is skipped."""
        if sweep.is_replay or not self.copies:
            return {}
        return {v: self.copies[sweep.index][n] for n, v in enumerate(sweep.observed)}


DIRECTIONS = ("forward", "replay before", "backward")
"""Directions of `label`."""


def label(direction: str, sweep: Sweep, layout: Layout) -> str:
    """Return the name of a sweep in progress messages, such as "forward 1/53".

    Args:
        direction: One of `DIRECTIONS`.
        sweep: The sweep, or a replay of it.
        layout: Its layout.
    """
    return f"{direction} {sweep.index + 1}/{len(layout.sweeps)}"


def trace(
    planner: Planner,
    folder: str,
    images: Mapping[int, tf.Tensor],
    layout: Layout,
    learned: frozenset[int],
    part_bytes: int,
    devices: Sequence[str | None] = (None,),
) -> StepGeometry:
    """Return the geometry of a step, computed in the graph from the shapes of its input images.

    Args:
        planner: Planner of the graph.
        folder: Scratch directory.
        images: Symbolic tensor, or string handles `[N]`, per input image.
        layout: Layout of the step.
        learned: Values that need a gradient.
        part_bytes: Bytes of an image whose statistics are folded at a time.
        devices: Devices that compute strips; None leaves it to TensorFlow.

    Returns:
        The geometry.
    """
    graph, keys = planner.graph, list(images)  # the step adds images later
    stored_dtype = planner.prepared.stored_dtype
    axes, values = graph.spatial + 2, len(graph.values)
    sweeps = [*layout.sweeps, *layout.replays]
    skipping = layout.sweeps if layout.skips else ()
    folded = () if skipping else [v for v in _foldable(layout) if v in learned]

    def compute(shapes: np.ndarray, *contents: np.ndarray) -> list[np.ndarray]:
        _check_shapes(graph, keys, shapes)
        sizes = {k: tuple(map(int, s[1:-1])) for k, s in zip(keys, shapes, strict=True)}
        found = backgrounds.found(dict(zip(keys, contents, strict=True))) if skipping else None
        plan = planner.plan(int(shapes[0][0]), sizes, layout, found, learned)
        _reserve_space(plan, folder, devices)
        every = _all_shapes(graph, sizes, int(shapes[0][0]))
        parts = [_parts(every[v], itemsize(stored_dtype(v)), part_bytes) for v in folded]
        copies = [active_tiles.copies() for active_tiles in plan.active_tiles[: len(skipping)]]
        numbers = [every, _addresses(graph, plan), *planner.tables(plan, sizes), *parts, *copies]
        return [np.array(b"", object), *numbers]

    kinds = [tf.string, tf.int64, tf.int64, *[tf.int32] * (len(sweeps) + len(folded))]
    empty, shapes, addresses, *tables = callbacks.numpy_function(
        compute,
        [
            tf.stack([_shape_of(t, axes) for t in images.values()]),
            *(images.values() if skipping else ()),
        ],
        [*kinds, *[tf.float64] * len(skipping)],
    )
    shapes = tf.ensure_shape(shapes, [values, axes])
    widths = [*(sweep.table_columns for sweep in sweeps), *[2] * len(folded)]
    tables, copies = tables[: len(widths)], tables[len(widths) :]
    tables = [tf.ensure_shape(t, [None, w]) for t, w in zip(tables, widths, strict=True)]
    copies = [tf.ensure_shape(t, [len(s.observed)]) for t, s in zip(copies, skipping, strict=True)]
    narrow, count = tf.cast(shapes, tf.int32), len(layout.sweeps)
    addresses = tf.unstack(tf.ensure_shape(addresses, [len(KINDS), values]))
    return StepGeometry(
        shapes,
        narrow[keys[0], 0],
        tuple(tf.unstack(narrow[:, 1:-1])),
        tuple(tf.unstack(tf.reduce_prod(shapes[:, 1:-1], 1))),
        tuple(tf.unstack(narrow[:, -1])),
        dict(zip(KINDS, addresses, strict=True)),
        tuple(tables[:count]),
        dict(zip(layout.replays, tables[count : len(sweeps)], strict=True)),
        dict(zip(folded, tables[len(sweeps) :], strict=True)),
        _device_shapes(graph, narrow) if layout.kept else (),
        tuple(copies),
        _labels(layout, empty),
    )


def _labels(layout: Layout, empty: tf.Tensor) -> dict[str, tf.Tensor]:
    """Return every `label` as a tensor that depends on `empty`, an empty string."""
    texts = [label(d, sweep, layout) for d in DIRECTIONS for sweep in layout.sweeps]
    tensors = tf.unstack(tf.strings.join([texts, tf.ensure_shape(empty, [])]))
    return dict(zip(texts, tensors, strict=True))


def _shape_of(image: tf.Tensor, axes: int) -> tf.Tensor:
    """Return the shape of an image or a batch of handles, `[axes]` int64."""
    if image.dtype == tf.string:
        return read_ahead.source_shape(image, axes)
    return tf.shape(image, tf.int64)


def _check_shapes(graph: Graph, keys: list[int], shapes: np.ndarray) -> None:
    """Raise ValueError if inputs differ in the number of images, or from the graph in channels."""
    for key, shape in zip(keys, shapes, strict=True):
        info = graph.values[key]
        if shape[0] != shapes[0][0] or shape[-1] != info.channels:
            raise ValueError(
                f"input '{info.name}' has shape {tuple(map(int, shape))}; expected "
                f"{counted(int(shapes[0][0]), 'image')} with {counted(info.channels, 'channel')}."
            )


def _reserve_space(plan: Plan, folder: str, devices: Sequence[str | None]) -> None:
    """Raise BudgetError if the machine does not have the memory or the disk of a plan; page-lock memory for a GPU."""
    MEMORY.check(plan.projected.host)
    if any(map(backend.is_gpu, devices)):
        MEMORY.page_lock(plan.projected.host)
    if plan.projected.disk:
        file_pool.check(folder, plan.projected.disk)


def _device_shapes(graph: Graph, shapes: tf.Tensor) -> tuple[DeviceShapes, ...]:
    """Return the shapes of every image on the device; `shapes` are `[values, axes]`."""
    return device_store.device_shapes(shapes, [itemsize(value.dtype) for value in graph.values])


def _all_shapes(graph: Graph, sizes: dict[int, tuple[int, ...]], batch: int) -> np.ndarray:
    shapes = np.zeros((len(graph.values), graph.spatial + 2), np.int64)
    for value, size in graph.extents(sizes).items():
        shapes[value] = batch, *size, graph.values[value].channels
    return shapes


def _foldable(layout: Layout) -> list[int]:
    """Return the images with statistics whose gradient may be folded, see `SweepRunner`."""
    nodes = [n for sweep in layout.sweeps for n in foldable(sweep)]
    return [v for v in dict.fromkeys(n.inputs[0] for n in nodes) if v not in layout.kept]


def _parts(shape: np.ndarray, element_bytes: int, part_bytes: int) -> np.ndarray:
    """Return first row and end of the parts of an image of at most `part_bytes`, but of one row at least."""
    rows = int(shape[1])
    row_bytes = int(shape.prod()) // rows * element_bytes
    step = max(part_bytes // max(row_bytes, 1), 1)
    starts = np.arange(0, rows, step, dtype=np.int32)
    return np.stack([starts, np.minimum(starts + step, rows, dtype=np.int32)], 1)


def _addresses(graph: Graph, plan: Plan) -> np.ndarray:
    addresses = np.full((len(KINDS), len(graph.values)), -1, np.int64)
    for store, start in plan.addresses.items():
        addresses[KINDS.index(store.kind), store.value] = start
    return addresses
