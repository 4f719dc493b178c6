"""Address ranges: alignment, the choice of a gap, and gaps that are merged."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfbig.stores.address_ranges import Ranges
from tfbig.units import ALIGNMENT, aligned


@pytest.mark.parametrize(("size", "parts"), [(0, 1), (1, 1), (ALIGNMENT, 1), (ALIGNMENT + 1, 2)])
def test_aligned(size: int, parts: int) -> None:
    assert aligned(size) == parts * ALIGNMENT


@pytest.mark.parametrize(
    ("need", "start"),
    [(4, 0), (3, 0), (2, 10), (1, 10), (6, 20), (5, 20), (7, 30)],
)
def test_smallest_gap(need: int, start: int) -> None:
    """Gaps of 4 at 0, of 2 at 10 and of 6 at 20; the top is 30."""
    ranges = Ranges()
    parts = [(ranges.take(size), size) for size in (4, 6, 2, 8, 6, 4)]
    for part in parts[::2]:
        ranges.give(*part)
    assert ranges.gaps == [(0, 4), (10, 12), (20, 26)]
    assert ranges.take(need) == start


def test_lowest_of_equal_gaps() -> None:
    ranges = Ranges()
    parts = [(ranges.take(3), 3) for _ in range(4)]
    ranges.give(*parts[2])
    ranges.give(*parts[0])
    assert ranges.take(3) == 0


def test_gap_at_the_top_grows() -> None:
    ranges = Ranges()
    ranges.take(5)
    ranges.give(ranges.take(3), 3)
    assert ranges.take(7) == 5
    assert ranges.top == 12
    assert ranges.gaps == []


def test_preferred_start() -> None:
    ranges = Ranges()
    assert ranges.take(4, wish=10) == 10
    assert ranges.gaps == [(0, 10)]
    assert ranges.take(4, wish=3) == 3
    assert ranges.gaps == [(0, 3), (7, 10)]
    assert ranges.take(2, wish=6) == 0  # in use: the lowest gap
    assert ranges.take(5, wish=14) == 14
    ranges.give(14, 5)
    assert ranges.take(7, wish=14) == 14  # the gap at the top grows
    assert ranges.top == 21
    assert ranges.take(1, limit=21, wish=21) == 2
    with pytest.raises(MemoryError):
        ranges.take(10, limit=21, wish=30)


@given(
    st.lists(st.tuples(st.integers(1, 9), st.none() | st.integers(0, 60)), min_size=1, max_size=12),
    st.data(),
)
def test_parts_are_disjoint(requests: list[tuple[int, int | None]], data: st.DataObject) -> None:
    """Parts and gaps cover the range without overlap, and adjacent gaps are merged."""
    ranges, live = Ranges(), {}
    for size, wish in requests:
        live[ranges.take(size, wish=wish)] = size
        for start in data.draw(st.sets(st.sampled_from(sorted(live)))) if live else ():
            ranges.give(start, live.pop(start))
        covered = sorted([(a, a + n) for a, n in live.items()] + ranges.gaps)
        assert [a for a, _ in covered] == [0, *(b for _, b in covered)][: len(covered)]
        assert max((b for _, b in covered), default=0) == ranges.top
        gaps = ranges.gaps
        assert all(b < c for (_, b), (c, _) in pairwise(gaps))


def test_gap_of_exact_size_before_limit() -> None:
    ranges = Ranges()
    assert ranges.take(4, limit=4) == 0
    with pytest.raises(MemoryError, match="need 1 contiguous bytes, but the range of 4 bytes"):
        ranges.take(1, limit=4)
    assert (ranges.top, ranges.gaps) == (4, [])


def test_give_merges_both_sides() -> None:
    ranges = Ranges()
    starts = [ranges.take(2) for _ in range(5)]
    for number in (0, 2, 4, 1):
        ranges.give(starts[number], 2)
    assert ranges.gaps == [(0, 6), (8, 10)]
    ranges.give(starts[3], 2)
    assert ranges.gaps == [(0, 10)]
