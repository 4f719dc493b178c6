"""Cost of a sweep: number of strips, bytes, rows, operations."""

from __future__ import annotations

import keras
import pytest
from graphs import PLENTY, chain, conv, image, make_planner, mse, read, single_convolution, squares

from tfbig.plan.cost import bytes_of, operations_of, sweep_limit
from tfbig.plan.strip_search import Images, StripLimits, Strips
from tfbig.plan.sweeps import schedule


@pytest.mark.parametrize(("dtype", "size"), [(None, 4), ("bfloat16", 2), ("uint8", 1)])
def test_bytes_of(dtype: str | None, size: int) -> None:
    graph = single_convolution(channels=3)
    assert bytes_of(graph, 0, 2, {0: (5, 7)}, dtype) == 2 * 5 * 7 * 3 * size


def test_sweep_limit() -> None:
    """A strip owns a row of each output; the input has more rows."""
    start = image()
    graph = read(keras.Model(start, conv(1, "conv", 16, strides=16)(start)))
    (sweep,) = schedule(graph)
    extents = graph.extents(squares(graph, 100))
    assert sweep_limit(sweep, extents) == 7
    assert sweep_limit(sweep, extents | dict.fromkeys(sweep.observed, (3, 3))) == 3


def test_operations_of_two_convolutions() -> None:
    """Four strips of 2 rows: the first convolution computes 2 rows twice at 3 borders, and all again backward."""
    start = image()
    x = conv(1, "first")(start)
    graph = read(keras.Model(start, conv(1, "second")(x)))
    (sweep,) = schedule(graph)
    extents = graph.extents(squares(graph, 8))
    strips = Strips(Images(graph, 1, extents), StripLimits(PLENTY), sweep, True)
    heights = strips.lengths(0, 4, range(4))
    pixels = {v: 8 * int(rows.sum()) for v, rows in heights.items()}
    row = 2 * 8 * (2 * 9)  # two images, 8 columns, multiply-adds of 3 x 3 taps
    assert operations_of(sweep, 2, extents, pixels) == (22 * row, 16 * row, 14 * row)


def test_operations_of_chain() -> None:
    """Operations per pixel: conv1 72, moments 4; normalise 8, conv2 1152, moments 4; normalise 32.

    Sweep 1 normalises 2 rows twice at each strip border, and everything once more in its backward pass; sweep 2 is
    fused.
    """
    graph = mse(chain())
    plan = make_planner(graph, PLENTY, strip_rows=8).plan(2, squares(graph, 64))
    pixels = 2 * 64**2
    halo = 7 * 2 * (2 * 64) * 8
    assert [c.operations for c in plan.costs] == [76 * pixels, 1164 * pixels + halo, 32 * pixels]
    assert [c.exact_operations for c in plan.costs] == [76 * pixels, 1164 * pixels, 32 * pixels]
    normalised = 8 * pixels + halo
    assert [c.recomputed_operations for c in plan.costs][:2] == [0, normalised]
    assert plan.operations == 3 * ((76 + 1164 + 32) * pixels + halo) + normalised
    assert plan.recompute_factor == 1 + halo / ((76 + 1164 + 32) * pixels)
