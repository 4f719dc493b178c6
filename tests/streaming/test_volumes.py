"""Volumes behind handles: training, evaluation and prediction equal those of arrays, cut along the longest axis."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from exactness import FLOAT64, assert_same
from keras import layers

import tfbig
from tfbig import sources

SIZES = [((4, 5, 9), (2, 0, 1)), ((7, 5, 4), None), ((3, 8, 5), (1, 0, 2))]


def network(classes: int = 3) -> keras.Model:
    keras.utils.set_random_seed(2)
    inputs = keras.Input((None, None, None, 2))
    x = layers.Conv3D(4, 3, padding="same", activation="relu")(inputs)
    x = layers.BatchNormalization()(x)
    x = layers.Conv3D(3, (1, 2, 3), padding="same", activation="relu")(x)
    return keras.Model(inputs, layers.Conv3D(classes, 1, activation="softmax")(x))


def volumes(size: tuple[int, ...], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    image = rng.normal(size=(*size, 2))
    return image, rng.integers(0, 3, (*size, 1)).astype("float64")


@pytest.mark.slow
@pytest.mark.parametrize(
    "size",
    [pytest.param(size, marks=pytest.mark.slow if n else []) for n, (size, _) in enumerate(SIZES)],
)
def test_fit_and_evaluate_by_handle(size: tuple[int, ...], float64: None) -> None:
    x, y = volumes(size)
    plain = network()
    big = tfbig.stream(network(), strip_rows=2, source_dtype="float64")
    for model in (plain, big):
        model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
    pair = tfbig.open(x), tfbig.open(y)
    handles = tuple(tf.constant([each.handle]) for each in pair)
    data = tf.data.Dataset.from_tensors(handles)
    losses = big.fit(data, epochs=2, shuffle=False, verbose=0).history["loss"]
    expected = plain.fit(x[None], y[None], epochs=2, verbose=0).history["loss"]
    np.testing.assert_allclose(losses, expected, rtol=FLOAT64)
    assert_same(big.get_weights(), plain.get_weights(), FLOAT64)
    evaluated = big.evaluate(data, verbose=0)
    assert evaluated == pytest.approx(plain.evaluate(x[None], y[None], verbose=0), rel=FLOAT64)
    assert big._programs.order == dict(SIZES)[size]
    assert big.plan(pair[0]).shape == (1, *size, 2)


@pytest.mark.slow
def test_sizes_in_turn(float64: None) -> None:
    """One model, one dataset: each volume is cut along its own longest axis."""
    pairs = [volumes(size, n) for n, (size, _) in enumerate(SIZES)]
    opened = [(tfbig.open(x), tfbig.open(y)) for x, y in pairs]
    handles = tuple(tf.constant([pair[n].handle for pair in opened]) for n in range(2))
    plain, big = network(), tfbig.stream(network(), strip_rows=2, source_dtype="float64")
    for model in (plain, big):
        model.compile(keras.optimizers.SGD(0.1), "sparse_categorical_crossentropy")
    data = tf.data.Dataset.from_tensor_slices(handles).batch(1)
    big.fit(data, epochs=2, shuffle=False, verbose=0)
    for x, y in pairs * 2:
        plain.train_on_batch(x[None], y[None])
    assert_same(big.get_weights(), plain.get_weights(), FLOAT64)


@pytest.mark.slow
@pytest.mark.parametrize(
    "size",
    [pytest.param(size, marks=pytest.mark.slow if n else []) for n, (size, _) in enumerate(SIZES)],
)
def test_predict_to(size: tuple[int, ...], float64: None, tmp_path: Path) -> None:
    x, _ = volumes(size)
    expected = network()(x[None]).numpy()[0]
    for rows in (1, 3, 100):
        big = tfbig.stream(network(), strip_rows=rows, source_dtype="float64")
        written = big.predict_to(x, str(tmp_path / "y.npy"))
        assert isinstance(written, sources.Volume)
        assert_same(np.load(tmp_path / "y.npy"), expected, FLOAT64)
    labels = big.predict_to(x, str(tmp_path / "z.npy"), lambda box: box.argmax(-1)[..., None])
    np.testing.assert_array_equal(labels.read(0, size[0])[..., 0], expected.argmax(-1))


def test_tiles_of_planes(float64: None, tmp_path: Path) -> None:
    """A budget too small for a whole plane cuts rows too; the prediction stays the same."""
    x, _ = volumes((6, 40, 40))
    expected = network()(x[None]).numpy()[0]
    big = tfbig.stream(
        network(), tfbig.Budget(device="200KB"), source_dtype="float64", plain_if_small=False
    )
    big.predict_to(x, str(tmp_path / "y.npy"))
    assert_same(np.load(tmp_path / "y.npy"), expected, FLOAT64)


def test_an_image_for_a_model_of_volumes(tmp_path: Path) -> None:
    image: Any = np.zeros((4, 5, 2), np.float32)
    big = tfbig.stream(network(), source_dtype="float32")
    with pytest.raises(
        tfbig.SourceError, match=r"image array is \(4, 5, 2\), expected \(None, None, N"
    ):
        big.predict_to(image, str(tmp_path / "y.npy"))
