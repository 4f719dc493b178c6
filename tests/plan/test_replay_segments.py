"""Segments: replays of their inner images, and ways to divide sweeps."""

from __future__ import annotations

from graphs import deep_graph, for_examples
from hypothesis import strategies as st

from tfbig.plan import replay_segments
from tfbig.plan.sweeps import schedule


def test_replay() -> None:
    """A replay rematerialises the images that only its segment reads."""
    graph = deep_graph(6)
    sweeps = schedule(graph)
    images = [s.writes for s in sweeps]
    replay = replay_segments.replay(graph, sweeps, (1, 3))
    assert replay is not None
    assert replay.writes == (*images[1], *images[2])  # the third is read by sweep 4
    assert replay.reads == images[0]
    assert replay.reductions == ()
    assert replay.index == 3
    assert replay_segments.replay(graph, sweeps, (2, 2)) is None


def test_replay_of_what_the_backward_pass_reads() -> None:
    """Other images end with the forward pass in any case."""
    graph = deep_graph(6)
    sweeps = schedule(graph)
    (first,), (second,) = (sweeps[p].writes for p in (1, 2))
    replay = replay_segments.replay(graph, sweeps, (1, 3), {second})
    assert replay is not None
    assert (replay.reads, replay.writes) == ((first,), (second,))
    assert replay_segments.replay(graph, sweeps, (1, 3), ()) is None


def test_last_readers() -> None:
    """The image of each sweep is read by the next one; an output counts as read after the last sweep."""
    graph = deep_graph(3)
    sweeps = schedule(graph)
    (first,), (second,), (third,), () = (s.writes for s in sweeps)
    assert replay_segments.last_readers(graph, sweeps) == {first: 1, second: 2, third: 3}


def test_partitions() -> None:
    """Long segments come first. With at most one inner image each, segments store two of the four images."""
    graph = deep_graph(4)
    sweeps = schedule(graph)
    sizes = {v.id: 1 for v in graph.values}
    ways = replay_segments.partitions(graph, sweeps, sizes)
    assert ways[0] == ((0, 4),)
    assert ways[-1] == ((0, 0), (1, 2), (3, 4))


@for_examples(st.integers(1, 12), st.data(), fast=8, slow=60)
def test_segments_cover_all_sweeps(count: int, data: st.DataObject) -> None:
    """Every way covers every sweep once, and replays write exactly the inner images."""
    graph = deep_graph(count)
    sweeps = schedule(graph)
    sizes = {v.id: data.draw(st.integers(0, 9)) for v in graph.values}
    ways = replay_segments.partitions(graph, sweeps, sizes)
    until = replay_segments.last_readers(graph, sweeps)
    for way in ways:
        assert [p for first, last in way for p in range(first, last + 1)] == list(
            range(len(sweeps))
        )
    for first in range(len(sweeps)):
        for last in range(first, len(sweeps)):
            replay = replay_segments.replay(graph, sweeps, (first, last))
            inner = {v for s in sweeps[first : last + 1] for v in s.writes if until[v] <= last}
            assert inner == set(replay.writes if replay else ())
