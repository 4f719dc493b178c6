"""Host memory of stores: the check before a step, and page-locked memory, with a driver that only takes notes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import tensorflow as tf

from tfbig.errors import BudgetError
from tfbig.stores import host_memory, host_store
from tfbig.stores.host_memory import HostMemory, LockedPool
from tfbig.stores.host_store import StoreRequest
from tfbig.stores.page_pool import PAGE, POOL
from tfbig.system import callbacks, cuda_driver


@pytest.fixture
def locked(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[int, int]]:
    """Bytes that are page-locked, by address."""
    places: dict[int, int] = {}

    def lock(address: int, size: int) -> bool:
        places[address] = size
        return True

    monkeypatch.setattr(cuda_driver, "page_lock", lock)
    monkeypatch.setattr(cuda_driver, "page_unlock", places.pop)
    monkeypatch.setattr(host_memory, "available_bytes", lambda: 2**40)
    yield places
    monkeypatch.undo()


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> HostMemory:
    new = HostMemory()
    monkeypatch.setattr(host_store, "MEMORY", new)
    return new


def test_check(memory: HostMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory that earlier steps left in the pool counts as available."""
    monkeypatch.setattr(host_memory, "available_bytes", lambda: 1000)
    monkeypatch.setattr(type(POOL), "free_bytes", 500)
    memory.check(1500)
    with pytest.raises(BudgetError, match=r"needs 1\.5 KiB .* but 1\.5 KiB are available"):
        memory.check(1501)


@pytest.mark.usefixtures("locked")
def test_free_page_locked_memory_counts_as_available(
    memory: HostMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory.page_lock(4 * PAGE)
    monkeypatch.setattr(host_memory, "available_bytes", lambda: 0)
    monkeypatch.setattr(type(POOL), "free_bytes", 0)
    assert memory.locked is not None
    held = memory.locked.array((PAGE,), np.uint8)
    memory.check(3 * PAGE)
    with pytest.raises(BudgetError):
        memory.check(3 * PAGE + 1)
    del held


def test_stores_of_a_step_are_page_locked(memory: HostMemory, locked: dict[int, int]) -> None:
    """Stores are in locked memory at their planned places; one that has no place, or no room, is not."""
    memory.page_lock(6 * PAGE + 1)
    ((address, size),) = locked.items()
    assert size == 7 * PAGE
    shapes = tf.constant([[1, PAGE, 1, 1]] * 3, tf.int64)
    requests = [StoreRequest(value, tf.uint8) for value in range(3)]
    places = tf.constant([2 * PAGE, -1, 6 * PAGE + 64], tf.int64)

    @tf.function(autograph=False)
    def addresses() -> tf.Tensor:
        stores = host_store.allocate(shapes, places, requests)
        return callbacks.numpy_function(
            lambda *stores: np.array([s.ctypes.data for s in stores]), stores, tf.int64
        )

    found = addresses().numpy().tolist()
    assert found[0] == address + 2 * PAGE
    assert all(not address <= place < address + size for place in found[1:])


def test_more_memory_is_locked_when_none_is_in_use(
    memory: HostMemory, locked: dict[int, int]
) -> None:
    """The old memory is unlocked first. Memory that an array uses stays locked, and is not replaced."""
    memory.page_lock(2 * PAGE)
    memory.page_lock(PAGE)
    assert list(locked.values()) == [2 * PAGE]
    assert memory.locked is not None
    array = memory.locked.array((8,), np.float32)
    memory.page_lock(4 * PAGE)
    assert list(locked.values()) == [2 * PAGE]
    del array
    memory.page_lock(4 * PAGE)
    assert list(locked.values()) == [4 * PAGE]
    memory.page_lock(0)
    assert list(locked.values()) == [4 * PAGE]


def test_memory_is_unlocked_after_its_last_array(locked: dict[int, int]) -> None:
    pool = LockedPool(PAGE)
    array = pool.array((8,), np.float32)
    view = array[2:]
    del pool, array
    assert len(locked) == 1
    del view
    assert not locked


def test_a_part_of_the_memory_is_locked_at_most(
    memory: HostMemory, locked: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stores beyond it are in ordinary memory."""
    monkeypatch.setattr(host_memory, "available_bytes", lambda: 8 * PAGE)
    memory.page_lock(100 * PAGE)
    assert list(locked.values()) == [4 * PAGE]
    assert memory.pool(3 * PAGE, PAGE) is memory.locked
    assert memory.pool(3 * PAGE, PAGE + 1) is POOL
    assert memory.pool(None, PAGE) is POOL


@pytest.mark.usefixtures("locked")
def test_array_without_room_is_in_ordinary_memory() -> None:
    pool = LockedPool(PAGE)
    first = pool.array((PAGE,), np.uint8)
    before = POOL.used_bytes
    second = pool.array((PAGE,), np.uint8, 0)
    assert pool.used_bytes == PAGE
    assert POOL.used_bytes == before + PAGE
    first[:], second[:] = 1, 2
    assert first[0] == 1


@pytest.mark.usefixtures("locked")
def test_unused_pages_that_are_locked_are_retained() -> None:
    """The system would give them other memory than the one that the GPU reads."""
    pool = LockedPool(PAGE)
    array = pool.array((PAGE,), np.uint8, 0)
    array[:] = 7
    del array
    pool.trim()
    assert pool.array((PAGE,), np.uint8, 0)[0] == 7
    assert pool.free_bytes == PAGE


@pytest.mark.parametrize("most", [0, PAGE])
def test_what_the_driver_does_not_lock_is_ordinary(
    most: int, memory: HostMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked once: for a page, then for as much as a step needs."""
    tried = []

    def lock(address: int, size: int) -> bool:
        tried.append(size)
        return size <= most

    monkeypatch.setattr(cuda_driver, "page_lock", lock)
    monkeypatch.setattr(cuda_driver, "page_unlock", lambda address: None)
    monkeypatch.setattr(host_memory, "available_bytes", lambda: 2**40)
    assert memory.can_lock() == (most > 0)
    for _ in range(2):
        memory.page_lock(2 * PAGE)
    assert tried == ([PAGE, 2 * PAGE] if most else [PAGE])
    assert not memory.can_lock()
    assert memory.locked is None
    assert memory.pool(0, PAGE) is POOL
