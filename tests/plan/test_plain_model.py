"""Plans of images that run in plain Keras."""

from __future__ import annotations

import pytest
from graphs import PLENTY, chain_graph, make_planner, squares

from tfbig.errors import BudgetError
from tfbig.plan import plain_model
from tfbig.plan.limits import Limits
from tfbig.plan.planner import Planner
from tfbig.plan.prepared_graph import Options


def planner(plain: int, training: bool = True) -> Planner:
    return Planner(chain_graph(), Limits(PLENTY, plain=plain), Options(training=training))


def test_one_sweep_with_one_strip_and_no_stores() -> None:
    found = planner(PLENTY)
    plan = found.plan(1, squares(found.graph, 64))
    assert plan.layout.plain
    assert (len(plan.sweeps), plan.strips, plan.projected.host, plan.moved_bytes) == (
        *(1, 1, 0),
        plan.image_bytes[found.prepared.first_image],
    )
    streamed = make_planner(found.graph).plan(1, squares(found.graph, 64))
    assert plan.exact_operations == streamed.exact_operations
    assert plan.recompute_factor == 1
    assert found.plan(1, squares(found.graph, 64), plan.layout) == plan


@pytest.mark.parametrize("training", [False, True])
def test_limit(training: bool) -> None:
    """Sizes that need more are streamed; the bytes grow with the pixels."""
    graph = planner(PLENTY).graph
    least, most = (
        plain_model.peak_bytes(graph, 1, graph.extents(squares(graph, side)), training)
        for side in (64, 128)
    )
    assert most == 4 * least
    found = planner(least, training)
    layout = found.plan(1, squares(found.graph, 64)).layout
    assert layout.plain
    assert not found.plan(1, squares(found.graph, 65)).layout.plain
    with pytest.raises(BudgetError, match=r"the plain model needs more than .* without strips"):
        found.plan(1, squares(found.graph, 65), layout)


def test_training_needs_every_output_and_inference_a_few() -> None:
    graph = planner(PLENTY).graph
    sizes = graph.extents(squares(graph, 64))
    training, inference = (plain_model.peak_bytes(graph, 1, sizes, t) for t in (True, False))
    assert inference < training / 2


def test_nothing_is_planned_but_the_plain_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search for cut points takes longer than the first step of a small image."""
    found = planner(PLENTY)
    monkeypatch.setattr(type(found.prepared), "cuts", property(lambda self: 1 / 0))
    assert found.plan(2, squares(found.graph, 64)).layout.plain
