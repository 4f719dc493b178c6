"""Images that stay on the device."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest
from graphs import (
    PLENTY,
    deep_graph,
    make_planner,
    squares,
)

from tfbig.errors import BudgetError
from tfbig.plan import kept_images, placement, search
from tfbig.plan.plan import Rates
from tfbig.plan.pricing import Pricing


def test_lower_strips_leave_room_for_kept_images() -> None:
    """The highest strips leave no room for images; kept images need not be copied."""
    graph = deep_graph(6)
    sizes = squares(graph, 1024)
    rates = Rates(operations=1e14, passes=1e13, copies=1e9)
    free = make_planner(graph, PLENTY).plan(1, sizes)
    budget = 3 * sum(free.image_bytes[v] for sweep in free.sweeps for v in sweep.writes) // 2
    plan = make_planner(graph, budget, rates=rates, keeps=True).plan(1, sizes)
    copied = make_planner(graph, budget, rates=rates).plan(1, sizes)
    assert plan.projected.device <= budget
    assert max(c.strip_bytes for c in plan.costs) < max(c.strip_bytes for c in copied.costs) / 2
    assert plan.strips > copied.strips
    assert plan.moved_bytes < copied.moved_bytes / 4
    assert plan.seconds < copied.seconds / 4
    repeated = make_planner(graph, budget, rates=rates, keeps=True).plan(1, sizes, plan.layout)
    assert [c.strips for c in repeated.costs] == [c.strips for c in plan.costs]
    assert repeated.projected.device == plan.projected.device


def test_kept_images_have_the_type_of_the_layers() -> None:
    """They are not narrowed."""
    graph = deep_graph(2)
    planner = make_planner(graph, PLENTY, store="bfloat16", keeps=True)
    problem = planner._problem(1, squares(graph, 64))
    plan = Pricing(problem).price(planner.prepared.straight, PLENTY)
    whole = kept_images.keep_all(problem, plan)
    inner = {v for sweep in plan.sweeps for v in sweep.writes}.difference(graph.outputs)
    assert whole.layout.kept == inner
    for value in inner:
        assert whole.image_bytes[value] == 2 * plan.image_bytes[value]


def test_layout_for_one_strip() -> None:
    """It is for images that no sweep cuts: larger ones get another layout, smaller ones may use that one."""
    graph = deep_graph(2)
    planner = make_planner(graph, 2**23, keeps=True, name="deep")
    small, large = (planner.plan(1, squares(graph, side)) for side in (32, 512))
    assert small.strips == 1 < large.strips
    assert small.layout.single and not large.layout.single
    assert small.layout.in_one_strip(False).kept == small.layout.kept
    assert not small.layout.in_one_strip(False).single
    with pytest.raises(BudgetError, match=r"'deep': .* not cut into strips"):
        planner.plan(1, squares(graph, 512), small.layout)
    again = planner.plan(1, squares(graph, 32), large.layout)
    assert again.layout == large.layout and again.strips == 1
    copied = make_planner(graph, 2**23).plan(1, squares(graph, 32))
    assert not copied.layout.single  # without an accelerator


def test_device_bytes_are_the_most_of_strips_and_kept_images_at_a_moment() -> None:
    graph = deep_graph(2)
    planner = make_planner(graph, PLENTY, keeps=True)
    problem = planner._problem(1, squares(graph, 64))
    plan = Pricing(problem).price(planner.prepared.straight, PLENTY)
    assert kept_images.keep(problem, plan, frozenset()) is plan
    whole = kept_images.keep_all(problem, plan)
    strips = max(c.strip_bytes for c in plan.costs)
    images = sum(whole.image_bytes[s.value] for s in whole.timeline.spans)
    assert strips < whole.projected.device <= strips + images
    line = whole.timeline
    assert whole.projected.device == max(
        plan.cost_of(moment).strip_bytes
        + sum(whole.image_bytes[s.value] for s, (a, b) in line.spans.items() if a <= i <= b)
        for i, moment in enumerate(line.moments)
    )


@pytest.mark.parametrize("share", [0.05, 0.2, 0.5, 2.0])
@pytest.mark.parametrize("host", [0.25, 0.4, 2.0])
def test_no_plan_is_faster_than_the_least_seconds(share: float, host: float) -> None:
    """The device has memory for `share` of all stores, the host for `host` of them."""
    graph = deep_graph(6)
    sizes = squares(graph, 256)
    rates = Rates(operations=1e14, passes=1e13, copies=1e9, disk=1e6)
    free = make_planner(graph, PLENTY, keeps=True).plan(1, sizes)
    stored = sum(free.image_bytes[store.value] for store in free.timeline.spans)
    device = int(share * stored) + free.projected.device // 8
    planner = make_planner(
        graph, device, int(host * stored), rates=rates, keeps=True, disk_bytes=PLENTY
    )
    problem = planner._problem(1, sizes)
    plan = Pricing(problem).price(planner.prepared.straight, device // 2)
    least = kept_images._least_seconds(plan, device - kept_images._strip_bytes(plan))
    assert 0 < kept_images._least_seconds(plan, device) <= least
    whole = kept_images.keep_all(problem, plan)
    images = sorted(whole.layout.kept)
    fastest = inf
    for order in ([], images, images[::-1], images[::2], images[1::2]):
        kept = kept_images._fitting(whole, order)
        placed = placement.fit(kept_images.keep(problem, plan, kept))
        if placed is not None:
            assert placed.projected.device <= device
            assert least <= placed.seconds
            fastest = min(fastest, placed.seconds)
    assert fastest < inf
    assert kept_images._least_seconds(plan, 0) >= least
    if (
        share + host <= 0.3 or min(share, host) >= 2
    ):  # most images are on disk, or all on the device
        assert fastest < 3 * least


def test_lower_strips_are_tried_beside_the_workspace_of_a_gpu() -> None:
    """Only the bytes of strips are divided: a sixteenth of the device would be all for kernels."""
    graph = deep_graph(2)
    planner = make_planner(graph, 2**24, keeps=True, gpu=True)
    problem = planner._problem(1, squares(graph, 256))
    heights = list(search._heights(Pricing(problem), planner.prepared.straight))
    assert len(heights) == 1 + len(search.LOWER)
    workspace = planner.limits.workspace
    most = [max(c.strip_bytes for c in plan.costs) - workspace for plan in heights]
    left = planner.limits.device - workspace
    for found, divisor in zip(most, (1, *search.LOWER), strict=True):
        assert 0 < found <= left // divisor


def test_truth_values_are_not_kept() -> None:
    graph = deep_graph.__wrapped__(2)  # one of its own, which is changed
    planner = make_planner(graph, PLENTY, keeps=True)
    problem = planner._problem(1, squares(graph, 64))
    plan = Pricing(problem).price(planner.prepared.straight, PLENTY)
    first = plan.sweeps[0].writes[0]
    graph.values[first] = replace(graph.values[first], dtype="bool")
    assert first not in kept_images.keep_all(problem, plan).layout.kept
