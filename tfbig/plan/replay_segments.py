"""What the forward of a step keeps for its backward, and what is made again: arithmetic only.

A *segment* is a run of consecutive sweeps. If it is *replayed*, the forward frees its inner images (those that only
sweeps of the segment read) as soon as the forward is through with them. Before its backward one more sweep makes them
again, from what is kept: all statistics are known by then, so there is no barrier left in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tfbig.network.graph import Graph
from tfbig.plan.sweeps import Sweep, in_order, made_from

Segment = tuple[int, int]
"""First and last sweep."""


def last_readers(graph: Graph, sweeps: Sequence[Sweep]) -> dict[int, int]:
    """The last sweep that reads each stored image; the number of sweeps for graph outputs."""
    last = {v: s.index for s in sweeps for v in s.writes}
    for sweep in sweeps:
        last |= {v: sweep.index for v in sweep.reads if v in last}
    return last | {v: len(sweeps) for v in graph.outputs if v in last}


def replay(graph: Graph, sweeps: Sequence[Sweep], segment: Segment) -> Sweep | None:
    """The sweep that makes the inner images of a segment again; None if it has none."""
    first, last = segment
    until = last_readers(graph, sweeps)
    inner = sorted(v for s in sweeps[first : last + 1] for v in s.writes if until[v] <= last)
    if not inner:
        return None
    kept = {v for s in sweeps[: last + 1] for v in s.writes} - set(inner)
    nodes, reads = made_from(graph, set(inner), lambda v: v in kept)
    return Sweep(
        last,
        in_order(graph, nodes),
        tuple(sorted(reads)),
        tuple(inner),
        tuple(inner),
        (),
        again=True,
    )


def partitions(
    graph: Graph, sweeps: Sequence[Sweep], sizes: Mapping[int, int]
) -> list[tuple[Segment, ...]]:
    """Ways to cut the sweeps into segments, from long ones to short ones.

    Each keeps the fewest bytes among all whose segments have no more inner bytes than a bound; the bound halves from
    way to way.

    Args:
        sizes: bytes of every image.
    """
    kept, inner = _tables(graph, sweeps, sizes)
    bound, found = inner[0][-1], []
    smallest = min((b for row in inner for b in row if b), default=0)
    while bound >= max(smallest, 1):
        way = _cheapest(kept, inner, bound)
        if way is not None and way not in found:
            found.append(way)
        bound //= 2
    return found


def _tables(
    graph: Graph, sweeps: Sequence[Sweep], sizes: Mapping[int, int]
) -> tuple[list[list[int]], list[list[int]]]:
    """Bytes kept by, and inner to, the segment from each first to each last sweep (`[first][last - first]`)."""
    until = last_readers(graph, sweeps)
    writer = {v: s.index for s in sweeps for v in s.writes}
    ending: list[list[tuple[int, int]]] = [[] for _ in range(len(sweeps) + 1)]
    for value, last in until.items():
        ending[last].append((writer[value], sizes[value]))
    kept: list[list[int]] = []
    inner: list[list[int]] = []
    for first in range(len(sweeps)):
        kept.append([])
        inner.append([])
        written = hidden = 0
        for last in range(first, len(sweeps)):
            written += sum(sizes[v] for v in sweeps[last].writes)
            hidden += sum(size for start, size in ending[last] if start >= first)
            inner[first].append(hidden)
            kept[first].append(written - hidden)
    return kept, inner


def _cheapest(
    kept: list[list[int]], inner: list[list[int]], bound: int
) -> tuple[Segment, ...] | None:
    """Segments of at most `bound` inner bytes that keep the fewest bytes in all; None if there are none."""
    count = len(kept)
    best: list[tuple[float, int]] = [
        (0, -1)
    ]  # bytes kept before sweep i, first sweep of the segment that ends there
    for stop in range(1, count + 1):
        choices = [
            (best[first][0] + kept[first][stop - 1 - first], first)
            for first in range(stop)
            if inner[first][stop - 1 - first] <= bound
        ]
        best.append(min(choices, default=(float("inf"), -1)))
    if best[count][0] == float("inf"):
        return None
    found, stop = [], count
    while stop:
        first = best[stop][1]
        found.append((first, stop - 1))
        stop = first
    return tuple(reversed(found))
