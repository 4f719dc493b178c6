"""Planner: the fastest layout that fits host, disk and device."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import keras
import pytest
from graphs import (
    PLENTY,
    chain,
    chain_graph,
    deep_graph,
    dice,
    mse,
    read,
    single_convolution,
    squares,
)
from samples import ROOT

from tfbig.errors import BudgetError
from tfbig.network import keras_reader, losses, phase_layout
from tfbig.network.graph import Graph
from tfbig.plan.address_ranges import aligned
from tfbig.plan.plan import Rates
from tfbig.plan.planner import Planner
from tfbig.plan.strip_search import images_with_gradient
from tfbig.plan.sweeps import schedule
from tfbig.system.budget import DEFAULT_STRIPS, parse_bytes


@pytest.mark.parametrize(
    ("build", "fused"),
    [(mse, True), (dice, False), (read, False)],
)
def test_fused(build: Callable[[keras.Model], Graph], fused: bool) -> None:
    """Only a loss that is a sum over pixels runs forward and backward together."""
    assert Planner(build(chain()), PLENTY).fused is fused
    assert not Planner(build(chain()), PLENTY, training=False).fused


def test_plan_is_cached() -> None:
    graph = single_convolution()
    planner = Planner(graph, PLENTY)
    plan = planner.plan(1, squares(graph, 16))
    assert planner.plan(1, squares(graph, 16)) is plan
    for batch in range(2, 300):  # more sizes than the cache holds
        planner.plan(batch, squares(graph, 16))
    assert planner.plan(1, squares(graph, 16)) == plan


def test_host_in_message_is_enough() -> None:
    graph = chain_graph()
    sizes = {0: (67, 53)}
    peak = Planner(graph, PLENTY).plan(2, sizes).host_bytes
    assert peak == aligned(2 * 67 * 53 * 4 * 52)  # channels of conv1, conv2, relu2 and a gradient
    assert Planner(graph, PLENTY, peak).plan(2, sizes).host_bytes == peak
    with pytest.raises(BudgetError) as refused:
        Planner(graph, PLENTY, 1, name="chain").plan(2, sizes)
    message = re.fullmatch(
        r"'chain' on 2 x 67 x 53: a step needs at least (.*) of host memory \(images .*\), but 1 B are allowed\. "
        r"Raise `host` to (.*), or use smaller images, a smaller batch or store='bfloat16'\.",
        str(refused.value),
    )
    assert message
    assert message[1] == message[2]
    least = parse_bytes(message[1])
    assert Planner(graph, PLENTY, least).plan(2, sizes).host_bytes <= least


@pytest.mark.parametrize(
    ("blocks", "shares"),
    [(12, (0.8, 0.6)), pytest.param(36, (0.8, 0.6, 0.5, 0.4, 0.35), marks=pytest.mark.slow)],
)
def test_less_host_memory_needs_more_operations(blocks: int, shares: tuple[float, ...]) -> None:
    """Down to the square root of the depth, and always within the budget."""
    graph = deep_graph(blocks)
    sizes = squares(graph, 64)
    free = Planner(graph, PLENTY).plan(1, sizes)
    assert not free.layout.replays
    factors = [free.recompute_factor]
    for share in shares:
        host = int(free.host_bytes * share)
        plan = Planner(graph, PLENTY, host).plan(1, sizes)
        assert plan.host_bytes <= host
        assert plan.operations > free.operations
        factors.append(plan.recompute_factor)
    assert factors == sorted(factors)
    assert factors[-1] < 1.45  # one more forward pass, a third of the step, and the halos


@pytest.mark.parametrize(
    ("copies", "remat"), [(1e9, True), (1e16, False)], ids=["slow copies", "fast copies"]
)
def test_accelerator_rematerialises_instead_of_copying(copies: float, remat: bool) -> None:
    """Slow copies make the planner rematerialise, even if all images fit; shared memory has no copies to avoid."""
    graph = deep_graph(6)
    sizes = squares(graph, 512)
    small = Planner(graph, PLENTY).plan(1, sizes).device_bytes // 8
    rates = Rates(operations=1e14, passes=1e13, copies=copies)

    def stored(**options: Any) -> int:
        plan = Planner(graph, small, rates=rates, **options).plan(1, sizes)
        return sum(len(sweep.writes) for sweep in plan.sweeps)

    assert (stored(keeps=True) < stored()) == remat
    assert stored(keeps=True, training=False) == stored(training=False)


@pytest.mark.parametrize(
    "share", [0.6, *(pytest.param(n, marks=pytest.mark.slow) for n in (0.9, 1.2, 2.0))]
)
def test_more_device_memory_is_never_slower(share: float) -> None:
    """Nor is more host memory, and no plan is slower than the one that copies every image."""
    graph = deep_graph(4)
    sizes = squares(graph, 512)
    rates = Rates(operations=1e14, passes=1e13, copies=1e9)
    free = Planner(graph, PLENTY).plan(1, sizes)
    stored = sum(free.image_bytes[v] for sweep in free.sweeps for v in sweep.writes)

    def seconds(budget: float, keeps: bool = True, host: int | None = None) -> float:
        planner = Planner(graph, int(budget * stored), host, rates=rates, keeps=keeps)
        plan = planner.plan(1, sizes)
        assert plan.device_bytes <= budget * stored
        return plan.seconds

    assert seconds(1.25 * share) <= 1.02 * seconds(share)
    assert seconds(share) <= seconds(share, keeps=False)
    assert seconds(share) <= seconds(share, host=stored)


def test_lower_strips_leave_room_for_kept_images() -> None:
    """The highest strips leave no room for images; kept images need not be copied."""
    graph = deep_graph(6)
    sizes = squares(graph, 1024)
    rates = Rates(operations=1e14, passes=1e13, copies=1e9)
    free = Planner(graph, PLENTY).plan(1, sizes)
    budget = 3 * sum(free.image_bytes[v] for sweep in free.sweeps for v in sweep.writes) // 2
    plan = Planner(graph, budget, rates=rates, keeps=True).plan(1, sizes)
    copied = Planner(graph, budget, rates=rates).plan(1, sizes)
    assert plan.device_bytes <= budget
    assert max(c.device_bytes for c in plan.costs) < max(c.device_bytes for c in copied.costs) / 2
    assert plan.strips > copied.strips
    assert plan.moved_bytes < copied.moved_bytes / 4
    assert plan.seconds < copied.seconds / 4
    repeated = Planner(graph, budget, rates=rates, keeps=True).plan(1, sizes, plan.layout)
    assert [c.strips for c in repeated.costs] == [c.strips for c in plan.costs]
    assert repeated.device_bytes == plan.device_bytes


@pytest.fixture
def gigapixel(monkeypatch: pytest.MonkeyPatch) -> Graph:
    """The gigapixel U-Net with its loss, as a step of `fit` on uint8 images runs it."""
    monkeypatch.syspath_prepend(ROOT)
    from tfbig.models.gigapixel_unet import gigapixel_unet

    graph = keras_reader.read(gigapixel_unet(), True, ["uint8"])
    (prediction,) = graph.outputs
    target = graph.input("labels", True, 1, "uint8")
    loss = losses.add(graph, prediction, target, keras.losses.BinaryCrossentropy())
    graph.outputs = [losses.total(graph, [loss])]
    phase_layout.rewrite(graph)
    return graph


def test_gigapixel_unet_recomputes_few_rows(gigapixel: Graph) -> None:
    planner = Planner(gigapixel, DEFAULT_STRIPS)
    plan = planner.plan(1, dict.fromkeys(gigapixel.inputs, (16000, 64000)))
    assert 1 <= plan.recompute_factor < 1.05
    assert plan.device_bytes <= DEFAULT_STRIPS
    assert planner.fused


def test_gigapixel_unet_images_without_gradient(gigapixel: Graph) -> None:
    """Images before the first weight have no gradient."""
    images = {v for sweep in schedule(gigapixel) for v in sweep.images}
    without = {gigapixel.values[v].name for v in images - images_with_gradient(gigapixel)}
    assert without == {
        "image",
        "image/space_to_depth",
        "image/cast",
        "rescaling",
        "labels",
        "labels/space_to_depth",
    }
