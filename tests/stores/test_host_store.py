"""Host store: rows that are read, written and added, their order, and registered writers.

Stores are shared with NumPy only in a graph; eager calls would copy them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tfbig.stores import file_pool, host_store
from tfbig.stores.host_store import NewStore
from tfbig.stores.page_pool import POOL
from tfbig.system import callbacks


def numbers(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def in_graph(function: Callable[[], Any]) -> Any:
    return tf.function(function, autograph=False)()


def zero() -> tf.Tensor:
    return tf.constant(0)


def strip() -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Label, index and count of a strip."""
    return tf.constant("sweep"), tf.constant(0), tf.constant(1)


def test_allocate(tmp_path: Path) -> None:
    """Shapes, types and places are those of the request; addresses are used only where they are free."""
    shapes = tf.constant([[1, 2, 3, 4], [2, 5, 1, 1]], tf.int64)
    folder = str(tmp_path)
    pool = file_pool.pool(folder)
    requests = [NewStore(1, tf.float64, folder), NewStore(0, tf.bfloat16), NewStore(0, tf.uint8)]
    places = tf.constant([-1, 4096], tf.int64)
    stores = in_graph(lambda: host_store.allocate(shapes, places, requests))
    assert [tuple(s.shape) for s in stores] == [(2, 5, 1, 1), (1, 2, 3, 4), (1, 2, 3, 4)]
    assert [s.dtype for s in stores] == [tf.float64, tf.bfloat16, tf.uint8]
    assert pool.used_bytes == 128  # 80 bytes, in whole alignments
    assert pool.peak_bytes == 4096 + 128
    assert host_store.allocate(shapes, places, []) == []


def test_allocate_waits_for_a_store_that_is_freed_late() -> None:
    """The thread that frees a store may be late; the next one takes its place all the same."""
    earlier = [POOL.array((1, 8, 8, 4), np.float32)]
    place = earlier[0].ctypes.data - POOL.address
    late = threading.Timer(0.005, earlier.clear)

    def finish_earlier_step() -> np.ndarray:
        late.start()
        return np.array([place])

    def address() -> tf.Tensor:
        places = callbacks.numpy_function(finish_earlier_step, [], tf.int64)
        request = [NewStore(0, tf.float32)]
        stores = host_store.allocate(tf.constant([[1, 8, 8, 4]], tf.int64), places, request)
        return callbacks.numpy_function(lambda s: np.int64(s.ctypes.data), stores, tf.int64)

    assert int(in_graph(address)) - POOL.address == place
    late.join()


def test_copy_does_not_share_memory() -> None:
    image = tf.constant(numbers(1, 4, 2, 1))

    def cleared() -> tf.Tensor:
        return host_store.zero([host_store.copy(image)], zero())[0]

    np.testing.assert_array_equal(in_graph(cleared), np.zeros((1, 4, 2, 1)))
    np.testing.assert_array_equal(image, numbers(1, 4, 2, 1))


def test_read() -> None:
    image, other = numbers(2, 6, 3, 1), numbers(1, 4, 2, 5)
    first, second = host_store.read(
        [(tf.constant(image), [(1, 4)]), (tf.constant(other), [(0, 4)])]
    )
    np.testing.assert_array_equal(first, image[:, 1:4])
    np.testing.assert_array_equal(second, other)
    assert host_store.read([]) == []


@pytest.mark.parametrize("spilled", [False, True])
def test_tiles(spilled: bool, tmp_path: Path) -> None:
    """Tiles are written, added where they overlap, and read."""
    image = numbers(2, 6, 7, 2)
    shapes, places = tf.constant([image.shape], tf.int64), tf.constant([-1], tf.int64)
    request = NewStore(0, tf.float32, str(tmp_path) if spilled else None)
    corners = [(0, 0), (0, 4), (3, 0), (3, 4)]

    def tile(row: int, column: int) -> tuple[tf.Tensor, ...]:
        part = tf.constant(image[:, row : row + 3, column : column + 4])
        return part, tf.constant(row), tf.constant(column)

    def stored() -> list[tf.Tensor]:
        (store,) = host_store.allocate(shapes, places, [request])
        before = zero()
        for corner in corners:
            before = host_store.write([(store, *tile(*corner))], before, *strip())
        for corner in ((0, 0), (1, 2)):
            before = host_store.add_tiles([(store, *tile(*corner))], before, *strip())
        (done,) = host_store.after([store], host_store.finish(before))
        return host_store.read([(done, [(0, 6), (0, 7)]), (done, [(2, 5), (1, 6)])])

    expected = image.copy()
    expected[:, :3, :4] += image[:, :3, :4]
    expected[:, 1:4, 2:6] += image[:, 1:4, 2:6]
    whole, part = in_graph(stored)
    np.testing.assert_array_equal(whole, expected)
    np.testing.assert_array_equal(part, expected[:, 2:5, 1:6])


@pytest.mark.parametrize("spilled", [False, True])
def test_write(spilled: bool, tmp_path: Path) -> None:
    """All changes are in the store after `finish`, also of one in the scratch file."""
    image = numbers(2, 10, 3, 2)
    shapes, places = tf.constant([image.shape], tf.int64), tf.constant([-1], tf.int64)
    request = NewStore(0, tf.float32, str(tmp_path) if spilled else None)

    def stored() -> tf.Tensor:
        (store,) = host_store.allocate(shapes, places, [request])
        before = zero()
        for start, stop in ((6, 10), (0, 1), (1, 6)):
            rows = tf.constant(image[:, start:stop])
            before = host_store.write([(store, rows, tf.constant(start))], before, *strip())
        return host_store.after([store], host_store.finish(before))[0]

    np.testing.assert_array_equal(in_graph(stored), image)


def test_add() -> None:
    """Strips of 4 rows with a halo of one: rows that no strip covers are zero, shared rows are sums."""
    expected = np.zeros((1, 9, 2, 1), np.float32)
    changes = []
    for start, stop, covered, until in ((1, 4, 0, 4), (3, 6, 4, 6), (7, 8, 6, 9)):
        rows = numbers(1, stop - start, 2, 1) + 1
        expected[:, start:stop] += rows
        changes.append((rows, start, covered, until))

    def added() -> tf.Tensor:
        store = host_store.copy(tf.fill([1, 9, 2, 1], np.float32(np.nan)))
        before = zero()
        for change in changes:
            tensors = (store, *map(tf.constant, change))
            before = host_store.add([tensors], before, *strip())
        return host_store.after([store], host_store.finish(before))[0]

    np.testing.assert_array_equal(in_graph(added), expected)


@pytest.mark.parametrize(
    ("start", "covered", "until", "changed"),
    [(2, 0, 6, (0, 6)), (2, 3, 4, (2, 4)), (2, 4, 4, (2, 4)), (2, 6, 6, (2, 6))],
)
def test_changed_rows(start: int, covered: int, until: int, changed: tuple[int, int]) -> None:
    """The range of rows that `add` reports contains all rows that it changes."""
    store, rows = np.ones((1, 8, 1, 1)), np.full((1, 2, 1, 1), 5.0)
    assert host_store._add(store, rows, start, covered, until) == changed
    expected = [1.0] * 8
    for row in range(8):
        if covered <= row < until:
            expected[row] = 0
        if start <= row < start + 2:
            expected[row] += 5
    assert store.ravel().tolist() == expected


def test_error_of_a_change_is_raised() -> None:
    """A copy that fails in the background raises in `finish`."""

    def failing() -> tf.Tensor:
        store = host_store.copy(tf.zeros([1, 4, 2, 1]))
        rows = tf.zeros([1, 2, 3, 1])  # too wide
        change = (store, rows, tf.constant(0))
        return host_store.finish(host_store.write([change], zero(), *strip()))

    with pytest.raises(tf.errors.OpError, match="could not broadcast input array"):
        in_graph(failing)
    assert len(host_store.COPIES) == 0


def test_sink() -> None:
    received = []
    with host_store.sink(lambda start, rows: received.append((start, rows.copy()))) as key:
        rows = tf.constant(numbers(1, 2, 3, 1))
        first, size = tf.constant(4), tf.constant([6, 3])
        host_store.write_sink(tf.constant(key), [first], rows, size, zero())
    ((start, written),) = received
    assert start == 4
    np.testing.assert_array_equal(written, numbers(2, 3, 1))
    assert key not in host_store._SINKS


def test_sink_of_tiles() -> None:
    """The writer receives whole rows."""
    image, received = numbers(1, 5, 7, 2), []
    with host_store.sink(lambda start, rows: received.append((start, rows))) as key:
        before = zero()
        for top, bottom in ((0, 3), (3, 5)):
            for left, right in ((0, 4), (4, 7)):
                tile = tf.constant(image[:, top:bottom, left:right])
                firsts = [tf.constant(top), tf.constant(left)]
                size = tf.constant([5, 7])
                before = host_store.write_sink(tf.constant(key), firsts, tile, size, before)
    assert [start for start, _ in received] == [0, 3]
    np.testing.assert_array_equal(np.concatenate([rows for _, rows in received]), image[0])


def test_staged_is_a_copy() -> None:
    rows = tf.constant(numbers(1, 2, 3, 1))
    copied = host_store.staged(rows)
    np.testing.assert_array_equal(copied, rows)
    assert copied.shape == rows.shape


@pytest.mark.parametrize(
    "shape", [(1, 0, 2, 3), (1, 1, 2, 3), (1, 5, 2, 3), (2, 5, 2, 3), (1, 5, 3)]
)
def test_staged_equals_its_rows(shape: tuple[int, ...]) -> None:
    """Rows of one image are copied in two parts, whose sizes may differ or be zero."""
    rows = tf.constant(numbers(*shape))
    unknown = tf.TensorSpec([shape[0], *[None] * (len(shape) - 2), shape[-1]], tf.float32)
    copied = tf.function(host_store.staged, input_signature=[unknown], autograph=False)(rows)
    np.testing.assert_array_equal(copied, rows)
    assert copied.shape == shape
