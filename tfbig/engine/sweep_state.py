"""What exists between the sweeps of one step, and the geometry of one strip."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tfbig.plan.sweeps import Layout, Sweep

Structure = Any

KINDS = ("image", "again", "gradient")
"""Of `tfbig.plan.sweeps.Store`."""


@dataclass
class State:
    """What exists between sweeps.

    Args:
        layout: the sweeps, and where their images are kept.
        batch: N, int32 scalar.
        extents: `[number of values, spatial axes]` int32: the size of every image.
        empty: a string without letters that is no constant.
        shapes: `[number of values, axes]` int64: N, size and C of every image.
        places: `[kinds, number of values]` int64: first byte of every store, by position in `KINDS`; -1: anywhere.
        tables: geometry of the sweeps, by index.
        replays: geometry of the replays.
        images: stores, or tensors and handles from outside, by value.
        wholes: tensors, or tuples of tensors, by value.
        weights: tensors.
        trained: positions of the weights that have a gradient.
        learned: values that have one.
        d_images: stores of gradients by value.
        d_wholes: gradients of whole values, structured as these.
        d_weights: gradients of the weights so far, by position.
        sinks: keys of writers that take an image instead of a store, by value.
        done: computed when the last sweep has ended, int32 scalar.
    """

    layout: Layout
    batch: tf.Tensor
    extents: tf.Tensor
    empty: tf.Tensor
    shapes: tf.Tensor
    places: tf.Tensor
    tables: list[tf.Tensor]
    replays: dict[Sweep, tf.Tensor]
    images: dict[int, tf.Tensor]
    wholes: dict[int, Structure]
    weights: list[tf.Tensor]
    trained: frozenset[int]
    learned: frozenset[int]
    d_images: dict[int, tf.Tensor] = field(default_factory=dict)
    d_wholes: dict[int, Structure] = field(default_factory=dict)
    d_weights: dict[int, tf.Tensor] = field(default_factory=dict)
    sinks: dict[int, tf.Tensor] = field(default_factory=dict)
    done: tf.Tensor | None = None

    @property
    def sweeps(self) -> tuple[Sweep, ...]:
        """What runs, in order."""
        return self.layout.sweeps

    def label(self, text: str) -> tf.Tensor:
        """What progress calls a sweep.

        A constant would undo the sharing of traces: for every call that gives one, or leaves a result unused,
        TensorFlow copies the function and optimises the copy (`SpecializeFunction` of its function optimizer).
        """
        return tf.strings.join([text, self.empty])


@dataclass
class Part:
    """What one sweep works with; every dictionary is by position in the sweep, not by value.

    Args:
        label: what progress calls the sweep.
        before: computed when the sweep before has ended, int32 scalar.
        table: its geometry.
        extents: size of every image of the sweep.
        images: what it reads.
        stores: what it changes.
        wholes: whole values that it reads, and the results of its reductions where they are known.
        weights: tensors.
        sinks: as in `State`.
        pages: images that stay on the device (`tfbig.stores.device_store`), which it changes.
        batch: N, int32 scalar.
        written: what it wrote, where that is asked for again.
        d_images: gradients of what it wrote.
        d_wholes: gradients of the results of its reductions.
    """

    label: tf.Tensor
    before: tf.Tensor
    table: tf.Tensor
    extents: tf.Tensor
    images: dict[int, tf.Tensor]
    batch: tf.Tensor
    stores: dict[int, tf.Tensor] = field(default_factory=dict)
    pages: dict[int, tf.Tensor] = field(default_factory=dict)
    wholes: dict[int, Structure] = field(default_factory=dict)
    weights: list[tf.Tensor] = field(default_factory=list)
    sinks: dict[int, tf.Tensor] = field(default_factory=dict)
    written: dict[int, tf.Tensor] = field(default_factory=dict)
    d_images: dict[int, tf.Tensor] = field(default_factory=dict)
    d_wholes: dict[int, Structure] = field(default_factory=dict)

    @property
    def count(self) -> int | None:
        """N where it is known while tracing."""
        tensors = [*self.images.values(), *self.stores.values()]
        return next((t.shape[0] for t in tensors if t.shape.rank), None)


class Row:
    """The geometry of one strip: a line of `Sweep.table`, by name."""

    def __init__(self, sweep: Sweep, line: tf.Tensor) -> None:
        self.columns = sweep.columns
        self.numbers = tf.unstack(line, num=len(sweep.columns))

    def __getitem__(self, key: tuple[object, ...]) -> tf.Tensor:
        return self.numbers[self.columns[key]]
