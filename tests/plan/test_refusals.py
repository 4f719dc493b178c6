"""Errors of budgets that no plan fits."""

from __future__ import annotations

import re

import pytest
from graphs import (
    PLENTY,
    chain_graph,
    deep_graph,
    make_planner,
    squares,
)

from tfbig.errors import BudgetError
from tfbig.plan.lifetimes import aligned
from tfbig.system.budget import parse_bytes


def test_host_in_message_is_enough() -> None:
    graph = chain_graph()
    sizes = {0: (67, 53)}
    peak = make_planner(graph, PLENTY).plan(2, sizes).projected.host
    assert peak == aligned(2 * 67 * 53 * 4 * 52)  # channels of conv1, conv2, relu2 and a gradient
    assert make_planner(graph, PLENTY, peak).plan(2, sizes).projected.host == peak
    with pytest.raises(BudgetError) as refused:
        make_planner(graph, PLENTY, 1, name="chain").plan(2, sizes)
    message = re.fullmatch(
        r"'chain' on 2 x 67 x 53: a step needs at least (.*) of host memory \(images .*\), but 1 B are allowed\. "
        r"Raise `host` to (.*), or use smaller images, a smaller batch or store='bfloat16'\.",
        str(refused.value),
    )
    assert message
    assert message[1] == message[2]
    least = parse_bytes(message[1])
    assert make_planner(graph, PLENTY, least).plan(2, sizes).projected.host <= least


def test_device_in_message_is_that_of_the_largest_sweep() -> None:
    graph = chain_graph()
    with pytest.raises(BudgetError, match="smallest tile needs") as refused:
        make_planner(graph, 1).plan(1, squares(graph, 64))
    with pytest.raises(BudgetError, match="smallest tile needs"):
        make_planner(graph, refused.value.need_bytes - 1).plan(1, squares(graph, 64))
    make_planner(graph, refused.value.need_bytes).plan(1, squares(graph, 64))


def test_layout_of_another_size_that_keeps_too_much() -> None:
    graph = deep_graph(2)
    planner = make_planner(graph, 2**22, keeps=True, name="deep")
    layout = planner.plan(1, squares(graph, 64)).layout.in_one_strip(False)
    assert layout.kept
    with pytest.raises(
        BudgetError, match=r"'deep': the layout chosen for another .* 4\.0 MiB are allowed"
    ):
        planner.plan(1, squares(graph, 1024), layout)


def refused_on_host(host: int, disk: int, size: int = 64, firm: bool = True) -> str:
    """Return the error of a plan whose strips are in host memory."""
    graph = chain_graph()
    planner = make_planner(graph, 2**22, host, disk, shared=True, firm=firm)
    with pytest.raises(BudgetError) as refused:
        planner.plan(1, squares(graph, size))
    return str(refused.value)


@pytest.mark.parametrize("firm", [True, False])
@pytest.mark.parametrize("disk", [0, PLENTY])
def test_parts_add_up(firm: bool, disk: int) -> None:
    """The parts in brackets are those of the least budget, also if strips grow with it."""
    found = re.search(
        r"at least (.*) of host memory \((.*)\), but", refused_on_host(1, disk, firm=firm)
    )
    assert found
    sizes = re.findall(r"[\d.]+ [KMG]iB", found[2])
    assert "strips" in found[2] and "TensorFlow and gradients" in found[2]
    total = sum(map(parse_bytes, sizes))
    assert total == pytest.approx(parse_bytes(found[1]), abs=0.05 * 2**20 * (len(sizes) + 1))


def test_advice_is_what_can_help() -> None:
    """Neither disk nor smaller images help where TensorFlow alone needs more; both do for large images."""
    assert re.search(r"Raise `host` to [^,]*\.$", refused_on_host(1, PLENTY))
    large = refused_on_host(200 * 2**20, 1, 4096)
    assert re.search(r"Raise `host` to .*, or `disk`, or use smaller images, a", large), large
