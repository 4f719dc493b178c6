"""What exists between the sweeps of one step, and the geometry of one strip."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from tfbig.plan import Sweep

Structure = Any


@dataclass
class State:
    """What exists between sweeps.

    Args:
        batch: N, int32 scalar.
        extents: `[number of values, 2]` int32: rows and columns of every image.
        tables: geometry per sweep.
        images: stores, or tensors and handles from outside, by value.
        wholes: tensors, or tuples of tensors, by value.
        weights: tensors.
        d_images: stores of gradients by value.
        d_wholes: gradients of whole values, structured as these.
        d_weights: gradients of the weights so far.
        sinks: keys of writers that take an image instead of a store, by value.
        done: computed when the last sweep has ended.
    """

    batch: tf.Tensor
    extents: tf.Tensor
    tables: list[tf.Tensor]
    images: dict[int, tf.Tensor]
    wholes: dict[int, Structure]
    weights: list[tf.Tensor]
    d_images: dict[int, tf.Tensor] = field(default_factory=dict)
    d_wholes: dict[int, Structure] = field(default_factory=dict)
    d_weights: list[tf.Tensor] = field(default_factory=list)
    sinks: dict[int, tf.Tensor] = field(default_factory=dict)
    done: tf.Tensor | None = None


class Row:
    """The geometry of one strip: a line of `Sweep.table`, by name."""

    def __init__(self, sweep: Sweep, line: tf.Tensor) -> None:
        self.columns = sweep.columns
        self.numbers = tf.unstack(line, num=len(sweep.columns))

    def __getitem__(self, key: tuple[object, ...]) -> tf.Tensor:
        return self.numbers[self.columns[key]]
