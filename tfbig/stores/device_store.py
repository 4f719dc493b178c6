"""Images on an accelerator, stored as lists of pages, and read and changed by rows.

A page is `[N, rows, ..., C]`. All pages of an image have the same shape; the last one is padded with zeros. A list is a
tensor of type variant that holds references: to change pages creates new ones and does not move the others. No page,
and no run of pages that a strip reads, has more elements than kernels support, however large the image is. An image
that is computed in one strip has one page, which is not copied when all of it is written or read.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfbig.ops.kernels import pad, take_rows
from tfbig.plan.plan import PAGE_ELEMENTS
from tfbig.system.backend import HOST


def is_list(image: tf.Tensor) -> bool:
    """Return whether an image is a list of pages."""
    return image.dtype == tf.variant


def allocate(shape: tf.Tensor, dtype: Any, pages: Any) -> tf.Tensor:
    """Create an image of zeros, which use no memory until they are changed.

    Args:
        shape: `[N, H, ..., C]` of the image, int32.
        dtype: Element type.
        pages: Most pages, int32 scalar; more, if there are several, where they had more than `PAGE_ELEMENTS` elements.

    Returns:
        The list of pages, a scalar tensor of type variant.
    """
    with _integers():
        row = tf.maximum(tf.reduce_prod(shape[:1]) * tf.reduce_prod(shape[2:]), 1)
        most = tf.where(tf.equal(pages, 1), shape[1], tf.maximum(PAGE_ELEMENTS // row, 1))
        count = -(-shape[1] // tf.minimum(-(-shape[1] // pages), most))
        page = _page(shape, count)
    return tf.raw_ops.TensorListReserve(element_shape=page, num_elements=count, element_dtype=dtype)


def read(image: tf.Tensor, shape: tf.Tensor, dtype: Any, start: Any, stop: Any) -> tf.Tensor:
    """Read rows `start <= row < stop`.

    Args:
        image: The list of pages.
        shape: `[N, H, ..., C]` of the image, int32.
        dtype: Element type.
        start: First row.
        stop: End of the rows.

    Returns:
        Tensor `[N, stop - start, ..., C]`.
    """
    page = _page(shape, _length(image))
    with _integers():
        first, last = start // page[1], -(-stop // page[1])
        skipped, taken = start - first * page[1], stop - start
    return take_rows(_joined(image, page, dtype, first, last), skipped, taken)


def write(
    image: tf.Tensor, shape: tf.Tensor, start: Any, covered: Any, rows: tf.Tensor
) -> tf.Tensor:
    """Add `rows` to an image, from row `start` on, whose rows from `covered` on are zero.

    Args:
        image: The list of pages; it does not change.
        shape: `[N, H, ..., C]` of the image, int32.
        start: First row.
        covered: First row that nothing has been added to.
        rows: `[N, rows, ..., C]` to add.

    Returns:
        The list of pages of the sum.
    """
    page, height = _page(shape, _length(image)), tf.shape(rows)[1]
    length = _length(image)
    with _integers():
        is_whole = tf.equal(length, 1) & tf.equal(height, shape[1]) & (covered <= start)
    return tf.cond(
        is_whole,
        lambda: tf.raw_ops.TensorListSetItem(input_handle=image, index=0, item=rows),
        lambda: _written(image, page, start, covered, rows),
    )


def _written(
    image: tf.Tensor, page: tf.Tensor, start: Any, covered: Any, rows: tf.Tensor
) -> tf.Tensor:
    """Return the list of pages with the sum of earlier rows and `rows`; only the earlier rows are added."""
    height = tf.shape(rows)[1]
    with _integers():
        stop = start + height
        first, last = start // page[1], -(-stop // page[1])
        before, split = start - first * page[1], tf.clip_by_value(covered, start, stop) - start
        earlier = -(-(start + split) // page[1])
    head = take_rows(_joined(image, page, rows.dtype, first, earlier), 0, before + split)
    others = [(0, 0)] * (rows.shape.rank - 3)
    head += pad(take_rows(rows, 0, split), (before, 0), *others)
    tail = pad(take_rows(rows, split, height - split), (0, last * page[1] - stop), *others)
    return _replaced(image, page, first, last, tf.concat([head, tail], 1))


def add(image: tf.Tensor, shape: tf.Tensor, start: Any, rows: tf.Tensor) -> tf.Tensor:
    """Add `rows` to an image, from row `start` on.

    Args:
        image: The list of pages; it does not change.
        shape: `[N, H, ..., C]` of the image, int32.
        start: First row.
        rows: `[N, rows, ..., C]` to add.

    Returns:
        The list of pages of the sum.
    """
    page, height = _page(shape, _length(image)), tf.shape(rows)[1]
    with _integers():
        stop = start + height
        first, last = start // page[1], -(-stop // page[1])
        around = (start - first * page[1], last * page[1] - stop)
    wide = pad(rows, around, *[(0, 0)] * (rows.shape.rank - 3))
    total = _joined(image, page, rows.dtype, first, last) + wide
    return _replaced(image, page, first, last, total)


def _integers() -> Any:
    """Return a context for integer arithmetic, on the host.

    On a GPU, products of integers are kernels: they wait for all kernels before them, and the host for their result.
    """
    return tf.device(HOST)


def _length(image: tf.Tensor) -> tf.Tensor:
    """Return the number of pages, int32 scalar; a GPU does not compute it."""
    return tf.raw_ops.TensorListLength(input_handle=image)


def _page(shape: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    """Return the shape of each of `count` pages, `[N, rows, ..., C]`."""
    with _integers():
        return tf.concat([shape[:1], [-(-shape[1] // count)], shape[2:]], 0)


def _joined(image: tf.Tensor, page: tf.Tensor, dtype: Any, first: Any, last: Any) -> tf.Tensor:
    """Return pages `first` to `last - 1` as one image; pages that were never written are zeros."""
    length = _length(image)
    with _integers():
        indices = tf.range(first, last)
        whole = tf.concat([page[:1], [-1], page[2:]], 0)
        is_single = tf.equal(length, 1) & tf.equal(last - first, 1)

    def gathered() -> tf.Tensor:
        pages = tf.raw_ops.TensorListGather(
            input_handle=image, indices=indices, element_shape=page, element_dtype=dtype
        )
        pages = tf.ensure_shape(pages, [None] * (page.shape[0] + 1))
        return tf.reshape(_swapped(pages), whole)

    def single() -> tf.Tensor:
        return tf.raw_ops.TensorListGetItem(
            input_handle=image, index=0, element_shape=page, element_dtype=dtype
        )

    joined = tf.cond(is_single, single, gathered)
    return tf.ensure_shape(joined, [None] * page.shape[0])


def _replaced(
    image: tf.Tensor, page: tf.Tensor, first: Any, last: Any, rows: tf.Tensor
) -> tf.Tensor:
    """Return the list with pages `first` to `last - 1` replaced by their rows."""
    with _integers():
        indices = tf.range(first, last)
        parts = tf.concat([page[:1], [last - first], page[1:]], 0)
    return tf.raw_ops.TensorListScatterIntoExistingList(
        input_handle=image, tensor=_swapped(tf.reshape(rows, parts)), indices=indices
    )


def _swapped(pages: tf.Tensor) -> tf.Tensor:
    """Swap the first two axes: `[N, pages, ...]` and `[pages, N, ...]`."""
    return tf.transpose(pages, [1, 0, *range(2, pages.shape.rank)])
