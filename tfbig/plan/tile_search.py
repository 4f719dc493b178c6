"""Search for tiles of a sweep whose strips of whole rows do not fit. Arithmetic only."""

from __future__ import annotations

from dataclasses import replace
from math import inf, prod

from tfbig.plan.strip_search import Strips

MOST_BLOCKS = 2**12
"""Most parts that the columns are cut into."""

START_OPERATIONS = 10**7
"""Operations in the time of `tfbig.plan.plan.START_SECONDS`, at the rate of two cores."""


def tiles_of(strips: Strips) -> Strips | None:
    """Return the division of a sweep into tiles that takes least time.

    Large tiles compute fewer pixels twice, and start the layers less often. The number of parts across is a power of
    two, and the bands are as high as fit.

    Args:
        strips: The division into strips.

    Returns:
        The division, the finest one if no tiles fit; None if the layers cannot compute tiles, or if no tiles fit a
        limit that is not firm.
    """
    best, least = None, inf
    divisions = [replace(strips, blocks=(count,)) for count in block_counts(strips)]
    for tiles in divisions:
        if tiles.fewest:
            effort = _effort(tiles, tiles.fewest)
            if effort > least:
                break
            best, least = tiles, effort
    needed = strips.limits.is_firm or strips.sweep.axes > 1
    return divisions[-1] if best is None and divisions and needed else best


def block_counts(strips: Strips) -> list[int]:
    """Return the numbers of parts that the columns of a sweep may be cut into, from few to many.

    Args:
        strips: The division into strips.
    """
    limited = strips.fixed is not None or strips.limits.max_elements is not None
    if strips.graph.spatial < 2 or limited or not strips.sweep.can_tile:
        return []
    most = min((strips.extents[v][1] for v in strips.sweep.observed), default=1)
    return [2**n for n in range(min(most, MOST_BLOCKS).bit_length())]


def _effort(tiles: Strips, count: int) -> int:
    """Return the operations of a forward pass, and those in the time that it takes to start the layers."""
    starts = count * prod(tiles.blocks) * len(tiles.sweep.nodes)
    return tiles.operations(count)[0] + starts * START_OPERATIONS
