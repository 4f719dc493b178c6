"""Whole images on an accelerator: lists of pages, read and changed by rows.

A page is `[N, rows, ..., C]`, all of an image alike; the last one ends in zeros. A list is a tensor of type variant and
holds references: changing pages makes new ones and leaves the others where they are. No page, and no run of pages that
a strip reads, has more numbers than kernels take, however large the image is.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfbig.ops.kernels import pad, take_rows
from tfbig.plan.plan import PAGE_ELEMENTS, PAGES


def is_list(image: tf.Tensor) -> bool:
    """Whether an image is a list of pages."""
    return image.dtype == tf.variant


def allocate(shape: tf.Tensor, dtype: Any) -> tf.Tensor:
    """An image of zeros, which take no memory yet.

    Args:
        shape: `[N, H, ..., C]` of the image, int32.
        dtype: of its elements.
    """
    page = _page(shape)
    return tf.raw_ops.TensorListReserve(
        element_shape=page, num_elements=-(-shape[1] // page[1]), element_dtype=dtype
    )


def read(image: tf.Tensor, shape: tf.Tensor, dtype: Any, start: Any, stop: Any) -> tf.Tensor:
    """Rows `start <= row < stop`, `[N, stop - start, ..., C]`; the rest as in `allocate`."""
    rows = _page(shape)[1]
    first, last = start // rows, -(-stop // rows)
    joined = _joined(image, shape, dtype, first, last)
    return take_rows(joined, start - first * rows, stop - start)


def add(image: tf.Tensor, shape: tf.Tensor, start: Any, rows: tf.Tensor) -> tf.Tensor:
    """The image with `rows` added from row `start` on."""
    page = _page(shape)
    stop = start + tf.shape(rows)[1]
    first, last = start // page[1], -(-stop // page[1])
    around = (start - first * page[1], last * page[1] - stop)
    wide = pad(rows, around, *[(0, 0)] * (rows.shape.rank - 3))
    total = _joined(image, shape, rows.dtype, first, last) + wide
    parted = tf.reshape(total, tf.concat([shape[:1], [last - first], page[1:]], 0))
    return tf.raw_ops.TensorListScatterIntoExistingList(
        input_handle=image, tensor=_swapped(parted), indices=tf.range(first, last)
    )


def _page(shape: tf.Tensor) -> tf.Tensor:
    row = tf.reduce_prod(shape[:1]) * tf.reduce_prod(shape[2:])
    most = tf.maximum(PAGE_ELEMENTS // tf.maximum(row, 1), 1)
    rows = tf.minimum(-(-shape[1] // PAGES), most)
    return tf.concat([shape[:1], [rows], shape[2:]], 0)


def _joined(image: tf.Tensor, shape: tf.Tensor, dtype: Any, first: Any, last: Any) -> tf.Tensor:
    """Pages `first` to `last - 1` as one image; those that were never written are zeros."""
    page = _page(shape)
    pages = tf.raw_ops.TensorListGather(
        input_handle=image, indices=tf.range(first, last), element_shape=page, element_dtype=dtype
    )
    rank = shape.shape[0]
    pages = tf.ensure_shape(pages, [None] * (rank + 1))
    return tf.reshape(_swapped(pages), tf.concat([shape[:1], [-1], page[2:]], 0))


def _swapped(pages: tf.Tensor) -> tf.Tensor:
    """`[pages, N, ...]` from `[N, pages, ...]`, or back."""
    return tf.transpose(pages, [1, 0, *range(2, pages.shape.rank)])
