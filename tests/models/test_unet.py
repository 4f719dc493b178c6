"""The U-Net: its size, and that streaming gives what Keras gives."""

from __future__ import annotations

import keras
import numpy as np

import tfbig
from tfbig.models.unet import unet


def test_shape_and_parameters() -> None:
    model = unet((None, None, 3), outputs=2, filters=4, depth=2)
    assert model.output_shape == (None, None, None, 2)
    widths = [(3, 4), (4, 8), (8, 16), (16 + 8, 8), (8 + 4, 4)]  # input and output of each level
    kernels = sum(9 * a * b + 9 * b * b for a, b in widths)
    norms = sum(2 * 4 * b for _, b in widths)
    assert model.count_params() == kernels + norms + (4 * 2 + 2)
    plain = model(np.zeros((1, 8, 12, 3)))
    assert plain.shape == (1, 8, 12, 2) and float(np.max(plain)) <= 1


def test_streamed_prediction_equals_that_of_keras() -> None:
    keras.utils.set_random_seed(0)
    model = unet((None, None, 1), filters=4, depth=2)
    image = np.random.default_rng(0).integers(0, 256, (1, 64, 16, 1)).astype("float32")
    big = tfbig.stream(model, tfbig.Budget(host="1GB"), strip_rows=16, plain_if_small=False)
    np.testing.assert_allclose(
        big.predict(image, verbose=0), model.predict(image, verbose=0), atol=2e-6
    )
