"""Device store: rows that were added are read, for any pages and strips."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tfbig.geometry.windows import partition
from tfbig.stores import device_store
from tfbig.system import callbacks


@tf.function(
    input_signature=[
        tf.TensorSpec([None, None, 3, 2]),
        *[tf.TensorSpec([None], tf.int32)] * 2,
        tf.TensorSpec([], tf.int32),
    ]
)
def summed(x: tf.Tensor, starts: tf.Tensor, stops: tf.Tensor, pages: tf.Tensor) -> tf.Tensor:
    """Return an image to which rows `starts[i]` to `stops[i]` of `x` are added, in a loop over i."""
    shape = tf.shape(x)
    image = device_store.allocate(shape, x.dtype, pages)

    def body(i: tf.Tensor, image: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        rows = x[:, starts[i] : stops[i]]
        return i + 1, device_store.add(image, shape, starts[i], rows)

    _, image = tf.while_loop(lambda i, _: i < tf.size(starts), body, (0, image))
    return device_store.read(image, shape, x.dtype, 0, shape[1])


@settings(max_examples=25, deadline=None)
@given(
    rows=st.sampled_from([1, 7, 255, 256, 257, 1000]),
    batch=st.integers(1, 2),
    strips=st.integers(1, 9),
    halo=st.integers(0, 5),
    pages=st.sampled_from([1, 16, 100, 256]),
)
def test_add_strips(rows: int, batch: int, strips: int, halo: int, pages: int) -> None:
    """Strips with a halo add up to the same image as in NumPy."""
    x = np.random.default_rng(rows).integers(-99, 99, (batch, rows, 3, 2)).astype("float32")
    owned = partition(rows, min(strips, rows), np.arange(min(strips, rows)))
    starts, stops = np.maximum(owned.start - halo, 0), np.minimum(owned.stop + halo, rows)
    expected = np.zeros_like(x)
    for start, stop in zip(starts, stops, strict=True):
        expected[:, start:stop] += x[:, start:stop]
    bounds = [tf.constant(rows, tf.int32) for rows in (starts, stops)]
    result = summed(x, *bounds, tf.constant(pages))
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("most", [device_store.PAGE_ELEMENTS, 30, 1])
@pytest.mark.parametrize("shape", [(2, 600, 3), (1, 600, 4, 3), (1, 600, 2, 2, 3)])
def test_read(shape: tuple[int, ...], most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of images of every rank, for pages of any size; rows without additions are zero."""
    monkeypatch.setattr(device_store, "PAGE_ELEMENTS", most)
    x = tf.random.stateless_uniform(shape, (1, 2), dtype=tf.float32)
    whole = tf.constant(shape)
    image = device_store.allocate(whole, x.dtype, 256)
    image = device_store.add(image, whole, 100, x[:, 100:200])
    rows = {device_store.PAGE_ELEMENTS: 3, 30: {3: 3, 4: 2, 5: 2}[len(shape)], 1: 1}[most]
    assert tf.raw_ops.TensorListLength(input_handle=image) == -(-600 // rows)
    expected = np.array(x)
    expected[:, :100] = expected[:, 200:] = 0
    for start, stop in ((0, 300), (99, 101), (150, 151), (199, 300), (260, 270)):
        rows_read = device_store.read(image, whole, x.dtype, start, stop)
        np.testing.assert_array_equal(rows_read, expected[:, start:stop])


@pytest.mark.parametrize(
    ("rows", "most", "pages"),
    [(1000, 1, 1), (1000, 16, 16), (1000, 300, 250), (7, 16, 7), (9, 4, 3)],
)
def test_number_of_pages(rows: int, most: int, pages: int) -> None:
    """There are at most as many pages as requested, with as many rows each as they need together."""
    image = device_store.allocate(tf.constant([1, rows, 3, 2]), tf.float16, most)
    assert tf.raw_ops.TensorListLength(input_handle=image) == pages


def test_single_page_has_any_number_of_elements(monkeypatch: pytest.MonkeyPatch) -> None:
    """An image in one strip is one page, however many elements a page of several may have."""
    monkeypatch.setattr(device_store, "PAGE_ELEMENTS", 1)
    for most, pages in ((1, 1), (2, 9)):
        image = device_store.allocate(tf.constant([1, 9, 3, 2]), tf.float16, most)
        assert tf.raw_ops.TensorListLength(input_handle=image) == pages


@tf.function(
    input_signature=[
        tf.TensorSpec([None, None, 3, 2]),
        *[tf.TensorSpec([None], tf.int32)] * 3,
        tf.TensorSpec([], tf.int32),
    ]
)
def written(
    x: tf.Tensor, starts: tf.Tensor, stops: tf.Tensor, covered: tf.Tensor, pages: tf.Tensor
) -> tf.Tensor:
    """Return what `summed` returns, for strips in their order."""
    shape = tf.shape(x)
    image = device_store.allocate(shape, x.dtype, pages)

    def body(i: tf.Tensor, image: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        rows = x[:, starts[i] : stops[i]]
        return i + 1, device_store.write(image, shape, starts[i], covered[i], rows)

    _, image = tf.while_loop(lambda i, _: i < tf.size(starts), body, (0, image))
    return device_store.read(image, shape, x.dtype, 0, shape[1])


@settings(max_examples=40, deadline=None)
@given(
    rows=st.sampled_from([1, 7, 255, 256, 257, 1000]),
    batch=st.integers(1, 2),
    strips=st.integers(1, 9),
    halo=st.integers(-2, 40),
    pages=st.sampled_from([1, 2, 16, 100, 256]),
)
def test_write_strips(rows: int, batch: int, strips: int, halo: int, pages: int) -> None:
    """Strips that overlap, or leave rows out, add up to the same image as those that are added."""
    x = np.random.default_rng(rows).integers(-99, 99, (batch, rows, 3, 2)).astype("float32")
    owned = partition(rows, min(strips, rows), np.arange(min(strips, rows)))
    starts, stops = np.maximum(owned.start - halo, 0), np.minimum(owned.stop + halo, rows)
    stops = np.maximum(starts, stops)
    until = np.maximum.accumulate(stops)
    covered = np.concatenate([[0], until[:-1]])
    bounds = [tf.constant(numbers, tf.int32) for numbers in (starts, stops, covered)]
    expected = summed(x, *bounds[:2], tf.constant(pages))
    np.testing.assert_array_equal(written(x, *bounds, tf.constant(pages)), expected)


@pytest.mark.parametrize("change", [device_store.add, None])
def test_lists_stay_on_their_device(change: Any) -> None:
    """An operation on the host that takes a list would copy all its pages there. Traced for a GPU, not run."""

    @tf.function(autograph=False)
    def step(shape: tf.Tensor, pages: tf.Tensor, start: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        with tf.device("/GPU:0"):
            image = device_store.allocate(shape, tf.float16, pages)
            if change is None:
                image = device_store.write(image, shape, start, start, rows)
            else:
                image = change(image, shape, start, rows)
            return device_store.read(image, shape, tf.float16, start, shape[1])

    numbers = tf.TensorSpec([4], tf.int32), *[tf.TensorSpec([], tf.int32)] * 2
    graph = step.get_concrete_function(*numbers, tf.TensorSpec([1, None, 4, 4], tf.float16)).graph
    takers = [op for op in _all_operations(graph) if any(t.dtype == tf.variant for t in op.inputs)]
    assert {"TensorListLength", "TensorListGather"} <= {op.type for op in takers}
    assert {op.type: op.device for op in takers if "GPU:0" not in op.device} == {}


def _all_operations(graph: Any) -> Iterator[Any]:
    """Yield the operations of a graph, and of the functions that it calls, with their placement."""
    yield from graph.get_operations()
    for function in graph._functions.values():
        yield from _all_operations(function.graph)


def test_one_strip_is_not_copied() -> None:
    """The only page is the written image itself, and so is what is read of all of it."""
    whole, x = tf.constant([1, 8, 4, 4]), tf.random.stateless_uniform([1, 8, 4, 4], (1, 2))

    @tf.function(autograph=False)
    def addresses() -> tf.Tensor:
        rows = x + 1
        image = device_store.write(device_store.allocate(whole, x.dtype, 1), whole, 0, 0, rows)
        again = device_store.read(image, whole, x.dtype, 0, 8)
        return callbacks.numpy_function(
            lambda *arrays: np.array([a.ctypes.data for a in arrays]), [rows, again], tf.int64
        )

    first, second = addresses().numpy()
    assert first == second


def test_add_does_not_change_its_input() -> None:
    whole = tf.constant([1, 8, 1, 1])
    image = device_store.allocate(whole, tf.float32, 8)
    first = device_store.add(image, whole, 0, tf.ones([1, 8, 1, 1]))
    device_store.add(first, whole, 2, tf.ones([1, 3, 1, 1]))
    np.testing.assert_array_equal(
        device_store.read(first, whole, tf.float32, 0, 8), np.ones([1, 8, 1, 1])
    )
