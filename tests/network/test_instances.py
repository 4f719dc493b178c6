"""Models applied to the instances of a bag, streamed by slices of the bag."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from exactness import FLOAT64, assert_same
from keras import layers, ops

import tfbig
from tfbig.models.resnet import resnet18

SIDE = 13


def plain() -> keras.Model:
    """Two BatchNormalizations, one with its axis counted from the front."""
    return keras.Sequential(
        [
            keras.Input((None, None, 3)),
            layers.Conv2D(4, 3, padding="same"),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Conv2D(6, 3, strides=2),
            layers.BatchNormalization(axis=3, momentum=0.7),
            layers.GlobalAveragePooling2D(),
            layers.Dense(5, "relu"),
        ]
    )


def branched() -> keras.Model:
    """Shared and nested layers, a gate, a reshape to more axes, normalisation, an operation with several outputs."""
    tile = keras.Input((SIDE, SIDE, 3))
    shared = layers.Conv2D(4, 3, padding="same")
    x = layers.Add()([shared(layers.Conv2D(3, 1)(tile)), shared(tile)])
    inner = keras.Sequential([keras.Input((None, None, 4)), layers.BatchNormalization()])
    x = layers.PReLU()(inner(x))  # one slope per pixel works, as instances are never cut
    gate = layers.Dense(4, "sigmoid")(layers.GlobalMaxPooling2D(keepdims=True)(x))
    left, right = ops.split(layers.Multiply()([x, gate]), 2, axis=-1)
    x = layers.Concatenate(axis=1)([left, ops.flip(right, axis=2)])
    x = layers.Reshape((13, 2, 13, 2))(x)
    x = layers.LayerNormalization(axis=[1, 2])(x)
    x = layers.Dense(6)(layers.Flatten()(x))
    return keras.Model(tile, layers.BatchNormalization(scale=False)(x))


def maps() -> keras.Model:
    """Encoder whose features are images."""
    tile = keras.Input((None, None, 3))
    return keras.Model(tile, layers.BatchNormalization()(layers.Conv2D(2, 3, strides=3)(tile)))


def attention() -> keras.Model:
    """Encoder with attention between the tokens of an instance."""
    tile = keras.Input((SIDE, SIDE, 3))
    x = layers.Reshape((-1, 4))(layers.Conv2D(4, 4, strides=4)(tile))
    x = layers.Add()([x, layers.MultiHeadAttention(2, 3)(x, x)])
    x = layers.LayerNormalization()(x)
    return keras.Model(tile, layers.BatchNormalization()(layers.GlobalAveragePooling1D()(x)))


ENCODERS = [plain, branched, maps, attention]


def bag_model(encoder: keras.Model, before: bool = True) -> keras.Model:
    keras.utils.set_random_seed(1)
    bag = keras.Input((None, SIDE, SIDE, 3))
    x = layers.Rescaling(1 / 255)(bag) if before else bag
    x = tfbig.layers.Instances(encoder)(x)
    weights = layers.Softmax(axis=1)(layers.Dense(1)(x))
    pooled = ops.sum(layers.Multiply()([x, weights]), axis=tuple(range(1, len(x.shape) - 1)))
    return keras.Model(bag, layers.Dense(2)(pooled))


def bags(count: int = 2, instances: int = 7) -> np.ndarray:
    return (
        np.random.default_rng(0).integers(0, 255, (count, instances, SIDE, SIDE, 3)).astype(float)
    )


def learn(run: Any, model: keras.Model, x: Any, training: bool) -> list[Any]:
    """Return the output, the gradients of bag and weights, and the non-trainable variables after the call."""
    before, x = model.get_weights(), tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = run(x, training=training)
        loss = tf.reduce_sum(tf.sin(y))
    gradients = tape.gradient(loss, [x, *(v._value for v in model.trainable_variables)])
    after = [v.numpy() for v in model.non_trainable_variables]
    model.set_weights(before)
    return [y, *gradients, *after]


QUICK = {(plain, True, 1), (attention, False, 3)}
CASES = [
    pytest.param(*case, marks=[] if case in QUICK else pytest.mark.slow)
    for case in product(ENCODERS, (True, False), (1, 3, None))
]


@pytest.mark.parametrize(("encoder", "training", "slices"), CASES)
def test_slices_match_whole_bag(
    encoder: Callable[[], keras.Model], training: bool, slices: int | None, float64: None
) -> None:
    model = bag_model(encoder())
    big = tfbig.stream(model, strip_rows=slices)
    actual, expected = (learn(m, model, bags(), training) for m in (big, model))
    assert_same(actual, expected, FLOAT64)


@pytest.mark.slow
def test_resnet_18(float64: None) -> None:
    model = bag_model(resnet18(include_top=False, pooling="avg"))
    big = tfbig.stream(model, strip_rows=2)
    actual, expected = (learn(m, model, bags(1, 5), True) for m in (big, model))
    assert_same(actual, expected, FLOAT64)


@pytest.mark.slow
@pytest.mark.parametrize("num_sizes", [1, 3])
def test_training_matches_plain_model(num_sizes: int, float64: None) -> None:
    """Ten steps on bags of several sizes."""
    models = [bag_model(plain()) for _ in range(2)]
    models[1].set_weights(models[0].get_weights())
    big = tfbig.stream(models[0], tfbig.Budget(device="200kB", host="1GB"))

    logs = []
    for model in (big, models[1]):
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(0.01), loss)
        steps = [(bags(1, 5 + 4 * (n % num_sizes)), np.array([n % 2])) for n in range(10)]
        logs.append([model.train_on_batch(x, y) for x, y in steps])
    assert_same(logs[0], logs[1], FLOAT64)
    assert_same(models[0].get_weights(), models[1].get_weights(), FLOAT64)


@pytest.mark.slow
def test_frozen_batch_norm_is_not_a_barrier(float64: None) -> None:
    encoder = plain()
    for layer in encoder.layers:
        layer.trainable = not isinstance(layer, layers.BatchNormalization)
    model = bag_model(encoder)
    big = tfbig.stream(model, strip_rows=2)
    assert len(big.plan((2, 7, SIDE, SIDE, 3)).sweeps) == 1
    actual, expected = (learn(m, model, bags(), True) for m in (big, model))
    assert_same(actual, expected, FLOAT64)


@pytest.mark.slow
@pytest.mark.parametrize(
    "drop",
    [
        layers.Dropout(0.4, seed=1),
        pytest.param(layers.Dropout(0.4, (None, 1, 1, None), seed=1), marks=pytest.mark.slow),
        pytest.param(layers.SpatialDropout2D(0.4, seed=1), marks=pytest.mark.slow),
        pytest.param(layers.GaussianNoise(0.4, seed=1), marks=pytest.mark.slow),
        pytest.param(layers.GaussianDropout(0.4, seed=1), marks=pytest.mark.slow),
    ],
)
def test_dropout_does_not_depend_on_the_slices(drop: keras.Layer, float64: None) -> None:
    tile = keras.Input((None, None, 3))
    encoder = keras.Model(tile, layers.GlobalAveragePooling2D()(drop(layers.Conv2D(4, 3)(tile))))
    results = []
    for slices in (1, 3, None):
        model = bag_model(encoder)
        drop.seed_generator.state.assign([5, 7])
        results.append(learn(tfbig.stream(model, strip_rows=slices), model, bags(), True))
    assert_same(results[0][:-2], results[2][:-2], FLOAT64)
    assert_same(results[1][:-2], results[2][:-2], FLOAT64)


def test_spatial_dropout_of_instances(float64: None) -> None:
    tile = keras.Input((None, None, 3))
    drop = layers.SpatialDropout2D(0.5, seed=1)
    bag = keras.Input((None, SIDE, SIDE, 3))
    model = keras.Model(bag, tfbig.layers.Instances(keras.Model(tile, drop(tile)))(bag))
    outputs = np.asarray(
        tfbig.stream(model, strip_rows=2)(np.ones((2, 40, SIDE, SIDE, 3)), training=True)
    )
    assert set(np.unique(outputs)) == {0.0, 2.0}
    assert (outputs == outputs[:, :, :1, :1]).all()
    assert (
        60 < (outputs[:, :, 0, 0] == 0).sum() < 180
    )  # of 240; outside with probability below 1e-14


def test_save_and_load(tmp_path: Path, float64: None) -> None:
    model = bag_model(plain())
    big = tfbig.stream(model, strip_rows=2)
    big.save(tmp_path / "big.keras")
    loaded = keras.saving.load_model(tmp_path / "big.keras")
    assert_same(loaded(bags()), model(bags()), FLOAT64)


def test_unknown_instance_size() -> None:
    bag = keras.Input((None, None, None, 3))
    model = keras.Model(bag, tfbig.layers.Instances(plain())(bag))
    with pytest.raises(
        tfbig.UnsupportedLayerError, match=r"'instances.*' receives instances of shape"
    ):
        tfbig.stream(model)


def test_features_as_output(float64: None) -> None:
    bag = keras.Input((None, SIDE, SIDE, 3))
    model = keras.Model(bag, tfbig.layers.Instances(plain())(bag))
    assert_same(tfbig.stream(model, strip_rows=2)(bags()), model(bags()), FLOAT64)


def test_layers_after_instances_do_not_stream() -> None:
    """A softmax over the instances of a slice would silently differ from that over the bag."""
    model = bag_model(plain())
    last = model.layers[-1].name
    with pytest.raises(tfbig.UnsupportedLayerError, match="follows the instances of a bag"):
        tfbig.stream(model, upto=last)
    bag = keras.Input((None, SIDE, SIDE, 3))
    outer = keras.Model(bag, layers.Dense(1)(model(bag)))
    with pytest.raises(tfbig.UnsupportedLayerError, match="holds the instances of a bag"):
        tfbig.stream(outer)


class Counting(layers.Layer):
    """Layer that changes a variable in every call."""

    def build(self, shape: Any) -> None:
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, x: Any) -> Any:
        self.calls.assign_add(1)
        return x


def test_unsupported_layers() -> None:
    for layer in (Counting(name="odd"), layers.Dropout(0.5, (3, None, None, None), name="odd")):
        tile = keras.Input((SIDE, SIDE, 3))
        model = bag_model(keras.Model(tile, layers.GlobalMaxPooling2D()(layer(tile))))
        with pytest.raises(
            tfbig.UnsupportedLayerError, match=r"'odd' .* (slices of a bag|noise_shape)"
        ):
            tfbig.stream(model)(bags().astype("float32"), training=True)


# -------------------------------------------------------- batch statistics of slices


def sliced_model(size: int) -> keras.Model:
    keras.utils.set_random_seed(1)
    bag = keras.Input((None, SIDE, SIDE, 3))
    x = tfbig.layers.Instances(plain(), norm_slice=size)(layers.Rescaling(1 / 255)(bag))
    weights = layers.Softmax(axis=1)(layers.Dense(1)(x))
    return keras.Model(bag, layers.Dense(2)(ops.sum(x * weights, axis=1)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "size", [3, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 7, 9))]
)
def test_norm_slice(size: int, float64: None) -> None:
    """Equal to calling the model on one slice after the other, including moving statistics."""
    model = sliced_model(size)
    streamed = learn(tfbig.stream(model, strip_rows=size), model, bags(), True)
    for run in (model, tf.function(model, autograph=False)):
        assert_same(learn(run, model, bags(), True), streamed, FLOAT64)

    def by_hand(x: Any, training: bool) -> Any:
        encoder = model.layers[2].model
        x, count = layers.Rescaling(1 / 255)(x), -(-7 // size)
        parts = [x[:, 7 * i // count : 7 * (i + 1) // count] for i in range(count)]
        vectors = [encoder(tf.reshape(p, (-1, SIDE, SIDE, 3)), training=training) for p in parts]
        features = tf.concat([tf.reshape(v, (2, -1, 5)) for v in vectors], axis=1)
        weights = tf.nn.softmax(model.layers[3](features), axis=1)
        return model.layers[-1](tf.reduce_sum(features * weights, axis=1))

    assert_same(learn(by_hand, model, bags(), True), streamed, FLOAT64)


@pytest.mark.slow
def test_norm_slice_needs_strips_of_that_size() -> None:
    model = sliced_model(3)
    with pytest.raises(
        Exception, match="norm_slice=3 needs strips of that size; pass strip_rows=3"
    ):
        tfbig.stream(model, strip_rows=2)(bags().astype("float32"), training=True)
    with pytest.raises(ValueError, match="norm_slice=0"):
        sliced_model(0)
