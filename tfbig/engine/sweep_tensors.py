"""The tensors of one sweep, in three groups, and the geometry of one strip.

They are separate because a sweep treats them differently: its geometry stays on the host, its stores are wherever their
images are, and its values are copied to each device that computes strips. The dictionaries are keyed by value id until
`SweepCalls.call`, and by position in the sweep inside a trace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfbig.network.graph import Graph
from tfbig.plan.sweeps import Sweep
from tfbig.stores.image_store import GradientStore, Interval, StripSource, StripTarget

Structure = Any


class TracedSweep(NamedTuple):
    """A sweep, and what is known of it while it is traced.

    Args:
        graph: Graph of the sweep.
        sweep: The sweep.
        devices: Devices that compute strips; None leaves it to TensorFlow.
        batch: N if it is known.
    """

    graph: Graph
    sweep: Sweep
    devices: Sequence[str | None] = (None,)
    batch: int | None = None


class SweepGeometry(NamedTuple):
    """Sizes and strips of a sweep.

    Args:
        label: Name of the sweep in progress messages.
        before: Int32 scalar that is computed when the previous sweep has ended.
        table: Geometry of the strips or tiles, see `Sweep.tiles`.
        extents: Size of every image of the sweep, by position, with a line for each whole value too.
        batch: N, int32 scalar.
        channels: Number of channels of each observed image, int32 scalars, if a trace serves any numbers.
        copies: How many patterns of background each observed image has, float64 scalars; empty if nothing is skipped.
    """

    label: tf.Tensor
    before: tf.Tensor
    table: tf.Tensor
    extents: tf.Tensor
    batch: tf.Tensor
    channels: dict[int, tf.Tensor]
    copies: dict[int, tf.Tensor]


class SweepStores(NamedTuple):
    """Stores of a sweep.

    Args:
        images: Images that the sweep reads.
        targets: Images that it writes.
        written: Images that it wrote, where its backward pass needs their values.
        d_written: Gradients of the images that it wrote.
        d_images: Gradients of the images that it reads, to which it adds.
    """

    images: dict[int, StripSource]
    targets: dict[int, StripTarget]
    written: dict[int, StripSource]
    d_written: dict[int, GradientStore]
    d_images: dict[int, GradientStore]


class SweepValues(NamedTuple):
    """Tensors that every strip of a sweep uses.

    Args:
        wholes: Whole values that the sweep reads, and results of its reductions where they are known.
        weights: Weights of the sweep.
        d_wholes: Gradients of the results of its reductions.
        prepared: What nodes compute once for all strips (`Local.prepare`), by their output.
    """

    wholes: dict[int, Structure]
    weights: list[tf.Tensor]
    d_wholes: dict[int, Structure]
    prepared: dict[int, Structure]


class SweepTensors(NamedTuple):
    """Tensors of one sweep.

    Args:
        geometry: Sizes and strips.
        stores: Stores.
        values: Statistics and weights.
    """

    geometry: SweepGeometry
    stores: SweepStores
    values: SweepValues


class StripGeometry:
    """Geometry of one strip or tile: a line of `Sweep.tiles`, indexed by the keys of `Sweep.columns`.

    Args:
        sweep: The sweep.
        numbers: Numbers of the line, int32 scalars.
        sizes: Size of every image along the axes that it is cut along, or along all, int32 scalars.
        is_pattern: Whether the tile is the pattern, computed once for all background, int32 scalar; None if nothing is
            skipped.
    """

    def __init__(
        self,
        sweep: Sweep,
        numbers: list[tf.Tensor],
        sizes: Mapping[int, list[tf.Tensor]],
        is_pattern: tf.Tensor | None = None,
    ) -> None:
        self.columns = sweep.columns
        self.axes = sweep.axes
        self.numbers = numbers
        self.sizes = sizes
        self.is_pattern = is_pattern

    @classmethod
    def in_image(cls, sweep: Sweep, line: tf.Tensor, extents: tf.Tensor) -> StripGeometry:
        """Return the geometry of a tile in the image.

        Args:
            sweep: The sweep.
            line: Line of `SweepGeometry.table`.
            extents: As `SweepGeometry.extents`.
        """
        numbers = tf.unstack(line, num=sweep.table_columns)
        numbers = numbers[: len(numbers) - sweep.cutout_columns]
        is_pattern = numbers.pop() if sweep.skips else None
        return cls(sweep, numbers, dict(enumerate(_rows(extents))), is_pattern)

    @classmethod
    def in_cutout(cls, sweep: Sweep, line: tf.Tensor) -> StripGeometry:
        """Return the geometry of a tile in its cutout, see `tfbig.plan.cutouts`.

        Args:
            sweep: The sweep.
            line: Line of `cutouts.table`.
        """
        numbers = tf.unstack(line, num=sweep.cutout_columns)
        columns, images = sweep.axes * len(sweep.columns), len(sweep.images)
        sizes = {v: numbers[columns + n :: images] for n, v in enumerate(sweep.images)}
        return cls(sweep, numbers[:columns], sizes)

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


def _rows(matrix: tf.Tensor) -> list[list[tf.Tensor]]:
    """Return the numbers of a matrix of static shape, by row; none of a sweep without images."""
    if matrix.shape[0] == 0:
        return []
    rows, columns = matrix.shape
    numbers = tf.unstack(tf.reshape(matrix, [-1]), num=rows * columns)
    return [numbers[first : first + columns] for first in range(0, rows * columns, columns)]
