"""Sizes, addresses and strips of a step, computed in the graph."""

from __future__ import annotations

from dataclasses import replace

import keras
import numpy as np
import pytest
import tensorflow as tf
from graphs import make_planner

from tfbig.engine import step_geometry
from tfbig.engine.step_geometry import KINDS
from tfbig.network import keras_reader
from tfbig.plan.planner import Planner


def planner_of_addition() -> Planner:
    """Planner of two images, convolved and added."""
    images = [keras.Input((None, None, n), name=f"image{n}") for n in (1, 2)]
    x = keras.layers.Add()([keras.layers.Conv2D(2, 3, padding="same")(i) for i in images])
    x = keras.layers.BatchNormalization()(x)
    graph = keras_reader.read(keras.Model(images, x), True)
    return make_planner(graph, strip_rows=3)


def geometry_of(planner: Planner, *shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    layout = planner.prepared.straight

    @tf.function
    def trace(*images: tf.Tensor) -> dict[str, tf.Tensor]:
        named = dict(zip(planner.graph.inputs, images, strict=True))
        geometry = step_geometry.trace(planner, ".", named, layout, frozenset(), 1000)
        return {
            **{key: getattr(geometry, key) for key in ("shapes", "batch")},
            "extents": tf.stack(geometry.extents),
            "addresses": tf.stack([geometry.addresses[kind] for kind in step_geometry.KINDS]),
            "table": geometry.tables[0],
        }

    results = trace(*(tf.zeros(shape) for shape in shapes))
    return {key: value.numpy() for key, value in results.items()}


@pytest.mark.parametrize("keeps", [False, True])
def test_shapes_of_images_on_the_device(keeps: bool) -> None:
    """There are none if no image is kept on the device."""
    planner = planner_of_addition()
    kept = frozenset(planner.prepared.straight.sweeps[0].writes) if keeps else frozenset()
    layout = replace(planner.prepared.straight, kept=kept)

    @tf.function
    def trace(*images: tf.Tensor) -> list[list[tf.Tensor]]:
        named = dict(zip(planner.graph.inputs, images, strict=True))
        return [
            list(each)
            for each in step_geometry.trace(
                planner, ".", named, layout, frozenset(), 1000
            ).device_shapes
        ]

    shapes = trace(tf.zeros((2, 10, 5, 1)), tf.zeros((2, 10, 5, 2)))
    assert len(shapes) == (len(planner.graph.values) if keeps else 0)
    for value, (shape, _, _, flat, rows, _) in zip(planner.graph.values, shapes, strict=False):
        if value.image:
            elements = 2 * 5 * value.channels
            assert shape.numpy().tolist() == [10, -(-elements // 2)]
            assert flat.numpy().tolist() == [-1, elements]
            assert rows.numpy().tolist() == [-1, 2, 5, value.channels]


def test_geometry_of_two_images() -> None:
    planner = planner_of_addition()
    geometry = geometry_of(planner, (2, 10, 5, 1), (2, 10, 5, 2))
    sizes = dict.fromkeys(planner.graph.inputs, (10, 5))
    plan = planner.plan(2, sizes, planner.prepared.straight, learned=frozenset())
    assert geometry["batch"] == 2
    for value in planner.graph.inputs:
        assert geometry["extents"][value].tolist() == [10, 5]
        assert geometry["shapes"][value].tolist() == [
            2,
            10,
            5,
            planner.graph.values[value].channels,
        ]
    assert (geometry["table"] == planner.tables(plan, sizes)[0]).all()
    for store, start in plan.addresses.items():
        assert geometry["addresses"][KINDS.index(store.kind), store.value] == start
    assert (geometry["addresses"] >= 0).sum() == len(plan.addresses)


@pytest.mark.parametrize("shape", [(3, 10, 5, 2), (2, 10, 5, 3)], ids=["batch", "channels"])
def test_images_that_do_not_fit(shape: tuple[int, ...]) -> None:
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=r"input 'image2' has shape .* 2 images with 2 channels",
    ):
        geometry_of(planner_of_addition(), (2, 10, 5, 1), shape)


@pytest.mark.parametrize(
    ("part_bytes", "expected"),
    [(1, [0, 1, 2, 3, 4]), (79, [0, 1, 2, 3, 4]), (80, [0, 2, 4]), (239, [0]), (10**6, [0])],
)
def test_parts_of_an_image_that_is_folded(part_bytes: int, expected: list[int]) -> None:
    """Rows of 40 bytes: 1 image of 5 x 5 pixels with 2 channels of 4 bytes."""
    parts = step_geometry._parts(np.array([1, 5, 5, 2]), 4, part_bytes)
    assert parts[:, 0].tolist() == expected
    assert parts[:, 1].tolist() == [*expected[1:], 5]
