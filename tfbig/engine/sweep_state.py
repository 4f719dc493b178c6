"""Tensors that a step carries from sweep to sweep, and the geometry of one strip."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tfbig.engine.step_geometry import StepGeometry
from tfbig.network.graph import Node
from tfbig.plan.sweeps import Layout, Sweep
from tfbig.stores.device_store import Buffer

Structure = Any


@dataclass
class StepState:
    """Tensors that exist between the sweeps of one step.

    Args:
        layout: Sweeps, and where their images are stored.
        geometry: Sizes, addresses and strips.
        images: Stores, and tensors and handles of the inputs, by value id.
        wholes: Tensors, or tuples of tensors, by value id.
        weights: One tensor per entry of `Graph.weights`.
        trained: Positions of the weights that need a gradient.
        learned: Value ids that need a gradient.
        done: Int32 scalar that is computed when the last sweep has ended.
        d_images: Stores of gradients, by value id.
        d_wholes: Gradients of whole values, with the structure of `wholes`.
        d_weights: Gradients of the weights so far, by position.
        sinks: Keys of writers that receive an image instead of a store, by value id.
    """

    layout: Layout
    geometry: StepGeometry
    images: dict[int, tf.Tensor]
    wholes: dict[int, Structure]
    weights: list[tf.Tensor]
    trained: frozenset[int]
    learned: frozenset[int]
    done: tf.Tensor
    d_images: dict[int, tf.Tensor] = field(default_factory=dict)
    d_wholes: dict[int, Structure] = field(default_factory=dict)
    d_weights: dict[int, tf.Tensor] = field(default_factory=dict)
    sinks: dict[int, tf.Tensor] = field(default_factory=dict)

    @property
    def known_batch(self) -> int | None:
        """N if it is known while tracing."""
        return next((t.shape[0] for t in self.images.values() if t.shape.rank), None)

    @property
    def sweeps(self) -> tuple[Sweep, ...]:
        """Sweeps of the layout, in order."""
        return self.layout.sweeps

    def writer(self, value: int) -> Sweep | None:
        """Return the sweep that stores an image in the forward pass; None for an input of the graph."""
        return next((sweep for sweep in self.sweeps if value in sweep.writes), None)

    @property
    def weight_gradients(self) -> list[tf.Tensor | None]:
        """One gradient per weight; None for a weight that is not trainable."""
        return [
            self._weight_gradient(w) if w in self.trained else None
            for w in range(len(self.weights))
        ]

    def _weight_gradient(self, weight: int) -> tf.Tensor:
        """Return the gradient of a weight by its position; zeros if nothing depends on it."""
        known = self.d_weights.get(weight)
        return tf.zeros_like(self.weights[weight]) if known is None else known

    def run_wholes(self, nodes: Sequence[Node]) -> None:
        """Run whole nodes: add their results to `wholes`."""
        for node in nodes:
            inputs = [self.wholes[i] for i in node.inputs]
            weights = [self.weights[w] for w in node.weights]
            self.wholes[node.output] = node.op.function(inputs, weights)

    def finish_reductions(self, sweep: Sweep, partials: list[Structure]) -> None:
        """Compute the results of the reductions of a sweep, and its whole nodes."""
        for node, partial in zip(sweep.reductions, partials, strict=True):
            size = tf.cast(self.geometry.extents[node.inputs[0]], tf.int64)
            self.wholes[node.output] = node.op.finalize(partial, tf.reduce_prod(size))
        self.run_wholes(sweep.wholes)


@dataclass
class SweepTensors:
    """Tensors of one sweep; every dictionary is keyed by position in the sweep, not by value id.

    Args:
        label: Name of the sweep in progress messages.
        before: Int32 scalar that is computed when the previous sweep has ended.
        table: Geometry of the strips or tiles, see `Sweep.tiles`.
        extents: Size of every image of the sweep.
        images: Images that the sweep reads.
        batch: N, int32 scalar.
        stores: Stores that the sweep changes.
        kept: Images on the device that the sweep changes; of a sweep of one strip, nothing until it has changed them.
        wholes: Whole values that the sweep reads, and results of its reductions where they are known.
        weights: Weights of the sweep.
        channels: Number of channels of each observed image, int32 scalars, if a trace serves any numbers.
        sinks: As in `StepState`.
        written: Images that the sweep wrote, where its backward pass needs their values.
        d_images: Gradients of the images that the sweep wrote.
        d_wholes: Gradients of the results of its reductions.
        copies: How many patterns of background each observed image has, float64 scalars; empty if nothing is skipped.
        buffers: Shapes of the images of the sweep that stay on the device (`tfbig.stores.device_store`).
        prepared: What nodes compute once for all strips (`Local.prepare`), by their output.
        known_batch: N if it is known while tracing; not a tensor.
    """

    label: tf.Tensor
    before: tf.Tensor
    table: tf.Tensor
    extents: tf.Tensor
    images: dict[int, tf.Tensor]
    batch: tf.Tensor
    stores: dict[int, tf.Tensor] = field(default_factory=dict)
    kept: dict[int, tf.Tensor] = field(default_factory=dict)
    wholes: dict[int, Structure] = field(default_factory=dict)
    weights: list[tf.Tensor] = field(default_factory=list)
    channels: dict[int, tf.Tensor] = field(default_factory=dict)
    sinks: dict[int, tf.Tensor] = field(default_factory=dict)
    written: dict[int, tf.Tensor] = field(default_factory=dict)
    d_images: dict[int, tf.Tensor] = field(default_factory=dict)
    d_wholes: dict[int, Structure] = field(default_factory=dict)
    copies: dict[int, tf.Tensor] = field(default_factory=dict)
    buffers: dict[int, Buffer] = field(default_factory=dict)
    prepared: dict[int, Structure] = field(default_factory=dict)
    known_batch: int | None = None


Interval = tuple[tf.Tensor, tf.Tensor]
"""First row (column, ...) and the one after the last, int32 scalars."""


class StripGeometry:
    """Geometry of one strip or tile: a line of `Sweep.tiles`, indexed by the keys of `Sweep.columns`.

    Args:
        sweep: The sweep.
        line: The line; of a sweep that skips background, a line of `tfbig.plan.activity.ActiveTiles.table`.

    Attributes:
        is_pattern: Whether the tile is the pattern, computed once for all background, int32 scalar; None if nothing is
            skipped.
    """

    def __init__(self, sweep: Sweep, line: tf.Tensor) -> None:
        self.columns = sweep.columns
        self.axes = sweep.axes
        numbers = tf.unstack(line, num=sweep.table_columns)
        self.is_pattern = numbers.pop() if sweep.skips else None
        self.numbers = numbers

    def __getitem__(self, key: tuple[object, ...]) -> tf.Tensor:
        """Return the number of one column for the rows, int32 scalar."""
        return self.numbers[self.columns[key]]

    def along(self, *key: object) -> list[tf.Tensor]:
        """Return the number of one column for each axis that images are cut along, int32 scalars."""
        return self.numbers[self.columns[key] :: len(self.columns)]

    def part(self, value: int, own: bool = False) -> list[Interval]:
        """Return the rows (columns, ...) of an image that the strip computes or reads, or those that it owns.

        Args:
            value: Position of the image in the sweep.
            own: Whether to return those that it owns.
        """
        names = ("own start", "own stop") if own else ("start", "stop")
        return list(zip(*(self.along(name, value) for name in names), strict=True))
