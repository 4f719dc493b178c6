"""Page pool: reuse of memory, and lifetimes of arrays."""

from __future__ import annotations

import gc
import mmap
import os
import sys
import threading
from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tfbig.stores.page_pool import Pool, halving
from tfbig.units import ALIGNMENT, aligned

PAGE = mmap.PAGESIZE
TAKEN = aligned(1000)


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def block(pool: Pool, size: int) -> np.ndarray:
    return pool.array((size,), np.uint8)


@pytest.mark.parametrize(
    "dtype", [np.uint8, np.int32, np.float32, np.float64, ml_dtypes.bfloat16, bool]
)
@pytest.mark.parametrize("shape", [(1, 3, 5, 7), (2, 1), (9,), (), (0, 4), (3, 0, 2)])
def test_array(shape: tuple[int, ...], dtype: type) -> None:
    array = Pool().array(shape, dtype)
    assert array.shape == shape
    assert array.dtype == dtype
    assert address(array) % ALIGNMENT == 0
    assert array.flags.c_contiguous
    assert array.flags.writeable
    array[...] = 1
    assert (array == 1).all()


def test_bfloat16_keeps_its_values() -> None:
    array = Pool().array((2, 3), ml_dtypes.bfloat16)
    numbers = np.array([[1.5, -2, 0], [3e38, 2**-20, 7]], ml_dtypes.bfloat16)
    array[...] = numbers
    np.testing.assert_array_equal(array, numbers)


@pytest.fixture
def small_heap() -> Iterator[None]:
    """Exclude the objects of TensorFlow from garbage collection, which then takes no time."""
    gc.freeze()
    yield
    gc.unfreeze()


# -------------------------------------------------------------------------------------- lifetime


def test_memory_returns_with_the_last_view() -> None:
    pool = Pool()
    array = block(pool, 1000)
    view = array.reshape(10, 100)[3:7, ::2].view(np.int8)[1]
    view[...] = 7
    del array
    assert (pool.used_bytes, pool.free_bytes) == (TAKEN, 0)
    other = block(pool, 1000)
    other[...] = 0
    assert (view == 7).all()  # the other array has another block
    del view
    assert (pool.used_bytes, pool.free_bytes) == (TAKEN, TAKEN)
    del other
    assert (pool.used_bytes, pool.free_bytes) == (0, 2 * TAKEN)


def test_array_outlives_its_pool(small_heap: None) -> None:
    array = block(Pool(), 1000)
    array[...] = 5
    gc.collect()
    assert (array == 5).all()


def test_garbage_collection_during_a_request(small_heap: None) -> None:
    """A request may start a garbage collection that frees an array of the same pool."""

    class CollectsWhenRead(list):
        def __iter__(self):
            gc.collect()
            return super().__iter__()

    pool = Pool()
    cycle: list[object] = [block(pool, 1000)]
    cycle.append(cycle)
    pool._ranges._gaps = CollectsWhenRead()
    del cycle
    done: list[np.ndarray] = []
    request = threading.Thread(target=lambda: done.append(block(pool, 1000)), daemon=True)
    request.start()
    request.join(60)
    assert done, "deadlock: the request waits for its own lock"
    gc.collect()  # a collection does nothing while one of another thread runs
    assert (pool.used_bytes, pool.peak_bytes) == (TAKEN, 2 * TAKEN)


# ----------------------------------------------------------------------------------------- reuse


def test_memory_is_reused() -> None:
    pool = Pool()
    array = block(pool, 1000)
    first = address(array)
    del array
    again = pool.array((5, 25), np.float64)  # the same 1000 bytes in another shape
    assert address(again) == first
    assert (pool.used_bytes, pool.free_bytes) == (TAKEN, 0)


def test_empty_array() -> None:
    pool = Pool()
    array = pool.array((0, 4), np.float32)
    assert pool.used_bytes == ALIGNMENT
    assert array.size == 0


def test_full_range() -> None:
    pool = Pool(4 * PAGE)
    arrays = [block(pool, PAGE) for _ in range(3)]
    with pytest.raises(
        MemoryError, match=rf"{2 * PAGE} contiguous bytes, but the range of {4 * PAGE}"
    ):
        block(pool, 2 * PAGE)
    arrays.append(block(pool, PAGE))
    assert pool.used_bytes == pool.peak_bytes == 4 * PAGE


def test_system_refuses_addresses() -> None:
    """The pool reserves fewer addresses than the system refuses."""
    pool = Pool(2**62)
    assert block(pool, 10).size == 10


def test_trim() -> None:
    pool = Pool()
    used, freed = block(pool, PAGE), block(pool, 3 * PAGE)
    used[...], freed[...] = 9, 5
    del freed
    pool.trim()
    assert (pool.used_bytes, pool.free_bytes, pool.peak_bytes) == (PAGE, 3 * PAGE, 4 * PAGE)
    assert (used == 9).all()
    if sys.platform.startswith("linux"):
        assert not block(pool, 3 * PAGE).any()  # fresh pages are zero


# --------------------------------------------------------------------------- any order, threads


class Blocks(RuleBasedStateMachine):
    """Requests and releases in any order; the content of an array changes only by writing to it."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = Pool()
        self.live: list[tuple[np.ndarray, int]] = []
        self.counter = 0

    @rule(size=st.integers(0, 40) | st.integers(4000, 9000))
    def take(self, size: int) -> None:
        self.counter += 1
        array = self.pool.array((size,), np.int64)
        array[...] = self.counter
        self.live.append((array, self.counter))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def replace_by_view(self, data: st.DataObject) -> None:
        position = data.draw(st.integers(0, len(self.live) - 1))
        array, number = self.live[position]
        self.live[position] = array[len(array) // 2 :], number

    @rule()
    def trim(self) -> None:
        self.pool.trim()

    @invariant()
    def every_array_has_its_own_numbers(self) -> None:
        for array, number in self.live:
            assert (array == number).all()

    @invariant()
    def bytes_add_up(self) -> None:
        assert self.pool.used_bytes >= sum(aligned(a.nbytes) for a, _ in self.live)
        assert self.pool.used_bytes + self.pool.free_bytes == self.pool.peak_bytes
        assert self.live or self.pool.used_bytes == 0


TestBlocks = Blocks.TestCase
TestBlocks.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)


def test_threads_get_disjoint_blocks() -> None:
    pool, wrong = Pool(), []

    def work(number: int) -> None:
        sizes = np.random.default_rng(number).integers(1, PAGE, 400)
        for size in sizes:
            array = block(pool, int(size))
            array[...] = number
            if not (array == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert pool.used_bytes == 0
    assert pool.peak_bytes <= 2 * 4 * PAGE


@pytest.mark.parametrize("refused", [0, 1, 3])
def test_halving(refused: int) -> None:
    """Sizes are rounded up to pages, and halved as long as the system refuses."""
    sizes: list[int] = []

    def reserve(size: int) -> mmap.mmap:
        sizes.append(size)
        if len(sizes) <= refused:
            raise OSError
        return mmap.mmap(-1, PAGE)

    halving(2**31 + 1, reserve)
    assert sizes == [-(-((2**31 + 1) >> n) // PAGE) * PAGE for n in range(refused + 1)]


def test_halving_ends() -> None:
    sizes: list[int] = []

    def refuse(size: int) -> mmap.mmap:
        sizes.append(size)
        raise OSError

    with pytest.raises(OSError):
        halving(2**30, refuse)
    assert sizes == [2**30, 2**29, 2**28, 2**27]


@pytest.mark.skipif(not hasattr(mmap, "MADV_DONTNEED"), reason="the system has no madvise")
def test_trim_spares_pages_in_use() -> None:
    """Only whole pages are returned: neighbours on the same page do not change."""
    pool = Pool()
    size = PAGE + ALIGNMENT
    arrays = [block(pool, size) for _ in range(3)]
    for number, array in enumerate(arrays):
        array[...] = number + 1
    middle = address(arrays[1])
    del array, arrays[1]
    pool.trim()
    assert (arrays[0] == 1).all()
    assert (arrays[1] == 3).all()
    reused = block(pool, size)
    assert address(reused) == middle
    first = -(-middle // PAGE) * PAGE - middle
    whole = (middle + size) // PAGE * PAGE - middle - first
    assert not reused[first : first + whole].any()
    assert (reused[:first] == 2).all()
    assert (reused[first + whole :] == 2).all()


def test_default_range_is_twice_the_memory() -> None:
    """A gap that is too small for the next image must not end a step: addresses cost nothing."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert Pool()._reserved == 2 * memory
