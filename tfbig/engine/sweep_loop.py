"""Runs one sweep over its strips, forward or backward, in one loop per device.

With several devices, each has consecutive strips, and copies of the weights and partial sums; the sums are added up
once the sweep has ended. Stores are in host memory, which all devices share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, NamedTuple

import tensorflow as tf

from tfbig.engine import sweep_preparation
from tfbig.engine.shared_traces import placed
from tfbig.engine.strip_reader import StripReader
from tfbig.engine.strip_step import StripStep
from tfbig.engine.sweep_preparation import Preparation
from tfbig.engine.sweep_state import Structure, SweepTensors
from tfbig.network.graph import Graph
from tfbig.ops import autodiff
from tfbig.ops.kernels import Strip
from tfbig.plan.sweeps import Sweep
from tfbig.stores import host_store
from tfbig.units import ceil_div

Devices = Sequence[str | None]
"""Devices that compute strips; None leaves it to TensorFlow."""

FOLD_BYTES = 2**22
"""Bytes of an image that `fold` processes at a time: few enough for the cache."""

FOLD_BYTES_OF_DEVICE = 2**26
"""The same on an accelerator: enough that the copies, not their number, take the time."""


def fold_bytes(device_bytes: int, devices: Devices) -> int:
    """Return the bytes of an image that `fold` processes at a time.

    Args:
        device_bytes: Limit for strips.
        devices: Devices that compute strips; None leaves it to TensorFlow.
    """
    if any(devices):
        return min(FOLD_BYTES_OF_DEVICE, device_bytes // 32)
    return min(FOLD_BYTES, device_bytes // 8)


def forward(
    graph: Graph, sweep: Sweep, tensors: SweepTensors, devices: Devices
) -> tuple[Any, Structure]:
    """Run a sweep forward: fill the stores of the images that it writes.

    Args:
        graph: Graph of the sweep.
        sweep: The sweep.
        tensors: Tensors of the sweep.
        devices: Devices that compute the strips.

    Returns:
        `(done, (partial sums of the reductions, images on the device))`.
    """
    total = tf.shape(tensors.table)[0]
    with placed(devices[0]):
        tensors = replace(tensors, prepared=sweep_preparation.prepare(sweep, tensors))

    def body(strips: _DeviceStrips, i: tf.Tensor, before: tf.Tensor, sums: Structure) -> _Strip:
        reader = StripReader(graph, sweep, strips.tensors, strips.device, strips.at_once)
        step = StripStep(graph, sweep, strips.tensors, reader.geometry(i))
        tiles, *_ = strips.in_turn(reader.read(step.geometry, i, strips.last))
        with tf.device(strips.device):
            owned = step.owned(step.values(tiles))
            sums = step.merge(owned, sums[0]), step.write_kept(sums[1], owned)
            written = {v: tf.cast(owned[v], s.dtype) for v, s in tensors.stores.items()}
        firsts = {v: step.geometry.along("own start", v) for v in sweep.writes}
        changes = [(s, written[v], *firsts[v]) for v, s in tensors.stores.items()]
        for v, key in tensors.sinks.items():
            before = host_store.write_sink(
                key, firsts[v], owned[v], tensors.extents[v], before, step.geometry.is_pattern
            )
        is_pattern = step.geometry.is_pattern
        done = host_store.write(changes, before, tensors.label, i, total, is_pattern)
        return _Strip(done, sums, [*owned.values()])

    def join(a: Structure, b: Structure) -> Structure:
        return _merged(sweep, a[0], b[0]), a[1]  # no images stay on the device if there are several

    with placed(devices[0]):  # not copied there
        start = (_initial_sums(graph, sweep, tensors), tensors.kept)
    used = devices[:1] if tensors.sinks else devices  # a sink receives rows in their order
    return _loop(total, graph, sweep, tensors, body, start, used, join)


def _initial_sums(graph: Graph, sweep: Sweep, tensors: SweepTensors) -> list[Structure]:
    """Return the partial sums of the reductions before the first strip."""
    counts = {v: graph.traced_channels(v) or tensors.channels[v] for v in sweep.observed}
    return [n.op.init(tensors.batch, [counts[v] for v in n.inputs]) for n in sweep.reductions]


def _merged(sweep: Sweep, a: Structure, b: Structure) -> Structure:
    """Return the merged partial sums of two devices."""
    return [n.op.merge(x, y) for n, x, y in zip(sweep.reductions, a, b, strict=True)]


@dataclass(frozen=True)
class Backward:
    """Options of `backward`; values and weights by position in the sweep.

    Args:
        fresh: Stores whose present content is to be ignored, and images on the device that are zero.
        fused: Whether the forward runs in the same pass (`Reduce.fused`).
        learned: Values that need a gradient.
        trained: Weights that need a gradient.
    """

    fresh: frozenset[int]
    fused: bool
    learned: frozenset[int]
    trained: tuple[int, ...]


def backward(
    graph: Graph, sweep: Sweep, tensors: SweepTensors, devices: Devices, options: Backward
) -> tuple[Any, Structure]:
    """Run a sweep backward: add gradients of the images that it read to their stores.

    Args:
        graph: Graph of the sweep.
        sweep: The sweep.
        tensors: Tensors of the sweep.
        devices: Devices that compute the strips.
        options: Which gradients are needed.

    Returns:
        `(done, (gradients of the wholes, of the weights, partial sums, gradients on the device))`.
    """
    total = tf.shape(tensors.table)[0]
    with placed(devices[0]):
        preparation = Preparation(sweep, tensors, options.learned, options.trained)
    tensors = replace(tensors, prepared=preparation.tensors)
    sources_of = preparation.sources_of

    def body(strips: _DeviceStrips, i: tf.Tensor, before: tf.Tensor, sums: Structure) -> _Strip:
        reader = StripReader(graph, sweep, strips.tensors, strips.device, strips.at_once)
        step = StripStep(graph, sweep, strips.tensors, reader.geometry(i))
        tiles, written, cotangents = strips.in_turn(reader.read(step.geometry, i, strips.last))
        with tf.device(strips.device):
            images = {v: tiles[v] for v in (*tensors.stores, *tensors.kept)}
            sources = (images, *sources_of(strips.tensors))
            with tf.GradientTape() as tape:
                tape.watch(autodiff.floats(sources))
                owned = step.owned(step.values(tiles))
            partials, pulled = step.pull(owned | written, sums[2] if options.fused else None)
            outputs, seeds = autodiff.sum_seeds(owned, [cotangents, *pulled])
            d_tiles, *d_others = autodiff.gradients(tape, outputs, seeds, sources)
            kept = step.add_to_kept(sums[1], d_tiles, options.fresh)
            sums = autodiff.add(sums[0], tuple(d_others)), kept, partials
            added = {v: tf.cast(d_tiles[v], s.dtype) for v, s in tensors.stores.items()}
        if sweep.axes > 1 or sweep.skips:
            firsts = {v: step.geometry.along("start", v) for v in tensors.stores}
            tiles = d_tiles if sweep.skips else added
            changes = [(s, tiles[v], *firsts[v]) for v, s in tensors.stores.items()]
            is_pattern = step.geometry.is_pattern
            done = host_store.add_tiles(changes, before, tensors.label, i, total, is_pattern)
        else:
            changes = [
                (s, added[v], *_edges(step, v, v in options.fresh))
                for v, s in tensors.stores.items()
            ]
            done = host_store.add(changes, before, tensors.label, i, total)
        return _Strip(done, sums, [*d_tiles.values(), *autodiff.floats(d_others)])

    def join(a: Structure, b: Structure) -> Structure:
        partials = _merged(sweep, a[2], b[2]) if options.fused else []
        return autodiff.add(a[0], b[0]), a[1], partials

    with placed(devices[0]):  # not copied there
        sources = sources_of(tensors)
        zeros = tf.nest.map_structure(autodiff.zero_sum, sources)
        partials = _initial_sums(graph, sweep, tensors) if options.fused else []
    first = zeros, tensors.kept, partials
    done, (sums, kept, partials) = _loop(total, graph, sweep, tensors, body, first, devices, join)
    with placed(devices[0]):
        narrow = tf.nest.map_structure(_like, sums, sources)
        d_wholes, d_weights = preparation.pull(*narrow)
    return done, (d_wholes, d_weights, partials, kept)


def _like(total: tf.Tensor, source: tf.Tensor) -> tf.Tensor:
    """Return the sum of gradients of a tensor in its dtype; that of an integer tensor is a scalar zero."""
    return tf.cast(total, source.dtype) if autodiff.is_float(source) else total


def _edges(step: StripStep, value: int, fresh: bool) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Return the arguments `(start, covered, until)` of `host_store.add`."""
    start, stop = step.geometry["start", value], step.geometry["stop", value]
    if not fresh:
        return start, stop, stop
    return start, step.geometry["covered", value], step.geometry["until", value]


def fold(graph: Graph, sweep: Sweep, tensors: SweepTensors, devices: Devices, chunk: int) -> Any:
    """Add the gradients of statistics to the gradient of the stored image that they were computed from.

    It is a separate pass so that the image can be freed before the gradients of the sweep's inputs are computed.

    Args:
        graph: Graph of the sweep.
        sweep: Its nodes are the reductions of one image, the only one that it reads.
        tensors: `images` and `stores` hold this image and its gradient.
        devices: Devices that compute the rows.
        chunk: Bytes to process at a time.

    Returns:
        `done`.
    """
    ((value, image),) = tensors.images.items()
    gradient = tensors.stores[value]
    rows = tensors.extents[value, 0]
    row_bytes = tf.size(image, tf.int64) // tf.cast(rows, tf.int64) * image.dtype.size
    step = tf.cast(tf.maximum(chunk // row_bytes, 1), tf.int32)
    total = ceil_div(rows, step)
    shape = [tensors.known_batch, *[None] * graph.spatial, graph.traced_channels(value)]

    def body(strips: _DeviceStrips, i: tf.Tensor, before: tf.Tensor, _: Structure) -> _Strip:
        start, stop = i * step, tf.minimum((i + 1) * step, rows)
        stored = host_store.read([(image, [(start, stop)]), (gradient, [(start, stop)])])
        stored = strips.in_turn([StripReader.sent(t, strips.device) for t in stored])
        with tf.device(strips.device):
            x, total_gradient = (
                tf.cast(tf.ensure_shape(t, shape), graph.values[value].dtype) for t in stored
            )
            for node in sweep.reductions:
                local = strips.tensors
                result, cotangent = local.wholes[node.output], local.d_wholes[node.output]
                strip = Strip(start, stop, rows, ())
                (pulled,) = node.op.pullback([x], strip, result, cotangent)
                total_gradient += pulled
            total_gradient = tf.cast(total_gradient, gradient.dtype)
        changes = [(gradient, total_gradient, start)]
        done = host_store.write(changes, before, tensors.label, i, total)
        return _Strip(done, (), [total_gradient])

    return _loop(total, graph, sweep, tensors, body, (), devices, lambda a, b: a)[0]


def fold_tiles(graph: Graph, sweep: Sweep, tensors: SweepTensors, devices: Devices) -> Any:
    """Add the gradients of statistics as `fold` does, to a gradient that is stored in tiles.

    Args:
        graph: Graph of the sweep.
        sweep: Its nodes are the reductions of one image, the only one that it observes.
        tensors: `written` and `d_images` hold this image and its gradient.
        devices: Devices that compute the tiles.

    Returns:
        `done`.
    """
    ((value, gradient),) = tensors.d_images.items()
    total = tf.shape(tensors.table)[0]

    def body(strips: _DeviceStrips, i: tf.Tensor, before: tf.Tensor, _: Structure) -> _Strip:
        reader = StripReader(graph, sweep, strips.tensors, strips.device, strips.at_once)
        step = StripStep(graph, sweep, strips.tensors, reader.geometry(i))
        _, images, gradients = strips.in_turn(reader.read(step.geometry, i, strips.last))
        with tf.device(strips.device):
            _, pulled = step.pull(images, None)
            summed = tf.add_n([gradients[value], *(each[value] for each in pulled)])
        changes = [(gradient, summed, *step.geometry.along("own start", value))]
        is_pattern = step.geometry.is_pattern
        done = host_store.write(changes, before, tensors.label, i, total, is_pattern)
        return _Strip(done, (), [summed])

    return _loop(total, graph, sweep, tensors, body, (), devices, lambda a, b: a)[0]


@dataclass(frozen=True)
class _DeviceStrips:
    """Strips of one device.

    Args:
        device: The device; None leaves it to TensorFlow.
        tensors: Tensors of the sweep, with statistics and weights on this device.
        last: Index of the last strip of the device.
        at_once: Number of strips in flight.
        turn: Tensor that is computed when the previous strip has been; None if strips need not take turns.
    """

    device: str | None
    tensors: SweepTensors
    last: tf.Tensor
    at_once: int = 1
    turn: tf.Tensor | None = None

    def in_turn(self, tiles: Structure) -> Structure:
        """Return tiles to compute with when it is the turn of the strip; they are on the device before."""
        if self.turn is None:
            return tiles
        with tf.device(self.device), tf.control_dependencies([self.turn]):
            return tf.nest.map_structure(tf.identity, tiles)


class _Strip(NamedTuple):
    """Results of the body of a loop for a strip.

    Args:
        done: Computed when its changes of stores have been requested.
        sums: Sums, and images on the device.
        computed: Tensors that are computed last.
    """

    done: tf.Tensor
    sums: Structure
    computed: list[tf.Tensor]


Body = Callable[[_DeviceStrips, tf.Tensor, tf.Tensor, Structure], _Strip]
"""Function of the strips of a device, the index of a strip, the changes of the previous one, and sums."""


def _loop(
    count: tf.Tensor,
    graph: Graph,
    sweep: Sweep,
    tensors: SweepTensors,
    body: Body,
    start: Structure,
    devices: Devices,
    join: Callable[[Structure, Structure], Structure],
) -> Any:
    """Run `body` over all strips, several of them at a time on each device.

    Two strips at once fill the cores: one is read, written or in the tail of a convolution while the other computes
    (ResNet-50: a tenth less time). An accelerator computes one after the other, as its kernels run anyway, while others
    are copied: a copy that is requested early waits for few kernels. Changes of stores are made in order.

    Args:
        count: Number of strips.
        graph: Graph of the sweep.
        sweep: The sweep.
        tensors: Tensors of the sweep.
        body: Function that computes a strip.
        start: Sums to start with.
        devices: Devices that compute the strips.
        join: Adds the sums of two devices.

    Returns:
        `(done, sums)`.
    """
    tensors = replace(tensors, before=host_store.begin(tensors.before))
    if sweep.single:
        strips = _DeviceStrips(devices[0], _to_device(tensors, devices[0]), tf.constant(0))
        done, sums, _ = body(strips, strips.last, tensors.before, _copy_to(start, devices[0]))
        return host_store.finish(done), sums
    ends = []
    accelerated = len(devices) == 1 and devices[0] is not None
    for position, device in enumerate(devices):
        first, stop = _share(count, position, len(devices))
        at_once = graph.in_flight(accelerated)
        strips = _DeviceStrips(device, _to_device(tensors, device), stop - 1, at_once)
        run = _in_turns if accelerated else _at_once
        ends.append(run(strips, first, body, _copy_to(start, device)))
    with tf.control_dependencies([done for done, _ in ends]):
        done = tf.identity(ends[0][0])
    return host_store.finish(done), reduce(join, [sums for _, sums in ends])


def _share(count: tf.Tensor, position: int, devices: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the first strip of a device, and the one after its last."""
    if devices == 1:
        return tf.constant(0), count
    return count * position // devices, count * (position + 1) // devices


def _at_once(
    strips: _DeviceStrips, first: tf.Tensor, body: Body, start: Structure
) -> tuple[tf.Tensor, Structure]:
    """Run the loop over the strips of one device, which computes several at the same time."""
    state = (first, strips.tensors.before, start)
    _, done, sums = tf.while_loop(
        lambda i, *_: i <= strips.last,
        lambda i, before, sums: (i + 1, *body(strips, i, before, sums)[:2]),
        state,
        shape_invariants=tf.nest.map_structure(lambda t: t.shape, state),
        parallel_iterations=strips.at_once,
    )
    return done, sums


def _in_turns(
    strips: _DeviceStrips, first: tf.Tensor, body: Body, start: Structure
) -> tuple[tf.Tensor, Structure]:
    """Run the loop over the strips of one device, which computes one and copies the others at the same time."""

    def compute(i: tf.Tensor, before: tf.Tensor, turn: tf.Tensor, sums: Structure) -> Structure:
        strip = body(replace(strips, turn=turn), i, before, sums)
        with tf.device(strips.device), tf.control_dependencies(strip.computed):
            turn = tf.identity(turn)
        return i + 1, strip.done, turn, strip.sums  # the next strip is requested before

    with tf.device(strips.device):
        turn = tf.zeros([])
    state = (first, strips.tensors.before, turn, start)
    _, done, _, sums = tf.while_loop(
        lambda i, *_: i <= strips.last,
        compute,
        state,
        shape_invariants=tf.nest.map_structure(lambda t: t.shape, state),
        parallel_iterations=strips.at_once,
    )
    return done, sums


def _to_device(tensors: SweepTensors, device: str | None) -> SweepTensors:
    """Copy statistics, weights and what is prepared to a device: once per sweep instead of once per strip."""
    return replace(
        tensors,
        wholes=_copy_to(tensors.wholes, device),
        weights=_copy_to(tensors.weights, device),
        d_wholes=_copy_to(tensors.d_wholes, device),
        prepared=_copy_to(tensors.prepared, device),
    )


def _copy_to(structure: Structure, device: str | None) -> Structure:
    """Copy tensors to a device; a loop variable stays where its initial value is."""
    if device is None:
        return structure
    with tf.device(device):
        return tf.nest.map_structure(tf.identity, structure)
