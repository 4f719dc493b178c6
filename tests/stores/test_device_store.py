"""Device store: rows that were written or added are read, for any pages and strips."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tfbig.geometry.windows import partition
from tfbig.stores import device_store
from tfbig.stores.device_store import Pages
from tfbig.system import callbacks


def pages_of(shape: Sequence[int], rows: Any) -> Pages:
    """Return pages of some rows of an image."""
    page = tf.concat([shape[:1], [rows], shape[2:]], 0)
    joined = tf.constant([shape[0], -1, *shape[2:]])
    return Pages(page, joined, tf.constant(rows), tf.constant(-(-shape[1] // rows)))


Change = Callable[[tf.Tensor, Pages, tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor], tf.Tensor]
"""Function of the list, its pages, the first row, the end, the first row that is zero, and rows."""

CHANGES: dict[str, Change] = {
    "add": lambda image, pages, start, stop, _, rows: device_store.add(
        image, pages, start, stop, rows
    ),
    "add to zeros": device_store.add_to_zeros,
    "write": lambda image, pages, start, stop, _, rows: device_store.write(
        image, pages, start, stop, rows
    ),
}


def changed(change: str, x: np.ndarray, starts: Any, stops: Any, rows: int) -> tf.Tensor:
    """Return an image whose strips `x[:, starts[i] : stops[i]]` were written or added, in a loop over i."""
    covered = np.concatenate([[0], np.maximum.accumulate(stops)[:-1]])
    bounds = [tf.constant(numbers, tf.int32) for numbers in (starts, stops, covered)]

    @tf.function(autograph=False)
    def run(x: tf.Tensor) -> tf.Tensor:
        pages = pages_of(x.shape, rows)
        image = device_store.allocate(pages, x.dtype)

        def body(i: tf.Tensor, image: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            start, stop, covered = (numbers[i] for numbers in bounds)
            strip = x[:, start:stop]
            return i + 1, CHANGES[change](image, pages, start, stop, covered, strip)

        _, image = tf.while_loop(lambda i, _: i < len(starts), body, (0, image))
        return device_store.read(image, pages, x.dtype, 0, x.shape[1], x.shape[0])

    return run(tf.constant(x))


def strips_of(height: int, strips: int, halo: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the first rows of strips that overlap, or leave rows out, and their ends."""
    owned = partition(height, min(strips, height), np.arange(min(strips, height)))
    starts, stops = np.maximum(owned.start - halo, 0), np.minimum(owned.stop + halo, height)
    return starts, np.maximum(starts, stops)


HEIGHTS = st.sampled_from([1, 7, 64, 65, 200])
ROWS = st.sampled_from([1, 2, 7, 64, 300])


@pytest.mark.parametrize("change", ["add", "add to zeros"])
@settings(max_examples=15, deadline=None)
@given(
    height=HEIGHTS,
    rows=ROWS,
    batch=st.integers(1, 2),
    strips=st.integers(1, 9),
    halo=st.integers(-2, 40),
)
def test_add_strips(
    change: str, height: int, rows: int, batch: int, strips: int, halo: int
) -> None:
    """Strips that overlap, or leave rows out, add up to the same image as in NumPy."""
    x = np.random.default_rng(height).integers(-99, 99, (batch, height, 3, 2)).astype("float32")
    starts, stops = strips_of(height, strips, halo)
    expected = np.zeros_like(x)
    for start, stop in zip(starts, stops, strict=True):
        expected[:, start:stop] += x[:, start:stop]
    result = changed(change, x, starts, stops, min(rows, height))
    np.testing.assert_array_equal(result, expected)


@settings(max_examples=15, deadline=None)
@given(height=HEIGHTS, rows=ROWS, batch=st.integers(1, 2), strips=st.integers(1, 9))
def test_write_strips(height: int, rows: int, batch: int, strips: int) -> None:
    x = np.random.default_rng(height).integers(-99, 99, (batch, height, 3, 2)).astype("float32")
    result = changed("write", x, *strips_of(height, strips, 0), min(rows, height))
    np.testing.assert_array_equal(result, x)


@pytest.mark.parametrize("rows", [1, 3, 600])
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("shape", [(2, 600, 3), (1, 600, 4, 3), (1, 600, 2, 2, 3)])
def test_read(shape: tuple[int, ...], known: bool, rows: int) -> None:
    """Rows of images of every rank, for pages of any size; rows without additions are zero."""
    x = tf.random.stateless_uniform(shape, (1, 2), dtype=tf.float32)
    pages, batch = pages_of(shape, rows), shape[0] if known else None
    image = device_store.allocate(pages, x.dtype)
    image = device_store.add(image, pages, 100, 200, x[:, 100:200])
    assert tf.raw_ops.TensorListLength(input_handle=image) == -(-600 // rows)
    expected = np.array(x)
    expected[:, :100] = expected[:, 200:] = 0
    for start, stop in ((0, 300), (99, 101), (150, 151), (199, 300), (260, 270)):
        rows_read = device_store.read(image, pages, x.dtype, start, stop, batch)
        np.testing.assert_array_equal(rows_read, expected[:, start:stop])


@pytest.mark.parametrize("change", CHANGES)
def test_lists_stay_on_their_device(change: str) -> None:
    """An operation on the host that takes a list would copy all its pages there. Traced for a GPU, not run."""

    @tf.function(autograph=False)
    def step(pages: Pages, start: tf.Tensor, stop: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        with tf.device("/GPU:0"):
            image = device_store.allocate(pages, tf.float16)
            image = CHANGES[change](image, pages, start, stop, stop, rows)
            return device_store.read(image, pages, tf.float16, start, stop, 1)

    vector, number = tf.TensorSpec([4], tf.int32), tf.TensorSpec([], tf.int32)
    pages, rows = Pages(vector, vector, number, number), tf.TensorSpec([1, None, 4, 4], tf.float16)
    graph = step.get_concrete_function(pages, number, number, rows).graph
    takers = [op for op in _all_operations(graph) if any(t.dtype == tf.variant for t in op.inputs)]
    assert {"TensorListGather", "TensorListScatterIntoExistingList"} == {op.type for op in takers}
    assert {op.type: op.device for op in takers if "GPU:0" not in op.device} == {}


def _all_operations(graph: Any) -> Iterator[Any]:
    """Yield the operations of a graph, and of the functions that it calls, with their placement."""
    yield from graph.get_operations()
    for function in graph._functions.values():
        yield from _all_operations(function.graph)


def test_rows_of_one_image_are_not_copied_twice() -> None:
    """What is read of pages is a part of the memory that they were put together in."""
    shape = (1, 8, 4, 4)
    x, pages = tf.random.stateless_uniform(shape, (1, 2)), pages_of(shape, 4)

    @tf.function(autograph=False)
    def offset() -> tf.Tensor:
        image = device_store.write(device_store.allocate(pages, x.dtype), pages, 0, 8, x)
        joined = device_store._joined(image, pages, x.dtype, tf.constant(0), tf.constant(8), 1)
        part = device_store._rows(joined, tf.constant(2), tf.constant(3))
        return callbacks.numpy_function(
            lambda a, b: np.int64(b.ctypes.data - a.ctypes.data), [joined, part], tf.int64
        )

    assert int(offset()) == 2 * 4 * 4 * 4


def test_changes_do_not_change_their_input() -> None:
    shape = (1, 8, 1, 1)
    pages = pages_of(shape, 1)
    image = device_store.allocate(pages, tf.float32)
    first = device_store.add(image, pages, 0, 8, tf.ones(shape))
    device_store.add(first, pages, 2, 5, tf.ones([1, 3, 1, 1]))
    device_store.write(first, pages, 2, 5, tf.ones([1, 3, 1, 1]))
    np.testing.assert_array_equal(
        device_store.read(first, pages, tf.float32, 0, 8), np.ones([1, 8, 1, 1])
    )
