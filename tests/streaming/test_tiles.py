"""Images cut into tiles, because whole rows do not fit the device: results equal those of plain Keras."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from exactness import FLOAT64, assert_same, gradients, integer_weights, integers
from keras import layers
from small_networks import decoder, normalisations, resampling, statistics, volume, windows
from streamed_pairs import (
    both,
    classifier,
    data,
    map_and_vector,
    same_logs,
    segmenter,
    slow,
    two_maps,
)
from tiles import cut_in_tiles

import tfbig

DEVICE = "100KB"


@pytest.fixture
def in_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    cut_in_tiles(monkeypatch)


def is_tiled(plan: Any) -> bool:
    return all(sweep.axes == 2 for sweep in plan.sweeps)


@pytest.mark.slow
@pytest.mark.parametrize(
    "build",
    [
        segmenter,
        *(pytest.param(b, marks=pytest.mark.slow) for b in (classifier, two_maps, map_and_vector)),
    ],
)
def test_training(build: Callable[[], keras.Model], in_tiles: None, float64: None) -> None:
    pair = both(build)
    x, y = data(build, 2)
    assert is_tiled(pair[0].plan(x.shape))
    kinds = {
        segmenter: "binary_crossentropy",
        classifier: "sparse_categorical_crossentropy",
        two_maps: ["mse", "mae"],
        map_and_vector: ["mse", "sparse_categorical_crossentropy"],
    }
    for model in pair:
        model.compile(keras.optimizers.SGD(0.1, momentum=0.9), kinds[build])
    for _ in range(2):
        same_logs(pair, lambda m: m.train_on_batch(x, y, return_dict=True))
    assert_same(pair[0].predict(x, verbose=0), pair[1].predict(x, verbose=0), FLOAT64)


def strided() -> keras.Model:
    """Return the strided layers of `decoder`, in one sweep."""
    start = keras.Input((None, None, 1))
    x = layers.Conv2D(4, 8, strides=8, padding="same", activation="relu")(start)
    return keras.Model(start, layers.Conv2DTranspose(1, 8, strides=8, padding="same")(x))


CASES = {
    windows: (2, 29, 34, 4),
    resampling: (2, 19, 22, 3),
    normalisations: (2, 17, 19, 4),
    statistics: (2, 17, 19, 4),
    strided: (1, 32, 48, 1),
    decoder: (1, 32, 48, 1),
    volume: (1, 8, 12, 4, 2),
}


@pytest.mark.parametrize("build", [b if b in (statistics, strided) else slow(b) for b in CASES])
def test_outputs_and_gradients(
    build: Callable[[], keras.Model], in_tiles: None, float64: None
) -> None:
    model, twin = build(), build()
    twin.set_weights(model.get_weights())
    big = tfbig.stream(model, strip_rows=4)
    assert is_tiled(big.plan(CASES[build]))
    x = tf.constant(np.random.default_rng(0).normal(size=CASES[build]))
    results = [
        gradients(lambda t, m=m: m(t, training=True), x, m.trainable_variables) for m in (big, twin)
    ]
    assert_same(*results, FLOAT64)


def few_windows() -> keras.Model:
    """Return convolutions with strides, groups and padding, one of them transposed."""
    x = start = keras.Input((None, None, 4))
    x = layers.Conv2D(4, 5, strides=3, padding="same", groups=2)(x)
    x = layers.Conv2DTranspose(3, (2, 5), strides=(1, 3))(x)
    return keras.Model(start, layers.Conv2D(2, 4, padding="same")(x))


@pytest.mark.parametrize("build", [few_windows, slow(windows)])
def test_bitwise_on_integers(build: Callable[[], keras.Model], in_tiles: None) -> None:
    """Sums of integers do not depend on the tiles."""
    model, twin = build(), build()
    for each in (model, twin):
        each.set_weights(integer_weights(each, 1))
    x = tf.constant(integers((1, 23, 31, 4), top=1))
    big = tfbig.stream(model, strip_rows=4)
    assert is_tiled(big.plan(x.shape))
    results = [gradients(m, x, m.trainable_variables) for m in (big, twin)]
    assert_same(*results)


def test_bilinear_upsampling(in_tiles: None) -> None:
    """TensorFlow computes it in float32."""
    start = keras.Input((None, None, 3))
    model = keras.Model(start, layers.UpSampling2D(3, interpolation="bilinear")(start))
    x = tf.constant(np.random.default_rng(0).normal(size=(2, 7, 11, 3)), "float32")
    big = tfbig.stream(model, strip_rows=4)
    assert is_tiled(big.plan(x.shape))
    assert_same(big(x), model(x), 1e-6)


def test_noise_does_not_depend_on_tiles(float64: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def noisy() -> keras.Model:
        x = start = keras.Input((None, None, 3))
        x = layers.Dropout(0.4, seed=1)(layers.GaussianNoise(0.3, seed=2)(x))
        return keras.Model(start, layers.GaussianDropout(0.2, seed=3)(x))

    x = np.random.default_rng(0).normal(size=(2, 9, 11, 3))
    whole = tfbig.stream(noisy())(x, training=True)
    cut_in_tiles(monkeypatch)
    tiled = tfbig.stream(noisy(), strip_rows=4)
    assert is_tiled(tiled.plan(x.shape))
    assert_same(tiled(x, training=True), whole)


def wide() -> keras.Model:
    x = start = keras.Input((None, None, 3))
    for filters, strides in ((8, 1), (8, 2), (16, 1)):
        x = layers.Conv2D(filters, 3, strides, padding="same", use_bias=False)(x)
        x = layers.ReLU()(layers.BatchNormalization()(x))
    return keras.Model(start, layers.Dense(2)(layers.GlobalAveragePooling2D()(x)))


@pytest.mark.slow
@pytest.mark.parametrize("host", [None, "85MB"])
def test_rows_that_do_not_fit(host: str | None, float64: None, tmp_path: Path) -> None:
    """An image of 9 x 3000 pixels in 100 KB: a row of the widest layer takes 192 KB; some stores are on disk."""
    model, twin = wide(), wide()
    twin.set_weights(model.get_weights())
    budget = tfbig.Budget(device=DEVICE, host=host, disk="1GB", scratch=str(tmp_path))
    big = tfbig.stream(model, budget)
    x = np.random.default_rng(0).normal(size=(1, 9, 3000, 3))
    plan = big.plan(x.shape)
    assert plan.layout.sweeps[1].axes == 2
    assert plan.projected.device <= 100_000
    assert "x" in str(plan).splitlines()[4].split(" x ")[0]  # tiles down and across
    for each in (big, twin):
        each.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    for _ in range(2):
        same_logs((big, twin), lambda m: m.train_on_batch(x, np.ones((1, 2)), return_dict=True))


class Columns(tfbig.Source):
    """An image that can be read by rectangles only."""

    widest = 0

    def _read(self, start: int, stop: int) -> Any:
        raise AssertionError("whole rows were read")

    def _read_window(self, start: int, stop: int, left: int, right: int) -> Any:
        Columns.widest = max(Columns.widest, right - left)
        rows, columns, channels = np.ogrid[start:stop, left:right, : self.shape[2]]
        return ((rows * 7 + columns * 3 + channels) % 251).astype("uint8")


def test_files_are_read_by_tiles_and_written_by_rows(tmp_path: Path) -> None:
    start = keras.Input((None, None, 3), dtype="uint8")
    x = layers.Conv2D(8, 3, padding="same", activation="relu")(layers.Rescaling(1 / 255)(start))
    model = keras.Model(start, layers.Conv2D(2, 3, padding="same")(x))
    image = Columns((30, 2500, 3), np.uint8, "columns")
    big = tfbig.stream(model, tfbig.Budget(device=DEVICE), source_dtype="uint8")
    big.predict_to(image, tmp_path / "mask.npy")
    assert 0 < Columns.widest < 2500
    whole = image.read_window((0, 30), (0, 2500))[None]
    expected = model.predict(whole, verbose=0)[0]
    np.testing.assert_allclose(np.load(tmp_path / "mask.npy"), expected, atol=1e-6)


def test_own_rules_get_whole_rows_unless_they_say_otherwise() -> None:
    class Shift(layers.Layer):
        def call(self, x: Any) -> Any:
            return x + 1

    x = start = keras.Input((None, None, 3))
    model = keras.Model(start, layers.Conv2D(8, 3)(Shift()(layers.Conv2D(8, 3)(x))))
    image = np.ones((1, 9, 3000, 3), "float32")
    for tiles in (False, True):
        traits = {"tiles": True} if tiles else {}
        tfbig.rule(Shift)(lambda call, t=traits: call.local(_shifted, **t))
        big = tfbig.stream(model, tfbig.Budget(device=DEVICE))
        if tiles:
            np.testing.assert_allclose(big(image), model(image), rtol=1e-5)
        else:
            with pytest.raises(tfbig.BudgetError, match=r"the smallest strip needs .* narrower"):
                big.plan(image.shape)


def _shifted(x: Any, w: Any, strip: Any) -> Any:
    return x[0] + 1
