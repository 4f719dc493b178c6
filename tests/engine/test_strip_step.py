"""Strips of a sweep: their rows together are those of the image, and their partial sums those of all rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from exactness import FLOAT64, assert_same, integer_weights, integers
from layer_paths import float_type

import tfbig
from tfbig.engine.input_images import InputImage
from tfbig.engine.strip_images import StripImages
from tfbig.engine.strip_step import StripStep
from tfbig.engine.sweep_tensors import (
    StripGeometry,
    SweepGeometry,
    SweepStores,
    SweepTensors,
    SweepValues,
    TracedSweep,
)
from tfbig.network import keras_reader
from tfbig.plan.canonical import Canonical
from tfbig.plan.sweeps import schedule

ROWS, STRIPS = 11, 4


@pytest.fixture(params=[False, True], ids=["as needed", "of one size"])
def sweep(request: pytest.FixtureRequest) -> tuple[Canonical, SweepTensors, keras.Model]:
    """A sweep of two convolutions that read one image, and a sum over rows; its tensors, and the model."""
    image = keras.Input((None, None, 2))
    x = keras.layers.Conv2D(3, 3, padding="same", name="first")(image)
    x = keras.layers.Add()(
        [x, keras.layers.Conv2D(3, (5, 1), padding="same", name="second")(image)]
    )
    model = keras.Model(image, keras.layers.GlobalMaxPooling2D()(x))
    model.set_weights(integer_weights(model))
    graph = keras_reader.read(model, True)
    first = replace(schedule(graph)[0], even=request.param)
    canonical = Canonical(graph, first)
    sizes = graph.extents({graph.inputs[0]: (ROWS, 5)})
    table = first.table({v: size[0] for v, size in sizes.items()}, STRIPS)
    image = InputImage(tf.constant(integers((2, ROWS, 5, 2))))
    tensors = SweepTensors(
        SweepGeometry(
            label=tf.constant("forward 1/1"),
            before=tf.constant(0),
            table=tf.constant(table),
            extents=tf.constant([sizes.get(v, (1, 1)) for v in canonical.ids]),
            batch=tf.constant(2),
            channels={},
            copies={},
        ),
        SweepStores({canonical.position[graph.inputs[0]]: image}, {}, {}, {}, {}),
        SweepValues({}, [graph.weights[slot]._value for slot in canonical.slots], {}, {}),
    )
    return canonical, tensors, model


def strips(canonical: Canonical, tensors: SweepTensors) -> list[tuple[StripStep, Any]]:
    """Return the steps of all strips, and the rows that each reads."""
    traced = TracedSweep(canonical.graph, canonical.sweep, batch=2)
    lines = [tensors.geometry.table[i] for i in range(STRIPS)]
    extents = tensors.geometry.extents
    places = [StripGeometry.in_image(canonical.sweep, line, extents) for line in lines]
    steps = [StripStep(traced, tensors.values, place, place) for place in places]
    read = [StripImages(traced, tensors.stores, place).read()[0] for place in places]
    return [*zip(steps, read, strict=True)]


def image_of(tensors: SweepTensors) -> tf.Tensor:
    (store,) = tensors.stores.images.values()
    assert isinstance(store, InputImage)
    return store.image


def test_owned_rows_are_the_image(sweep: tuple[Canonical, SweepTensors, keras.Model]) -> None:
    canonical, tensors, model = sweep
    image = image_of(tensors)
    expected = keras.Model(model.inputs, model.layers[-2].output)(image)
    (value,) = canonical.sweep.observed
    rows = [step.owned(step.values(tiles))[value] for step, tiles in strips(canonical, tensors)]
    assert len({r.shape[1] for r in rows}) > 1  # 11 rows in four strips
    assert_same(tf.concat(rows, 1), expected)


def test_partial_sums_merge_to_those_of_the_image(
    sweep: tuple[Canonical, SweepTensors, keras.Model],
) -> None:
    canonical, tensors, model = sweep
    (node,) = canonical.sweep.reductions
    partials: list[Any] = [node.op.init(tensors.geometry.batch, [3])]
    for step, tiles in strips(canonical, tensors):
        partials = step.merge(step.owned(step.values(tiles)), partials)
    result = node.op.finalize(partials[0], tf.constant(ROWS * 5, tf.int64))
    image = image_of(tensors)
    assert_same(tf.reshape(result[0], [2, 3]), model(image))  # maxima, and how often they occur


def test_pullback_goes_to_the_maxima(sweep: tuple[Canonical, SweepTensors, keras.Model]) -> None:
    canonical, tensors, model = sweep
    (node,) = canonical.sweep.reductions
    image = image_of(tensors)
    inner = keras.Model(model.inputs, model.layers[-2].output)(image)
    result = model(image)
    partials: list[Any] = [node.op.init(tensors.geometry.batch, [3])]
    steps, read = zip(*strips(canonical, tensors), strict=True)
    owned = [step.owned(step.values(tiles)) for step, tiles in zip(steps, read, strict=True)]
    for step, rows in zip(steps, owned, strict=True):
        partials = step.merge(rows, partials)
    tensors.values.wholes[node.output] = node.op.finalize(
        partials[0], tf.constant(ROWS * 5, tf.int64)
    )
    tensors.values.d_wholes[node.output] = tf.nest.map_structure(
        tf.ones_like, tensors.values.wholes[node.output]
    )
    pulled = [step.pull(rows, None)[1] for step, rows in zip(steps, owned, strict=True)]
    gradient = tf.concat([g[node.inputs[0]] for (g,) in pulled], 1)
    maxima = np.asarray(inner) == np.asarray(result)[:, None, None]
    assert np.array_equal(np.asarray(gradient) != 0, maxima)
    assert_same(tf.reduce_sum(gradient, [1, 2]), tf.ones([2, 3]), 1e-6)


def strided_network() -> keras.Model:
    """Windows with strides, dilation and padding, enlargement, and images that are added and joined."""
    layers = keras.layers
    image = keras.Input((None, None, 3))
    x = first = layers.BatchNormalization()(layers.Conv2D(4, 3, padding="same")(image))
    x = layers.DepthwiseConv2D(5, padding="same")(layers.Conv2D(4, 3, padding="same")(x))
    x = layers.Add()([x, first])
    y = layers.MaxPooling2D(3, 2, padding="same")(x)
    y = layers.BatchNormalization()(layers.Conv2D(6, 3, strides=2, padding="same")(y))
    y = layers.Conv2DTranspose(4, 4, padding="same")(layers.UpSampling2D(4)(y))
    x = layers.Concatenate()([x, y])
    return keras.Model(image, layers.Conv2D(2, 2, padding="same", dilation_rate=2)(x))


@pytest.mark.parametrize(
    ("rows", "compiled"),
    [
        (4, False),
        (7, False),
        (20, False),
        *(pytest.param(rows, True, marks=pytest.mark.slow) for rows in (4, 7, 20)),
    ],
)
def test_strips_of_one_size_equal_plain_keras(rows: int, compiled: bool) -> None:
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(2, 44, 36, 3)), draw.normal(size=(2, 44, 36, 2))
    with float_type("float64"):
        model, twin = strided_network(), strided_network()
        twin.set_weights(model.get_weights())
        streamed = tfbig.stream(model, strip_rows=rows, devices="/CPU:0")
        for each in (streamed, twin):
            xla = compiled and each is streamed
            each.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=xla)
        plan = streamed.plan(x.shape)
        assert plan.strips > 1 and all(sweep.even for sweep in plan.sweeps)
        assert all(sweep.is_compiled == compiled for sweep in plan.sweeps)
        assert_same(streamed(x, training=False), twin(x, training=False), FLOAT64)
        for each in (streamed, twin):
            each.train_on_batch(x, y)
        assert_same(model.get_weights(), twin.get_weights(), FLOAT64)


def test_compiled_strips_equal_plain_keras() -> None:
    """Two strips of a convolution, BatchNormalization and pooling, in one step."""
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(1, 12, 6, 3)), draw.normal(size=(1, 6, 3, 2))
    with float_type("float64"):
        image = keras.Input((None, None, 3))
        z = keras.layers.BatchNormalization()(keras.layers.Conv2D(2, 3, padding="same")(image))
        model = keras.Model(image, keras.layers.MaxPooling2D(2)(z))
        twin = keras.models.clone_model(model)
        twin.set_weights(model.get_weights())
        streamed = tfbig.stream(model, strip_rows=6, devices="/CPU:0")
        streamed.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=True)
        twin.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
        assert all(sweep.is_compiled for sweep in streamed.plan(x.shape).sweeps)
        for each in (streamed, twin):
            each.train_on_batch(x, y)
        assert_same(model.get_weights(), twin.get_weights(), FLOAT64)
