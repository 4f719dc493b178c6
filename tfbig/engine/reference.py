"""A step by plain loops: what the engine computes, without stores, traces, devices and tables of geometry.

Start here. Images are whole NumPy arrays; the rest is as in the engine. A strip owns some rows of each image that its
sweep writes or reduces (`Sweep.owned`), and needs some more rows of the images below (`Sweep.needs`). It runs the nodes
on these rows, and adds its share to the reductions. Backward, the gradients of rows that several strips read add up.
The tests compare the engine with this module.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfbig.geometry.windows import Interval
from tfbig.network.graph import Graph, Node
from tfbig.ops import autodiff
from tfbig.ops.kernels import InputRows, Strip
from tfbig.plan.cost import sweep_limit
from tfbig.plan.sweeps import Sweep, window_of

Intervals = dict[int, Interval]
"""An interval of rows of each image, by value id."""


class Rows(NamedTuple):
    """Some rows of an image.

    Args:
        interval: The rows.
        tensor: `[N, rows, ..., C]`.
    """

    interval: Interval
    tensor: tf.Tensor

    def cut(self, interval: Interval) -> tf.Tensor:
        """Return fewer rows."""
        first = self.interval.start
        return self.tensor[:, interval.start - first : interval.stop - first]


@dataclass
class Reference:
    """A graph, and everything that exists between two of its sweeps.

    Args:
        graph: The graph.
        images: Images `[N, rows, ..., C]` by value id; at first those that come from outside.
        wholes: Whole values by value id; at first those that come from outside.
        weights: One tensor per entry of `Graph.weights`.
        num_strips: Number of strips that each sweep cuts its images into; fewer if an image has fewer rows.

    Attributes:
        d_images: Gradients of the images by value id.
        d_wholes: Gradients of the whole values by value id.
        d_weights: Gradients of the weights by position.
    """

    graph: Graph
    images: dict[int, np.ndarray]
    wholes: dict[int, Any]
    weights: Sequence[tf.Tensor]
    num_strips: int
    d_images: dict[int, np.ndarray] = field(default_factory=dict)
    d_wholes: dict[int, Any] = field(default_factory=dict)
    d_weights: dict[int, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Compute the size of every image."""
        self.batch = len(next(iter(self.images.values())))
        self.sizes = self.graph.extents({v: t.shape[1:-1] for v, t in self.images.items()})
        self.rows = {v: size[0] for v, size in self.sizes.items()}
        self.wholes |= {v: tf.constant(self.sizes[i]) for v, i in self.graph.sizes.items()}
        self.wholes |= dict.fromkeys(self.graph.batches, tf.constant(self.batch))

    def forward(self, sweep: Sweep) -> None:
        """Run a sweep: fill the images that it writes, then compute its reductions and its whole nodes."""
        values = self.graph.values
        for v in sweep.writes:
            shape = (self.batch, *self.sizes[v], values[v].channels)
            self.images[v] = np.zeros(shape, values[v].dtype)
        partials = {
            n: n.op.init(self.batch, [values[v].channels for v in n.inputs])
            for n in sweep.reductions
        }
        for owned, need in self._strips(sweep):
            rows = self._run(sweep, need, self._read(sweep, need), self.wholes, self.weights)
            for v in sweep.writes:
                self.images[v][:, slice(*owned[v])] = rows[v].cut(owned[v])
            for n, partial in partials.items():
                inputs = [rows[v].cut(owned[v]) for v in n.inputs]
                added = n.op.partial(inputs, self._strip(n.inputs[0], owned))
                partials[n] = n.op.merge(partial, added)
        for n, partial in partials.items():
            pixels = np.prod(self.sizes[n.inputs[0]], dtype=np.int64)
            self.wholes[n.output] = n.op.finalize(partial, tf.constant(pixels))
        self.run_wholes(sweep.wholes)

    def backward(self, sweep: Sweep) -> None:
        """Run a sweep backward: add to the gradients of the images that it reads, of whole values and of weights.

        Those of the images that it writes, and of the results of its reductions and whole nodes, are complete before.
        """
        self.pull_wholes(sweep.wholes)
        for v in sweep.reads:
            self.d_images.setdefault(v, np.zeros_like(self.images[v]))
        used = {v for n in sweep.locals for v in n.inputs if not self.graph.values[v].image}
        for owned, need in self._strips(sweep):
            wholes = {v: self.wholes[v] for v in used}
            sources = self._read(sweep, need), wholes, list(self.weights)
            with tf.GradientTape() as tape:
                tape.watch(autodiff.floats(sources))
                rows = self._run(sweep, need, *sources)
                outputs = {v: rows[v].cut(owned[v]) for v in sweep.observed}
            written = {v: self.d_images[v] for v in sweep.writes if v in self.d_images}
            seeds = [{v: t[:, slice(*owned[v])] for v, t in written.items()}]
            for n in sweep.reductions:
                if n.output in self.d_wholes:
                    inputs, strip = [outputs[v] for v in n.inputs], self._strip(n.inputs[0], owned)
                    result, cotangent = self.wholes[n.output], self.d_wholes[n.output]
                    pulled = n.op.pullback(inputs, strip, result, cotangent)
                    seeds.append(
                        {v: t for v, t in zip(n.inputs, pulled, strict=True) if t is not None}
                    )
            d_images, d_wholes, d_weights = autodiff.gradients(
                tape, *autodiff.sum_seeds(outputs, seeds), sources
            )
            for v, gradient in d_images.items():
                self.d_images[v][:, slice(*need[v])] += gradient
            self._add(self.d_wholes, d_wholes)
            self._add(self.d_weights, dict(enumerate(d_weights)))

    def run_wholes(self, nodes: Sequence[Node]) -> None:
        """Compute whole nodes, first node first."""
        for n in nodes:
            weights = [self.weights[w] for w in n.weights]
            self.wholes[n.output] = n.op.function([self.wholes[v] for v in n.inputs], weights)

    def pull_wholes(self, nodes: Sequence[Node]) -> None:
        """Add to the gradients of the inputs and weights of whole nodes, last node first."""
        for n in reversed(nodes):
            if n.output not in self.d_wholes:
                continue
            inputs = {p: self.wholes[v] for p, v in enumerate(n.inputs)}
            sources = inputs, {p: self.weights[w] for p, w in enumerate(n.weights)}
            with tf.GradientTape() as tape:
                tape.watch(autodiff.floats(sources))
                output = n.op.function(*(list(each.values()) for each in sources))
            d_inputs, d_weights = autodiff.gradients(tape, output, self.d_wholes[n.output], sources)
            for p, term in d_inputs.items():
                self._add(self.d_wholes, {n.inputs[p]: term})
            for p, term in d_weights.items():
                self._add(self.d_weights, {n.weights[p]: term})

    def _strips(self, sweep: Sweep) -> Iterator[tuple[Intervals, Intervals]]:
        """Yield the rows that each strip owns of the images, and those that it reads or computes."""
        count = min(self.num_strips, sweep_limit(sweep, self.sizes))
        for index in range(count):
            owned = sweep.owned(self.rows, count, np.array(index))
            yield owned, sweep.needs(self.rows, owned)

    def _read(self, sweep: Sweep, need: Intervals) -> dict[int, tf.Tensor]:
        """Return the rows that a strip needs of the images that its sweep reads."""
        return {v: tf.constant(self.images[v][:, slice(*need[v])]) for v in sweep.reads}

    def _run(
        self, sweep: Sweep, need: Intervals, read: dict[int, tf.Tensor], wholes: Any, weights: Any
    ) -> dict[int, Rows]:
        """Run the local nodes of a sweep on a strip, and return the rows of every image that it needs."""
        rows = {v: Rows(need[v], tensor) for v, tensor in read.items()}
        for n in sweep.locals:
            inputs: list[Any] = [wholes.get(v) for v in n.inputs]
            ranges: list[Any] = [None] * len(n.inputs)
            for p in n.image_positions:
                window, inside = window_of(n, p, 0, need[n.output], self.rows)
                inputs[p] = rows[n.inputs[p]].cut(inside)
                padding = inside.start - window.start, window.stop - inside.stop
                ranges[p] = InputRows(*map(_int32, (*inside, *padding, self.rows[n.inputs[p]])))
            given = [weights[w] for w in n.weights]
            if n.op.prepare:
                given = n.op.prepare([wholes[v] for v in n.inputs if v in wholes], given)
            output = n.op.function(inputs, given, self._strip(n.output, need, ranges))
            rows[n.output] = Rows(need[n.output], output)
        return rows

    def _strip(self, value: int, intervals: Intervals, ranges: Sequence[Any] = ()) -> Strip:
        """Return the position of rows in an image."""
        start, stop = intervals[value]
        return Strip(_int32(start), _int32(stop), _int32(self.rows[value]), tuple(ranges))

    @staticmethod
    def _add(sums: dict[int, Any], terms: dict[int, Any]) -> None:
        for key, term in terms.items():
            autodiff.accumulate(sums, key, term)


def _int32(number: Any) -> tf.Tensor:
    return tf.constant(number, tf.int32)
