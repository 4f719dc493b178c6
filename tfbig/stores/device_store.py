"""Images on an accelerator, stored as lists of pages, and read and changed by rows.

A page is `[N, rows, ..., C]`. All pages of an image have the same shape; the last one is padded with zeros. A list is a
tensor of type variant that holds references: to change pages creates new ones and does not move the others. No page,
and no run of pages that a strip reads, has more elements than kernels support, however large the image is.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from tfbig.ops.kernels import pad
from tfbig.system.backend import HOST


class Pages(NamedTuple):
    """Shape of the pages of an image, int32 tensors; computed once, because each operation on them takes time.

    Args:
        shape: `[N, rows, ..., C]` of a page.
        joined: The same of any number of pages in a row, with -1 rows.
        rows: Rows of a page, scalar.
        count: Number of pages, scalar.
    """

    shape: tf.Tensor
    joined: tf.Tensor
    rows: tf.Tensor
    count: tf.Tensor


def is_list(image: tf.Tensor) -> bool:
    """Return whether an image is a list of pages."""
    return image.dtype == tf.variant


def allocate(pages: Pages, dtype: Any) -> tf.Tensor:
    """Create an image of zeros, which use no memory until they are changed.

    Args:
        pages: Shape of its pages.
        dtype: Element type.

    Returns:
        The list of pages, a scalar tensor of type variant.
    """
    return tf.raw_ops.TensorListReserve(
        element_shape=pages.shape, num_elements=pages.count, element_dtype=dtype
    )


def read(
    image: tf.Tensor, pages: Pages, dtype: Any, start: Any, stop: Any, batch: int | None = None
) -> tf.Tensor:
    """Read rows `start <= row < stop`.

    Args:
        image: The list of pages.
        pages: Shape of its pages.
        dtype: Element type.
        start: First row.
        stop: End of the rows.
        batch: N if it is known while tracing.

    Returns:
        Tensor `[N, stop - start, ..., C]`.
    """
    with _integers():
        first = start // pages.rows
        skipped = start - first * pages.rows
        taken = stop - start
    return _rows(_joined(image, pages, dtype, first, stop, batch), skipped, taken)


def write(image: tf.Tensor, pages: Pages, start: Any, stop: Any, rows: tf.Tensor) -> tf.Tensor:
    """Write `rows` to an image, in which nothing has been written from row `start` on.

    Args:
        image: The list of pages; it does not change.
        pages: Shape of its pages.
        start: First row.
        stop: End of the rows.
        rows: `[N, stop - start, ..., C]` to write.

    Returns:
        The list of pages with these rows.
    """
    with _integers():
        first = start // pages.rows
        before = start - first * pages.rows
    earlier = _rows(_joined(image, pages, rows.dtype, first, start, rows.shape[0]), 0, before)
    return _replaced(image, pages, first, stop, earlier, rows)


def add_to_zeros(
    image: tf.Tensor, pages: Pages, start: Any, stop: Any, covered: Any, rows: tf.Tensor
) -> tf.Tensor:
    """Add `rows` to an image whose rows from `covered` on are zero.

    Args:
        image: The list of pages; it does not change.
        pages: Shape of its pages.
        start: First row.
        stop: End of the rows.
        covered: First row that nothing has been added to.
        rows: `[N, stop - start, ..., C]` to add.

    Returns:
        The list of pages of the sum.
    """
    with _integers():
        first, split = start // pages.rows, tf.clip_by_value(covered, start, stop)
        before, shared = start - first * pages.rows, split - start
    earlier = _joined(image, pages, rows.dtype, first, split, rows.shape[0])
    above = (before, 0), *[(0, 0)] * (rows.shape.rank - 3)
    sums = _rows(earlier, 0, before + shared) + pad(_rows(rows, 0, shared), *above)
    return _replaced(image, pages, first, stop, sums, _rows(rows, shared, stop - split))


def add(image: tf.Tensor, pages: Pages, start: Any, stop: Any, rows: tf.Tensor) -> tf.Tensor:
    """Add `rows` to an image.

    Args:
        image: The list of pages; it does not change.
        pages: Shape of its pages.
        start: First row.
        stop: End of the rows.
        rows: `[N, stop - start, ..., C]` to add.

    Returns:
        The list of pages of the sum.
    """
    with _integers():
        first = start // pages.rows
        around = start - first * pages.rows, -stop % pages.rows
    wide = pad(rows, around, *[(0, 0)] * (rows.shape.rank - 3))
    total = _joined(image, pages, rows.dtype, first, stop, rows.shape[0]) + wide
    return _scattered(image, pages, first, stop, total)


def _integers() -> Any:
    """Return a context for integer arithmetic, on the host.

    On a GPU, products of integers are kernels: they wait for all kernels before them, and the host for their result.
    """
    return tf.device(HOST)


def _indices(pages: Pages, first: Any, stop: Any) -> tf.Tensor:
    """Return the indices of the pages from `first` to the one with the row before `stop`."""
    with _integers():
        return tf.range(first, -(-stop // pages.rows))


def _joined(
    image: tf.Tensor, pages: Pages, dtype: Any, first: Any, stop: Any, batch: int | None
) -> tf.Tensor:
    """Return page `first` and those up to row `stop` as one image; pages that were never written are zeros."""
    gathered = tf.raw_ops.TensorListGather(
        input_handle=image,
        indices=_indices(pages, first, stop),
        element_shape=pages.shape,
        element_dtype=dtype,
    )
    joined = tf.reshape(_swapped(gathered, pages, batch), pages.joined)
    return tf.ensure_shape(joined, [batch, *[None] * (pages.shape.shape[0] - 1)])


def _replaced(
    image: tf.Tensor, pages: Pages, first: Any, stop: Any, earlier: tf.Tensor, rows: tf.Tensor
) -> tf.Tensor:
    """Return the list with page `first` and those up to row `stop` replaced by earlier rows, `rows` and zeros."""
    with _integers():
        below = (0, -stop % pages.rows), *[(0, 0)] * (rows.shape.rank - 3)
    return _scattered(image, pages, first, stop, tf.concat([earlier, pad(rows, *below)], 1))


def _scattered(image: tf.Tensor, pages: Pages, first: Any, stop: Any, rows: tf.Tensor) -> tf.Tensor:
    """Return the list with page `first` and those up to row `stop` replaced by their rows."""
    single = rows.shape[0] == 1  # then N and the pages need not be swapped
    with _integers():
        size = [[-1], pages.shape] if single else [pages.shape[:1], [-1], pages.shape[1:]]
        shape = tf.concat(size, 0)
    parts = _swapped(tf.reshape(rows, shape), pages, rows.shape[0])
    return tf.raw_ops.TensorListScatterIntoExistingList(
        input_handle=image, tensor=parts, indices=_indices(pages, first, stop)
    )


def _swapped(parts: tf.Tensor, pages: Pages, batch: int | None) -> tf.Tensor:
    """Swap the first two axes, N and pages; one image is reshaped instead."""
    rank = pages.shape.shape[0] + 1
    if batch == 1:
        return parts
    return tf.transpose(tf.ensure_shape(parts, [None] * rank), [1, 0, *range(2, rank)])


def _rows(x: tf.Tensor, start: Any, size: Any) -> tf.Tensor:
    """Return rows of an image, which share its memory if N is statically 1. No gradient flows through a store."""
    if x.shape[0] != 1:
        return x[:, start : start + size]
    return tf.expand_dims(tf.squeeze(x, 0)[start : start + size], 0)
