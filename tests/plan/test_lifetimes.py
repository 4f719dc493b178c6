"""Places in one range: never two stores on the same bytes at once; what waits longest goes to a file."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfbig.plan.address_ranges import ALIGNMENT
from tfbig.plan.layout_search import to_spill
from tfbig.plan.lifetimes import Moment, Timeline, place, top
from tfbig.plan.sweeps import Store


def images(*numbers: int) -> list[Store]:
    return [Store("image", n) for n in numbers]


def nested(count: int) -> Timeline:
    """Forward and backward of a chain: image i exists from moment i to moment 2 * count - 1 - i."""
    moments = [Moment("forward", i, tuple(images(i))) for i in range(count)]
    moments += [Moment("backward", i, tuple(images(i))) for i in reversed(range(count))]
    return Timeline(
        tuple(moments), {s: (s.value, 2 * count - 1 - s.value) for s in images(*range(count))}
    )


@st.composite
def cases(draw: st.DrawFn) -> tuple[dict[Store, tuple[int, int]], dict[int, int]]:
    spans, sizes = {}, {}
    for number in range(draw(st.integers(0, 12))):
        first = draw(st.integers(0, 9))
        spans[Store("image", number)] = first, draw(st.integers(first, 9))
        sizes[number] = draw(st.integers(1, 500))
    return spans, sizes


@given(cases())
def test_places_of_stores_that_exist_at_once_do_not_overlap(
    case: tuple[dict[Store, tuple[int, int]], dict[int, int]],
) -> None:
    spans, sizes = case
    places = place(spans, sizes)
    assert places.keys() == spans.keys()
    for a, b in combinations(spans, 2):
        together = spans[a][0] <= spans[b][1] and spans[b][0] <= spans[a][1]
        apart = places[a] + sizes[a.value] <= places[b] or places[b] + sizes[b.value] <= places[a]
        assert apart or not together
    assert all(start % ALIGNMENT == 0 for start in places.values())
    assert top(places, sizes) >= max((places[s] + sizes[s.value] for s in spans), default=0)


def test_places_leave_no_gap_where_none_is_needed() -> None:
    """What is given back in the reverse order of taking needs no more than is there at once."""
    line = nested(6)
    sizes = {n: (n + 1) * ALIGNMENT for n in range(6)}
    assert top(place(line.spans, sizes), sizes) == sum(sizes.values())


def test_a_place_is_used_again() -> None:
    a, b, c = images(0, 1, 2)
    sizes = dict.fromkeys(range(3), 10 * ALIGNMENT)
    places = place({a: (0, 1), b: (1, 2), c: (2, 3)}, sizes)
    assert places[a] == places[c]
    assert top(places, sizes) == 20 * ALIGNMENT


def test_live_bytes() -> None:
    line = nested(3)
    sizes = {0: 1, 1: 10, 2: 100}
    assert line.live_bytes(line.spans, sizes).tolist() == [1, 11, 111, 111, 11, 1]
    assert line.live_bytes(images(1), sizes).tolist() == [0, 10, 10, 10, 10, 0]


@pytest.mark.parametrize(
    ("limit", "gone"), [(111, ()), (110, (0,)), (109, (0, 1)), (100, (0, 1)), (99, (0, 1, 2))]
)
def test_what_waits_longest_goes_to_a_file(limit: int, gone: tuple[int, ...]) -> None:
    """All are there at the two moments in the middle; the first ones also before and after."""
    line = nested(3)
    sizes = {0: 1, 1: 10, 2: 100}
    found = to_spill(line, sizes, limit)
    kept = [s for s in line.spans if s not in found]
    assert line.live_bytes(kept, sizes).max(initial=0) <= limit
    if limit >= 110:
        assert found == set(images(*gone)) or sum(sizes[s.value] for s in found) >= 111 - limit


@given(st.integers(1, 30), st.data())
def test_what_stays_is_inside_the_limit(count: int, data: st.DataObject) -> None:
    line = nested(count)
    sizes = {n: data.draw(st.integers(1, 50)) for n in range(count)}
    limit = data.draw(st.integers(0, sum(sizes.values())))
    kept = [s for s in line.spans if s not in to_spill(line, sizes, limit)]
    assert line.live_bytes(kept, sizes).max(initial=0) <= limit
