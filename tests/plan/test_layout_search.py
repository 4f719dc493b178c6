"""Layouts: rematerialised images, cut points that are dropped, and stores that are spilled."""

from __future__ import annotations

from collections import Counter
from math import prod

import keras
import pytest
from graphs import conv, deep_graph, for_examples, image, make_planner, mse, squares, written
from hypothesis import strategies as st

from tfbig.network.graph import values_with_gradient
from tfbig.plan import layout_search
from tfbig.plan.layout_search import to_spill
from tfbig.plan.lifetimes import Moment, Timeline
from tfbig.plan.passes import Kind
from tfbig.plan.sweeps import Store, schedule


def test_remat_of_every_second_image() -> None:
    """At most every second convolution is rematerialised: otherwise work would grow with the square of the depth."""
    graph = deep_graph(12)
    stored = {v: 4 * prod(e) for v, e in graph.extents(squares(graph, 64)).items()}
    written = {v for sweep in schedule(graph) for v in sweep.writes}
    ways = list(layout_search._remats(graph, frozenset(), stored, lambda node: node.op.operations))
    assert [len(way) for way in ways] == [1, 2, 4]
    for way in ways:
        assert way <= written
        sweeps = schedule(graph, remat=way)
        assert not way & {v for sweep in sweeps for v in sweep.writes}
        runs = Counter(n.output for sweep in sweeps for n in sweep.locals if not n.op.cheap)
        assert all(runs[v] == 2 for v in way)
        assert all(n == 1 for v, n in runs.items() if v not in way)


def test_fewer_cuts_for_small_budget() -> None:
    """The first image has four times the pixels of the others; without its cut point it is never stored."""
    start = image(3)
    x = conv(64, "first", 7)(start)
    for number in range(3):
        x = conv(64, f"conv{number}", strides=2 if number == 0 else 1)(x)
    graph = mse(keras.Model(start, x))
    sizes = {i: (n, n) for i, n in zip(graph.inputs, (512, 256), strict=True)}
    free = make_planner(graph, 2**24).plan(1, sizes)
    tight = make_planner(graph, 2**24, host_bytes=free.projected.host // 2).plan(1, sizes)
    assert tight.projected.host <= free.projected.host // 2
    assert "first/convolution" in written(graph, free)
    assert "first/convolution" not in written(graph, tight)


@pytest.mark.parametrize(("most", "counts"), [(0, [0]), (1, [1]), (3, [1, 2, 3]), (20, None)])
def test_counts(most: int, counts: list[int] | None) -> None:
    """Steps of one up to 16, of an eighth from there on."""
    counts = [*range(1, 17), 18, 20] if counts is None else counts
    assert list(layout_search._counts(most)) == counts


def test_family() -> None:
    """Layouts have a growing number of the same replays; a few of them stand for all."""
    graph = deep_graph(12)
    stored = {v: 4 * prod(e) for v, e in graph.extents(squares(graph, 64)).items()}
    families = list(
        layout_search.families_storing_less(
            graph,
            frozenset(),
            stored,
            lambda replay: len(replay.nodes),
            lambda node: 1,
            values_with_gradient(graph, graph.trained),
        )
    )
    longest = max(families, key=lambda family: len(family.replays))
    every, some = list(longest.layouts), list(longest.some)
    assert [len(layout.replays) for layout in every] == [*range(1, len(longest.replays) + 1)]
    assert len(longest.replays) == 5
    assert [len(layout.replays) for layout in some] == [2, 4, 5]
    for layout in (*every, *some):
        assert layout.sweeps == longest.sweeps
        assert layout.replays == longest.replays[: len(layout.replays)]
    assert [family.replays for family in families].count(()) == len({f.sweeps for f in families})


def images(*numbers: int) -> list[Store]:
    return [Store("image", n) for n in numbers]


def nested(count: int) -> Timeline:
    """Timeline of a chain: image i exists from moment i to moment 2 * count - 1 - i."""
    moments = [Moment(Kind.FORWARD, i, tuple(images(i))) for i in range(count)]
    moments += [Moment(Kind.BACKWARD, i, tuple(images(i))) for i in reversed(range(count))]
    return Timeline(
        tuple(moments), {s: (s.value, 2 * count - 1 - s.value) for s in images(*range(count))}
    )


@pytest.mark.parametrize(
    ("limit", "gone"), [(111, ()), (110, (0,)), (109, (0, 1)), (100, (0, 1)), (99, (0, 1, 2))]
)
def test_spills_what_waits_longest(limit: int, gone: tuple[int, ...]) -> None:
    """All stores exist at the two middle moments; the first ones also before and after."""
    line = nested(3)
    sizes = {0: 1, 1: 10, 2: 100}
    spilled = to_spill(line, sizes, limit)
    in_memory = [s for s in line.spans if s not in spilled]
    assert line.live_bytes(in_memory, sizes).max(initial=0) <= limit
    if limit >= 110:
        assert spilled == set(images(*gone)) or sum(sizes[s.value] for s in spilled) >= 111 - limit


@for_examples(st.integers(1, 30), st.data(), fast=30, slow=100)
def test_spill_limit(count: int, data: st.DataObject) -> None:
    line = nested(count)
    sizes = {n: data.draw(st.integers(1, 50)) for n in range(count)}
    limit = data.draw(st.integers(0, sum(sizes.values())))
    in_memory = [s for s in line.spans if s not in to_spill(line, sizes, limit)]
    assert line.live_bytes(in_memory, sizes).max(initial=0) <= limit


@for_examples(st.integers(1, 30), st.data(), fast=30, slow=100)
def test_no_store_is_spilled_needlessly(count: int, data: st.DataObject) -> None:
    """No spilled store fits in memory beside those that are there."""
    line = nested(count)
    sizes = {n: data.draw(st.integers(1, 50)) for n in range(count)}
    limit = data.draw(st.integers(0, sum(sizes.values())))
    spilled = to_spill(line, sizes, limit)
    in_memory = [s for s in line.spans if s not in spilled]
    for store in spilled:
        assert line.live_bytes([*in_memory, store], sizes).max() > limit


def test_small_stores_stay_in_memory() -> None:
    """A large store that has to go makes room for the small ones that wait longer."""
    assert to_spill(nested(3), {0: 1, 1: 1, 2: 100}, 50) == set(images(2))


def test_kept_images_are_not_spilled() -> None:
    line = nested(3)
    sizes = {0: 1, 1: 10, 2: 100}
    assert to_spill(line, sizes, 0, frozenset([1])) == set(images(0, 2))
