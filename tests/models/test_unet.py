"""The U-Net: its shapes, number of weights and normalisation, and that it streams."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import tfbig
from tfbig.models.unet import unet


def test_classes() -> None:
    model = unet([1.0, 2.0, 3.0], [1.0, 2.0, 4.0], 5, filters=2, depth=2)
    x = np.random.default_rng(0).normal(size=(2, 16, 24, 3)).astype("float32")
    y = np.asarray(model(x))
    assert y.shape == (2, 16, 24, 5)
    np.testing.assert_allclose(y.sum(-1), 1, rtol=1e-5)
    normalised = np.asarray(model.get_layer("normalization")(x))
    np.testing.assert_allclose(normalised, (x - [1, 2, 3]) / [1, 2, 4], rtol=1e-5, atol=1e-6)


def test_values_are_scaled() -> None:
    model = unet([0.0], [1.0], 1, None, filters=2, depth=1, values=(300.0, 20.0))
    x = np.zeros((1, 8, 8, 1), "float32")
    inner = model.get_layer("pixels").output
    before = np.asarray(keras.Model(model.inputs[0], inner)(x))
    np.testing.assert_allclose(np.asarray(model(x)), before * 20 + 300, rtol=1e-6)


def test_number_of_weights() -> None:
    """Counted by hand: convolutions of 3 x 3 without bias, each with four numbers of BatchNormalization a channel."""
    model = unet([0.0] * 4, [1.0] * 4, 3, filters=8, depth=1)
    pairs = [(4, 8), (8, 8), (8, 16), (16, 16), (24, 8), (8, 8)]
    expected = sum(9 * a * b + 4 * b for a, b in pairs) + 8 * 3 + 3
    assert model.count_params() == expected


@pytest.mark.slow
def test_streamed_prediction_equals_that_of_keras() -> None:
    keras.utils.set_random_seed(0)
    model = unet([0.0], [255.0], 2, "sigmoid", filters=4, depth=2)
    image = np.random.default_rng(0).integers(0, 256, (1, 64, 16, 1)).astype("float32")
    big = tfbig.stream(model, tfbig.Budget(host="1GB"), strip_rows=16, plain_if_small=False)
    np.testing.assert_allclose(
        big.predict(image, verbose=0), model.predict(image, verbose=0), atol=2e-6
    )
