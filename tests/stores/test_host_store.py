"""Arrays in host memory: where they are allocated, copies of them, and rows on their way to a device.

`test_image_store.py` reads and changes them.
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
from tfbig.stores.host_memory import HostMemory
from tfbig.stores.host_store import StoreRequest
from tfbig.stores.page_pool import POOL
from tfbig.system import callbacks


def numbers(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def in_graph(function: Callable[[], Any]) -> Any:
    return tf.function(function, autograph=False)()


def zero() -> tf.Tensor:
    return tf.constant(0)


def test_allocate(tmp_path: Path) -> None:
    """Shapes, types and places are those of the request; addresses are used only where they are free."""
    shapes = tf.constant([[1, 2, 3, 4], [2, 5, 1, 1]], tf.int64)
    folder = str(tmp_path)
    pool = file_pool.pool(folder)
    requests = [
        StoreRequest(1, tf.float64, folder),
        StoreRequest(0, tf.bfloat16),
        StoreRequest(0, tf.uint8),
    ]
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
        request = [StoreRequest(0, tf.float32)]
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


@pytest.mark.parametrize(
    ("start", "covered", "until", "changed"),
    [(2, 0, 6, (0, 6)), (2, 3, 4, (2, 4)), (2, 4, 4, (2, 4)), (2, 6, 6, (2, 6))],
)
def test_added_rows(
    start: int,
    covered: int,
    until: int,
    changed: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rows that are told to be no longer needed in memory contain all rows that were changed."""
    store, rows = np.ones((1, 8, 1, 1)), np.full((1, 2, 1, 1), 5.0)
    forgotten: list[tuple[int, int]] = []
    monkeypatch.setattr(host_store, "_forget", lambda store, *rows: forgotten.append(rows))
    host_store._add(store, rows, start, covered, until)
    assert forgotten == [changed]
    expected = [1.0] * 8
    for row in range(8):
        if covered <= row < until:
            expected[row] = 0
        if start <= row < start + 2:
            expected[row] += 5
    assert store.ravel().tolist() == expected


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


@pytest.mark.parametrize("can_lock", [True, False])
@pytest.mark.parametrize("device", [None, "/CPU:0", "/GPU:0"])
def test_rows_are_staged_for_a_gpu_unless_stores_are_page_locked(
    device: str | None, can_lock: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HostMemory, "can_lock", lambda memory: can_lock)
    rows = tf.ones((1, 4, 2, 3))
    is_gpu = device == "/GPU:0"
    of_store = host_store.sent(rows, device, in_store=True)
    others = host_store.sent(rows, device)
    assert (of_store is rows) == (can_lock or not is_gpu)
    assert (others is rows) == (not is_gpu)
    tf.debugging.assert_equal(of_store, rows)
