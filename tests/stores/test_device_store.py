"""Device store: rows that were written or added are read, for any strips, types and rows of any width."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from tfbig.geometry.windows import partition
from tfbig.stores import device_store
from tfbig.stores.device_store import DeviceShapes
from tfbig.system import callbacks

DTYPES = ("float16", "bfloat16", "float32", "float64")


def shapes_of(x: tf.Tensor) -> DeviceShapes:
    (shapes,) = device_store.device_shapes(tf.shape(x)[None], [x.dtype.size])
    return shapes


def write(
    image: tf.Tensor, shapes: DeviceShapes, start: Any, stop: Any, *_: Any, rows: tf.Tensor
) -> tf.Tensor:
    return device_store.write(image, shapes, start, stop, rows)


def add(
    image: tf.Tensor, shapes: DeviceShapes, start: Any, stop: Any, *_: Any, rows: tf.Tensor
) -> tf.Tensor:
    return device_store.add(image, shapes, start, stop, rows)


def add_first(
    image: tf.Tensor, shapes: DeviceShapes, start: Any, stop: Any, *edges: Any, rows: tf.Tensor
) -> tf.Tensor:
    return device_store.add_first(image, shapes, (start, stop), *edges, rows)


CHANGES: dict[str, Callable[..., tf.Tensor]] = {"write": write, "add": add, "add first": add_first}
"""Functions of a tensor, its shapes, the first row, the end, the ends of sums before and afterwards, and rows."""


def changed(change: str, x: tf.Tensor, starts: Any, stops: Any) -> tf.Tensor:
    """Return an image whose strips `x[:, starts[i] : stops[i]]` were written or added, in a loop over i.

    What it contains before is 77 everywhere, or 0 where strips are added to it.
    """
    until = np.maximum.accumulate(stops)
    covered = np.concatenate([[0], until[:-1]])
    until[-1] = x.shape[1]
    bounds = [tf.constant(numbers, tf.int32) for numbers in (starts, stops, covered, until)]
    before = tf.fill(x.shape, tf.constant(0 if change == "add" else 77, x.dtype))

    @tf.function(autograph=False)
    def run(x: tf.Tensor) -> tf.Tensor:
        shapes = shapes_of(x)
        image = device_store.allocate(shapes.shape)
        image = device_store.write(image, shapes, 0, x.shape[1], before)

        def body(i: tf.Tensor, image: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            start, stop, *edges = (numbers[i] for numbers in bounds)
            strip = x[:, start:stop]
            return i + 1, CHANGES[change](image, shapes, start, stop, *edges, rows=strip)

        _, image = tf.while_loop(lambda i, _: i < len(starts), body, (0, image))
        return device_store.read(image, shapes, x.dtype, 0, x.shape[1], x.shape[0])

    return run(x)


def strips_of(height: int, strips: int, halo: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the first rows of strips that overlap, or leave rows out, and their ends."""
    owned = partition(height, min(strips, height), np.arange(min(strips, height)))
    starts, stops = np.maximum(owned.start - halo, 0), np.minimum(owned.stop + halo, height)
    return starts, np.maximum(starts, stops)


def integers(shape: tuple[int, ...], dtype: str) -> tf.Tensor:
    return tf.cast(np.random.default_rng(shape[1]).integers(-15, 16, shape), dtype)


HEIGHTS = st.sampled_from([1, 7, 64, 65])
SHAPES = st.sampled_from([(3, 2), (4, 2), (5,), (3, 2, 3)])


@pytest.mark.parametrize("change", [pytest.param("add", marks=pytest.mark.slow), "add first"])
@settings(max_examples=8, deadline=None)
@given(
    height=HEIGHTS,
    rest=SHAPES,
    dtype=st.sampled_from(DTYPES),
    batch=st.integers(1, 2),
    strips=st.integers(1, 9),
    halo=st.integers(-2, 40),
)
def test_add_strips(
    change: str, height: int, rest: tuple[int, ...], dtype: str, batch: int, strips: int, halo: int
) -> None:
    """Strips that overlap, or leave rows out, add up to the same image as in NumPy."""
    x = integers((batch, height, *rest), dtype)
    starts, stops = strips_of(height, strips, halo)
    expected = np.zeros(x.shape)
    for start, stop in zip(starts, stops, strict=True):
        expected[:, start:stop] += np.float64(x[:, start:stop])
    np.testing.assert_array_equal(np.float64(changed(change, x, starts, stops)), expected)


@settings(max_examples=6, deadline=None)
@given(
    height=HEIGHTS,
    rest=SHAPES,
    dtype=st.sampled_from(DTYPES),
    batch=st.integers(1, 2),
    strips=st.integers(1, 9),
)
def test_write_strips(
    height: int, rest: tuple[int, ...], dtype: str, batch: int, strips: int
) -> None:
    x = integers((batch, height, *rest), dtype)
    np.testing.assert_array_equal(changed("write", x, *strips_of(height, strips, 0)), x)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("shape", [(2, 60, 3), (1, 60, 4, 3), (1, 60, 2, 2, 3)])
def test_read(shape: tuple[int, ...], known: bool) -> None:
    """Rows of images of every rank, whether the size of the batch is known or not."""
    x = tf.random.stateless_uniform(shape, (1, 2), dtype=tf.float32)
    shapes, batch = shapes_of(x), shape[0] if known else None
    image = device_store.write(device_store.allocate(shapes.shape), shapes, 0, 60, x)
    assert image.shape == (60, -(-int(np.prod(shape)) // 60 // 2))
    for start, stop in ((0, 60), (9, 11), (5, 6), (7, 7)):
        rows = device_store.read(image, shapes, x.dtype, start, stop, batch)
        np.testing.assert_array_equal(rows, x[:, start:stop])


@pytest.mark.parametrize("change", CHANGES)
def test_images_stay_on_their_device(change: str) -> None:
    """Only integers of shapes are on the host, and no range of row numbers. Traced for a GPU, not run."""

    @tf.function(autograph=False)
    def step(shape: tf.Tensor, start: tf.Tensor, stop: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        with tf.device("/CPU:0"):
            (shapes,) = device_store.device_shapes(shape[None], [2])
        with tf.device("/GPU:0"):
            image = device_store.allocate(shapes.shape)
            image = CHANGES[change](image, shapes, start, stop, start, stop, rows=rows)
            return device_store.read(image, shapes, tf.float16, start, stop, 1)

    vector, number = tf.TensorSpec([4], tf.int32), tf.TensorSpec([], tf.int32)
    rows = tf.TensorSpec([1, None, 4, 4], tf.float16)
    graph = step.get_concrete_function(vector, number, number, rows).graph
    operations = list(_all_operations(graph))
    assert "InplaceUpdate" in {op.type for op in operations}
    holding = [op for op in operations if any(t.dtype in (tf.int64, tf.float16) for t in op.inputs)]
    elsewhere = [op for op in holding if "GPU:0" not in op.device and op.type != "Identity"]
    assert elsewhere == []  # but for the result of the function
    assert all(op.inputs[0].dtype == tf.int64 for op in operations if op.type == "Range")


def _all_operations(graph: Any) -> Iterator[Any]:
    """Yield the operations of a graph, and of the functions that it calls, with their placement."""
    yield from graph.get_operations()
    for function in graph._functions.values():
        yield from _all_operations(function.graph)


def address(*tensors: tf.Tensor) -> tf.Tensor:
    """Return where the memory of each tensor begins, after that of the first one."""
    return callbacks.numpy_function(
        lambda *arrays: np.array([a.ctypes.data - arrays[0].ctypes.data for a in arrays]),
        list(tensors),
        tf.int64,
    )


def test_rows_are_not_copied() -> None:
    """Images are changed where they are, and what is read of one image is a part of its memory."""
    x = tf.random.stateless_uniform((1, 8, 4, 4), (1, 2))

    @tf.function(autograph=False)
    def addresses() -> tf.Tensor:
        shapes = shapes_of(x)
        image = device_store.allocate(shapes.shape)
        first = device_store.write(image, shapes, 0, 8, x)
        second = device_store.add(first, shapes, 2, 5, x[:, 2:5])
        part = device_store.read(second, shapes, x.dtype, 2, 5, 1)
        return address(image, first, second, part)

    assert addresses().numpy().tolist() == [0, 0, 0, 2 * 4 * 4 * 4]


def test_what_was_read_before_a_change() -> None:
    """Rows that were read before a change give their old values to what is computed before the change.

    A loop in which the rows of the last strip are read, and those of the next one written, does so in order.
    """
    x = integers((1, 8, 4, 2), "float32")

    @tf.function(autograph=False)
    def run() -> tf.Tensor:
        shapes = shapes_of(x)
        image = device_store.write(device_store.allocate(shapes.shape), shapes, 0, 8, x)

        def body(i: tf.Tensor, image: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, ...]:
            total += tf.ensure_shape(
                device_store.read(image, shapes, x.dtype, i, i + 1, 1), total.shape
            )
            rows = tf.fill([1, 1, 4, 2], 1000.0)
            with tf.control_dependencies([total]):
                rows = tf.identity(rows)
            return i + 1, device_store.write(image, shapes, i, i + 1, rows), total

        state = tf.constant(0), image, tf.zeros([1, 1, 4, 2])
        return tf.while_loop(lambda i, *_: i < 8, body, state)[2]

    np.testing.assert_array_equal(run()[0, 0], np.sum(x[0], axis=0))
