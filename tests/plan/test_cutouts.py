"""Cutouts: strips with the same numbers, which are those of a strip of a smaller image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfbig.network import keras_reader
from tfbig.network.graph import Graph
from tfbig.plan import cutouts
from tfbig.plan.sweeps import Sweep, schedule

layers = keras.layers


def sweep_of(network: Callable[[keras.KerasTensor], keras.KerasTensor]) -> tuple[Graph, Sweep]:
    """Return the graph and the only sweep of a network, compiled and with strips of one size."""
    image = keras.Input((None, None, 2))
    graph = keras_reader.read(keras.Model(image, network(image)), False)
    (sweep,) = schedule(graph)
    return graph, replace(sweep, even=True, compiles=True)


def halved(x: keras.KerasTensor) -> keras.KerasTensor:
    """Halve an image twice, double it again, and join it with what was there."""
    x = first = layers.Conv2D(4, 5, strides=2, padding="same")(x)
    x = layers.MaxPooling2D(3, 2, padding="same")(x)
    x = layers.Conv2DTranspose(4, 4, 2, padding="same")(layers.Conv2D(4, 3, padding="same")(x))
    return layers.Add()([x, first])


def tables(graph: Graph, sweep: Sweep, rows: int, strips: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the geometry of strips in the image and in their cutouts."""
    sizes = graph.extents({graph.inputs[0]: (rows, 8)})
    tiles = sweep.tiles(sizes, [strips])
    return tiles, cutouts.table(sweep, sizes, tiles)


def test_strips_share_programs() -> None:
    """Of sixty-four strips, those at both ends differ, and others where a strip owns one row more."""
    graph, sweep = sweep_of(halved)
    _, cut = tables(graph, sweep, 2048, 64)
    assert sweep.is_compiled and cut.shape == (64, sweep.cutout_columns)
    assert len(np.unique(cut, axis=0)) <= 4


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(4, 60).map(lambda n: 4 * n), strips=st.integers(1, 9))
def test_cutout_is_a_smaller_image(rows: int, strips: int) -> None:
    """What a strip owns, reads and pads in its cutout is what a strip of an image of that size needs."""
    graph, sweep = sweep_of(halved)
    tiles, cut = tables(graph, sweep, rows, strips)
    columns = len(sweep.columns)
    for line, smaller in zip(tiles, cut, strict=True):
        extents = dict(zip(sweep.images, smaller[columns:], strict=True))
        sizes = graph.extents({graph.inputs[0]: (int(extents[graph.inputs[0]]), 8)})
        assert all(extents[v] == sizes[v][0] for v in sweep.images)
        for key, column in sweep.columns.items():
            if key[0] in ("before", "after"):
                assert line[column] == smaller[column]
        for v in sweep.images:
            start, stop = (sweep.columns[name, v] for name in ("start", "stop"))
            assert line[stop] - line[start] == smaller[stop] - smaller[start]
            assert smaller[start] >= 0 and smaller[stop] <= extents[v]


def test_one_strip_is_its_own_cutout() -> None:
    graph, sweep = sweep_of(halved)
    tiles, cut = tables(graph, sweep, 40, 1)
    np.testing.assert_array_equal(cut[:, : len(sweep.columns)], tiles)


@pytest.mark.parametrize(
    "layer",
    [
        layers.Dropout(0.5),
        layers.SpatialDropout2D(0.5),
        layers.Resizing(6, 6),
        layers.UpSampling2D(3, interpolation="bilinear"),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_what_depends_on_its_place_or_on_chance_is_not_compiled(layer: keras.Layer) -> None:
    image = keras.Input((None, None, 2))
    x = layer(layers.Conv2D(2, 3, padding="same")(image))
    graph = keras_reader.read(keras.Model(image, x), True)
    sweeps = [replace(sweep, even=True, compiles=True) for sweep in schedule(graph)]
    assert not all(sweep.is_compiled for sweep in sweeps)
    assert all(sweep.is_compiled == (sweep.cutout_columns > 0) for sweep in sweeps)
