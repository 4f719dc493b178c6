"""What one sweep costs on images of one size: rows, bytes, operations. Arithmetic only."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from tfbig.geometry.windows import Size
from tfbig.network.graph import Graph, Local, Whole
from tfbig.plan.sweeps import Sweep
from tfbig.units import itemsize


def sweep_limit(sweep: Sweep, extents: Mapping[int, Size]) -> int:
    """The largest number of strips: every strip owns a row of every image of the sweep."""
    return min((extents[v][0] for v in sweep.observed), default=1)


def bytes_of(
    graph: Graph, value: int, batch: int, extents: Mapping[int, Size], dtype: str | None = None
) -> int:
    """Bytes of a whole image, by default of its own element type."""
    known = graph.values[value]
    return batch * prod(extents[value]) * known.channels * itemsize(dtype or known.dtype)


def heights_of(sweep: Sweep, table: np.ndarray, value: int) -> np.ndarray:
    stop, start = (table[:, sweep.columns[key, value]] for key in ("stop", "start"))
    return stop.astype(np.int64) - start


def operations_of(
    sweep: Sweep, batch: int, extents: Mapping[int, Size], heights: dict[int, np.ndarray]
) -> tuple[int, int, int]:
    """Operations of a sweep: with its halo, without, and of these with it those that its backward does again.

    The backward needs no output that only goes into a store: where a layer ends a sweep, nothing is made again.
    """
    used = {i for n in sweep.locals for i in n.inputs}
    used |= {i for n in sweep.reductions for i in n.inputs if i not in sweep.writes}
    done = exact = again = 0
    for node in sweep.nodes:
        if isinstance(node.op, Whole):
            continue
        value = node.output if isinstance(node.op, Local) else node.inputs[0]
        per_row = batch * prod(extents[value][1:]) * node.op.operations
        rows = per_row * int(heights[value].sum())
        done += rows
        exact += per_row * extents[value][0]
        again += rows if isinstance(node.op, Local) and value in used else 0
    return done, exact, again
