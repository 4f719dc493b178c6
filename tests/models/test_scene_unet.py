"""The U-Net for scenes: its shapes, its normalisation, and that it streams."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import tfbig
from tfbig.models.scene_unet import scene_unet


def test_classes() -> None:
    model = scene_unet([1.0, 2.0, 3.0], [1.0, 2.0, 4.0], 5, width=2, depth=2)
    x = np.random.default_rng(0).normal(size=(2, 16, 24, 3)).astype("float32")
    y = np.asarray(model(x))
    assert y.shape == (2, 16, 24, 5)
    np.testing.assert_allclose(y.sum(-1), 1, rtol=1e-5)
    normalised = np.asarray(model.get_layer("normalization")(x))
    np.testing.assert_allclose(normalised, (x - [1, 2, 3]) / [1, 2, 4], rtol=1e-5, atol=1e-6)


def test_values_are_scaled() -> None:
    model = scene_unet([0.0], [1.0], 1, width=2, depth=1, values=(300.0, 20.0))
    x = np.zeros((1, 8, 8, 1), "float32")
    inner = model.get_layer("pixels").output
    before = np.asarray(keras.Model(model.inputs[0], inner)(x))
    np.testing.assert_allclose(np.asarray(model(x)), before * 20 + 300, rtol=1e-6)


def test_number_of_weights() -> None:
    """Counted by hand: convolutions of 3 x 3 without bias, each with four numbers of BatchNormalization a channel."""
    model = scene_unet([0.0] * 4, [1.0] * 4, 3, width=8, depth=1)
    pairs = [(4, 8), (8, 8), (8, 16), (16, 16), (24, 8), (8, 8)]
    expected = sum(9 * a * b + 4 * b for a, b in pairs) + 8 * 3 + 3
    assert model.count_params() == expected


@pytest.mark.slow
def test_streams_equally() -> None:
    model = scene_unet([0.0], [1.0], 2, width=2, depth=2)
    big = tfbig.stream(model, tfbig.Budget(device="60KB"))
    x = np.random.default_rng(0).normal(size=(1, 64, 32, 1)).astype("float32")
    np.testing.assert_allclose(np.asarray(big(x)), np.asarray(model(x)), rtol=1e-4, atol=1e-5)
