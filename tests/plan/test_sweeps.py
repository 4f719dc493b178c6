"""Sweeps: expected schedules of small models, and the geometry of strips of random graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import keras
import numpy as np
import pytest
from graphs import (
    Case,
    cases,
    chain,
    chain_graph,
    conv,
    dedent,
    for_examples,
    image,
    mse,
    read,
    residual,
    squeeze_and_excite,
    two_outputs,
)
from hypothesis import strategies as st
from keras import layers

from tfbig.geometry.windows import SAME, Interval, Resize, Transposed, Window, may_be_empty
from tfbig.network.graph import Graph, Local, Reduce, Whole, axes_of
from tfbig.plan.cost import sweep_limit
from tfbig.plan.sweeps import REMAT_DEPTH, Layout, NodeIndex, Store, Sweep, schedule


def listing(graph: Graph, sweeps: list[Sweep]) -> str:
    """Two lines per sweep: `images read -> images written`, then its nodes and, after a semicolon, whole nodes."""

    def names(values: tuple[int, ...]) -> str:
        return ", ".join(graph.values[v].name for v in values) or "nothing"

    listed = []
    for sweep in sweeps:
        listed.append(f"{sweep.index}: {names(sweep.reads)} -> {names(sweep.writes)}")
        after = [";", *(n.name for n in sweep.wholes)] if sweep.wholes else []
        listed.append(" ".join([*(n.name for n in sweep.nodes), *after]))
    return "\n".join(listed)


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
    assert listing(graph, schedule(graph)) == dedent(expected)


def test_schedule_of_prediction() -> None:
    """Frozen statistics are not a barrier: one sweep is enough."""
    graph = read(chain(), training=False)
    assert listing(graph, schedule(graph)) == dedent("""
        0: image -> relu2
        conv1/convolution bn1/normalise relu1 conv2/convolution bn2/normalise relu2
        """)


def test_schedule_with_loss() -> None:
    """The loss reads prediction and labels in the sweep that computes them; neither is stored."""
    graph = mse(residual())
    assert listing(graph, schedule(graph)) == dedent(
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
def test_remat_depth(num_relus: int) -> None:
    """Between the stored convolution and the gate are 1 + `num_relus` cheap nodes: a normalisation and ReLUs."""
    start = image()
    x = layers.BatchNormalization(name="bn")(conv(4, "conv")(start))
    for number in range(num_relus):
        x = layers.ReLU(name=f"relu{number}")(x)
    gate = layers.GlobalAveragePooling2D(keepdims=True)(x)
    graph = read(keras.Model(start, layers.Multiply()([x, gate])))
    last = schedule(graph)[-1]
    (source,) = last.reads
    rematerialised = 1 + num_relus <= REMAT_DEPTH
    assert graph.values[source].name == (
        "conv/convolution" if rematerialised else f"relu{num_relus - 1}"
    )
    assert len(last.locals) == (1 + num_relus if rematerialised else 0) + 1


@for_examples(cases())
def test_sweeps_read_existing_values(case: Case) -> None:
    """A sweep reads inputs of the graph, images that earlier sweeps wrote, and whole values of earlier sweeps."""
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


@for_examples(cases(), st.data())
def test_table(case: Case, data: st.DataObject) -> None:
    """Strips own every row once, and read the rows that their windows need and no others."""
    rows = case.rows
    for sweep in case.sweeps:
        num_strips = data.draw(st.integers(1, sweep_limit(sweep, case.extents)))
        strips = [
            dict(zip(sweep.columns, line, strict=True))
            for line in sweep.table(rows, num_strips).tolist()
        ]
        for value in sweep.observed:
            owned = [(s["own start", value], s["own stop", value]) for s in strips]
            assert [r for rows_of_strip in owned for r in range(*rows_of_strip)] == list(
                range(rows[value])
            )
        for strip in strips:
            check_strip(sweep, strip, rows)


def check_strip(sweep: Sweep, strip: dict[tuple[object, ...], int], rows: dict[int, int]) -> None:
    """Check that views are the rows that windows need, and that images are the hull of their views."""
    seen: dict[int, list[Interval]] = {v: [] for v in sweep.images}
    for value in sweep.observed:
        seen[value].append(Interval(strip["own start", value], strip["own stop", value]))
    for node in sweep.locals:
        output = Interval(strip["start", node.output], strip["stop", node.output])
        for p in node.image_positions:
            source = node.inputs[p]
            window = axes_of(node, p)[0].needs(output, rows[source])
            view = Interval(*(strip[key, node.output, p] for key in ("start", "stop")))
            before, after = (strip[key, node.output, p] for key in ("before", "after"))
            real = {r for r in range(*window) if 0 <= r < rows[source]}
            assert set(range(*view)) == real
            assert before == len([r for r in range(*window) if r < 0])
            assert after == len([r for r in range(*window) if r >= rows[source]])
            seen[source].append(view)
            if may_be_empty(axes_of(node, p)[0]):  # a row is computed although none is needed
                seen[source][-1] = view.not_empty(rows[source])
    for value, views in seen.items():
        stored = Interval(strip["start", value], strip["stop", value])
        hull = min(v.start for v in views), max(v.stop for v in views)
        assert stored == hull or (sweep.even and stored.hull(Interval(*hull)) == stored)
        assert 0 <= stored.start <= stored.stop <= rows[value]
        assert sweep.num_reads[value] == len(views)


def check_union(sweep: Sweep, rows: dict[int, int], num_strips: int) -> None:
    """Check that ones, added strip by strip to an uninitialised store, count the readers of every row."""
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


@for_examples(cases(), st.data())
def test_union_of_strips(case: Case, data: st.DataObject) -> None:
    """The columns "covered" and "until" tell which rows earlier strips have written."""
    for sweep in case.sweeps:
        num_strips = data.draw(st.integers(1, sweep_limit(sweep, case.extents)))
        check_union(sweep, case.rows, num_strips)


@pytest.mark.parametrize(
    "axis",
    [
        Window(1, 3),  # skips rows between strips and at the end
        Window(2, 3),
        Window(3, 2, padding="same"),
        Window(padding=(-2, -3)),  # skips rows at both ends
        Window(padding=(5, 6)),  # strips of nothing but padding
        Transposed(2, 2),
        Resize(3),
    ],
)
def test_union_with_unread_rows(axis: Window | Transposed | Resize) -> None:
    for height in range(6, 20):
        graph = Graph()
        graph.input("image", True, 1, "float32")
        graph.outputs = [graph.local("local", None, [0], 1, "float32", [(axis, SAME)])]
        (sweep,) = schedule(graph)
        rows = {0: height, 1: axis.extent(height)}
        for num_strips in range(1, rows[1] + 1):
            check_union(sweep, rows, num_strips)


@for_examples(cases(), st.data())
def test_even_strips(case: Case, data: st.DataObject) -> None:
    """Every strip has as many rows of an image as all others, those that it needs among them, and owns the same."""
    for sweep in case.sweeps:
        num_strips = data.draw(st.integers(1, sweep_limit(sweep, case.extents)))
        even = replace(sweep, even=True)
        table, needed = (each.table(case.rows, num_strips) for each in (even, sweep))
        assert table.dtype == np.int32
        assert table.shape == (num_strips, len(sweep.columns))
        for key in ("own start", "own stop"):
            columns = [sweep.columns[key, value] for value in sweep.observed]
            np.testing.assert_array_equal(table[:, columns], needed[:, columns])
        for value in sweep.images:
            columns = [sweep.columns[key, value] for key in ("start", "stop")]
            (starts, stops), (first, last) = table[:, columns].T, needed[:, columns].T
            assert len({*(stops - starts)}) == 1
            assert (starts >= 0).all() and (stops <= case.rows[value]).all()
            assert (starts <= first).all() and (stops >= last).all()
        for line in table.tolist():
            check_strip(even, dict(zip(sweep.columns, line, strict=True)), case.rows)
        check_union(even, case.rows, num_strips)


def test_nodes_between() -> None:
    """The convolution is computed from the image, the normalisation from the stored convolution."""
    graph = read(chain())
    names = {v.name: v.id for v in graph.values}
    stored, target = names["conv1/convolution"], names["bn1/normalise"]
    nodes, reads = NodeIndex(graph).between({target}, lambda v: v == stored)
    assert [n.output for n in nodes] == [target]
    assert reads == {stored}
    nodes, reads = NodeIndex(graph).between({target}, lambda v: False)
    assert {n.output for n in nodes} == {target, stored}
    assert reads == set(graph.inputs)


def test_layout_places() -> None:
    stores = [Store("image", 0), Store("image", 1), Store("gradient", 1), Store("image", 2)]
    layout = Layout(spilled=frozenset(stores[1:2]), kept=frozenset([2]))
    assert [layout.where(s) for s in stores] == ["host", "disk", "host", "device"]


def test_columns_of_an_image_along_each_axis() -> None:
    """Tiles have those of each axis one after the other, and the mark of the pattern last."""
    graph = chain_graph()
    (sweep, *_) = schedule(graph)
    (value, *_) = sweep.observed
    tiles = replace(sweep, axes=2, skips=True)
    width = len(sweep.columns)
    first, last = sweep.columns["own start", value], sweep.columns["own stop", value]
    assert sweep.columns_of(value, "own start", "own stop") == [first, last]
    expected = [first, last, width + first, width + last, 2 * width]
    assert tiles.columns_of(value, "own start", "own stop") == expected
