"""Streamed models are saved and loaded, and exchange weights with plain models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from exactness import FLOAT64, assert_same
from streamed_pairs import (
    both,
    classifier,
    data,
    numbers,
    photographs,
    scaled,
    segmenter,
    sequential,
    slow,
)

import tfbig


@pytest.mark.parametrize("build", [slow(segmenter), sequential, slow(classifier)])
@pytest.mark.parametrize("suffix", [".keras", ".weights.h5"])
def test_weights_interchange_with_plain_model(build: Any, suffix: str, tmp_path: Path) -> None:
    """The file of either model loads into the other."""
    streamed, plain = tfbig.stream(build()), build()
    for number, (source, target) in enumerate([(streamed, plain), (plain, streamed)]):
        source.set_weights([numbers(*w.shape, seed=number) for w in source.get_weights()])
        path = tmp_path / f"{number}{suffix}"
        source.save(path) if suffix == ".keras" else source.save_weights(path)
        assert not np.array_equal(source.get_weights()[0], target.get_weights()[0])
        target.load_weights(path)
        assert_same(target.get_weights(), source.get_weights())


@pytest.mark.slow
def test_continue_from_model_checkpoint(float64: None, tmp_path: Path) -> None:
    """A run continued from `ModelCheckpoint` equals an uninterrupted one, optimiser state included."""
    x, y = data(segmenter, 6)
    big, whole = both(segmenter)
    best = keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", "loss", save_best_only=True)
    for model in (big, whole):
        model.compile(keras.optimizers.Adam(0.05), "mse")
    fit = {"x": x, "y": y, "batch_size": 2, "shuffle": False, "verbose": 0}
    big.fit(**fit, epochs=2, callbacks=[best])
    loaded = keras.models.load_model(tmp_path / "best.keras")
    assert isinstance(loaded, tfbig.StreamedModel)
    assert_same(loaded.get_weights(), big.get_weights())
    second = loaded.fit(**fit, epochs=2).history["loss"]
    expected = whole.fit(**fit, epochs=4).history["loss"]
    assert_same([np.float64(second)], [np.float64(expected[2:])], FLOAT64)
    assert_same(loaded.get_weights(), whole.get_weights(), FLOAT64)


@pytest.mark.slow
def test_save_load_and_continue_training(tmp_path: Any) -> None:
    x, y = photographs(2)
    big = tfbig.stream(scaled(), tfbig.Budget(device="1MB", host="1GB"), strip_rows=3)
    big.compile("adam", "binary_crossentropy", metrics=["mae"])
    big.fit(x, y, verbose=0)
    big.save(tmp_path / "big.keras")
    again = keras.saving.load_model(tmp_path / "big.keras")
    assert type(again) is tfbig.StreamedModel
    for setting in ("name", "budget", "strip_rows", "devices", "source_dtype"):
        assert again.get_config()[setting] == big.get_config()[setting]
    assert_same(again.get_weights(), big.get_weights())
    logs = [model.fit(x, y, verbose=0).history for model in (big, again)]
    assert logs[0] == logs[1]
    assert_same(again.get_weights(), big.get_weights())
    assert_same(again.predict(x, verbose=0), big.predict(x, verbose=0))


def test_export(tmp_path: Path) -> None:
    """The exported model is the plain one, which accepts images of any size."""
    image = keras.Input((None, None, 3))
    plain = keras.Model(image, keras.layers.Conv2D(4, 3, strides=2)(image))
    big = tfbig.stream(plain, strip_rows=4)
    big.export(tmp_path / "served", verbose=False)
    served = tf.saved_model.load(tmp_path / "served")
    x = np.random.default_rng(0).random((1, 21, 16, 3), np.float32)
    np.testing.assert_allclose(served.serve(x), big(x), atol=1e-6)


@pytest.mark.parametrize("build", [segmenter, sequential, classifier])
def test_inputs_and_outputs_are_those_of_the_plain_model(build: Any) -> None:
    """So that a model of the layers up to one of them can be made, as in Keras."""
    plain = build()
    big = tfbig.stream(plain)
    for name in ("inputs", "outputs", "input_shape", "output_shape"):
        assert getattr(big, name) == getattr(plain, name), name
    assert [big.input] == big.inputs
    assert [big.output] == big.outputs
    first = next(layer for layer in big.layers if layer.weights)
    part = keras.Model(big.input, first.output)
    image = numbers(1, *(size or 64 for size in part.input_shape[1:]))
    assert_same(part(image), keras.Model(plain.inputs, first.output)([image]))
