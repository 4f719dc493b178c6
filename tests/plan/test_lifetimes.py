"""Lifetimes: expected timelines of small models, and addresses that never overlap."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import keras
import numpy as np
import pytest
from graphs import (
    PLENTY,
    Case,
    cases,
    chain,
    conv,
    dedent,
    deep_graph,
    dice,
    events,
    for_examples,
    frozen,
    image,
    make_planner,
    mse,
    read,
    residual,
    squares,
    squeeze_and_excite,
    two_outputs,
)
from hypothesis import given
from hypothesis import strategies as st
from keras import layers

from tfbig.network.graph import Graph, values_with_gradient
from tfbig.plan import replay_segments
from tfbig.plan.cost import bytes_of
from tfbig.plan.lifetimes import Moment, Timeline, place, top
from tfbig.plan.passes import Kind
from tfbig.plan.sweeps import Layout, Store, foldable
from tfbig.units import ALIGNMENT


def trace(graph: Graph, unit: int, training: bool = True) -> str:
    """Moments of a step on 8 x 8, with live bytes in units; 256 bytes are a float32 image of one channel."""
    moments = events(make_planner(graph, PLENTY, training=training), squares(graph, 8))
    assert all(live % unit == 0 for _, live in moments)
    return "\n".join(f"{what}: {live // unit}" for what, live in moments)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        # Sizes in units: conv1 4, conv2 and relu2 16; the gradient of relu2 comes from outside.
        # Before backward 1 the gradients of the moments and of conv2 are added, and conv2 is freed.
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
        # conv1 4, conv2 4, conv3 16: backward 2 computes gradients of both conv1 and conv2.
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
def test_timeline(model: Callable[[], keras.Model], expected: str) -> None:
    assert trace(read(model()), 256) == dedent(expected)


def test_timeline_of_fused_loss() -> None:
    """The last sweep runs forward and backward together; the prediction is never stored."""
    assert trace(mse(chain()), 256) == dedent("""
        forward 0: 4
        forward 1: 20
        both 2: 36
        backward 1: 24
        backward 0: 4
        """)


def test_timeline_of_ratio_loss() -> None:
    """Dice needs its sums first: the last sweep runs forward, then backward."""
    assert trace(dice(chain()), 256) == dedent("""
        forward 0: 4
        forward 1: 20
        forward 2: 20
        backward 2: 36
        backward 1: 24
        backward 0: 4
        """)


def test_timeline_of_prediction() -> None:
    """Images are freed after their last reader."""
    start = image()
    x = start
    for number, filters in ((1, 4), (2, 16)):
        x = layers.GroupNormalization(1, name=f"norm{number}")(conv(filters, f"conv{number}")(x))
    graph = read(keras.Model(start, x), training=False)
    assert trace(graph, 256, training=False) == dedent("""
        forward 0: 4
        forward 1: 20
        forward 2: 32
        """)


def test_timeline_of_shared_layer() -> None:
    """Both outputs of the layer have its name; both are stored."""
    start, shared = image(4), conv(4, "shared")
    x = layers.BatchNormalization()(shared(start))
    graph = read(keras.Model(start, layers.BatchNormalization()(shared(x))))
    assert trace(graph, 256) == dedent("""
        forward 0: 4
        forward 1: 8
        forward 2: 12
        backward 2: 16
        backward 1: 12
        backward 0: 4
        """)


def test_timeline_of_replay() -> None:
    """Six convolutions of 4 units; sweeps 1 to 3 store one of three images."""
    graph = deep_graph(6)
    planner = make_planner(graph, PLENTY)
    replay = replay_segments.replay(graph, planner.sweeps, (1, 3))
    assert replay is not None
    moments = events(planner, squares(graph, 8), Layout(tuple(planner.sweeps), (replay,)))
    assert "\n".join(f"{what}: {live // 256}" for what, live in moments) == dedent("""
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


@for_examples(cases(), st.booleans())
def test_timeline_of_random_graphs(case: Case, training: bool) -> None:
    """A store exists until its last reader has ended, where the gradient of the input is needed too.

    Forward sweep p is at time p, backward sweep p at 2 * n - 1 - p. An image is stored from its forward sweep to its
    backward sweep (until before it, if only its moments needed the image), its gradient from the backward sweep of its
    last reader to its own.
    """
    graph = case.graph
    planner = make_planner(graph, PLENTY, training=training)
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
    learned = values_with_gradient(graph, (), [0])
    moments = events(planner, {0: case.extents[0]}, learned=learned)
    assert [n for _, n in moments] == live[: len(moments)].tolist()
    forward = [f"forward {p}" for p in range(count)]
    backward = [f"backward {p}" for p in reversed(range(count))]
    assert [what for what, _ in moments] == (forward + backward if training else forward)


@for_examples(cases())
def test_timeline_of_frozen_graphs(case: Case) -> None:
    """A training step in which nothing needs a gradient is a prediction."""
    sizes = {0: case.extents[0]}
    planner, predicts = (make_planner(case.graph, PLENTY, training=t) for t in (True, False))
    assert events(planner, sizes, learned=frozenset()) == events(predicts, sizes)


def test_timeline_of_frozen_layer() -> None:
    """The timeline has no gradient of conv1, of 4 units, and no backward pass of its sweep."""
    graph = mse(frozen(chain(), "conv1"))
    assert trace(graph, 256) == dedent("""
        forward 0: 4
        forward 1: 20
        both 2: 36
        backward 1: 20
        """)


def normalised(blocks: int) -> keras.Model:
    """Convolutions of 4 units, each with a GroupNormalization, which is a barrier even if it is frozen."""
    x = start = image()
    for n in range(blocks):
        x = layers.GroupNormalization(1, name=f"norm{n}")(conv(4, f"conv{n}")(x))
    return keras.Model(start, layers.GlobalAveragePooling2D()(x))


def test_timeline_of_frozen_front() -> None:
    """Two of four convolutions of 4 units are frozen: conv0 ends with the forward pass, conv1 has no gradient."""
    graph = read(frozen(normalised(4), "conv0", "norm0", "conv1", "norm1"))
    assert trace(graph, 256) == dedent("""
        forward 0: 4
        forward 1: 8
        forward 2: 8
        forward 3: 12
        forward 4: 12
        backward 4: 16
        backward 3: 16
        backward 2: 8
        """)


def test_gradient_of_the_input_of_a_frozen_graph() -> None:
    """It needs every image and gradient."""
    names = ("conv0", "norm0", "conv1", "norm1")
    plans = []
    for graph in (read(normalised(2)), read(frozen(normalised(2), *names))):
        learned = values_with_gradient(graph, (), graph.inputs[:1])
        plans.append(events(make_planner(graph), squares(graph, 8), learned=learned))
    assert plans[0] == plans[1]


def images(*numbers: int) -> list[Store]:
    return [Store("image", n) for n in numbers]


def nested(count: int) -> Timeline:
    """Timeline of a chain: image i exists from moment i to moment 2 * count - 1 - i."""
    moments = [Moment(Kind.FORWARD, i, tuple(images(i))) for i in range(count)]
    moments += [Moment(Kind.BACKWARD, i, tuple(images(i))) for i in reversed(range(count))]
    return Timeline(
        tuple(moments), {s: (s.value, 2 * count - 1 - s.value) for s in images(*range(count))}
    )


@st.composite
def spans_and_sizes(draw: st.DrawFn) -> tuple[dict[Store, tuple[int, int]], dict[int, int]]:
    spans, sizes = {}, {}
    for number in range(draw(st.integers(0, 12))):
        first = draw(st.integers(0, 9))
        spans[Store("image", number)] = first, draw(st.integers(first, 9))
        sizes[number] = draw(st.integers(1, 500))
    return spans, sizes


@given(spans_and_sizes())
def test_places_do_not_overlap(
    case: tuple[dict[Store, tuple[int, int]], dict[int, int]],
) -> None:
    """Stores that exist at the same time have disjoint bytes."""
    spans, sizes = case
    places = place(spans, sizes)
    assert places.keys() == spans.keys()
    for a, b in combinations(spans, 2):
        together = spans[a][0] <= spans[b][1] and spans[b][0] <= spans[a][1]
        apart = places[a] + sizes[a.value] <= places[b] or places[b] + sizes[b.value] <= places[a]
        assert apart or not together
    assert all(start % ALIGNMENT == 0 for start in places.values())
    assert top(places, sizes) >= max((places[s] + sizes[s.value] for s in spans), default=0)


def test_places_without_gaps() -> None:
    """Stores that are freed in reverse order need no more than their bytes at one time."""
    line = nested(6)
    sizes = {n: (n + 1) * ALIGNMENT for n in range(6)}
    assert top(place(line.spans, sizes), sizes) == sum(sizes.values())


def test_place_is_reused() -> None:
    a, b, c = images(0, 1, 2)
    sizes = dict.fromkeys(range(3), 10 * ALIGNMENT)
    places = place({a: (0, 1), b: (1, 2), c: (2, 3)}, sizes)
    assert places[a] == places[c]
    assert top(places, sizes) == 20 * ALIGNMENT


def test_live_bytes() -> None:
    line = nested(3)
    sizes = {0: 1, 1: 10, 2: 100}
    assert line.live_bytes(line.spans, sizes).tolist() == [1, 11, 111, 111, 11, 1]
    assert line.live_bytes(images(1), sizes).tolist() == [0, 10, 10, 10, 10, 0]


def test_place_after_last_moment() -> None:
    """A store may not share bytes with one that ends at the moment at which it begins."""
    a, b = images(0, 1)
    sizes = dict.fromkeys(range(2), ALIGNMENT)
    assert place({a: (0, 1), b: (1, 2)}, sizes) == {a: 0, b: ALIGNMENT}
    assert place({a: (0, 1), b: (2, 2)}, sizes) == {a: 0, b: 0}
