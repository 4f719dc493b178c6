"""Graphs for tests of plans: small models, deep models, and random graphs for property tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import keras
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from keras import layers

from tfbig.geometry.windows import SAME, Resize, Transposed, Window
from tfbig.network import keras_reader, losses
from tfbig.network.graph import Graph, Reduce
from tfbig.plan.limits import Limits, workspace_of
from tfbig.plan.plan import Plan
from tfbig.plan.planner import Planner
from tfbig.plan.prepared_graph import Options
from tfbig.plan.sweeps import Layout, Sweep, schedule


class Planned(Reduce):
    """A reduction that is planned and never runs."""

    def init(self, batch: Any) -> tuple[Any, ...]:
        raise AssertionError

    def partial(self, inputs: list[Any], strip: Any) -> tuple[Any, ...]:
        raise AssertionError

    def pullback(self, inputs: list[Any], strip: Any, result: Any, cotangent: Any) -> list[Any]:
        raise AssertionError


PLENTY = 10**15
"""Bytes that never run out."""


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
    """Two conv-BN with 4 channels and a shortcut, then a convolution with 16."""
    start = image()
    x = shortcut = conv(4, "conv1")(start)
    x = layers.BatchNormalization(name="bn1")(x)
    x = conv(4, "conv2")(x)
    x = layers.BatchNormalization(name="bn2")(x)
    x = layers.Add(name="add")([shortcut, x])
    return keras.Model(start, conv(16, "conv3")(x), name="residual")


def squeeze_and_excite() -> keras.Model:
    """A gate between convolutions with 4 and 16 channels."""
    start = image()
    x = conv(4, "conv1")(start)
    gate = layers.GlobalAveragePooling2D(keepdims=True, name="squeeze")(x)
    gate = layers.Dense(4, activation="sigmoid", name="excite")(gate)
    x = layers.Multiply(name="scale")([x, gate])
    return keras.Model(start, conv(16, "conv2", 1)(x), name="squeeze_and_excite")


def two_outputs() -> keras.Model:
    """An image of half size, and a vector."""
    start = image()
    x = conv(4, "conv1")(start)
    half = conv(16, "half", strides=2)(x)
    return keras.Model(start, [half, layers.GlobalMaxPooling2D(name="top")(x)], name="two_outputs")


def deep(blocks: int = 6) -> keras.Model:
    """Conv-BN-ReLU blocks of one width: every convolution is stored."""
    start = x = image()
    for number in range(blocks):
        x = layers.ReLU()(layers.BatchNormalization()(conv(4, f"conv{number}")(x)))
    return keras.Model(start, layers.GlobalAveragePooling2D()(x))


def frozen(model: keras.Model, *names: str) -> keras.Model:
    """The model with some of its layers frozen."""
    for name in names:
        model.get_layer(name).trainable = False
    return model


def read(model: keras.Model, training: bool = True) -> Graph:
    return keras_reader.read(model, training)


@cache
def chain_graph() -> Graph:
    """The graph of `chain`, built once. Do not change it."""
    return read(chain())


@cache
def deep_graph(blocks: int) -> Graph:
    """The graph of `deep`, built once. Do not change it."""
    return read(deep(blocks))


def single_convolution(kernel: int = 3, channels: int = 1) -> Graph:
    """A padded convolution along the rows, without Keras; images 0 and 1 are its input and output."""
    graph = Graph()
    graph.input("image", True, channels, "float32")
    axes = [(Window(kernel, padding="same"), SAME)]
    graph.outputs = [graph.local("conv", None, [0], 1, "float32", axes)]
    return graph


def with_loss(model: keras.Model, loss: keras.losses.Loss) -> Graph:
    """The graph of a model that ends in a loss; the labels are as large as the output."""
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
    """Sizes of the inputs: squares."""
    return {i: (side, side) for i in graph.inputs if graph.values[i].image}


# ---------------------------------------------------------------------------------------- plans


def events(
    planner: Planner,
    sizes: dict[int, tuple[int, ...]],
    layout: Layout | None = None,
    learned: frozenset[int] | None = None,
) -> list[tuple[str, int]]:
    """Moments of a step on one image, and the bytes of all stores at each."""
    plan = planner.plan(1, sizes, layout, learned=learned)
    line = plan.timeline
    live = line.live_bytes(line.spans, plan.image_bytes)
    return [(f"{m.kind} {m.sweep}", int(n)) for m, n in zip(line.moments, live, strict=True)]


def written(graph: Graph, plan: Plan) -> set[str]:
    """Names of the images that the sweeps of a plan store."""
    return {graph.values[v].name for sweep in plan.sweeps for v in sweep.writes}


def dedent(text: str) -> str:
    """An expected text without the indentation of the test."""
    return "\n".join(line.strip() for line in text.strip().splitlines())


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


def _row_axis(draw: st.DrawFn) -> Window | Transposed | Resize:
    kernel, stride = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    explicit = st.tuples(st.integers(-3, 9), st.integers(-3, 9))
    padding = draw(st.sampled_from(["same", "valid"]) | explicit)
    kind = draw(st.sampled_from(["window", "window", "transposed", "resize"]))
    if kind == "window":
        return Window(kernel, stride, draw(st.integers(1, 2)), padding)
    if kind == "transposed":
        return Transposed(kernel, stride, 1, padding if isinstance(padding, str) else "same")
    return Resize(draw(st.integers(1, 3)))


def _add_node(draw: st.DrawFn, graph: Graph, extents: dict[int, tuple[int, int]]) -> None:
    """Add a node of a random kind, unless its output would have no rows or too many."""
    source = draw(st.sampled_from(sorted(extents)))
    wholes = [v.id for v in graph.values if not v.image]
    kind = draw(st.sampled_from(["axis", "axis", "axis", "add", "reduce", "gate", "whole"]))
    inputs, axes = [source], None
    if kind == "reduce":
        graph.reduce(f"reduce{len(graph.nodes)}", Planned(), [source])
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
        axes = [(_row_axis(draw), SAME)]
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
    """Random graphs of up to nine nodes."""
    graph = Graph()
    extents = {graph.input("image", True, 1, "float32"): (draw(st.integers(4, 30)), 2)}
    for _ in range(draw(st.integers(1, 9))):
        _add_node(draw, graph, extents)
    outputs = [n.output for n in graph.nodes]
    assume(outputs)
    graph.outputs = [v for v in outputs if not graph.consumers(v)]
    images = [v for v in outputs if graph.values[v].image]
    cuts = frozenset(draw(st.sets(st.sampled_from(images), max_size=2)) if images else ())
    return Case(graph, extents, schedule(graph, cuts))


def for_examples(*strategies: Any, fast: int = 40, slow: int = 200) -> Callable[..., Any]:
    """Decorate a property as a test: of `fast` examples, and of `slow` ones in the slow suite."""

    def decorate(check: Callable[..., None]) -> Callable[[int], None]:
        @pytest.mark.parametrize("examples", [fast, pytest.param(slow, marks=pytest.mark.slow)])
        def test(examples: int) -> None:
            settings(max_examples=examples, deadline=None)(given(*strategies)(check))()

        test.__doc__ = check.__doc__
        return test

    return decorate


def heights(sweep: Sweep, table: np.ndarray, value: int) -> np.ndarray:
    """Rows of an image in every strip of a table."""
    return table[:, sweep.columns["stop", value]] - table[:, sweep.columns["start", value]]


def make_planner(
    graph: Graph,
    device: int = PLENTY,
    host_bytes: int | None = None,
    disk_bytes: int = 0,
    firm: bool = True,
    shared: bool = False,
    split: Any = None,
    gpu: bool = False,
    **options: Any,
) -> Planner:
    """Return a planner of a graph; arguments are those of `Limits`, then those of `Options`."""
    workspace = workspace_of(device) if gpu else 0
    limits = Limits(device, host_bytes, disk_bytes, firm, shared, workspace=workspace)
    return Planner(graph, limits, Options(**options), split=split)
