"""Host memory used again: no block twice at a time, none freed while an array reads it, never above the peak."""

from __future__ import annotations

import gc
import mmap
import threading
import weakref

import ml_dtypes
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tfbig.pages import Pool

PAGE = mmap.PAGESIZE


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def block(pool: Pool, size: int) -> np.ndarray:
    return pool.array((size,), np.uint8)


@pytest.mark.parametrize(
    "dtype", [np.uint8, np.int32, np.float32, np.float64, ml_dtypes.bfloat16, bool]
)
@pytest.mark.parametrize("shape", [(1, 3, 5, 7), (2, 1), (9,), (), (0, 4), (3, 0, 2)])
def test_arrays_are_as_asked(shape: tuple[int, ...], dtype: type) -> None:
    array = Pool().array(shape, dtype)
    assert array.shape == shape
    assert array.dtype == dtype
    assert address(array) % PAGE == 0
    assert array.flags.c_contiguous
    assert array.flags.writeable
    array[...] = 1
    assert (array == 1).all()


def test_bfloat16_keeps_its_values() -> None:
    array = Pool().array((2, 3), ml_dtypes.bfloat16)
    numbers = np.array([[1.5, -2, 0], [3e38, 2**-20, 7]], ml_dtypes.bfloat16)
    array[...] = numbers
    np.testing.assert_array_equal(array, numbers)


# -------------------------------------------------------------------------------------- lifetime


def test_a_block_goes_back_with_the_last_array_over_it() -> None:
    pool = Pool()
    array = block(pool, 1000)
    view = array.reshape(10, 100)[3:7, ::2].view(np.int8)[1]
    view[...] = 7
    del array
    assert (pool.used_bytes, pool.free_bytes) == (1000, 0)
    other = block(pool, 1000)
    other[...] = 0
    assert (view == 7).all()  # the block was not given to the other
    del view
    assert (pool.used_bytes, pool.free_bytes) == (1000, 1000)
    del other
    assert (pool.used_bytes, pool.free_bytes) == (0, 2000)


def test_a_block_outlives_the_name_of_its_pool() -> None:
    array = block(Pool(), 1000)
    array[...] = 5
    gc.collect()
    assert (array == 5).all()


def test_garbage_collected_in_the_middle_of_a_request_gives_its_block_back() -> None:
    """A cycle that holds an array may be found by a collection that the request itself sets off."""

    class CollectsWhenRead(list):
        def __iter__(self):
            gc.collect()
            return super().__iter__()

    pool = Pool()
    pool._free = CollectsWhenRead()
    cycle: list[object] = [block(pool, 1000)]
    cycle.append(cycle)
    del cycle
    done: list[np.ndarray] = []
    request = threading.Thread(target=lambda: done.append(block(pool, 1000)), daemon=True)
    request.start()
    request.join(20)
    assert done, "the request waits for itself"
    assert (pool.used_bytes + pool.free_bytes) in (1000, 2000)
    assert pool.used_bytes == 1000


# ----------------------------------------------------------------------------------------- reuse


def test_a_free_block_is_used_again() -> None:
    pool = Pool()
    array = block(pool, 1000)
    first = address(array)
    del array
    again = pool.array((5, 25), np.float64)  # the same 1000 bytes in another shape
    assert address(again) == first
    assert (pool.used_bytes, pool.free_bytes) == (1000, 0)


@pytest.mark.parametrize(
    ("need", "taken"),
    [
        (400, 400),
        (390, 400),
        (401, 700),  # the smallest that is large enough
        (350, 400),
        (351, 400),
        (700, 700),
        (200, 400),  # twice as large will do
        (199, None),  # more will not
        (701, None),
    ],
)
def test_the_smallest_fitting_block_is_taken(need: int, taken: int | None) -> None:
    pool = Pool()
    sizes = [700, 400, 1_000_000]
    arrays = [block(pool, size) for size in sizes]
    addresses = {address(a): size for a, size in zip(arrays, sizes, strict=True)}
    assert len(addresses) == len(sizes)
    del arrays
    array = block(pool, need)
    if taken is not None:
        assert addresses[address(array)] == taken
    assert pool.used_bytes == (need if taken is None else taken)


def test_an_empty_array_takes_one_byte() -> None:
    pool = Pool()
    array = pool.array((0, 4), np.float32)
    assert pool.used_bytes == 1
    assert array.size == 0


# ------------------------------------------------------------------------------------------ peak


def test_peak_is_the_most_in_use_at_once() -> None:
    pool = Pool()
    a, b = block(pool, 3000), block(pool, 1000)
    assert (pool.used_bytes, pool.peak_bytes) == (4000, 4000)
    del a
    assert (pool.used_bytes, pool.peak_bytes) == (1000, 4000)
    a = block(pool, 2000)  # in the block of 3000
    assert (pool.used_bytes, pool.peak_bytes) == (4000, 4000)
    c = block(pool, 500)
    assert (pool.used_bytes, pool.peak_bytes) == (4500, 4500)
    del a, b, c
    assert (pool.used_bytes, pool.free_bytes, pool.peak_bytes) == (0, 4500, 4500)


def test_trim_returns_what_is_free_to_the_system() -> None:
    pool = Pool()
    kept, given = block(pool, 1000), block(pool, 3000)
    kept[...] = 9
    del given
    (pages,) = map(weakref.ref, pool._free)
    pool.trim()
    assert pages() is None
    assert (pool.used_bytes, pool.free_bytes, pool.peak_bytes) == (1000, 0, 4000)
    assert (kept == 9).all()


def test_room_is_made_from_the_largest_blocks_and_no_more_than_needed() -> None:
    pool = Pool()
    arrays = [block(pool, size) for size in (100, 1000, 400)]
    del arrays  # 1500 bytes free, which is also the peak
    array = block(pool, 2000)  # none fits, and nothing may stay beside it
    assert (pool.used_bytes, pool.free_bytes, pool.peak_bytes) == (2000, 0, 2000)
    del array
    arrays = [block(pool, size) for size in (600, 700)]  # none fits: 2000 goes, then both are new
    assert (pool.used_bytes, pool.free_bytes) == (1300, 0)
    del arrays
    array = block(pool, 701)  # beside 600 + 700 it would be 2001: the block of 700 goes
    assert array.nbytes == 701
    assert (pool.used_bytes, pool.free_bytes, pool.peak_bytes) == (701, 600, 2000)
    del array
    array = block(pool, 1400)  # with 600 exactly the peak: only 701 goes
    assert array.nbytes == 1400
    assert (pool.used_bytes, pool.free_bytes, pool.peak_bytes) == (1400, 600, 2000)


class Blocks(RuleBasedStateMachine):
    """Requests and releases in any order; every array keeps what was written into it."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = Pool()
        self.live: list[tuple[np.ndarray, int]] = []
        self.counter = 0
        self.peak = 0

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
    def keep_a_view(self, data: st.DataObject) -> None:
        position = data.draw(st.integers(0, len(self.live) - 1))
        array, number = self.live[position]
        self.live[position] = array[len(array) // 2 :], number

    @rule()
    def trim(self) -> None:
        self.pool.trim()
        assert self.pool.free_bytes == 0

    @invariant()
    def every_array_has_its_own_numbers(self) -> None:
        for array, number in self.live:
            assert (array == number).all()

    @invariant()
    def bytes_add_up(self) -> None:
        self.peak = max(self.peak, self.pool.used_bytes)
        assert self.pool.peak_bytes == self.peak
        assert self.pool.used_bytes >= sum(max(a.nbytes, 1) for a, _ in self.live)
        assert self.pool.used_bytes + self.pool.free_bytes <= self.peak
        assert self.live or self.pool.used_bytes == 0


TestBlocks = Blocks.TestCase
TestBlocks.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)


def test_threads_do_not_get_each_others_blocks() -> None:
    pool, wrong = Pool(), []

    def work(number: int) -> None:
        sizes = np.random.default_rng(number).integers(1, 3000, 400)
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
    assert pool.free_bytes <= pool.peak_bytes <= 4 * 2 * 3000
