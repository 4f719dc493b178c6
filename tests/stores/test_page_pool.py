"""Host memory used again: no block twice at a time, none freed while an array reads it, never above the peak."""

from __future__ import annotations

import gc
import mmap
import sys
import threading
from itertools import pairwise

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tfbig.plan.address_ranges import ALIGNMENT, Ranges, aligned
from tfbig.stores.page_pool import Pool

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
def test_arrays_are_as_asked(shape: tuple[int, ...], dtype: type) -> None:
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


# -------------------------------------------------------------------------------------- lifetime


def test_a_block_goes_back_with_the_last_array_over_it() -> None:
    pool = Pool()
    array = block(pool, 1000)
    view = array.reshape(10, 100)[3:7, ::2].view(np.int8)[1]
    view[...] = 7
    del array
    assert (pool.used_bytes, pool.free_bytes) == (TAKEN, 0)
    other = block(pool, 1000)
    other[...] = 0
    assert (view == 7).all()  # the block was not given to the other
    del view
    assert (pool.used_bytes, pool.free_bytes) == (TAKEN, TAKEN)
    del other
    assert (pool.used_bytes, pool.free_bytes) == (0, 2 * TAKEN)


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
    cycle: list[object] = [block(pool, 1000)]
    cycle.append(cycle)
    pool._ranges._gaps = CollectsWhenRead()
    del cycle
    done: list[np.ndarray] = []
    request = threading.Thread(target=lambda: done.append(block(pool, 1000)), daemon=True)
    request.start()
    request.join(20)
    assert done, "the request waits for itself"
    gc.collect()  # that of the request does nothing while one of another thread is under way
    assert (pool.used_bytes, pool.peak_bytes) == (TAKEN, 2 * TAKEN)


# ----------------------------------------------------------------------------------------- reuse


def test_a_free_block_is_used_again() -> None:
    pool = Pool()
    array = block(pool, 1000)
    first = address(array)
    del array
    again = pool.array((5, 25), np.float64)  # the same 1000 bytes in another shape
    assert address(again) == first
    assert (pool.used_bytes, pool.free_bytes) == (TAKEN, 0)


def test_an_empty_array_takes_the_least() -> None:
    pool = Pool()
    array = pool.array((0, 4), np.float32)
    assert pool.used_bytes == ALIGNMENT
    assert array.size == 0


@pytest.mark.parametrize(("size", "parts"), [(0, 1), (1, 1), (ALIGNMENT, 1), (ALIGNMENT + 1, 2)])
def test_whole_alignments(size: int, parts: int) -> None:
    assert aligned(size) == parts * ALIGNMENT


def test_a_full_range_is_said() -> None:
    pool = Pool(4 * PAGE)
    arrays = [block(pool, PAGE) for _ in range(3)]
    with pytest.raises(MemoryError, match=rf"no {2 * PAGE} bytes in a row are left of {4 * PAGE}"):
        block(pool, 2 * PAGE)
    arrays.append(block(pool, PAGE))
    assert pool.used_bytes == pool.peak_bytes == 4 * PAGE


def test_more_addresses_than_the_system_gives_are_not_asked_for() -> None:
    pool = Pool(2**62)
    assert block(pool, 10).size == 10


def test_trim_returns_what_is_free_to_the_system() -> None:
    pool = Pool()
    kept, given = block(pool, PAGE), block(pool, 3 * PAGE)
    kept[...], given[...] = 9, 5
    del given
    pool.trim()
    assert (pool.used_bytes, pool.free_bytes, pool.peak_bytes) == (PAGE, 3 * PAGE, 4 * PAGE)
    assert (kept == 9).all()
    if sys.platform.startswith("linux"):
        assert not block(pool, 3 * PAGE).any()  # fresh pages are zero


# ---------------------------------------------------------------------------------------- ranges


@pytest.mark.parametrize(
    ("need", "start"),
    [(4, 0), (3, 0), (2, 10), (1, 10), (6, 20), (5, 20), (7, 30)],
)
def test_the_smallest_gap_that_is_large_enough_is_taken(need: int, start: int) -> None:
    """Gaps of 4 at 0, of 2 at 10 and of 6 at 20; the top is 30."""
    ranges = Ranges()
    parts = [(ranges.take(size), size) for size in (4, 6, 2, 8, 6, 4)]
    for part in parts[::2]:
        ranges.give(*part)
    assert ranges.gaps == [(0, 4), (10, 12), (20, 26)]
    assert ranges.take(need) == start


def test_the_lowest_of_equal_gaps_is_taken() -> None:
    ranges = Ranges()
    parts = [(ranges.take(3), 3) for _ in range(4)]
    ranges.give(*parts[2])
    ranges.give(*parts[0])
    assert ranges.take(3) == 0


def test_a_gap_at_the_top_grows() -> None:
    ranges = Ranges()
    ranges.take(5)
    ranges.give(ranges.take(3), 3)
    assert ranges.take(7) == 5
    assert ranges.top == 12
    assert ranges.gaps == []


def test_a_wish_is_granted_where_it_is_free() -> None:
    ranges = Ranges()
    assert ranges.take(4, wish=10) == 10
    assert ranges.gaps == [(0, 10)]
    assert ranges.take(4, wish=3) == 3
    assert ranges.gaps == [(0, 3), (7, 10)]
    assert ranges.take(2, wish=6) == 0  # in use: the lowest gap
    assert ranges.take(5, wish=14) == 14
    ranges.give(14, 5)
    assert ranges.take(7, wish=14) == 14  # a gap at the top grows
    assert ranges.top == 21
    assert ranges.take(1, limit=21, wish=21) == 2
    with pytest.raises(MemoryError):
        ranges.take(10, limit=21, wish=30)


@given(
    st.lists(st.tuples(st.integers(1, 9), st.none() | st.integers(0, 60)), min_size=1, max_size=12),
    st.data(),
)
def test_parts_are_disjoint_and_neighbouring_gaps_are_one(
    asked: list[tuple[int, int | None]], data: st.DataObject
) -> None:
    ranges, live = Ranges(), {}
    for size, wish in asked:
        live[ranges.take(size, wish=wish)] = size
        for start in data.draw(st.sets(st.sampled_from(sorted(live)))) if live else ():
            ranges.give(start, live.pop(start))
        covered = sorted([(a, a + n) for a, n in live.items()] + ranges.gaps)
        assert [a for a, _ in covered] == [0, *(b for _, b in covered)][: len(covered)]
        assert max((b for _, b in covered), default=0) == ranges.top
        gaps = ranges.gaps
        assert all(b < c for (_, b), (c, _) in pairwise(gaps))


class Blocks(RuleBasedStateMachine):
    """Requests and releases in any order; every array keeps what was written into it."""

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
    def keep_a_view(self, data: st.DataObject) -> None:
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


def test_threads_do_not_get_each_others_blocks() -> None:
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
