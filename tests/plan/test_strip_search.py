"""Number of strips: the fewest that fit, what they need, and budgets that are refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise

import keras
import numpy as np
import pytest
from graphs import (
    PLENTY,
    Case,
    cases,
    chain,
    chain_graph,
    conv,
    for_examples,
    heights,
    image,
    make_planner,
    mse,
    read,
    residual,
    single_convolution,
    squares,
    squeeze_and_excite,
    two_outputs,
)
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from keras import layers

from tfbig.errors import BudgetError
from tfbig.geometry.windows import partition
from tfbig.network.graph import AT_ONCE
from tfbig.plan import strip_search
from tfbig.plan.limits import KERNEL_ELEMENTS
from tfbig.plan.planner import Planner
from tfbig.plan.strip_search import Images, StripLimits, Strips
from tfbig.plan.sweeps import Sweep, schedule
from tfbig.system.budget import parse_bytes


def heights_of(sweep: Sweep, table: np.ndarray, value: int) -> np.ndarray:
    """Rows of an image in each strip of a table of `Sweep.table`, which the search does not use."""
    return table[:, sweep.columns["stop", value]] - table[:, sweep.columns["start", value]]


@pytest.mark.parametrize("strip_rows", [1, 3, 8, 64, 100])
def test_strip_rows(strip_rows: int) -> None:
    graph = chain_graph()
    plan = make_planner(graph, 1, strip_rows=strip_rows).plan(1, squares(graph, 64))
    assert [c.strips for c in plan.costs] == [-(-64 // strip_rows)] * 3
    assert plan.strips == -(-64 // strip_rows)


def test_strip_rows_of_small_output() -> None:
    """The input has 8 strips, but the output of stride 16 has 4 rows."""
    start = image()
    graph = read(keras.Model(start, conv(1, "conv", 16, strides=16)(start)))
    assert make_planner(graph, 1, strip_rows=8).plan(1, squares(graph, 64)).strips == 4


@given(st.integers(1, 4000), st.integers(1, 3), st.integers(1, 40), st.integers(1, 9))
@settings(deadline=None)
def test_max_elements(most: int, batch: int, height: int, width: int) -> None:
    graph = single_convolution(channels=2)
    plan = make_planner(graph, 1, max_elements=most).plan(batch, {0: (height, width)})
    row = batch * width * 2

    def elements(strips: int) -> int:
        return max(partition(height, strips, i).size for i in range(strips)) * row

    assert elements(plan.strips) <= most or plan.strips == height
    assert plan.strips == 1 or elements(plan.strips - 1) > most


@pytest.mark.parametrize("training", [True, False])
def test_bytes_of_strips(training: bool) -> None:
    """A row has 2 * 64 * 4 bytes per channel. Two strips run at once.

    Each reads 10 rows of one channel, twice because the next rows are read ahead, and writes 8 rows of three. In
    training the gradient of the output is added; temporaries are a multiple of the largest image.
    """
    start = image()
    graph = read(keras.Model(start, conv(3, "conv")(start)))
    sizes, row = squares(graph, 64), 2 * 64 * 4
    plan = make_planner(graph, PLENTY, strip_rows=8, training=training).plan(2, sizes)
    images = row * (2 * 10 + 24 * (2 if training else 1))
    temporaries, remainder = divmod(plan.projected.device // 2 - images, row * 24)
    assert temporaries == (4 if training else 1)
    assert remainder == 0
    assert plan.projected.device == plan.costs[0].strip_bytes
    assert plan.costs[0].rows == 10
    assert plan.projected.host == row * 64 * 3
    assert plan.shape == (2, 64, 64, 1)


@pytest.mark.parametrize(("depth", "matrices"), [(1, 1), (2, 2)])
def test_bytes_of_matrices(depth: int, matrices: int) -> None:
    """An output pixel of one image of the batch has 9 x 9 inputs of one channel.

    The gradient of the second input needs such a matrix too; the first has none. Matrices replace other temporaries.
    """
    x = start = image()
    for number in range(depth):
        x = conv(1, f"conv{number}", 9)(x)
    graph = read(keras.Model(start, x))
    sizes, row = squares(graph, 64), 64 * 4
    few, many = (
        make_planner(graph, PLENTY, strip_rows=64, im2col=im2col).plan(2, sizes).projected.device
        for im2col in (False, True)
    )
    assert many - few == 64 * row * (9 * 9 * matrices - 2 * 4)
    forward = make_planner(graph, PLENTY, strip_rows=64, im2col=True, training=False)
    bare = make_planner(graph, PLENTY, strip_rows=64, training=False)
    assert forward.plan(2, sizes).projected == bare.plan(2, sizes).projected


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (layers.Conv2D(6, (3, 5), groups=2), 3 * 5 * 4 // 2),
        (layers.Conv2DTranspose(6, 4, strides=2), 4 * 4 * 6 // 4),
        (layers.SeparableConv2D(6, 3, depth_multiplier=2), 4 * 2),
        (layers.DepthwiseConv2D(3), 0),
        (layers.Dense(6), 0),
    ],
)
def test_inputs_of_a_pixel(layer: layers.Layer, expected: int) -> None:
    start = image(4)
    graph = read(keras.Model(start, layer(start)))
    assert max(node.op.im2col for node in graph.nodes) == expected


@pytest.mark.parametrize("model", [chain, residual, squeeze_and_excite, two_outputs])
def test_more_strips_need_fewer_bytes(model: Callable[[], keras.Model]) -> None:
    """An inner strip of r rows reads r + 2 h rows, an outer one r + h; half of r outweighs that while h <= r / 2.

    Two strips need as much as one, because both run at once.
    """
    graph = read(model())
    device_bytes = [
        make_planner(graph, PLENTY, strip_rows=rows).plan(1, squares(graph, 256)).projected.device
        for rows in (128, 64, 32, 16, 8)
    ]
    assert all(a > b for a, b in pairwise(device_bytes))


@given(st.integers(4, 60), st.integers(1, 5), st.integers(1, 12))
@settings(deadline=None)
def test_bytes_of_largest_strip(height: int, kernel: int, rows: int) -> None:
    planner = make_planner(single_convolution(kernel), PLENTY, strip_rows=rows, training=False)
    plan = planner.plan(1, {0: (height, 1)})
    (sweep,) = planner.sweeps
    table = sweep.table({0: height, 1: height}, plan.strips)
    tiles = [int(heights(sweep, table, v).max()) for v in (0, 1)]
    assert plan.projected.device >= (sum(tiles) + max(tiles)) * 4 * min(plan.strips, 2)


@pytest.mark.parametrize("device", [5000, 20_000])
def test_estimate(device: int) -> None:
    """The estimate is near the number that the search finds, and exact at its limits."""
    graph = single_convolution()
    (sweep,) = schedule(graph)
    strips = Strips(
        Images(graph, 1, {0: (1000, 8), 1: (1000, 8)}),
        StripLimits(device),
        sweep,
        True,
        frozenset([1]),
    )
    count = strips.cost().strips
    assert abs(strips.about(4) - count) <= 0.1 * count
    assert strips.about(900) == 900
    assert strips.about(5000) == 1000


def test_estimate_without_halo_is_exact() -> None:
    """The bytes of strips of a convolution of one row are in proportion to their rows."""
    graph = single_convolution(kernel=1)
    (sweep,) = schedule(graph)
    extents = {0: (4096, 8), 1: (4096, 8)}
    whole = (
        Strips(Images(graph, 1, extents), StripLimits(PLENTY), sweep, False)._working_set(64) * 64
    )
    for count in (64, 128, 512):
        strips = Strips(Images(graph, 1, extents), StripLimits(whole // count), sweep, False)
        assert strips.about(16) == count


def test_last_strip_may_be_the_largest() -> None:
    """Ten rows in four strips are 2, 3, 2 and 3 rows."""
    graph = single_convolution(kernel=1)
    (sweep,) = schedule(graph)
    strips = Strips(Images(graph, 1, {0: (10, 8), 1: (10, 8)}), StripLimits(PLENTY), sweep, False)
    assert strips._tallest(4) == {0: 3, 1: 3}


def test_many_numbers_of_strips_at_once() -> None:
    """The search looks at many numbers of strips at once; their rows are those of each number alone."""
    graph = chain_graph()
    sweep = schedule(graph)[1]
    extents = graph.extents(squares(graph, 61))

    def strips() -> Strips:
        return Strips(Images(graph, 1, extents), StripLimits(PLENTY), sweep, True)

    counts = strip_search._middles(1, 61)
    assert len(counts) == len(set(counts)) == 60
    (many := strips())._find_tallest(counts)
    for count in counts:
        heights = sweep.table({v: extents[v][0] for v in sweep.images}, count)
        chosen = heights[[0, count // 2, count - 1]]
        expected = {v: int(heights_of(sweep, chosen, v).max()) for v in sweep.images}
        assert many.tallest[count] == strips()._tallest(count) == expected


def test_fewest_strips() -> None:
    """The bytes of the smallest number of strips that fits are known: one byte less needs more strips."""
    graph = single_convolution()
    (sweep,) = schedule(graph)
    extents = {0: (64, 8), 1: (64, 8)}

    def strips(device: int) -> Strips:
        return Strips(Images(graph, 1, extents), StripLimits(device), sweep, False)

    for count in (4, 8, 16):  # all strips have the same number of rows
        need = strips(PLENTY)._working_set(count, range(count))
        assert strips(need).cost().strips == count
        assert strips(need).cost().strip_bytes == need
        assert strips(need - 1).cost().strips > count


def smallest_device(planner: Planner, width: int) -> str:
    """The device budget that the error of a planner names."""
    with pytest.raises(BudgetError) as refused:
        planner.plan(1, dict.fromkeys(planner.graph.inputs, (64, width)))
    message = re.search(r"Raise `device` to ([\d.]+ [KMG]?i?B),", str(refused.value))
    assert message
    return message[1]


def test_small_device_is_refused() -> None:
    graph = chain_graph()
    with pytest.raises(
        BudgetError,
        match=r"^sweep 1 of 'chain' \(bn1 \.\. bn2 \(4\)\): the smallest tile needs ([\d.]+ KiB) on the device, "
        r"but 2\.0 KiB are allowed\. Raise `device` to \1, or use a smaller batch \(now 1\)\.$",
    ):
        make_planner(graph, parse_bytes("2 KiB"), name="chain").plan(1, squares(graph, 64))


def test_budget_that_is_not_firm() -> None:
    """Sweeps of which no tile fits have strips of one row, the others as many as needed; no limit is printed."""
    graph = chain_graph()
    least = make_planner(graph, 1, firm=False).plan(1, squares(graph, 64))
    assert [cost.strips for cost in least.costs[:2]] == [64, 64]
    assert least.costs[0].strip_bytes < least.costs[1].strip_bytes == least.projected.device
    plan = make_planner(graph, least.projected.device - 1, firm=False).plan(1, squares(graph, 64))
    assert plan.costs[1].blocks
    assert plan.costs[0].strips < 64
    assert max(cost.strip_bytes for cost in plan.costs) < least.projected.device
    assert not plan.allowed.firm
    assert re.search(r"device [\d.]+ KiB, host", str(plan))


@pytest.mark.parametrize("model", [chain, residual, squeeze_and_excite, two_outputs])
@pytest.mark.parametrize(
    "width", [3, 101, *(pytest.param(n, marks=pytest.mark.slow) for n in (37, 333, 9001))]
)
def test_device_in_message_is_enough(model: Callable[[], keras.Model], width: int) -> None:
    """Sweeps are refused one after another: each message names the bytes of its sweep."""
    graph = read(model())
    device = 1
    for _ in range(3):
        needed = parse_bytes(smallest_device(make_planner(graph, device), width))
        assert needed > device
        device = needed
        try:
            plan = make_planner(graph, device).plan(1, {0: (64, width)})
        except BudgetError:
            continue
        assert plan.projected.device <= device
        return
    pytest.fail("three sweeps at most, but three raised budgets did not suffice")


@pytest.mark.parametrize("keeps", [False, True])
def test_signal(keeps: bool) -> None:
    """A signal has strips too; its error message does not mention columns."""
    start = keras.Input((None, 2))
    x = layers.Conv1D(16, 5, padding="same")(start)
    graph = read(keras.Model(start, layers.BatchNormalization()(x)))
    sizes = {graph.inputs[0]: (4096,)}
    assert make_planner(graph, 12_000, keeps=keeps).plan(1, sizes).projected.device <= 12_000
    with pytest.raises(
        BudgetError, match=r"Raise `device` to .*, or use a smaller batch \(now 1\)"
    ):
        make_planner(graph, 1_000, keeps=keeps).plan(1, sizes)


@pytest.mark.parametrize("keeps", [False, True])
def test_most_elements_of_kernels(keeps: bool) -> None:
    """Strips have at most 2**31 - 1 elements, whatever the memory."""
    graph = chain_graph()
    (image,) = graph.inputs
    plan = make_planner(graph, 2**60, keeps=keeps).plan(1, {image: (16000, 64000)})
    assert bool(plan.layout.kept) == keeps
    widest = max(graph.values[v].channels for sweep in plan.sweeps for v in sweep.images)
    assert 16000 * 64000 * widest > KERNEL_ELEMENTS
    for sweep, cost in zip(plan.sweeps, plan.costs, strict=True):
        table = sweep.table(dict.fromkeys(sweep.images, 16000), cost.strips)
        for value in sweep.images:
            rows = int(heights_of(sweep, table, value).max())
            assert rows * 64000 * graph.values[value].channels <= KERNEL_ELEMENTS


def test_row_of_too_many_elements() -> None:
    graph = chain_graph()
    (image,) = graph.inputs
    plan = make_planner(graph, 2**60).plan(1, {image: (4, 2**30)})
    assert all(cost.blocks for cost in plan.costs[:2])


@pytest.mark.parametrize(
    ("num_convs", "options", "strips"),
    [
        (1, {}, AT_ONCE),
        (1, {"training": False}, 1),  # no gradients that run at once
        (1, {"keeps": True}, 1),  # one kernel occupies an accelerator
        (12, {}, 1),  # too many rows computed twice
    ],
)
def test_strips_for_all_cores(num_convs: int, options: dict[str, bool], strips: int) -> None:
    x = start = image(4)
    for depth in range(num_convs):
        x = conv(4, f"conv{depth}")(x)
    graph = read(keras.Model(start, x))
    plan = make_planner(graph, PLENTY, **options).plan(1, squares(graph, 64))
    assert [c.strips for c in plan.costs] == [strips]


@pytest.mark.parametrize("devices", [2, 3, 8])
def test_strips_of_several_devices(devices: int) -> None:
    """Each device has at least one strip and a budget; together they compute faster."""
    graph = mse(chain())
    one = make_planner(graph, PLENTY).plan(1, squares(graph, 64))
    several = make_planner(graph, PLENTY, devices=devices).plan(1, squares(graph, 64))
    assert [c.strips for c in one.costs] == [AT_ONCE] * len(one.costs)
    counts = [c.strips for c in several.costs]
    assert all(devices <= n <= AT_ONCE * devices for n in counts)
    assert several.projected.device < one.projected.device
    assert several.seconds < one.seconds
    small = 2 * one.projected.device // 3
    assert (
        make_planner(graph, small, devices=devices).plan(1, squares(graph, 64)).projected.device
        <= small
    )


@for_examples(st.integers(20_000, 400_000), fast=15, slow=40)
def test_fewest_strips_of_chain(device: int) -> None:
    """One strip fewer would not fit."""
    graph = chain_graph()
    sizes = squares(graph, 64)
    try:
        plan = make_planner(graph, device).plan(1, sizes)
    except BudgetError:
        assume(False)
    assert plan.projected.device <= device
    assert plan.allowed.device == device
    for sweep, cost in enumerate(plan.costs):
        if cost.strips > 1:
            fewer = make_planner(graph, PLENTY, strip_rows=-(-64 // (cost.strips - 1))).plan(
                1, sizes
            )
            assert fewer.costs[sweep].strips < cost.strips
            assert fewer.costs[sweep].strip_bytes > device


@for_examples(cases(), st.integers(1, 4000), st.booleans())
def test_budget_of_random_graphs(case: Case, device: int, training: bool) -> None:
    """A plan fits, or its error names a sufficient budget; sweeps are refused one after another."""
    sizes = {0: case.extents[0]}
    for _ in range(len(make_planner(case.graph, PLENTY, training=training).sweeps) + 1):
        try:
            plan = make_planner(case.graph, device, training=training).plan(1, sizes)
        except BudgetError as refused:
            message = re.search(r"Raise `device` to ([\d.]+ [KMG]?i?B),", str(refused))
            assert message
            assert parse_bytes(message[1]) > device
            device = parse_bytes(message[1])
        else:
            assert plan.projected.device <= device
            return
    pytest.fail("every sweep has named its budget, and the largest does not suffice")
