"""Reading of patches from tensors and from handles, and errors about images."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from exactness import FLOAT64, assert_same
from keras import layers
from patch_models import (
    LABELS,
    encoder,
    entropy,
    head,
)

import tfbig
from tfbig import SourceError
from tfbig.patchgd import PatchGD
from tfbig.sources import ArrayBag


def test_handle_of_another_size() -> None:
    model = PatchGD(encoder(), head(), 4, image_shape=(12, 16, 2))
    other = ArrayBag(np.zeros((16, 16, 2), np.uint8), "mine")
    with pytest.raises(
        SourceError, match=r"mine: has size \(16, 16\); expected \(12, 16\), the image_shape"
    ):
        model.predict(tf.constant([other.handle]), verbose=0)


def test_series(float64: None) -> None:
    x = np.random.default_rng(0).normal(size=(4, 20, 2))
    held = [ArrayBag(series) for series in x]
    model = PatchGD(encoder(1), head(1), 8, 4, source_dtype="float64")
    outputs = model(tf.constant([s.handle for s in held]))
    assert_same(outputs, model(tf.constant(x)), FLOAT64)


def test_several_sizes_are_traced_once() -> None:
    traces = []

    class CountingLayer(layers.Layer):
        def call(self, x: Any) -> Any:
            traces.append(1)
            return x

    net = encoder()
    net = keras.Model(net.input, CountingLayer()(net.output))
    sizes = [(12, 16), (20, 9), (8, 8), (30, 25)]
    held = [tfbig.open(np.zeros((*size, 2), np.uint8)) for size in sizes]
    model = PatchGD(net, head(), 4, sampling=3)
    model.compile("sgd", entropy())
    data = tf.data.Dataset.from_tensor_slices(([s.handle for s in held], [0, 1, 2, 0])).batch(1)
    model.fit(data.take(1), shuffle=False, verbose=0)
    before = len(traces)
    model.fit(data, epochs=2, shuffle=False, verbose=0)
    assert len(traces) == before


def test_only_patches_are_read() -> None:
    windows = []

    class RecordingSource(tfbig.Source):
        def _read_window(self, *window: int) -> np.ndarray:
            windows.append((window[1] - window[0], window[3] - window[2]))
            return np.zeros((*windows[-1], 2), np.uint8)

        def _read(self, start: int, stop: int) -> np.ndarray:
            raise AssertionError("whole rows were read")

    source = RecordingSource((64, 64, 2), np.uint8, "seen")
    model = PatchGD(encoder(), head(), 8, sampling=4, inner_steps=2)
    model.compile("sgd", entropy())
    model.train_on_batch(tf.constant([source.handle]), LABELS[:1])
    assert {rows for rows, _ in windows} == {8}
    assert max(columns for _, columns in windows) <= 32  # a slice of four neighbours


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shapes", "dtype", "message"),
    [
        ([(12, 16, 2), (12, 17, 2)], np.uint8, "have different shapes"),
        ([(12, 16, 3)], np.uint8, "has 3 channels of uint8; expected 2 of uint8"),
        ([(12, 16, 2)], np.int16, r"has 2 channels of int16; .* pass source_dtype='int16'"),
        ([(3, 16, 2)], np.uint8, "smaller than a patch"),
    ],
)
def test_unusable_images(shapes: Any, dtype: Any, message: str) -> None:
    held = [tfbig.open(np.zeros(shape, dtype)) for shape in shapes]
    model = PatchGD(encoder(), head(), 4)
    model.compile("sgd", entropy())
    handles = tf.constant([s.handle for s in held])
    for run in (model.train_on_batch, model.test_on_batch):
        with pytest.raises((SourceError, ValueError), match=message):
            run(handles, LABELS[: len(held)])
    with pytest.raises((SourceError, ValueError), match=message):
        model(handles)
    with pytest.raises((SourceError, ValueError), match=message):
        model.predict(handles, verbose=0)


def test_tensors_smaller_than_a_patch() -> None:
    model = PatchGD(encoder(), head(), 4)
    with pytest.raises(ValueError, match="smaller than a patch"):
        model(tf.zeros([1, 3, 9, 2]))
    call = tf.function(model, input_signature=[tf.TensorSpec([None, None, None, 2])])
    assert call(tf.zeros([1, 5, 9, 2])).shape == (1, 3)
    with pytest.raises(tf.errors.InvalidArgumentError, match="smaller than a patch"):
        call(tf.zeros([1, 3, 9, 2]))
