"""Tests of `tfbig.plan.active_strips`."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from graphs import make_planner, read
from keras import Input, Model, layers
from skipped_background import projected

from tfbig.errors import BudgetError
from tfbig.geometry.background import Background
from tfbig.plan import active_strips
from tfbig.plan.active_strips import ActiveStrips
from tfbig.plan.plan import Plan
from tfbig.plan.strip_search import Images, StripLimits

SIZE = (8192, 6144)


def network() -> Model:
    x = start = Input((None, None, 3))
    for filters, strides in ((8, 2), (8, 1), (16, 2)):
        x = layers.Conv2D(filters, 3, strides, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
    return Model(start, layers.Dense(2)(layers.GlobalAveragePooling2D()(x)))


def disk(radius: float) -> np.ndarray:
    rows, columns = np.ogrid[: SIZE[0], : SIZE[1]]
    mask: np.ndarray = (rows - 4000) ** 2 + (columns - 3000) ** 2 <= radius**2
    return mask


def plan(background: Background | None, **limits: int) -> Plan:
    graph = read(network())
    planner = make_planner(graph, 2**26, **limits)
    backgrounds = {graph.inputs[0]: background} if background else {}
    return planner.plan(1, {graph.inputs[0]: SIZE}, None, backgrounds)


@cache
def plan_of_disk(radius: float) -> Plan:
    """Return the plan for a piece of tissue."""
    return plan(projected(disk(radius), 64))


@cache
def plan_of_all() -> Plan:
    return plan(None)


def test_plans_follow_the_foreground() -> None:
    whole, large, small = plan_of_all(), plan_of_disk(2000), plan_of_disk(480)
    assert not whole.layout.skips
    assert large.layout.skips
    assert small.layout.skips
    assert small.operations < large.operations < whole.operations
    assert small.projected.host < large.projected.host < whole.projected.host
    assert small.seconds < large.seconds < whole.seconds


def test_share_of_each_sweep() -> None:
    found = plan_of_disk(480)
    assert all(0 < cost.active < 0.5 for cost in found.costs)
    for active_tiles, cost in zip(found.active_tiles, found.costs, strict=True):
        value = active_tiles.sweep.observed[0]
        share = active_tiles.owned_pixels(value) / np.prod(active_tiles.sizes[value])
        assert cost.active == pytest.approx(share)
        assert cost.starts == active_strips.STARTS * (
            active_tiles.number + (active_tiles.pattern is None)
        ) * len(active_tiles.sweep.nodes)


def test_an_image_that_is_all_foreground_is_not_cut_into_tiles() -> None:
    found = plan(Background(np.ones((128, 96), bool), 64))
    assert not found.layout.skips
    assert found.active_tiles == ()


def test_finds_the_tiles_that_cost_least(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other number of tiles that is tried costs less."""
    tried: list[float] = []
    effort = active_strips._effort

    def record(tiles: ActiveStrips, count: int) -> float:
        tried.append(effort(tiles, count))
        return tried[-1]

    monkeypatch.setattr(active_strips, "_effort", record)
    found = plan(projected(disk(480), 64))
    first = found.costs[0]
    assert len(tried) > 5
    assert (
        first.operations + first.starts * active_strips.START_OPERATIONS <= min(tried[:8]) * 1.001
    )


def test_what_fits_only_without_background() -> None:
    """Half of the host memory of the whole image suffices for a small piece of tissue."""
    whole, small = plan_of_all(), plan_of_disk(480)
    host = small.projected.host * 11 // 10
    assert host < whole.projected.host // 2
    with pytest.raises(BudgetError):
        plan(None, host_bytes=host)
    assert plan(projected(disk(480), 64), host_bytes=host).layout.skips


def test_summary_shows_what_is_computed() -> None:
    found = plan_of_disk(480)
    lines = str(found).splitlines()
    assert lines[1].endswith(" active")
    assert lines[3].split()[-1] == f"{found.costs[0].active:.3f}"
    tiles = sum(active_tiles.number for active_tiles in found.active_tiles)
    assert (
        f"{found.active:.3f} of the image is computed, in {tiles} tiles; the rest is background"
        in lines
    )
    whole = plan_of_all()
    assert whole.active == 1
    assert "background" not in str(whole)


def test_active_share_is_that_of_the_work() -> None:
    found, whole = plan_of_disk(480), plan_of_all()
    done = sum(c.exact_operations for c in found.costs) / sum(
        c.exact_operations for c in whole.costs
    )
    assert found.active == pytest.approx(done, rel=0.01)


@pytest.mark.parametrize("seed", range(3))
def test_no_tile_is_larger_than_planned(seed: int) -> None:
    """Whatever the mask, also where windows are wider than high."""
    x = start = Input((None, None, 3))
    for _ in range(2):
        x = layers.BatchNormalization()(layers.Conv2D(4, (1, 9), padding="same")(x))
    graph = read(Model(start, layers.GlobalAveragePooling2D()(x)))
    mask = np.random.default_rng(seed).random((64, 32)) < 0.01
    mask[:, 5:8] = mask[10:40, 20:26] = True
    found = make_planner(graph, 2**26).plan(
        1, {graph.inputs[0]: (8192, 4096)}, None, {graph.inputs[0]: Background(mask, 128)}
    )
    assert max(cost.joined for cost in found.costs) > 1
    for active_tiles, cost in zip(found.active_tiles, found.costs, strict=True):
        heights = (active_tiles.rectangles[:, 1] - active_tiles.rectangles[:, 0] + 1).tolist()
        assert max(heights) > 1
        table, columns = active_tiles.table()[1:], active_tiles.sweep.columns
        single = ActiveStrips(
            Images(graph, 1, active_tiles.sizes),
            StripLimits(0),
            active_tiles.sweep,
            training=True,
            fixed=cost.strips,
            blocks=cost.blocks,
            steps=active_tiles.steps,
        )
        joined = (s for s in single.neighbours(cost.strips) if s.joined == cost.joined)
        strips = next(joined, single)
        for v in active_tiles.sweep.images:
            rows, wide = (
                table[:, axis + columns["stop", v]] - table[:, axis + columns["start", v]]
                for axis in (0, len(columns))
            )
            most = strips._tallest(cost.strips, range(cost.strips))[v] * strips._row_pixels[v][0]
            assert (rows * wide).max() <= most
