"""Cut points: images that are worth storing although no barrier asks for it."""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np
import pytest
from graphs import PLENTY, conv, image, make_planner, read, squares
from keras import layers

from tfbig.network import losses
from tfbig.network.graph import Graph
from tfbig.plan import cut_search
from tfbig.plan.sweeps import Layout, schedule


def test_cuts_of_deep_chain() -> None:
    """16 strips; the n-th convolution before a stored image computes 4 * n rows twice at each strip border."""
    x = start = image()
    for number in range(6):
        x = conv(64, f"conv{number}", 5)(x)
    graph = read(keras.Model(start, x))
    cuts = cut_search.choose(graph, device_bytes=PLENTY)
    planner = make_planner(graph, PLENTY, strip_rows=256)
    assert {v for s in planner.sweeps for v in s.writes} == cuts | set(graph.outputs)
    assert planner.plan(1, squares(graph, 4096)).recompute_factor == recompute_factor(graph, cuts)
    uncut = planner.plan(1, squares(graph, 4096), Layout(tuple(schedule(graph))))
    assert uncut.recompute_factor == recompute_factor(graph, frozenset())
    assert recompute_factor(graph, cuts) < recompute_factor(graph, frozenset())


def recompute_factor(graph: Graph, cuts: frozenset[int]) -> float:
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
def test_cut_saves_recomputation(filters: int, training: bool, cut: bool) -> None:
    """A backward pass recomputes all of a sweep but its end: 74 kFLOP per pixel against 1 kB moved, or 18 against 16.

    Strips are so high that their halo alone does not justify a cut.
    """
    start = image(filters)
    graph = read(keras.Model(start, conv(filters, "second")(conv(filters, "first")(start))))
    cuts = cut_search.choose(graph, device_bytes=2**29, training=training)
    assert {graph.values[v].name for v in cuts} == ({"first/convolution"} if cut else set())


def test_small_strips_have_more_cuts() -> None:
    """The halo is a larger share of small strips."""
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
def test_cuts_with_loss(weighted: bool) -> None:
    """Labels of a quarter of the image, or a little smaller: every cut of the model without loss is found."""
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


@pytest.mark.parametrize("levels", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_cuts_of_unpadded_u_net(levels: int) -> None:
    """The U-Net of the paper has four levels and accepts 572 rows, 588, and so on.

    In one sweep its smallest strip would need 8 GiB.
    """
    x = start = keras.Input((None, None, 1))
    skips = []
    for level in range(levels):
        x = unpadded(x, 64 * 2**level)
        skips.append(x)
        x = layers.MaxPooling2D()(x)
    x = unpadded(x, 64 * 2**levels)
    for level, border in zip(reversed(range(levels)), (4, 16, 40, 88), strict=False):
        x = layers.Conv2DTranspose(64 * 2**level, 2, strides=2)(x)
        x = layers.Concatenate()([layers.Cropping2D(border)(skips[level]), x])
        x = unpadded(x, 64 * 2**level)
    graph = read(keras.Model(start, layers.Conv2D(2, 1)(x)))
    plan = make_planner(graph, 2**27).plan(1, squares(graph, 4092))
    assert plan.projected.device <= 2**27
    assert plan.recompute_factor < 1.05


def unpadded(x: keras.KerasTensor, filters: int) -> keras.KerasTensor:
    for _ in range(2):
        x = layers.Conv2D(filters, 3, activation="relu")(x)
    return x


@pytest.mark.parametrize(("padding", "is_cut"), [("same", True), ("valid", False)])
def test_cuts_of_two_magnifications(padding: str, is_cut: bool) -> None:
    """Strides determine the size of the second input, except after windows without padding: then nothing is cut."""

    def branch(name: str) -> tuple[keras.KerasTensor, keras.KerasTensor]:
        start = keras.Input((None, None, 64))
        x = layers.Conv2D(64, 5, padding=padding, name=f"{name}1")(start)
        return start, conv(64, f"{name}2", 5)(x)

    (low, small), (high, large) = branch("low"), branch("high")
    crop = layers.Identity() if is_cut else layers.Cropping2D(2)
    x = layers.Add()([crop(layers.UpSampling2D(2)(small)), crop(crop(large))])
    graph = read(keras.Model([low, high], conv(64, "last", 5)(x)))
    assert bool(cut_search.choose(graph)) == is_cut
    sizes = dict(zip(graph.inputs, [(16, 16), (32, 32)], strict=True))
    assert make_planner(graph, PLENTY).plan(1, sizes).shape == (1, 16, 16, 64)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 6, 18, 100])
def test_representatives(count: int) -> None:
    """The first strip, the last one, and for each quarter of the others one of them."""
    chosen = cut_search._representatives(count)
    assert chosen.shape == (count,)
    assert (chosen[0], chosen[-1]) == (0, count - 1)
    quarters = np.array_split(np.arange(1, count - 1), 4) if count == 18 else []
    for quarter in quarters:
        assert set(chosen[quarter]) <= set(quarter)
        assert len(set(chosen[quarter])) == 1


def dense_network() -> keras.Model:
    """Two dense blocks with 3 x 3 convolutions, whose concatenations read every image before them."""
    x = start = image(4)
    for block in range(2):
        for number in range(4):
            new = conv(4, f"conv{block}_{number}", 3)(layers.Activation("relu")(x))
            x = layers.Concatenate()([x, new])
        x = layers.AveragePooling2D(2)(x)
    return keras.Model(start, x)


def residual_network() -> keras.Model:
    """Residual blocks of which each has a convolution on the short way too."""
    x = start = image(4)
    for number in range(4):
        y = conv(4 << number, f"first{number}", 5)(x)
        y = conv(4 << number, f"second{number}", 5)(y)
        x = layers.Add()([y, conv(4 << number, f"short{number}", 1)(x)])
    return keras.Model(start, x)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("network", [dense_network, residual_network])
def test_search_finds_the_cuts_of_trying_all(
    network: Callable[[], keras.Model], training: bool
) -> None:
    """The search with a cache finds the same cuts as one that computes all effects in every round."""
    graph = read(network())
    cuts = cut_search.choose(graph, device_bytes=2**22, training=training)
    (sweep,) = schedule(graph)
    extents = graph.extents(squares(graph, 4096))
    case = cut_search._Case(graph, extents, 2**22, training, cut_search.TWO_CORES)
    candidates, found = cut_search._candidates(graph, sweep), frozenset[int]()
    best = case.seconds(case.sweeps(found))
    while True:
        tried = ((case.seconds(case.sweeps(found | {v})), v) for v in candidates - found)
        seconds, value = min(tried, default=(best, -1))
        if seconds >= best:
            break
        best, found = seconds, found | {value}
    assert cuts == found
    assert len(cuts) > 1
