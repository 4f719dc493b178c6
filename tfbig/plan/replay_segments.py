"""Segments of a step that store their inner images, or rematerialise them by a replay. Arithmetic only.

A *segment* is a run of consecutive sweeps. If it is *replayed*, the forward pass frees its inner images (those that
only sweeps of the segment read) after their last use. Before the backward pass of the segment one more sweep
rematerialises them from the stored images. All statistics are known by then, so that sweep contains no barrier.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from tfbig.network.graph import Graph
from tfbig.plan.sweeps import NodeIndex, Sweep

Segment = tuple[int, int]
"""Indices of the first and the last sweep."""


def last_readers(graph: Graph, sweeps: Sequence[Sweep]) -> dict[int, int]:
    """Return the index of the last sweep that reads each stored image.

    Args:
        graph: The graph of the sweeps.
        sweeps: The sweeps.

    Returns:
        Indices by image; the number of sweeps for an output of the graph.
    """
    last = {v: s.index for s in sweeps for v in s.writes}
    for sweep in sweeps:
        last |= {v: sweep.index for v in sweep.reads if v in last}
    return last | {v: len(sweeps) for v in graph.outputs if v in last}


def replay(
    graph: Graph,
    sweeps: Sequence[Sweep],
    segment: Segment,
    waiting: Container[int] | None = None,
) -> Sweep | None:
    """Return the sweep that rematerialises the inner images of a segment.

    Args:
        graph: The graph of the sweeps.
        sweeps: The sweeps.
        segment: First and last sweep.
        waiting: Images that the backward pass reads; the others are not rematerialised. Default: all.

    Returns:
        The replay; None if the segment has no inner images.
    """
    first, last = segment
    until = last_readers(graph, sweeps)
    written = [v for s in sweeps[first : last + 1] for v in s.writes if until[v] <= last]
    inner = sorted(v for v in written if waiting is None or v in waiting)
    if not inner:
        return None
    stored = {v for s in sweeps[: last + 1] for v in s.writes} - set(inner)
    index = NodeIndex(graph)
    nodes, reads = index.between(set(inner), lambda v: v in stored)
    return Sweep(
        last,
        index.in_order(nodes),
        tuple(sorted(reads)),
        tuple(inner),
        tuple(inner),
        (),
        is_replay=True,
        even=graph.even,
        compiles=graph.compiles,
    )


def partitions(
    graph: Graph,
    sweeps: Sequence[Sweep],
    sizes: Mapping[int, int],
    waiting: Container[int] | None = None,
) -> list[tuple[Segment, ...]]:
    """Return ways to divide the sweeps into segments, from long segments to short ones.

    Each way stores as few bytes as possible while no segment has more inner bytes than a bound, which is halved
    from one way to the next.

    Args:
        graph: The graph of the sweeps.
        sweeps: The sweeps.
        sizes: Bytes of every image.
        waiting: Images that the backward pass reads; the others end with the forward pass in any case. Default: all.

    Returns:
        For each way, its segments in order.
    """
    if waiting is not None:
        sizes = {v: size if v in waiting else 0 for v, size in sizes.items()}
    stored, inner = _tables(graph, sweeps, sizes)
    bound, ways = inner[0][-1], []
    smallest = min((b for row in inner for b in row if b), default=0)
    while bound >= max(smallest, 1):
        way = _cheapest(stored, inner, bound)
        if way is not None and way not in ways:
            ways.append(way)
        bound //= 2
    return ways


def _tables(
    graph: Graph, sweeps: Sequence[Sweep], sizes: Mapping[int, int]
) -> tuple[list[list[int]], list[list[int]]]:
    """Return the stored and the inner bytes of each segment, as `[first][last - first]`."""
    until = last_readers(graph, sweeps)
    writer = {v: s.index for s in sweeps for v in s.writes}
    ending: list[list[tuple[int, int]]] = [[] for _ in range(len(sweeps) + 1)]
    for value, last in until.items():
        ending[last].append((writer[value], sizes[value]))
    stored: list[list[int]] = []
    inner: list[list[int]] = []
    for first in range(len(sweeps)):
        stored.append([])
        inner.append([])
        written = hidden = 0
        for last in range(first, len(sweeps)):
            written += sum(sizes[v] for v in sweeps[last].writes)
            hidden += sum(size for start, size in ending[last] if start >= first)
            inner[first].append(hidden)
            stored[first].append(written - hidden)
    return stored, inner


def _cheapest(
    stored: list[list[int]], inner: list[list[int]], bound: int
) -> tuple[Segment, ...] | None:
    """Return the division into segments of at most `bound` inner bytes each that stores the fewest bytes, or None."""
    count = len(stored)
    # For each sweep: bytes stored by all sweeps before it, and first sweep of the segment that ends before it.
    best: list[tuple[float, int]] = [(0, -1)]
    for stop in range(1, count + 1):
        choices = [
            (best[first][0] + stored[first][stop - 1 - first], first)
            for first in range(stop)
            if inner[first][stop - 1 - first] <= bound
        ]
        best.append(min(choices, default=(float("inf"), -1)))
    if best[count][0] == float("inf"):
        return None
    segments, stop = [], count
    while stop:
        first = best[stop][1]
        segments.append((first, stop - 1))
        stop = first
    return tuple(reversed(segments))
