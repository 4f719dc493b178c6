"""Search: the fastest layout that fits host, disk and device."""

from __future__ import annotations

from typing import Any

import keras
import pytest
from graphs import (
    PLENTY,
    deep_graph,
    make_planner,
    squares,
)
from samples import ROOT

from tfbig import Stopped
from tfbig.network import keras_reader, losses, phase_layout
from tfbig.network.graph import Graph, values_with_gradient
from tfbig.plan import layout_search
from tfbig.plan.plan import Rates
from tfbig.plan.sweeps import schedule
from tfbig.system import progress
from tfbig.system.budget import DEFAULT_STRIPS


@pytest.mark.parametrize(
    ("blocks", "shares"),
    [(12, (0.8, 0.6)), pytest.param(36, (0.8, 0.6, 0.5, 0.4, 0.35), marks=pytest.mark.slow)],
)
def test_less_host_memory_needs_more_operations(blocks: int, shares: tuple[float, ...]) -> None:
    """Down to the square root of the depth, and always within the budget."""
    graph = deep_graph(blocks)
    sizes = squares(graph, 64)
    free = make_planner(graph, PLENTY).plan(1, sizes)
    assert not free.layout.replays
    factors = [free.recompute_factor]
    for share in shares:
        host = int(free.projected.host * share)
        plan = make_planner(graph, PLENTY, host).plan(1, sizes)
        assert plan.projected.host <= host
        assert plan.operations > free.operations
        factors.append(plan.recompute_factor)
    assert factors == sorted(factors)
    assert factors[-1] < 1.45  # one more forward pass, a third of the step, and the halos


def test_a_long_search_reports_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """And ends where the work was requested to stop, which a report raises."""
    graph = deep_graph(12)
    sizes = squares(graph, 64)
    host = int(make_planner(graph, PLENTY).plan(1, sizes).projected.host * 0.6)
    lines: list[str] = []
    monkeypatch.setattr(progress.METER, "report", lines.append)
    make_planner(graph, PLENTY, host).plan(1, sizes)
    of_layouts = [line for line in lines if ", layout " in line]
    assert len(of_layouts) > 10
    assert {line.partition(",")[0] for line in lines} == {of_layouts[0].partition(",")[0]}
    assert any(", plan " in line for line in lines)

    def stop(what: str) -> None:
        if ", layout " in what:
            raise Stopped("stopped")

    monkeypatch.setattr(progress.METER, "report", stop)
    with pytest.raises(Stopped):
        make_planner(graph, PLENTY, host).plan(1, sizes)


@pytest.mark.parametrize(
    ("copies", "remat"), [(1e9, True), (1e16, False)], ids=["slow copies", "fast copies"]
)
def test_accelerator_rematerialises_instead_of_copying(copies: float, remat: bool) -> None:
    """Slow copies make the planner rematerialise, even if all images fit; shared memory has no copies to avoid."""
    graph = deep_graph(6)
    sizes = squares(graph, 512)
    small = make_planner(graph, PLENTY).plan(1, sizes).projected.device // 8
    rates = Rates(operations=1e14, passes=1e13, copies=copies)

    def stored(**options: Any) -> int:
        plan = make_planner(graph, small, rates=rates, **options).plan(1, sizes)
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
    free = make_planner(graph, PLENTY).plan(1, sizes)
    stored = sum(free.image_bytes[v] for sweep in free.sweeps for v in sweep.writes)

    def seconds(budget: float, keeps: bool = True, host: int | None = None) -> float:
        planner = make_planner(graph, int(budget * stored), host, rates=rates, keeps=keeps)
        plan = planner.plan(1, sizes)
        assert plan.projected.device <= budget * stored
        return plan.seconds

    assert seconds(1.25 * share) <= 1.02 * seconds(share)
    assert seconds(share) <= seconds(share, keeps=False)
    assert seconds(share) <= seconds(share, host=stored)


@pytest.mark.slow
@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("share", [0.8, 0.5, 0.3])
def test_some_layouts_of_each_family_suffice(
    keeps: bool, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan is as fast as the fastest of all layouts, but for a few percent."""
    graph = deep_graph(36)
    sizes = squares(graph, 512)
    rates = Rates(operations=1e13, passes=1e12, copies=1e10)
    free = make_planner(graph, PLENTY).plan(1, sizes)
    limits = {"host_bytes": int(share * free.projected.host), "disk_bytes": PLENTY}

    def seconds() -> float:
        device = free.projected.host // 20
        return (
            make_planner(graph, device, rates=rates, keeps=keeps, **limits).plan(1, sizes).seconds
        )

    found = seconds()
    monkeypatch.setattr(layout_search.Family, "some", layout_search.Family.layouts)
    assert seconds() <= found <= 1.03 * seconds()


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
    planner = make_planner(gigapixel, DEFAULT_STRIPS)
    plan = planner.plan(1, dict.fromkeys(gigapixel.inputs, (16000, 64000)))
    assert 1 <= plan.recompute_factor < 1.05
    assert plan.projected.device <= DEFAULT_STRIPS
    assert planner.fused


def test_gigapixel_unet_images_without_gradient(gigapixel: Graph) -> None:
    """Images before the first weight have no gradient."""
    images = {v for sweep in schedule(gigapixel) for v in sweep.images}
    learned = values_with_gradient(gigapixel, gigapixel.trained)
    without = {gigapixel.values[v].name for v in images - learned}
    assert without == {
        "image",
        "image/space_to_depth",
        "image/cast",
        "rescaling",
        "labels",
        "labels/space_to_depth",
    }
