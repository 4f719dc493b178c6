"""Cutouts: the constants in the program of a strip that XLA compiles. Arithmetic only.

XLA compiles a program anew for other sizes, and strips of one sweep have the same sizes at other places. So a strip is
computed as that of its cutout: the image without the rows above and below what the strip reads, cut where all windows
begin anew. Strips between the first and the last then have equal numbers, and share a program.

    rows above:      T = min over images v of start(v) // rate(v)
    rows below:      B = min over images v of (extent(v) - stop(v)) // rate(v)
    in the cutout:   start(v) - T * rate(v), extent(v) - (T + B) * rate(v)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tfbig.geometry.rates import Rates
from tfbig.geometry.windows import Size
from tfbig.plan.sweeps import Sweep


def table(sweep: Sweep, sizes: Mapping[int, Size], tiles: np.ndarray) -> np.ndarray:
    """Return the geometry of strips or tiles in their cutouts.

    Args:
        sweep: The sweep, of which `rates` are known.
        sizes: Size of every image.
        tiles: Their geometry in the image, see `Sweep.tiles`.

    Returns:
        Array `[tiles, Sweep.cutout_columns]` int32: for each axis the numbers of `Sweep.tiles`, then for each axis the
        extents of `Sweep.images`.
    """
    assert sweep.rates is not None
    numbers, extents = [], []
    for axis, part in enumerate(np.split(tiles, sweep.axes, axis=1)):
        rows = np.array([sizes[v][axis] for v in sweep.images])
        cut = _along(sweep, sweep.rates[axis], rows, part)
        numbers.append(cut[0])
        extents.append(cut[1])
    return np.hstack(numbers + extents).astype(np.int32)


def _along(
    sweep: Sweep, rates: Rates, rows: np.ndarray, tiles: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the numbers and the extents of strips in their cutouts, along one axis."""
    steps = np.array([rates[v] for v in sweep.images])
    starts, stops = (
        tiles[:, [sweep.columns[name, v] for v in sweep.images]] for name in ("start", "stop")
    )
    above = (starts // steps).min(1, keepdims=True)
    below = ((rows - stops) // steps).min(1, keepdims=True)
    return tiles - above * _shifts(sweep, rates), rows - (above + below) * steps


def _shifts(sweep: Sweep, rates: Rates) -> np.ndarray:
    """Return by how much each column changes where the coarsest image is shifted by one row."""
    sources = {n.output: n.inputs for n in sweep.locals}
    shifts = np.zeros(len(sweep.columns), np.int32)
    keys: dict[Any, int] = {**sweep.columns}
    for (name, value, *position), column in keys.items():
        if name not in ("before", "after"):
            shifts[column] = rates[sources[value][position[0]] if position else value]
    return shifts
