"""Runs one sweep over its strips, forward or backward, in one loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from tfbig import stores, tapes
from tfbig.graph import Graph
from tfbig.kernels import Strip
from tfbig.schedule import Sweep
from tfbig.state import Part, Structure
from tfbig.visits import Visit

FOLD_BYTES = 2**22
"""Bytes of an image that a step of `fold` takes: few enough for the cache."""


def forward(
    graph: Graph, sweep: Sweep, part: Part, device: str | None, kept: frozenset[int]
) -> tuple[Any, Structure]:
    """Fills the stores of what the sweep writes.

    Args:
        kept: images that stay on the device; then there is one strip, and those written are given as they are.

    Returns:
        `(done, (partial sums of the reductions, images written and kept))`.
    """
    total = tf.shape(part.table)[0]
    whole: dict[int, tf.Tensor] = {}

    def body(i: tf.Tensor, before: tf.Tensor, partials: Structure) -> Structure:
        visit = Visit(graph, sweep, part, i, kept)
        tiles, _ = visit.read()
        with tf.device(device):
            owned = visit.owned(visit.values(tiles))
            partials = visit.merge(owned, partials)
            written = {v: tf.cast(owned[v], s.dtype) for v, s in part.stores.items()}
        whole.update({v: owned[v] for v in sweep.writes if v in kept})
        starts = {v: visit.row["own start", v] for v in sweep.writes}
        changes = [(s, starts[v], written[v]) for v, s in part.stores.items()]
        with tf.control_dependencies([before]):
            done = [stores.write_sink(k, starts[v], owned[v]) for v, k in part.sinks.items()]
            done.append(stores.write(changes, part.label, i, total))
        return _after(i, done), partials

    start = [n.op.init(part.batch) for n in sweep.reductions]
    single = bool(kept.intersection(sweep.writes))
    done, partials = _loop(total, graph, part, body, start, single)
    return done, (partials, whole)


@dataclass(frozen=True)
class Backward:
    """How a sweep runs backward; values and weights by position in the sweep.

    Args:
        fresh: stores whose content does not count yet.
        together: whether the forward runs in the same pass (`Reduce.together`).
        kept: images that stay on the device; then there is one strip, and gradients of those read are given.
        learned: values that need a gradient.
        trained: weights that need one.
    """

    fresh: frozenset[int]
    together: bool
    kept: frozenset[int]
    learned: frozenset[int]
    trained: tuple[int, ...]


def backward(
    graph: Graph, sweep: Sweep, part: Part, device: str | None, how: Backward
) -> tuple[Any, Structure, Structure]:
    """Adds gradients of what the sweep read to their stores.

    Returns:
        `(done, (gradients of the wholes, of the weights, partial sums), gradients of images read and kept)`.
    """
    total = tf.shape(part.table)[0]
    stored = list(part.stores)
    targets = [*stored, *(v for v in sweep.reads if v in how.kept and v in how.learned)]
    whole: dict[int, tf.Tensor] = {}
    needed = {i for n in sweep.locals for i in n.inputs if i in how.learned}
    inner = {i: t for i, t in part.wholes.items() if i in needed}
    weights = {p: part.weights[p] for p in how.trained}

    def body(i: tf.Tensor, before: tf.Tensor, sums: Structure) -> Structure:
        visit = Visit(graph, sweep, part, i, how.kept)
        tiles, given = visit.read(list(part.d_images))
        with tf.device(device):
            sources = ({v: tiles[v] for v in targets}, inner, weights)
            with tf.GradientTape() as tape:
                tape.watch(tapes.floats(sources))
                owned = visit.owned(visit.values(tiles))
            partials, pulled = visit.pull(owned, sums[2] if how.together else None)
            outputs, seeds = tapes.sum_seeds(owned, [given, *pulled])
            d_tiles, d_wholes, d_weights = tapes.gradients(tape, outputs, seeds, sources)
            sums = (tapes.add(sums[0], d_wholes), tapes.add(sums[1], d_weights), partials)
            added = {v: tf.cast(d_tiles[v], part.stores[v].dtype) for v in stored}
            whole.update({v: visit.widened(v, d_tiles[v]) for v in targets if v in how.kept})
        changes = [(part.stores[v], added[v], *_edges(visit, v, v in how.fresh)) for v in stored]
        with tf.control_dependencies([before]):
            done = stores.add(changes, part.label, i, total)
        return _after(i, [done]), sums

    zeros = tf.nest.map_structure(tapes.zeros, inner)
    start = [n.op.init(part.batch) for n in sweep.reductions] if how.together else []
    first = (zeros, {p: tf.zeros_like(w) for p, w in weights.items()}, start)
    done, sums = _loop(total, graph, part, body, first, single=len(targets) > len(stored))
    return done, sums, whole


def _edges(visit: Visit, value: int, fresh: bool) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Where rows are added: `(start, covered, until)` of `stores.add`."""
    start, stop = visit.row["start", value], visit.row["stop", value]
    if not fresh:
        return start, stop, stop
    return start, visit.row["covered", value], visit.row["until", value]


def fold(graph: Graph, sweep: Sweep, part: Part, device: str | None, chunk: int) -> Any:
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

    def body(i: tf.Tensor, before: tf.Tensor, _: Structure) -> Structure:
        start, stop = i * step, tf.minimum((i + 1) * step, rows)
        found = stores.read([(image, start, stop), (gradient, start, stop)])
        with tf.device(device):
            x, summed = (
                tf.cast(tf.ensure_shape(t, shape), graph.values[value].dtype) for t in found
            )
            for node in sweep.reductions:
                result, cotangent = part.wholes[node.output], part.d_wholes[node.output]
                weights = [part.weights[w] for w in node.weights]
                strip = Strip(start, stop, rows, ())
                (pulled,) = node.op.pullback([x], weights, strip, result, cotangent)
                summed += pulled
            summed = tf.cast(summed, gradient.dtype)
        with tf.control_dependencies([before]):
            done = stores.write([(gradient, start, summed)], part.label, i, total)
        return _after(i, [done]), ()

    return _loop(total, graph, part, body, ())[0]


def _loop(
    count: tf.Tensor, graph: Graph, part: Part, body: Any, start: Structure, single: bool = False
) -> Any:
    """Runs `body(strip, changes of the one before, sums)` over all strips, `graph.at_once` of them at a time.

    Two fill the cores: one is read, written or in the tail of a convolution while the other computes (ResNet-50: a
    tenth less time). Changes of stores are made in order.

    Args:
        single: there is one strip, and the body may give more than its sums.
    """
    first = (tf.constant(0), part.before, start)
    if single:
        done, result = body(*first)
        return stores.finish(done), result
    _, done, result = tf.while_loop(
        lambda i, *_: i < count,
        lambda i, before, sums: (i + 1, *body(i, before, sums)),
        first,
        shape_invariants=tf.nest.map_structure(lambda t: t.shape, first),
        parallel_iterations=graph.at_once,
    )
    return stores.finish(done), result


def _after(i: tf.Tensor, done: list[tf.Operation]) -> tf.Tensor:
    """What says that a strip has been asked to be stored. (Graphs do not order Python calls by themselves.)"""
    with tf.control_dependencies(done):
        return tf.identity(i)
