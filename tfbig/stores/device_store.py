"""Images on an accelerator, one tensor each, which strips read and change by rows.

The tensor of an image is `[rows, words]`, int64: a row, of all images of the batch, is padded to whole words of eight
bytes. Rows are read without a copy and written in place. The operation for this takes the same time for a number of two
bytes as for one of eight, which is why the numbers are wide. It counts the numbers that it writes, not those of the
tensor, so an image may have more elements than kernels support.

An operation that reads such a tensor must have run before the tensor is changed. Sweeps keep to that: none reads an
image that it changes, and statistics of kept images are not folded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import tensorflow as tf

from tfbig.ops.kernels import pad
from tfbig.stores.image_store import StripPart
from tfbig.stores.transfers import Changes, Reads
from tfbig.system.backend import HOST
from tfbig.units import WORD, ceil_div


class DeviceShapes(NamedTuple):
    """Shapes of an image on the device, int32; computed once, because each operation on them takes time.

    Args:
        shape: `[rows, words]` of its tensor.
        words: `[-1, words, elements of a word]` of some rows.
        padded: `[-1, elements]` of some rows, with those that fill the last word.
        flat: The same without them.
        rows: `[-1, N, ..., C]` of some rows.
        padding: `[[0, 0], [0, elements that fill the last word]]`.
    """

    shape: tf.Tensor
    words: tf.Tensor
    padded: tf.Tensor
    flat: tf.Tensor
    rows: tf.Tensor
    padding: tf.Tensor


class DeviceImage(NamedTuple):
    """Images on an accelerator.

    Args:
        tensor: `[rows, words]` int64.
        shapes: Its shapes.
    """

    tensor: tf.Tensor
    shapes: DeviceShapes

    @property
    def needs_copy(self) -> bool:
        """False: TensorFlow owns what is read."""
        return False

    @property
    def state(self) -> tf.Tensor:
        """The tensor: what is computed after a change takes the one that it returned."""
        return self.tensor

    def with_state(self, state: tf.Tensor) -> Self:
        """Return the store with the tensor after some changes."""
        return self._replace(tensor=state)

    def after(self, done: tf.Tensor) -> Self:
        """Return the store: what reads its tensor runs after what computes it."""
        return self

    def map(self, function: Callable[[tf.Tensor], Any]) -> Self:
        """Return the store with a function applied to its tensor."""
        return self._replace(tensor=function(self.tensor))

    def read(self, reads: Reads, part: StripPart) -> Callable[[], tf.Tensor]:
        """Return a function that returns rows."""
        ((start, stop),) = part.intervals

        def rows() -> tf.Tensor:
            with tf.device(part.device):
                found = read(self.tensor, self.shapes, part.dtype, start, stop, part.shape[0])
            return part.shaped(found)

        return rows

    def write(self, changes: Changes, part: StripPart, rows: tf.Tensor) -> Self:
        """Write rows."""
        ((start, stop),) = part.intervals
        with tf.device(part.device):
            return self.with_state(write(self.tensor, self.shapes, start, stop, rows))

    def add(self, changes: Changes, part: StripPart, rows: tf.Tensor) -> Self:
        """Add rows; uninitialised rows are replaced, or become zero where nothing is added."""
        ((start, stop),) = part.intervals
        with tf.device(part.device):
            if part.uninitialised is None:
                changed = add(self.tensor, self.shapes, start, stop, rows)
            else:
                interval = start, stop
                changed = add_first(self.tensor, self.shapes, interval, *part.uninitialised, rows)
        return self.with_state(changed)

    def whole(self, dtype: Any, rank: int) -> tf.Tensor:
        """Return the whole image."""
        return read(self.tensor, self.shapes, dtype, 0, self.shapes.shape[0])


class StripImage(NamedTuple):
    """Images on an accelerator that are one strip: the rows that it computes.

    Args:
        rows: `[N, H, W, C]`; a scalar in their place until they are computed.
    """

    rows: tf.Tensor

    @property
    def needs_copy(self) -> bool:
        """False: TensorFlow owns what is read."""
        return False

    @property
    def state(self) -> tf.Tensor:
        """The rows."""
        return self.rows

    def with_state(self, state: tf.Tensor) -> Self:
        """Return the store with other rows."""
        return self._replace(rows=state)

    def after(self, done: tf.Tensor) -> Self:
        """Return the store: what reads its rows runs after what computes them."""
        return self

    def map(self, function: Callable[[tf.Tensor], Any]) -> Self:
        """Return the store with a function applied to its rows."""
        return self._replace(rows=function(self.rows))

    def read(self, reads: Reads, part: StripPart) -> Callable[[], tf.Tensor]:
        """Return a function that returns rows."""
        ((start, stop),) = part.intervals

        def rows() -> tf.Tensor:
            with tf.device(part.device):
                return part.shaped(_part(self.rows, start, stop - start))

        return rows

    def write(self, changes: Changes, part: StripPart, rows: tf.Tensor) -> Self:
        """Return the store of rows, which are all of the image."""
        return self._replace(rows=rows)

    def add(self, changes: Changes, part: StripPart, rows: tf.Tensor) -> Self:
        """Add rows; rows that the strip has not read have the gradient zero."""
        ((start, stop),) = part.intervals
        with tf.device(HOST):
            around = start, part.size[0] - stop
        with tf.device(part.device):
            whole = pad(rows, around, *[(0, 0)] * (rows.shape.rank - 3))
            return self._replace(rows=whole if part.uninitialised else self.rows + whole)

    def whole(self, dtype: Any, rank: int) -> tf.Tensor:
        """Return the whole image."""
        return tf.cast(self.rows, dtype)


def device_shapes(shapes: tf.Tensor, sizes: Sequence[int]) -> tuple[DeviceShapes, ...]:
    """Return the shapes of images.

    Args:
        shapes: `[N, rows, ..., C]` of each image, `[images, axes]` int32.
        sizes: Bytes of an element of each image, at most those of a word.
    """
    share = WORD // tf.constant(sizes)[:, None]
    batch, rows, rest = shapes[:, :1], shapes[:, 1:2], shapes[:, 2:]
    elements = batch * tf.reduce_prod(rest, 1, keepdims=True)
    words = ceil_div(elements, share)
    free, nothing = -tf.ones_like(rows), tf.zeros_like(rows)
    padded = words * share
    columns = (
        tf.concat([rows, words], 1),
        tf.concat([free, words, share], 1),
        tf.concat([free, padded], 1),
        tf.concat([free, elements], 1),
        tf.concat([free, batch, rest], 1),
        tf.reshape(tf.concat([nothing, nothing, nothing, padded - elements], 1), [-1, 2, 2]),
    )
    return tuple(DeviceShapes(*each) for each in zip(*map(tf.unstack, columns), strict=True))


def allocate(shape: tf.Tensor) -> tf.Tensor:
    """Create an image, whose rows contain anything until they are written.

    Args:
        shape: `DeviceShapes.shape` of the image.

    Returns:
        The tensor, `[rows, words]` int64.
    """
    image = tf.raw_ops.Empty(shape=shape, dtype=tf.int64)
    image.set_shape([None, None])
    return image


def read(
    image: tf.Tensor,
    shapes: DeviceShapes,
    dtype: Any,
    start: Any,
    stop: Any,
    batch: int | None = None,
) -> tf.Tensor:
    """Read rows `start <= row < stop`.

    Args:
        image: The tensor.
        shapes: Its shapes.
        dtype: Element type of the image.
        start: First row.
        stop: End of the rows.
        batch: N if it is known while tracing.

    Returns:
        Tensor `[N, stop - start, ..., C]`; a part of the memory of `image` if N is statically 1 and no row is padded.
    """
    padded = tf.reshape(tf.bitcast(image[start:stop], dtype), shapes.padded)
    rows = tf.reshape(tf.slice(padded, [0, 0], shapes.flat), shapes.rows)
    rank = shapes.rows.shape[0]
    if batch == 1:
        return tf.expand_dims(tf.squeeze(rows, 1), 0)
    return tf.transpose(rows, [1, 0, *range(2, rank)])


def write(
    image: tf.Tensor, shapes: DeviceShapes, start: Any, stop: Any, rows: tf.Tensor
) -> tf.Tensor:
    """Write rows in place.

    Args:
        image: The tensor; it is changed.
        shapes: Its shapes.
        start: First row.
        stop: End of the rows.
        rows: `[N, stop - start, ..., C]` to write.

    Returns:
        The tensor, for what is computed after the change.
    """
    if rows.shape[0] == 1:
        first = tf.expand_dims(tf.squeeze(rows, 0), 1)
    else:
        first = tf.transpose(rows, [1, 0, *range(2, rows.shape.rank)])
    padded = tf.pad(tf.reshape(first, shapes.flat), shapes.padding)
    if rows.dtype.size < WORD:
        padded = tf.reshape(padded, shapes.words)
    wide = tf.bitcast(padded, tf.int64)
    # On a GPU a range of int32 is in host memory and would be copied.
    numbers = tf.range(tf.cast(start, tf.int64), tf.cast(stop, tf.int64))
    return tf.raw_ops.InplaceUpdate(x=image, i=tf.cast(numbers, tf.int32), v=wide)


def add(
    image: tf.Tensor, shapes: DeviceShapes, start: Any, stop: Any, rows: tf.Tensor
) -> tf.Tensor:
    """Add rows in place.

    Args:
        image: The tensor; it is changed.
        shapes: Its shapes.
        start: First row.
        stop: End of the rows.
        rows: `[N, stop - start, ..., C]` to add.

    Returns:
        The tensor, for what is computed after the change.
    """
    before = read(image, shapes, rows.dtype, start, stop, rows.shape[0])
    return write(image, shapes, start, stop, before + rows)


def add_first(
    image: tf.Tensor,
    shapes: DeviceShapes,
    place: tuple[Any, Any],
    covered: Any,
    until: Any,
    rows: tf.Tensor,
) -> tf.Tensor:
    """Add rows in place to an image that is uninitialised from row `covered` on; rows that are not added become zero.

    Args:
        image: The tensor; it is changed.
        shapes: Its shapes.
        place: First of the rows, and the end of them.
        covered: First row that contains no sum yet.
        until: First row that contains none afterwards.
        rows: `[N, stop - start, ..., C]` to add.

    Returns:
        The tensor, for what is computed after the change.
    """
    start, stop = place
    with _integers():
        split = tf.clip_by_value(covered, start, stop)
        shared = split - start
        around = tf.maximum(split - covered, 0), until - tf.maximum(covered, stop)
    rest = [(0, 0)] * (rows.shape.rank - 3)
    image = add(image, shapes, start, split, _part(rows, 0, shared))
    return write(
        image, shapes, covered, until, pad(_part(rows, shared, stop - split), around, *rest)
    )


def _part(x: tf.Tensor, start: Any, size: Any) -> tf.Tensor:
    """Return rows of `[N, rows, ..., C]`, which share its memory if N is statically 1; no gradient flows through them.

    Args:
        x: The image.
        start: First row.
        size: Number of rows.
    """
    if x.shape[0] != 1:
        return x[:, start : start + size]
    return tf.expand_dims(tf.squeeze(x, 0)[start : start + size], 0)


def _integers() -> Any:
    """Return a context for integer arithmetic, on the host.

    On a GPU, products of integers are kernels: they wait for all kernels before them, and the host for their result.
    """
    return tf.device(HOST)
