"""Runs one sweep over its strips, forward or backward, in one loop on each device.

Of several devices each has a run of neighbouring strips, and its own weights and sums; the sums are added up once the
sweep has ended. Stores are in host memory, which all devices share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import tensorflow as tf

from tfbig.engine.strip_step import Visit
from tfbig.engine.sweep_state import Part, Structure
from tfbig.network.graph import Graph
from tfbig.ops import autodiff
from tfbig.ops.kernels import Strip
from tfbig.plan.sweeps import Sweep
from tfbig.stores import host_store

Devices = Sequence[str | None]
"""Where strips are worked on; None leaves it to TensorFlow."""

FOLD_BYTES = 2**22
"""Bytes of an image that a step of `fold` takes: few enough for the cache."""


def forward(graph: Graph, sweep: Sweep, part: Part, devices: Devices) -> tuple[Any, Structure]:
    """Fills the stores of what the sweep writes.

    Returns:
        `(done, (partial sums of the reductions, images that stay on the device))`.
    """
    total = tf.shape(part.table)[0]

    def body(run: _Run, i: tf.Tensor, before: tf.Tensor, sums: Structure) -> Structure:
        visit = Visit(graph, sweep, run.part, i, run.last, run.device)
        tiles, *_ = visit.read()
        with tf.device(run.device):
            owned = visit.owned(visit.values(tiles))
            sums = visit.merge(owned, sums[0]), visit.changed(sums[1], owned, "own start")
            written = {v: tf.cast(owned[v], s.dtype) for v, s in part.stores.items()}
        starts = {v: visit.row["own start", v] for v in sweep.writes}
        changes = [(s, starts[v], written[v]) for v, s in part.stores.items()]
        for v, key in part.sinks.items():
            before = host_store.write_sink(key, starts[v], owned[v], before)
        return host_store.write(changes, before, part.label, i, total), sums

    def join(a: Structure, b: Structure) -> Structure:
        return _merged(sweep, a[0], b[0]), a[1]  # of several devices none has images of its own

    start = ([n.op.init(part.batch) for n in sweep.reductions], part.pages)
    some = devices[:1] if part.sinks else devices  # a sink takes rows in their order
    return _loop(total, graph, part, body, start, some, join)


def _merged(sweep: Sweep, a: Structure, b: Structure) -> Structure:
    """Partial sums of two devices."""
    return [n.op.merge(x, y) for n, x, y in zip(sweep.reductions, a, b, strict=True)]


@dataclass(frozen=True)
class Backward:
    """How a sweep runs backward; values and weights by position in the sweep.

    Args:
        fresh: stores whose content does not count yet.
        together: whether the forward runs in the same pass (`Reduce.together`).
        learned: values that need a gradient.
        trained: weights that need one.
    """

    fresh: frozenset[int]
    together: bool
    learned: frozenset[int]
    trained: tuple[int, ...]


def backward(
    graph: Graph, sweep: Sweep, part: Part, devices: Devices, how: Backward
) -> tuple[Any, Structure]:
    """Adds gradients of what the sweep read to their stores.

    Returns:
        `(done, (gradients of the wholes, of the weights, partial sums, gradients that stay on the device))`.
    """
    total = tf.shape(part.table)[0]
    needed = {i for n in sweep.locals for i in n.inputs if i in how.learned}

    def sources_of(part: Part) -> tuple[Structure, Structure]:
        inner = {i: t for i, t in part.wholes.items() if i in needed}
        return inner, {p: part.weights[p] for p in how.trained}

    def body(run: _Run, i: tf.Tensor, before: tf.Tensor, sums: Structure) -> Structure:
        visit = Visit(graph, sweep, run.part, i, run.last, run.device)
        tiles, written, given = visit.read()
        with tf.device(run.device):
            sources = ({v: tiles[v] for v in (*part.stores, *part.pages)}, *sources_of(run.part))
            with tf.GradientTape() as tape:
                tape.watch(autodiff.floats(sources))
                owned = visit.owned(visit.values(tiles))
            partials, pulled = visit.pull(owned | written, sums[2] if how.together else None)
            outputs, seeds = autodiff.sum_seeds(owned, [given, *pulled])
            d_tiles, d_wholes, d_weights = autodiff.gradients(tape, outputs, seeds, sources)
            pages = visit.changed(sums[3], d_tiles, "start")
            sums = (
                autodiff.add(sums[0], d_wholes),
                autodiff.add(sums[1], d_weights),
                partials,
                pages,
            )
            added = {v: tf.cast(d_tiles[v], s.dtype) for v, s in part.stores.items()}
        changes = [(s, added[v], *_edges(visit, v, v in how.fresh)) for v, s in part.stores.items()]
        return host_store.add(changes, before, part.label, i, total), sums

    def join(a: Structure, b: Structure) -> Structure:
        partials = _merged(sweep, a[2], b[2]) if how.together else []
        return autodiff.add(a[0], b[0]), autodiff.add(a[1], b[1]), partials, a[3]

    inner, weights = sources_of(part)
    zeros = tf.nest.map_structure(autodiff.zeros, inner)
    start = [n.op.init(part.batch) for n in sweep.reductions] if how.together else []
    first = (zeros, {p: tf.zeros_like(w) for p, w in weights.items()}, start, part.pages)
    return _loop(total, graph, part, body, first, devices, join)


def _edges(visit: Visit, value: int, fresh: bool) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Where rows are added: `(start, covered, until)` of `stores.add`."""
    start, stop = visit.row["start", value], visit.row["stop", value]
    if not fresh:
        return start, stop, stop
    return start, visit.row["covered", value], visit.row["until", value]


def fold(graph: Graph, sweep: Sweep, part: Part, devices: Devices, chunk: int) -> Any:
    """Adds the gradients of statistics to the gradient of the stored image that these are of; gives `done`.

    It is a pass of its own so that the image is free before the gradients of the sweep's inputs are made.

    Args:
        sweep: its nodes are the reductions of one image, the only one that it reads.
        part: `images` and `stores` hold this image and its gradient.
        chunk: bytes to work on at a time.
    """
    ((value, image),) = part.images.items()
    gradient = part.stores[value]
    rows = part.extents[value, 0]
    row_bytes = tf.size(image, tf.int64) // tf.cast(rows, tf.int64) * image.dtype.size
    step = tf.cast(tf.maximum(chunk // row_bytes, 1), tf.int32)
    total = -(-rows // step)
    shape = [part.count, *[None] * graph.spatial, graph.values[value].channels]

    def body(run: _Run, i: tf.Tensor, before: tf.Tensor, _: Structure) -> Structure:
        start, stop = i * step, tf.minimum((i + 1) * step, rows)
        found = host_store.read([(image, start, stop), (gradient, start, stop)])
        with tf.device(run.device):
            x, summed = (
                tf.cast(tf.ensure_shape(t, shape), graph.values[value].dtype) for t in found
            )
            for node in sweep.reductions:
                known = run.part
                result, cotangent = known.wholes[node.output], known.d_wholes[node.output]
                weights = [known.weights[w] for w in node.weights]
                strip = Strip(start, stop, rows, ())
                (pulled,) = node.op.pullback([x], weights, strip, result, cotangent)
                summed += pulled
            summed = tf.cast(summed, gradient.dtype)
        return host_store.write([(gradient, start, summed)], before, part.label, i, total), ()

    return _loop(total, graph, part, body, (), devices, lambda a, b: a)[0]


@dataclass(frozen=True)
class _Run:
    """The strips of one device.

    Args:
        device: where they are worked on.
        part: what the sweep works with, small tensors on this device.
        last: its last strip.
    """

    device: str | None
    part: Part
    last: tf.Tensor


Body = Callable[[_Run, tf.Tensor, tf.Tensor, Structure], Structure]


def _loop(
    count: tf.Tensor,
    graph: Graph,
    part: Part,
    body: Body,
    start: Structure,
    devices: Devices,
    join: Callable[[Structure, Structure], Structure],
) -> Any:
    """Runs `body(run, strip, changes of the one before, sums)` over all strips, `graph.at_once` of them at a time on
    each device; gives `(done, sums)`.

    Two fill the cores: one is read, written or in the tail of a convolution while the other computes (ResNet-50: a
    tenth less time). Changes of stores are made in order.

    Args:
        join: adds the sums of two devices.
    """
    ends = []
    for position, device in enumerate(devices):
        first, stop = (count * n // len(devices) for n in (position, position + 1))
        run = _Run(device, _local(part, device), stop - 1)
        ends.append(_strips(run, first, stop, graph, body, _here(start, device)))
    with tf.control_dependencies([done for done, _ in ends]):
        done = tf.identity(ends[0][0])
    return host_store.finish(done), reduce(join, [sums for _, sums in ends])


def _strips(
    run: _Run, first: tf.Tensor, stop: tf.Tensor, graph: Graph, body: Body, start: Structure
) -> tuple[tf.Tensor, Structure]:
    """The loop over the strips of one device."""
    state = (first, run.part.before, start)
    _, done, sums = tf.while_loop(
        lambda i, *_: i < stop,
        lambda i, before, sums: (i + 1, *body(run, i, before, sums)),
        state,
        shape_invariants=tf.nest.map_structure(lambda t: t.shape, state),
        parallel_iterations=graph.at_once,
    )
    return done, sums


def _local(part: Part, device: str | None) -> Part:
    """What strips need of statistics and weights, on their device: copied once a sweep, not once a strip."""
    return replace(
        part,
        wholes=_here(part.wholes, device),
        weights=_here(part.weights, device),
        d_wholes=_here(part.d_wholes, device),
    )


def _here(structure: Structure, device: str | None) -> Structure:
    """The same tensors on a device. (A variable of a loop stays where the tensor is that it begins with.)"""
    if device is None:
        return structure
    with tf.device(device):
        return tf.nest.map_structure(tf.identity, structure)
