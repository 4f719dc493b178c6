"""Plan: its printed table, recompute factor and totals."""

from __future__ import annotations

import re
from dataclasses import replace

import keras
import pytest
from graphs import PLENTY, chain, conv, deep_graph, image, make_planner, mse, read, squares
from keras import layers
from samples import FILES

from tfbig.network.graph import Node, Whole, values_with_gradient
from tfbig.plan import replay_segments
from tfbig.plan.lifetimes import timeline
from tfbig.plan.limits import Limits, Projected
from tfbig.plan.plan import Plan, Rates, SweepCost, layers_of
from tfbig.plan.sweeps import Layout, Store, Sweep, schedule


def test_printed_plan() -> None:
    """The numbers show how each column is formatted."""
    graph = mse(chain())
    sweeps = schedule(graph)
    costs = (
        SweepCost(21, 51, 2, 3_900_000, 160_000_000, 150_000_000, 0, 0, 0),
        SweepCost(128, 10, 2, 2**22, 12_340_000_000, 11_000_000_000, 0, 0, 0),
        SweepCost(1, 1024, 0, 0, 0, 0, 0, 0, 0),
    )
    first, second = (sweep.writes[0] for sweep in sweeps[:2])
    layout = Layout(tuple(sweeps), spilled=frozenset([Store("image", first)]))
    plan = Plan(
        shape=(2, 1024, 1024, 1),
        layout=layout,
        costs=costs,
        replay_costs=(),
        timeline=timeline(graph, layout, values_with_gradient(graph, graph.trained), True),
        image_bytes=dict.fromkeys(graph.inputs, 2**23) | {first: 32 * 2**20, second: 2**27},
        addresses={},
        allowed=Limits(2**23),
        projected=Projected(2**22, 320 * 2**20, 32 * 2**20, 2**27, 1000),
        repeated_operations=0,
        training=True,
        rates=Rates(1e10, 1e12, 1e9, 2e8, 1e8),
    )
    printed: list[str] = []
    plan.summary(printed.append)
    assert "\n".join(printed) == (FILES / "plan.txt").read_text().rstrip()
    assert plan.strips == 128
    assert plan.recompute_factor == 12_500_000_000 / 11_150_000_000
    assert plan.mapped_bytes == -(-6 * 32 * 2**20 // 21)  # four strips, one before and one after
    on_cpu = replace(plan, allowed=replace(plan.allowed, shared=True))
    assert on_cpu.mapped_bytes == -(-4 * 32 * 2**20 // 21)  # two strips, one before and one after
    assert plan.peak_bytes == 2**22 + 320 * 2**20 + 2**27 + plan.mapped_bytes


def test_recompute_factor() -> None:
    """Two 3 x 3 convolutions in one sweep, 8 strips of 8 rows: the first recomputes 2 rows at each of 7 borders."""
    start = image()
    x = conv(1, "first")(start)
    graph = read(keras.Model(start, conv(1, "second")(x)))
    plan = make_planner(graph, PLENTY, strip_rows=8).plan(1, squares(graph, 64))
    assert len(plan.sweeps) == 1
    assert plan.recompute_factor == (64 + 14 + 64) / 128
    flops = 2 * 9 * 64  # multiply-adds of 3 x 3 taps per row of 64 pixels
    assert plan.operations == 3 * flops * (64 + 14 + 64) + flops * (
        64 + 14
    )  # the first is recomputed
    predicted = make_planner(graph, PLENTY, strip_rows=64, training=False).plan(
        1, squares(graph, 64)
    )
    assert predicted.operations == flops * 128
    assert predicted.recompute_factor == 1.0


def test_printed_replay() -> None:
    """Rematerialised images are `remat` in their sweep, and stored in a replay before the backward pass."""
    graph = deep_graph(6)
    planner = make_planner(graph, PLENTY)
    replay = replay_segments.replay(graph, planner.sweeps, (1, 3))
    assert replay is not None
    plan = planner.plan(1, squares(graph, 64), Layout(tuple(planner.sweeps), (replay,)))
    rows = {line.split()[0]: line for line in str(plan).splitlines()[3:]}
    assert re.search(r" 1  host, remat ", rows["1"])
    assert re.search(r" 1  host, remat ", rows["2"])
    assert re.search(r" 1  +host ", rows["3"])
    assert re.search(r" 1 x 64 +0 +host ", rows["+3"])
    assert str(plan).endswith("before the backward pass of the sweep with their number")


def test_layers_of() -> None:
    def sweep(*names: str) -> Sweep:
        nodes = tuple(Node(n, Whole(None), (), 0, (), n) for n in names)
        return Sweep(0, nodes, (), (), (), ())

    assert layers_of(sweep()) == "-"
    assert layers_of(sweep("a", "a")) == "a"
    assert layers_of(sweep("a", "b", "a", "c")) == "a .. c (3)"
    assert layers_of(sweep("x" * 31)) == "x" * 27 + "..."
    assert layers_of(sweep("x" * 20, "y" * 20)) == "x" * 20 + " .. (2)"


def test_refuses_images_that_meet_at_different_sizes() -> None:
    start = image()
    x = layers.Add(name="add")([conv(1, "half", strides=2)(start), start])
    graph = read(keras.Model(start, x))
    with pytest.raises(
        ValueError,
        match=re.escape(
            "'add': its inputs have different sizes [(4, 4), (8, 8)]; they must be equal. Networks with strides and"
        ),
    ):
        graph.extents(squares(graph, 8))


def test_refuses_an_image_that_is_too_small() -> None:
    start = image()
    graph = read(keras.Model(start, layers.Conv2D(1, 5, name="conv")(start)))
    with pytest.raises(
        ValueError,
        match=re.escape(
            "'conv/convolution': the image is too small, its output would be 0 x 3. Use a larger image or smaller "
            "kernels and strides."
        ),
    ):
        graph.extents({0: (4, 7)})
