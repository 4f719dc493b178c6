"""Sweeps, strips and bytes: golden schedules and traces, the geometry of random graphs, budgets that hold."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import prod
from typing import Any

import keras
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from keras import layers
from samples import DATA, ROOT

from tfbig.errors import BudgetError
from tfbig.geometry.windows import SAME, Interval, Resize, Transposed, Window, partition
from tfbig.network import keras_reader, losses, phase_layout
from tfbig.network.graph import AT_ONCE, Graph, Local, Node, Reduce, Whole, axes_of, image_positions
from tfbig.plan import cut_search, layout_search, replay_segments
from tfbig.plan.address_ranges import aligned
from tfbig.plan.cost import bytes_of, heights_of, sweep_limit
from tfbig.plan.lifetimes import timeline
from tfbig.plan.plan import PAGE_ELEMENTS, RUNTIME_BYTES, Plan, Rates, SweepCost, layers_of
from tfbig.plan.planner import Planner
from tfbig.plan.strip_search import KERNEL_ELEMENTS, learning
from tfbig.plan.sweeps import REMAT_DEPTH, Layout, Store, Sweep, foldable, schedule
from tfbig.system.budget import DEFAULT_STRIPS, parse_bytes
from tfbig.units import format_bytes, itemsize

PLENTY = 10**15


# --------------------------------------------------------------------------------- small models


def image(channels: int = 1) -> keras.KerasTensor:
    return keras.Input((None, None, channels), name="image")


def conv(filters: int, name: str, kernel: int = 3, **options: object) -> layers.Layer:
    return layers.Conv2D(filters, kernel, padding="same", use_bias=False, name=name, **options)


def chain() -> keras.Model:
    """Two conv-BN-ReLU with 4 and 16 channels."""
    x = start = image()
    for number, filters in ((1, 4), (2, 16)):
        x = conv(filters, f"conv{number}")(x)
        x = layers.BatchNormalization(name=f"bn{number}")(x)
        x = layers.ReLU(name=f"relu{number}")(x)
    return keras.Model(start, x, name="chain")


def residual() -> keras.Model:
    start = image()
    x = shortcut = conv(4, "conv1")(start)
    x = layers.BatchNormalization(name="bn1")(x)
    x = conv(4, "conv2")(x)
    x = layers.BatchNormalization(name="bn2")(x)
    x = layers.Add(name="add")([shortcut, x])
    return keras.Model(start, conv(16, "conv3")(x), name="residual")


def squeeze_and_excite() -> keras.Model:
    start = image()
    x = conv(4, "conv1")(start)
    gate = layers.GlobalAveragePooling2D(keepdims=True, name="squeeze")(x)
    gate = layers.Dense(4, activation="sigmoid", name="excite")(gate)
    x = layers.Multiply(name="scale")([x, gate])
    return keras.Model(start, conv(16, "conv2", 1)(x), name="squeeze_and_excite")


def two_outputs() -> keras.Model:
    """One image at half size, and one vector."""
    start = image()
    x = conv(4, "conv1")(start)
    half = conv(16, "half", strides=2)(x)
    return keras.Model(start, [half, layers.GlobalMaxPooling2D(name="top")(x)], name="two_outputs")


def read(model: keras.Model, training: bool = True) -> Graph:
    return keras_reader.read(model, training)


def with_loss(model: keras.Model, loss: keras.losses.Loss) -> Graph:
    """The graph of a model that ends in a loss against labels of the size of its output."""
    graph = read(model)
    (prediction,) = graph.outputs
    target = graph.input("labels", True, graph.values[prediction].channels, "float32")
    graph.outputs = [losses.total(graph, [losses.add(graph, prediction, target, loss)])]
    return graph


def mse(model: keras.Model) -> Graph:
    return with_loss(model, keras.losses.MeanSquaredError())


def dice(model: keras.Model) -> Graph:
    return with_loss(model, keras.losses.Dice())


def squares(graph: Graph, side: int) -> dict[int, tuple[int, int]]:
    return {i: (side, side) for i in graph.inputs if graph.values[i].image}


def listing(graph: Graph, sweeps: list[Sweep]) -> str:
    """Two lines a sweep: `what it reads -> what it writes`, its nodes; whole nodes after it."""

    def names(values: tuple[int, ...]) -> str:
        return ", ".join(graph.values[v].name for v in values) or "nothing"

    found = []
    for sweep in sweeps:
        found.append(f"{sweep.index}: {names(sweep.reads)} -> {names(sweep.writes)}")
        after = [";", *(n.name for n in sweep.wholes)] if sweep.wholes else []
        found.append(" ".join([*(n.name for n in sweep.nodes), *after]))
    return "\n".join(found)


def lines(text: str) -> str:
    """A golden text without the indentation of the test."""
    return "\n".join(line.strip() for line in text.strip().splitlines())


# ------------------------------------------------------------------------------------- schedule


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (
            chain,
            """
            0: image -> conv1/convolution
            conv1/convolution bn1/moments
            1: conv1/convolution -> conv2/convolution
            bn1/normalise relu1 conv2/convolution bn2/moments
            2: conv2/convolution -> relu2
            bn2/normalise relu2
            """,
        ),
        (
            residual,
            """
            0: image -> conv1/convolution
            conv1/convolution bn1/moments
            1: conv1/convolution -> conv2/convolution
            bn1/normalise conv2/convolution bn2/moments
            2: conv1/convolution, conv2/convolution -> conv3/convolution
            bn2/normalise add conv3/convolution
            """,
        ),
        (
            squeeze_and_excite,
            """
            0: image -> conv1/convolution
            conv1/convolution squeeze/reduce ; squeeze excite
            1: conv1/convolution -> conv2/convolution
            scale conv2/convolution
            """,
        ),
        (
            two_outputs,
            """
            0: image -> half/convolution
            conv1/convolution top/reduce half/convolution ; top
            """,
        ),
    ],
)
def test_schedule(model: Callable[[], keras.Model], expected: str) -> None:
    graph = read(model())
    assert listing(graph, schedule(graph)) == lines(expected)


def test_schedule_of_a_prediction_is_one_sweep() -> None:
    """Frozen statistics are no barrier."""
    graph = read(chain(), training=False)
    assert listing(graph, schedule(graph)) == lines("""
        0: image -> relu2
        conv1/convolution bn1/normalise relu1 conv2/convolution bn2/normalise relu2
        """)


def test_schedule_with_a_loss() -> None:
    """The loss reads prediction and labels where they are made; neither is written for it."""
    graph = mse(residual())
    assert listing(graph, schedule(graph)) == lines(
        """
        0: image -> conv1/convolution
        conv1/convolution bn1/moments
        1: conv1/convolution -> conv2/convolution
        bn1/normalise conv2/convolution bn2/moments
        2: conv1/convolution, conv2/convolution, labels -> nothing
        bn2/normalise add conv3/convolution mean_squared_error
        """
    )


@pytest.mark.parametrize("num_relus", range(REMAT_DEPTH + 2))
def test_cheap_chains_are_made_again_up_to_a_depth(num_relus: int) -> None:
    """Between the stored conv and the gate lie a normalisation and the ReLUs: one and `num_relus` cheap nodes."""
    start = image()
    x = layers.BatchNormalization(name="bn")(conv(4, "conv")(start))
    for number in range(num_relus):
        x = layers.ReLU(name=f"relu{number}")(x)
    gate = layers.GlobalAveragePooling2D(keepdims=True)(x)
    graph = read(keras.Model(start, layers.Multiply()([x, gate])))
    last = schedule(graph)[-1]
    (source,) = last.reads
    again = 1 + num_relus <= REMAT_DEPTH
    assert graph.values[source].name == ("conv/convolution" if again else f"relu{num_relus - 1}")
    assert len(last.locals) == (1 + num_relus if again else 0) + 1


# ---------------------------------------------------------------------------------------- trace


def trace(graph: Graph, unit: int, training: bool = True) -> str:
    """Events of a step on 8 x 8, live bytes in units of a float32 image of 8 x 8 with one channel."""
    found = events(Planner(graph, PLENTY, training=training), squares(graph, 8))
    assert all(live % unit == 0 for _, live in found)
    return "\n".join(f"{what}: {live // unit}" for what, live in found)


def events(
    planner: Planner, sizes: dict[int, tuple[int, ...]], layout: Layout | None = None
) -> list[tuple[str, int]]:
    """What happens in a step on one image, and the bytes of all stores then."""
    plan = planner.plan(1, sizes, layout)
    line = plan.timeline
    live = line.live_bytes(line.spans, plan.image_bytes)
    return [(f"{m.what} {m.sweep}", int(n)) for m, n in zip(line.moments, live, strict=True)]


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        # Sizes in units: conv1 4, conv2 and relu2 16; the gradient of relu2 comes from outside.
        # Before backward 1 the gradient of the moments joins that of conv2, and conv2 is free.
        (
            chain,
            """
            forward 0: 4
            forward 1: 20
            forward 2: 36
            backward 2: 52
            backward 1: 24
            backward 0: 4
            """,
        ),
        # conv1 4, conv2 4, conv3 16: backward 2 gives gradients of both conv1 and conv2.
        (
            residual,
            """
            forward 0: 4
            forward 1: 8
            forward 2: 24
            backward 2: 32
            backward 1: 12
            backward 0: 4
            """,
        ),
        # conv1 4, conv2 16.
        (
            squeeze_and_excite,
            """
            forward 0: 4
            forward 1: 20
            backward 1: 24
            backward 0: 4
            """,
        ),
        # half: a quarter of the pixels of 16 channels.
        (
            two_outputs,
            """
            forward 0: 4
            backward 0: 4
            """,
        ),
    ],
)
def test_trace(model: Callable[[], keras.Model], expected: str) -> None:
    assert trace(read(model()), 256) == lines(expected)


def test_trace_of_a_fused_loss() -> None:
    """The last sweep runs once, forward and backward together; the prediction is never stored."""
    assert trace(mse(chain()), 256) == lines("""
        forward 0: 4
        forward 1: 20
        both 2: 36
        backward 1: 24
        backward 0: 4
        """)


def test_trace_of_a_ratio_loss() -> None:
    """Dice needs its sums first: the last sweep runs forward, then again backward."""
    assert trace(dice(chain()), 256) == lines("""
        forward 0: 4
        forward 1: 20
        forward 2: 20
        backward 2: 36
        backward 1: 24
        backward 0: 4
        """)


def test_trace_of_a_prediction_frees_what_nothing_reads() -> None:
    start = image()
    x = start
    for number, filters in ((1, 4), (2, 16)):
        x = layers.GroupNormalization(1, name=f"norm{number}")(conv(filters, f"conv{number}")(x))
    graph = read(keras.Model(start, x), training=False)
    assert trace(graph, 256, training=False) == lines("""
        forward 0: 4
        forward 1: 20
        forward 2: 32
        """)


def test_trace_counts_every_use_of_a_shared_layer() -> None:
    """Both outputs of the layer carry its name; both are stored."""
    start, shared = image(4), conv(4, "shared")
    x = layers.BatchNormalization()(shared(start))
    graph = read(keras.Model(start, layers.BatchNormalization()(shared(x))))
    assert trace(graph, 256) == lines("""
        forward 0: 4
        forward 1: 8
        forward 2: 12
        backward 2: 16
        backward 1: 12
        backward 0: 4
        """)


@pytest.mark.parametrize(
    ("build", "fused"),
    [(mse, True), (dice, False), (read, False)],
)
def test_only_a_sum_over_pixels_is_fused(
    build: Callable[[keras.Model], Graph], fused: bool
) -> None:
    assert Planner(build(chain()), PLENTY).fused is fused
    assert not Planner(build(chain()), PLENTY, training=False).fused


# -------------------------------------------------------------------------------- random graphs


@dataclass
class Case:
    """A random graph with the sizes of its images, cut at random."""

    graph: Graph
    extents: dict[int, tuple[int, int]]
    sweeps: list[Sweep]

    @property
    def rows(self) -> dict[int, int]:
        return {value: size[0] for value, size in self.extents.items()}


def row_axes(draw: st.DrawFn) -> Window | Transposed | Resize:
    kernel, stride = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    explicit = st.tuples(st.integers(-3, 9), st.integers(-3, 9))
    padding = draw(st.sampled_from(["same", "valid"]) | explicit)
    kind = draw(st.sampled_from(["window", "window", "transposed", "resize"]))
    if kind == "window":
        return Window(kernel, stride, draw(st.integers(1, 2)), padding)
    if kind == "transposed":
        return Transposed(kernel, stride, 1, padding if isinstance(padding, str) else "same")
    return Resize(draw(st.integers(1, 3)))


def add_node(draw: st.DrawFn, graph: Graph, extents: dict[int, tuple[int, int]]) -> None:
    """One more node of a random kind; nothing where it would leave no rows or too many."""
    source = draw(st.sampled_from(sorted(extents)))
    wholes = [v.id for v in graph.values if not v.image]
    kind = draw(st.sampled_from(["axis", "axis", "axis", "add", "reduce", "gate", "whole"]))
    inputs, axes = [source], None
    if kind == "reduce":
        graph.reduce(f"reduce{len(graph.nodes)}", Reduce(*[None] * 5), [source])
        return
    if kind == "whole" and wholes:
        graph.whole(f"whole{len(graph.nodes)}", None, [draw(st.sampled_from(wholes))])
        return
    if kind == "gate" and wholes:
        inputs.append(draw(st.sampled_from(wholes)))
    elif kind == "add":
        equal = [v for v, size in extents.items() if size == extents[source]]
        inputs.append(draw(st.sampled_from(equal)))
    elif kind == "axis":
        axes = [(row_axes(draw), SAME)]
        if not 1 <= axes[0][0].extent(extents[source][0]) <= 80:
            return
    output = graph.local(
        f"local{len(graph.nodes)}",
        None,
        inputs,
        1,
        "float32",
        axes,
        cheap=draw(st.booleans()),
        operations=draw(st.integers(0, 9)),
    )
    extents[output] = graph.extents({0: extents[0]})[output]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    graph = Graph()
    extents = {graph.input("image", True, 1, "float32"): (draw(st.integers(4, 30)), 2)}
    for _ in range(draw(st.integers(1, 9))):
        add_node(draw, graph, extents)
    made = [n.output for n in graph.nodes]
    assume(made)
    graph.outputs = [v for v in made if not graph.consumers(v)]
    images = [v for v in made if graph.values[v].image]
    cuts = frozenset(draw(st.sets(st.sampled_from(images), max_size=2)) if images else ())
    return Case(graph, extents, schedule(graph, cuts))


thorough = settings(max_examples=200, deadline=None)


@thorough
@given(cases())
def test_every_sweep_has_what_it_needs(case: Case) -> None:
    """A sweep reads what came from outside or an earlier sweep wrote; wholes come from earlier sweeps."""
    graph = case.graph
    images = {v for v in graph.inputs if graph.values[v].image}
    done = {n.output for n in graph.nodes if isinstance(n.op, Whole)}
    done -= {n.output for s in case.sweeps for n in s.wholes}
    for index, sweep in enumerate(case.sweeps):
        assert sweep.index == index
        assert set(sweep.reads) <= images
        inside = set(sweep.reads)
        for node in sweep.nodes:
            for value in node.inputs:
                assert value in (inside if graph.values[value].image else done)
            if isinstance(node.op, Local):
                inside.add(node.output)
            else:
                assert set(node.inputs) <= set(sweep.observed)
        assert set(sweep.writes) <= inside & set(sweep.observed)
        assert not set(sweep.writes) & images
        images |= set(sweep.writes)
        done |= {n.output for n in sweep.reductions}
        for node in sweep.wholes:
            assert set(node.inputs) <= done
            done.add(node.output)
    assert set(graph.outputs) <= images | done
    reductions = [n for s in case.sweeps for n in s.reductions]
    assert sorted(map(id, reductions)) == sorted(
        id(n) for n in graph.nodes if isinstance(n.op, Reduce)
    )


@thorough
@given(cases(), st.data())
def test_table_owns_every_row_once_and_reads_what_is_needed_and_no_more(
    case: Case, data: st.DataObject
) -> None:
    rows = case.rows
    for sweep in case.sweeps:
        num_strips = data.draw(st.integers(1, sweep_limit(sweep, case.extents)))
        strips = [
            dict(zip(sweep.columns, line, strict=True))
            for line in sweep.table(rows, num_strips).tolist()
        ]
        for value in sweep.observed:
            owned = [(s["own start", value], s["own stop", value]) for s in strips]
            assert [r for own in owned for r in range(*own)] == list(range(rows[value]))
        for strip in strips:
            check_strip(sweep, strip, rows)


def check_strip(sweep: Sweep, strip: dict[tuple[object, ...], int], rows: dict[int, int]) -> None:
    """Views are the rows that axes need, images the hull of their views."""
    seen: dict[int, list[Interval]] = {v: [] for v in sweep.images}
    for value in sweep.observed:
        seen[value].append(Interval(strip["own start", value], strip["own stop", value]))
    for node in sweep.locals:
        output = Interval(strip["start", node.output], strip["stop", node.output])
        for p in image_positions(node):
            source = node.inputs[p]
            wanted = axes_of(node, p)[0].needs(output, rows[source])
            view = Interval(*(strip[key, node.output, p] for key in ("start", "stop")))
            before, after = (strip[key, node.output, p] for key in ("before", "after"))
            real = {r for r in range(*wanted) if 0 <= r < rows[source]}
            assert set(range(*view)) == real
            assert before == len([r for r in range(*wanted) if r < 0])
            assert after == len([r for r in range(*wanted) if r >= rows[source]])
            seen[source].append(view)
    for value, views in seen.items():
        stored = Interval(strip["start", value], strip["stop", value])
        assert stored == (min(v.start for v in views), max(v.stop for v in views))
        assert 0 <= stored.start <= stored.stop <= rows[value]
        assert sweep.uses[value] == len(views)


def check_union(sweep: Sweep, rows: dict[int, int], num_strips: int) -> None:
    """Adding ones strip by strip to a store of garbage counts the readers of every row, zero included."""
    table, columns = sweep.table(rows, num_strips), sweep.columns
    for value in sweep.reads:
        store = np.full(rows[value], np.nan)
        readers = np.zeros(rows[value])
        reach = 0
        for index, line in enumerate(table.tolist()):
            start, stop, covered, until = (
                line[columns[key, value]] for key in ("start", "stop", "covered", "until")
            )
            assert covered == reach
            reach = max(reach, stop)
            assert until == (rows[value] if index == num_strips - 1 else reach)
            store[covered:until] = 0  # what no strip has touched yet
            store[start:stop] += 1
            readers[start:stop] += 1
        np.testing.assert_array_equal(store, readers)


@thorough
@given(cases(), st.data())
def test_covered_and_until_describe_exactly_the_union(case: Case, data: st.DataObject) -> None:
    for sweep in case.sweeps:
        num_strips = data.draw(st.integers(1, sweep_limit(sweep, case.extents)))
        check_union(sweep, case.rows, num_strips)


@pytest.mark.parametrize(
    "axis",
    [
        Window(1, 3),  # leaves rows out between strips and at the end
        Window(2, 3),
        Window(3, 2, padding="same"),
        Window(padding=(-2, -3)),  # leaves rows out at both ends
        Window(padding=(5, 6)),  # strips of padding alone
        Transposed(2, 2),
        Resize(3),
    ],
)
def test_covered_and_until_with_rows_that_nothing_reads(axis: Window | Transposed | Resize) -> None:
    for height in range(6, 20):
        graph = Graph()
        graph.input("image", True, 1, "float32")
        graph.outputs = [graph.local("local", None, [0], 1, "float32", [(axis, SAME)])]
        (sweep,) = schedule(graph)
        rows = {0: height, 1: axis.extent(height)}
        for num_strips in range(1, rows[1] + 1):
            check_union(sweep, rows, num_strips)


@thorough
@given(cases())
def test_chosen_strips_have_the_lines_of_the_whole_table(case: Case) -> None:
    for sweep in case.sweeps:
        most = sweep_limit(sweep, case.extents)
        whole = sweep.table(case.rows, most)
        assert whole.dtype == np.int32
        assert whole.shape == (most, len(sweep.columns))
        fixed = [c for key, c in sweep.columns.items() if key[0] not in ("covered", "until")]
        chosen = [0, most // 2, most - 1]
        some = sweep.table(case.rows, most, chosen)
        np.testing.assert_array_equal(some[:, fixed], whole[chosen][:, fixed])


@thorough
@given(cases(), st.booleans())
def test_trace_lets_a_store_live_until_its_last_reader_ends(case: Case, training: bool) -> None:
    """Forward sweep p is at time p, backward sweep p at 2 * n - 1 - p. An image is stored from its forward to its
    backward (until before it, where its moments alone were missing), its gradient from the backward of its last
    reader to its own."""
    graph = case.graph
    planner = Planner(graph, PLENTY, training=training)
    sweeps, count = planner.sweeps, len(planner.sweeps)
    extents = graph.extents({0: case.extents[0]})
    live = np.zeros(2 * count, np.int64)
    for sweep in sweeps:
        folded = [n.inputs[0] for n in foldable(sweep)]
        for value in sweep.writes:
            readers = [s.index for s in sweeps if value in s.reads]
            size = bytes_of(graph, value, 1, extents)
            if training:
                live[sweep.index : 2 * count - sweep.index - (value in folded)] += size
                if readers:
                    live[2 * count - 1 - max(readers) : 2 * count - sweep.index] += size
            else:
                last = count - 1 if value in graph.outputs else max(readers)
                live[sweep.index : last + 1] += size
    found = events(planner, {0: case.extents[0]})
    assert [n for _, n in found] == live[: len(found)].tolist()
    forward = [f"forward {p}" for p in range(count)]
    backward = [f"backward {p}" for p in reversed(range(count))]
    assert [what for what, _ in found] == (forward + backward if training else forward)


# ----------------------------------------------------------------------------------------- plan


def test_printed_plan() -> None:
    """Sweeps of a model, with sizes that show how numbers are printed."""
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
        timeline=timeline(graph, layout, True, True),
        image_bytes=dict.fromkeys(graph.inputs, 2**23) | {first: 32 * 2**20, second: 2**27},
        places={},
        device_bytes=2**22,
        host_bytes=320 * 2**20,
        disk_bytes=32 * 2**20,
        limit_bytes=2**23,
        fixed_bytes=RUNTIME_BYTES,
        model_bytes=1000,
        repeated_operations=0,
        training=True,
        rates=Rates(1e10, 1e12, 1e9, 2e8, 1e8),
    )
    printed: list[str] = []
    plan.summary(printed.append)
    assert "\n".join(printed) == (DATA / "plan.txt").read_text().rstrip()
    assert plan.strips == 128
    assert plan.recompute_factor == 12_500_000_000 / 11_150_000_000
    assert plan.mapped_bytes == -(-4 * 32 * 2**20 // 21)  # two strips, one before, one after
    assert plan.peak_bytes == 2**22 + 320 * 2**20 + RUNTIME_BYTES + plan.mapped_bytes


def test_operations_of_a_plan() -> None:
    """A pixel takes conv1 72 and moments 4; normalise 8, conv2 1152 and moments 4; normalise 32. Sweep 1 normalises
    2 rows again at each seam, and its backward once more; that of sweep 2 runs with its forward."""
    graph = mse(chain())
    plan = Planner(graph, PLENTY, strip_rows=8).plan(2, squares(graph, 64))
    pixels = 2 * 64**2
    again = 7 * 2 * (2 * 64) * 8
    assert [c.operations for c in plan.costs] == [76 * pixels, 1164 * pixels + again, 32 * pixels]
    assert [c.exact_operations for c in plan.costs] == [76 * pixels, 1164 * pixels, 32 * pixels]
    normalised = 8 * pixels + again
    assert [c.again_operations for c in plan.costs][:2] == [0, normalised]
    assert plan.operations == 3 * ((76 + 1164 + 32) * pixels + again) + normalised
    assert plan.recompute_factor == 1 + again / ((76 + 1164 + 32) * pixels)


def test_plan_is_made_once_for_a_size() -> None:
    graph = read(chain())
    planner = Planner(graph, PLENTY)
    plan = planner.plan(1, squares(graph, 16))
    assert planner.plan(1, squares(graph, 16)) is plan
    for batch in range(2, 300):  # more sizes than are remembered
        planner.plan(batch, squares(graph, 16))
    assert planner.plan(1, squares(graph, 16)) == plan


@pytest.mark.parametrize("strip_rows", [1, 3, 8, 64, 100])
def test_strip_rows_fix_the_number_of_strips(strip_rows: int) -> None:
    graph = read(chain())
    plan = Planner(graph, 1, strip_rows=strip_rows).plan(1, squares(graph, 64))
    assert [c.strips for c in plan.costs] == [-(-64 // strip_rows)] * 3
    assert plan.strips == -(-64 // strip_rows)


def test_strip_rows_never_make_strips_without_a_row() -> None:
    """8 strips of the input, but the output of stride 16 has 4 rows."""
    start = image()
    graph = read(keras.Model(start, conv(1, "conv", 16, strides=16)(start)))
    assert Planner(graph, 1, strip_rows=8).plan(1, squares(graph, 64)).strips == 4


@given(st.integers(1, 4000), st.integers(1, 3), st.integers(1, 40), st.integers(1, 9))
@settings(deadline=None)
def test_max_elements_bounds_the_input_of_a_strip(
    most: int, batch: int, height: int, width: int
) -> None:
    graph = Graph()
    graph.input("image", True, 2, "float32")
    graph.outputs = [
        graph.local("conv", None, [0], 1, "float32", [(Window(3, padding="same"), SAME)])
    ]
    plan = Planner(graph, 1, max_elements=most).plan(batch, {0: (height, width)})
    row = batch * width * 2

    def elements(strips: int) -> int:
        return max(partition(height, strips, i).size for i in range(strips)) * row

    assert elements(plan.strips) <= most or plan.strips == height
    assert plan.strips == 1 or elements(plan.strips - 1) > most


def test_recompute_factor_counts_rows_made_twice() -> None:
    """Two 3 x 3 convolutions in one sweep, 8 strips of 8 rows: the first makes 7 seams of 2 rows again."""
    start = image()
    x = conv(1, "first")(start)
    graph = read(keras.Model(start, conv(1, "second")(x)))
    plan = Planner(graph, PLENTY, strip_rows=8).plan(1, squares(graph, 64))
    assert len(plan.sweeps) == 1
    assert plan.recompute_factor == (64 + 14 + 64) / 128
    flops = 2 * 9 * 64  # multiply-adds of 3 x 3 taps per row of 64 pixels
    assert plan.operations == 3 * flops * (64 + 14 + 64) + flops * (64 + 14)  # the first made again
    predicted = Planner(graph, PLENTY, strip_rows=64, training=False).plan(1, squares(graph, 64))
    assert predicted.operations == flops * 128
    assert predicted.recompute_factor == 1.0


@pytest.mark.parametrize("training", [True, False])
def test_bytes_of_a_plan(training: bool) -> None:
    """A row takes 2 * 64 * 4 bytes a channel; strips read 10 rows of one channel, twice as the next are read ahead, and
    make 8 of three.

    In training the gradient of what is made comes on top, and always temporaries: the largest image
    a whole number of times. All that for two strips.
    """
    start = image()
    graph = read(keras.Model(start, conv(3, "conv")(start)))
    sizes, row = squares(graph, 64), 2 * 64 * 4
    plan = Planner(graph, PLENTY, strip_rows=8, training=training).plan(2, sizes)
    images = row * (2 * 10 + 24 * (2 if training else 1))
    temporaries, rest = divmod(plan.device_bytes // 2 - images, row * 24)
    assert temporaries >= 1
    assert rest == 0
    assert plan.device_bytes == plan.costs[0].device_bytes
    assert plan.costs[0].rows == 10
    assert plan.host_bytes == row * 64 * 3
    assert plan.shape == (2, 64, 64, 1)


@pytest.mark.parametrize("model", [chain, residual, squeeze_and_excite, two_outputs])
def test_device_bytes_fall_with_the_number_of_strips(model: Callable[[], keras.Model]) -> None:
    """An inner strip of r rows reads r + 2 h, an outer one r + h; halving r outweighs that while h <= r / 2.

    From one strip to two nothing is gained: both are worked on at once.
    """
    graph = read(model())
    found = [
        Planner(graph, PLENTY, strip_rows=rows).plan(1, squares(graph, 256)).device_bytes
        for rows in (128, 64, 32, 16, 8)
    ]
    assert all(a > b for a, b in pairwise(found))


@given(st.integers(4, 60), st.integers(1, 5), st.integers(1, 12))
@settings(deadline=None)
def test_device_bytes_are_those_of_the_largest_strip(height: int, kernel: int, rows: int) -> None:
    graph = Graph()
    graph.input("image", True, 1, "float32")
    axis = Window(kernel, padding="same")
    graph.outputs = [graph.local("conv", None, [0], 1, "float32", [(axis, SAME)])]
    planner = Planner(graph, PLENTY, strip_rows=rows, training=False)
    plan = planner.plan(1, {0: (height, 1)})
    (sweep,) = planner.sweeps
    table = sweep.table({0: height, 1: height}, plan.strips)
    tiles = [
        int((table[:, sweep.columns["stop", v]] - table[:, sweep.columns["start", v]]).max())
        for v in (0, 1)
    ]
    assert plan.device_bytes >= (sum(tiles) + max(tiles)) * 4 * min(plan.strips, 2)


# --------------------------------------------------------------------------------------- budget


def smallest_device(planner: Planner, width: int) -> str:
    with pytest.raises(BudgetError) as refused:
        planner.plan(1, dict.fromkeys(planner.graph.inputs, (64, width)))
    found = re.search(r"Raise `device` to ([\d.]+ [KMG]?i?B),", str(refused.value))
    assert found
    return found[1]


def test_refuses_a_device_that_is_too_small() -> None:
    graph = read(chain())
    with pytest.raises(
        BudgetError,
        match=r"^sweep 1 of 'chain' \(bn1 \.\. bn2 \(4\)\): the smallest strip needs ([\d.]+ KiB) on the device, "
        r"20\.0 KiB are allowed\. Raise `device` to \1, or use narrower images \(now 64 columns\) or a smaller batch "
        r"\(now 1\)\.$",
    ):
        Planner(graph, parse_bytes("20 KiB"), name="chain").plan(1, squares(graph, 64))


def test_a_wish_gives_way_to_the_smallest_strip() -> None:
    """Sweeps that do not fit have strips of one row, the others what fits; no limit is printed."""
    graph = read(chain())
    least = Planner(graph, 1, firm=False).plan(1, squares(graph, 64))
    assert [cost.strips for cost in least.costs[:2]] == [64, 64]
    assert least.costs[0].device_bytes < least.costs[1].device_bytes == least.device_bytes
    plan = Planner(graph, least.device_bytes - 1, firm=False).plan(1, squares(graph, 64))
    assert plan.costs[1] == least.costs[1]
    assert plan.costs[0].strips < 64
    assert plan.costs[0].device_bytes < least.device_bytes
    assert plan.limit_bytes is None
    assert re.search(r"device [\d.]+ KiB, host", str(plan))


@pytest.mark.parametrize("model", [chain, residual, squeeze_and_excite, two_outputs])
@pytest.mark.parametrize("width", [3, 37, 101, 333, 9001])
def test_the_smallest_device_in_the_message_is_enough(
    model: Callable[[], keras.Model], width: int
) -> None:
    """Sweeps are refused one after another: each message names what its own sweep needs."""
    graph = read(model())
    device = 1
    for _ in range(3):
        needed = parse_bytes(smallest_device(Planner(graph, device), width))
        assert needed > device
        device = needed
        try:
            plan = Planner(graph, device).plan(1, {0: (64, width)})
        except BudgetError:
            continue
        assert plan.device_bytes <= device
        return
    pytest.fail("three sweeps at most, yet three raises were not enough")


def test_refuses_a_host_that_is_too_small_and_names_what_is_enough() -> None:
    graph = read(chain())
    sizes = {0: (67, 53)}
    peak = Planner(graph, PLENTY).plan(2, sizes).host_bytes
    assert peak == aligned(2 * 67 * 53 * 4 * 52)  # units as in the trace above
    assert Planner(graph, PLENTY, peak).plan(2, sizes).host_bytes == peak
    with pytest.raises(BudgetError) as refused:
        Planner(graph, PLENTY, 1, name="chain").plan(2, sizes)
    found = re.fullmatch(
        r"'chain' on 2 x 67 x 53: a step needs (.*) of host memory at least \(images .*\), 1 B are allowed\. "
        r"Raise `host` to (.*), or use smaller images, a smaller batch or store='bfloat16'\.",
        str(refused.value),
    )
    assert found
    assert found[1] == found[2]
    least = parse_bytes(found[1])
    assert Planner(graph, PLENTY, least).plan(2, sizes).host_bytes <= least


def deep(blocks: int = 6) -> keras.Model:
    """Convolutions of one width with BatchNorm: every one of them is stored."""
    start = x = image()
    for number in range(blocks):
        x = layers.ReLU()(layers.BatchNormalization()(conv(4, f"conv{number}")(x)))
    return keras.Model(start, layers.GlobalAveragePooling2D()(x))


def test_a_replay_makes_the_inner_images_of_its_segment() -> None:
    graph = read(deep())
    sweeps = schedule(graph)
    made = [s.writes for s in sweeps]
    again = replay_segments.replay(graph, sweeps, (1, 3))
    assert again is not None
    assert again.writes == (*made[1], *made[2])  # the third is read by sweep 4
    assert again.reads == made[0]
    assert again.reductions == []
    assert again.index == 3
    assert replay_segments.replay(graph, sweeps, (2, 2)) is None


def test_trace_of_a_replay() -> None:
    """Six convolutions of 4 units; sweeps 1 to 3 keep one of three images."""
    graph = read(deep())
    planner = Planner(graph, PLENTY)
    again = replay_segments.replay(graph, planner.sweeps, (1, 3))
    assert again is not None
    found = events(planner, squares(graph, 8), Layout(tuple(planner.sweeps), (again,)))
    assert "\n".join(f"{what}: {live // 256}" for what, live in found) == lines("""
        forward 0: 4
        forward 1: 8
        forward 2: 12
        forward 3: 12
        forward 4: 12
        forward 5: 16
        forward 6: 16
        backward 6: 20
        backward 5: 20
        backward 4: 16
        replay 3: 20
        backward 3: 20
        backward 2: 16
        backward 1: 12
        backward 0: 4
        """)


def test_less_host_memory_means_more_operations() -> None:
    """Down to the square root of the depth, and never above what is allowed."""
    graph = read(deep(36))
    sizes = squares(graph, 64)
    free = Planner(graph, PLENTY).plan(1, sizes)
    assert not free.layout.replays
    factors = [free.recompute_factor]
    for share in (0.8, 0.6, 0.5, 0.4, 0.35):
        host = int(free.host_bytes * share)
        plan = Planner(graph, PLENTY, host).plan(1, sizes)
        assert plan.host_bytes <= host
        assert plan.operations > free.operations
        factors.append(plan.recompute_factor)
    assert factors == sorted(factors)
    assert factors[-1] < 1.45  # a forward more, a third of the step, and the halos


def test_what_sweeps_make_again_is_never_made_from_another() -> None:
    """Every second convolution at most, the largest first: else work would grow with the square of the depth."""
    graph = read(deep(12))
    stored = {v: 4 * prod(e) for v, e in graph.extents(squares(graph, 64)).items()}
    written = {v for sweep in schedule(graph) for v in sweep.writes}
    ways = list(layout_search._remats(graph, frozenset(), stored, lambda node: node.op.operations))
    assert [len(way) for way in ways] == [1, 2, 4]
    for way in ways:
        assert way <= written
        sweeps = schedule(graph, remat=way)
        assert not way & {v for sweep in sweeps for v in sweep.writes}
        runs = Counter(n.output for sweep in sweeps for n in sweep.locals if not n.op.cheap)
        assert all(runs[v] == 2 for v in way)
        assert all(n == 1 for v, n in runs.items() if v not in way)


@pytest.mark.parametrize(
    ("copies", "again"), [(1e9, True), (1e16, False)], ids=["slow copies", "fast copies"]
)
def test_an_accelerator_makes_again_what_takes_longer_to_copy(copies: float, again: bool) -> None:
    """Found from the rates of the machine, although all fits; the memory that is shared has no copies to save."""
    graph = read(deep(6))
    sizes = squares(graph, 512)
    small = Planner(graph, PLENTY).plan(1, sizes).device_bytes // 8
    rates = Rates(operations=1e14, passes=1e13, copies=copies)

    def stored(**options: Any) -> int:
        plan = Planner(graph, small, rates=rates, **options).plan(1, sizes)
        return sum(len(sweep.writes) for sweep in plan.sweeps)

    assert (stored(keeps=True) < stored()) == again
    assert stored(keeps=True, training=False) == stored(training=False)


@pytest.mark.parametrize("keeps", [False, True])
def test_a_signal_is_planned_and_refused_as_an_image_is(keeps: bool) -> None:
    """A tenth of the budget would be too little for the smallest strip; an error names no columns."""
    start = keras.Input((None, 2))
    x = layers.Conv1D(16, 5, padding="same")(start)
    graph = read(keras.Model(start, layers.BatchNormalization()(x)))
    sizes = {graph.inputs[0]: (4096,)}
    assert Planner(graph, 12_000, keeps=keeps).plan(1, sizes).device_bytes <= 12_000
    with pytest.raises(
        BudgetError, match=r"Raise `device` to .*, or use a smaller batch \(now 1\)"
    ):
        Planner(graph, 1_000, keeps=keeps).plan(1, sizes)


@pytest.mark.parametrize("share", [0.6, 0.9, 1.2, 2.0])
def test_more_of_an_accelerator_makes_no_plan_slower(share: float) -> None:
    """Nor more of the host, and none is slower than the one that copies all."""
    graph = read(deep(4))
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


def test_lower_strips_leave_room_for_images_on_an_accelerator() -> None:
    """With strips as high as they can be nothing fits beside them; what stays need not be copied."""
    graph = read(deep(6))
    sizes = squares(graph, 1024)
    rates = Rates(operations=1e14, passes=1e13, copies=1e9)
    free = Planner(graph, PLENTY).plan(1, sizes)
    budget = 3 * sum(free.image_bytes[v] for sweep in free.sweeps for v in sweep.writes) // 2
    plan = Planner(graph, budget, rates=rates, keeps=True).plan(1, sizes)
    beside = Planner(graph, budget, rates=rates).plan(1, sizes)
    assert plan.device_bytes <= budget
    assert max(c.device_bytes for c in plan.costs) < max(c.device_bytes for c in beside.costs) / 2
    assert plan.strips > beside.strips
    assert plan.moved_bytes < beside.moved_bytes / 4
    assert plan.seconds < beside.seconds / 4
    again = Planner(graph, budget, rates=rates, keeps=True).plan(1, sizes, plan.layout)
    assert [c.strips for c in again.costs] == [c.strips for c in plan.costs]
    assert again.device_bytes == plan.device_bytes


@pytest.mark.parametrize("pages", [0, 2])
def test_no_tensor_has_more_numbers_than_kernels_take(pages: int) -> None:
    """Whatever the memory: 16000 x 64000 of 3 channels are more than 2**31 - 1 numbers. A strip of an image that stays
    on an accelerator comes with the pages around it."""
    graph = read(chain())
    (image,) = graph.inputs
    plan = Planner(graph, 2**60, keeps=pages > 0).plan(1, {image: (16000, 64000)})
    assert bool(plan.layout.kept) == bool(pages)
    widest = max(graph.values[v].channels for sweep in plan.sweeps for v in sweep.images)
    assert 16000 * 64000 * widest > KERNEL_ELEMENTS
    for sweep, cost in zip(plan.sweeps, plan.costs, strict=True):
        table = sweep.table(dict.fromkeys(sweep.images, 16000), cost.strips)
        for value in sweep.images:
            rows = int(heights_of(sweep, table, value).max())
            elements = rows * 64000 * graph.values[value].channels
            assert elements + pages * PAGE_ELEMENTS <= KERNEL_ELEMENTS


def test_a_row_of_too_many_numbers_is_refused() -> None:
    graph = read(chain())
    (image,) = graph.inputs
    with pytest.raises(BudgetError, match=r"has \d+ numbers, TensorFlow's kernels take 2147483647"):
        Planner(graph, 2**60).plan(1, {image: (4, 2**30)})


@pytest.mark.parametrize(
    ("num_convs", "options", "strips"),
    [
        (1, {}, AT_ONCE),
        (1, {"training": False}, 1),  # no gradients that run at once
        (1, {"keeps": True}, 1),  # an accelerator is busy with one kernel
        (12, {}, 1),  # too many rows twice
    ],
)
def test_a_strip_is_parted_among_those_worked_on_at_once(
    num_convs: int, options: dict[str, bool], strips: int
) -> None:
    x = start = image(4)
    for depth in range(num_convs):
        x = conv(4, f"conv{depth}")(x)
    graph = read(keras.Model(start, x))
    plan = Planner(graph, PLENTY, **options).plan(1, squares(graph, 64))
    assert [c.strips for c in plan.costs] == [strips]


@pytest.mark.parametrize("devices", [2, 3, 8])
def test_strips_are_shared_by_devices(devices: int) -> None:
    """Each has one at least, and the budget to itself; what computes takes a share of the time."""
    graph = mse(chain())
    one = Planner(graph, PLENTY).plan(1, squares(graph, 64))
    several = Planner(graph, PLENTY, devices=devices).plan(1, squares(graph, 64))
    assert [c.strips for c in one.costs] == [AT_ONCE] * len(one.costs)
    counts = [c.strips for c in several.costs]
    assert all(devices <= n <= AT_ONCE * devices for n in counts)
    assert several.device_bytes < one.device_bytes
    assert several.seconds < one.seconds
    small = 2 * one.device_bytes // 3
    assert Planner(graph, small, devices=devices).plan(1, squares(graph, 64)).device_bytes <= small


@given(st.integers(1, 12), st.data())
@settings(deadline=None, max_examples=60)
def test_segments_cover_every_sweep_once(count: int, data: st.DataObject) -> None:
    graph = read(deep(count))
    sweeps = schedule(graph)
    sizes = {v.id: data.draw(st.integers(0, 9)) for v in graph.values}
    ways = replay_segments.partitions(graph, sweeps, sizes)
    until = replay_segments.last_readers(graph, sweeps)
    for way in ways:
        assert [p for first, last in way for p in range(first, last + 1)] == list(
            range(len(sweeps))
        )
    for first in range(len(sweeps)):
        for last in range(first, len(sweeps)):
            again = replay_segments.replay(graph, sweeps, (first, last))
            inner = {v for s in sweeps[first : last + 1] for v in s.writes if until[v] <= last}
            assert inner == set(again.writes if again else ())


@cache
def chain_graph() -> Graph:
    return read(chain())


@given(st.integers(20_000, 400_000))
@settings(deadline=None, max_examples=40)
def test_a_plan_stays_inside_its_device_with_as_few_strips_as_fit(device: int) -> None:
    graph = chain_graph()
    sizes = squares(graph, 64)
    try:
        plan = Planner(graph, device).plan(1, sizes)
    except BudgetError:
        assume(False)
    assert plan.device_bytes <= device
    assert plan.limit_bytes == device
    for sweep, cost in enumerate(plan.costs):
        if cost.strips > 1:
            fewer = Planner(graph, PLENTY, strip_rows=-(-64 // (cost.strips - 1))).plan(1, sizes)
            assert fewer.costs[sweep].strips < cost.strips
            assert fewer.costs[sweep].device_bytes > device


@thorough
@given(cases(), st.integers(1, 4000), st.booleans())
def test_any_plan_stays_inside_its_device_or_names_one_that_is_enough(
    case: Case, device: int, training: bool
) -> None:
    """Sweeps are refused one after another, so a graph takes as many raises as sweeps at most."""
    sizes = {0: case.extents[0]}
    for _ in range(len(Planner(case.graph, PLENTY, training=training).sweeps) + 1):
        try:
            plan = Planner(case.graph, device, training=training).plan(1, sizes)
        except BudgetError as refused:
            found = re.search(r"Raise `device` to ([\d.]+ [KMG]?i?B),", str(refused))
            assert found
            assert parse_bytes(found[1]) > device
            device = parse_bytes(found[1])
        else:
            assert plan.device_bytes <= device
            return
    pytest.fail("every sweep has named its device, and they are not enough")


@given(st.integers(1, 2**45))
def test_a_size_is_printed_rounded_up_by_less_than_a_tenth(count: int) -> None:
    text = format_bytes(count)
    unit = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}[text.split()[1]]
    assert count <= parse_bytes(text) < count + unit / 10
    assert unit == 2**30 or count <= 1024 * unit


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (1537, "1.6 KiB"),
        (5 * 2**20, "5.0 MiB"),
        (2**41, "2048.0 GiB"),
    ],
)
def test_format_bytes(count: int, text: str) -> None:
    assert format_bytes(count) == text


def test_layers_of_a_sweep_are_cut_to_the_column() -> None:
    def sweep(*names: str) -> Sweep:
        nodes = tuple(Node(n, Whole(None), (), 0, (), n) for n in names)
        return Sweep(0, nodes, (), (), (), ())

    assert layers_of(sweep()) == "-"
    assert layers_of(sweep("a", "a")) == "a"
    assert layers_of(sweep("a", "b", "a", "c")) == "a .. c (3)"
    assert layers_of(sweep("x" * 31)) == "x" * 27 + "..."
    assert layers_of(sweep("x" * 20, "y" * 20)) == "x" * 20 + " .. (2)"


@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        ("bool", 1),
        ("uint8", 1),
        ("uint16", 2),
        ("bfloat16", 2),
        ("float32", 4),
        ("int64", 8),
        (None, 4),
    ],
)
def test_itemsize(dtype: str | None, size: int) -> None:
    assert itemsize(dtype) == size


# -------------------------------------------------------------------------------------- extents


def test_refuses_images_that_meet_at_different_sizes() -> None:
    start = image()
    x = layers.Add(name="add")([conv(1, "half", strides=2)(start), start])
    graph = read(keras.Model(start, x))
    with pytest.raises(
        ValueError,
        match=re.escape(
            "'add': its inputs have different sizes [(4, 4), (8, 8)]; they must be equal."
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


# ----------------------------------------------------------------------------------------- cuts


def test_cuts_end_the_halo_of_a_deep_chain() -> None:
    """16 strips; the n-th convolution before a stored image makes 4 * n rows twice at each seam."""
    x = start = image()
    for number in range(6):
        x = conv(64, f"conv{number}", 5)(x)
    graph = read(keras.Model(start, x))
    found = cut_search.choose(graph, device_bytes=PLENTY)
    planner = Planner(graph, PLENTY, strip_rows=256)
    assert {v for s in planner.sweeps for v in s.writes} == found | set(graph.outputs)
    assert planner.plan(1, squares(graph, 4096)).recompute_factor == again(graph, found)
    planner.sweeps = schedule(graph)
    assert planner.plan(2, squares(graph, 4096)).recompute_factor == again(graph, frozenset())
    assert again(graph, found) < again(graph, frozenset())


def again(graph: Graph, cuts: frozenset[int]) -> float:
    """Recompute factor of a chain of 5 x 5 convolutions, 4096 rows in 16 strips."""
    done = exact = distance = 0
    for node in reversed(graph.nodes):
        distance = 0 if node.output in cuts or node.output in graph.outputs else distance + 1
        done += node.op.operations * (4096 + 15 * 4 * distance)
        exact += node.op.operations * 4096
    return done / exact


@pytest.mark.parametrize(
    ("filters", "training", "cut"), [(64, True, True), (64, False, False), (1, True, False)]
)
def test_what_is_dear_to_make_again_for_the_backward_is_stored(
    filters: int, training: bool, cut: bool
) -> None:
    """A backward makes all of a sweep again but its end: 74 kFLOP a pixel against 1 kB moved, or 18 against 16.

    Strips are high enough that their halo alone is not worth it.
    """
    start = image(filters)
    graph = read(keras.Model(start, conv(filters, "second")(conv(filters, "first")(start))))
    found = cut_search.choose(graph, device_bytes=2**29, training=training)
    assert {graph.values[v].name for v in found} == ({"first/convolution"} if cut else set())


def test_small_strips_are_cut_more() -> None:
    """Their halo is a larger part of them."""
    x = start = image()
    for number in range(4):
        x = conv(16, f"conv{number}", 5)(x)
    graph = read(keras.Model(start, x))
    few, many = (
        cut_search.choose(graph, device_bytes=device, training=False) for device in (2**30, 2**25)
    )
    assert not few
    assert many


@pytest.mark.parametrize("weighted", [False, True])
def test_labels_are_as_large_as_what_is_predicted(weighted: bool) -> None:
    """A quarter of the image, or a little less than it: every cut of the model without its loss is there."""
    for first in (
        layers.Conv2D(64, 5, strides=4, padding="same", name="conv0"),
        layers.Conv2D(64, 5, name="conv0"),
    ):
        start = image()
        x = first(start)
        for number in range(1, 6):
            x = conv(64, f"conv{number}", 5)(x)
        model = keras.Model(start, x)
        graph = read(model)
        (prediction,) = graph.outputs
        target = graph.input("target", True, 64, "float32")
        weights = graph.input("weights", True, 1, "float32") if weighted else None
        loss = losses.add(
            graph, prediction, target, keras.losses.MeanSquaredError(), sample_weight=weights
        )
        graph.outputs = [losses.total(graph, [loss])]
        names = {graph.values[v].name for v in cut_search.choose(graph)}
        alone = read(model)
        assert names >= {alone.values[v].name for v in cut_search.choose(alone)} > set()


def test_a_u_net_without_padding_has_cuts() -> None:
    """The paper's own, of 572 or 16 more rows and so on: in one sweep its smallest strip would take 8 GiB."""
    x = start = keras.Input((None, None, 1))
    skips = []
    for level in range(4):
        x = unpadded(x, 64 * 2**level)
        skips.append(x)
        x = layers.MaxPooling2D()(x)
    x = unpadded(x, 1024)
    for level, border in zip(reversed(range(4)), (4, 16, 40, 88), strict=True):
        x = layers.Conv2DTranspose(64 * 2**level, 2, strides=2)(x)
        x = layers.Concatenate()([layers.Cropping2D(border)(skips[level]), x])
        x = unpadded(x, 64 * 2**level)
    graph = read(keras.Model(start, layers.Conv2D(2, 1)(x)))
    plan = Planner(graph, 2**27).plan(1, squares(graph, 4092))
    assert plan.device_bytes <= 2**27
    assert plan.recompute_factor < 1.05


def unpadded(x: keras.KerasTensor, filters: int) -> keras.KerasTensor:
    for _ in range(2):
        x = layers.Conv2D(filters, 3, activation="relu")(x)
    return x


def test_fewer_cuts_fit_a_smaller_budget() -> None:
    """The first image of four times the pixels: without the cut behind it, it is never there as a whole."""
    start = image(3)
    x = conv(64, "first", 7)(start)
    for number in range(3):
        x = conv(64, f"conv{number}", strides=2 if number == 0 else 1)(x)
    graph = mse(keras.Model(start, x))
    sizes = {i: (n, n) for i, n in zip(graph.inputs, (512, 256), strict=True)}
    free = Planner(graph, 2**24).plan(1, sizes)
    tight = Planner(graph, 2**24, host_bytes=free.host_bytes // 2).plan(1, sizes)
    assert tight.host_bytes <= free.host_bytes // 2
    assert "first/convolution" in written(graph, free)
    assert "first/convolution" not in written(graph, tight)


def written(graph: Graph, plan: Plan) -> set[str]:
    """Names of the images that the sweeps of a plan store."""
    return {graph.values[v].name for sweep in plan.sweeps for v in sweep.writes}


@pytest.mark.parametrize(("padding", "known"), [("same", True), ("valid", False)])
def test_images_of_two_magnifications(padding: str, known: bool) -> None:
    """Strides tell how large the second input is; where windows without padding come before, nothing is cut."""

    def branch(name: str) -> tuple[keras.KerasTensor, keras.KerasTensor]:
        start = keras.Input((None, None, 64))
        x = layers.Conv2D(64, 5, padding=padding, name=f"{name}1")(start)
        return start, conv(64, f"{name}2", 5)(x)

    (low, small), (high, large) = branch("low"), branch("high")
    crop = layers.Identity() if known else layers.Cropping2D(2)
    x = layers.Add()([crop(layers.UpSampling2D(2)(small)), crop(crop(large))])
    graph = read(keras.Model([low, high], conv(64, "last", 5)(x)))
    assert bool(cut_search.choose(graph)) == known
    sizes = dict(zip(graph.inputs, [(16, 16), (32, 32)], strict=True))
    assert Planner(graph, PLENTY).plan(1, sizes).shape == (1, 16, 16, 64)


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


def test_gigapixel_unet_makes_few_rows_twice(gigapixel: Graph) -> None:
    planner = Planner(gigapixel, DEFAULT_STRIPS)
    plan = planner.plan(1, dict.fromkeys(gigapixel.inputs, (16000, 64000)))
    assert 1 <= plan.recompute_factor < 1.05
    assert plan.device_bytes <= DEFAULT_STRIPS
    assert planner.fused


def test_what_comes_before_the_first_weight_takes_no_gradient(gigapixel: Graph) -> None:
    images = {v for sweep in schedule(gigapixel) for v in sweep.images}
    without = {gigapixel.values[v].name for v in images - learning(gigapixel)}
    assert without == {"image", "image/fold", "image/cast", "rescaling", "labels", "labels/fold"}
