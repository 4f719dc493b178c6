"""Background that is not computed: results equal those of plain Keras on the whole image."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from exactness import FLOAT64, assert_same
from skipped_background import Skipping, image_of, mask_of, projected, small_tiles
from small_networks import decoder, normalisations, resampling, signal, volume, windows

import tfbig

MODELS: dict[Callable[[], keras.Model], tuple[tuple[int, ...], int]] = {
    windows: ((301, 283), 4),
    resampling: ((61, 70), 3),
    normalisations: ((50, 43), 4),
    decoder: ((160, 192), 1),
    volume: ((80, 64, 4), 2),  # volumes are cut along their longest axis
    signal: ((200,), 2),
}


@pytest.fixture
def skipping(monkeypatch: pytest.MonkeyPatch) -> Skipping:
    return small_tiles(monkeypatch)


def results(model: Any, x: Any, weights: Any) -> tuple[Any, Any]:
    """Return outputs in training, and the gradients of the weights for random gradients of the outputs."""
    values = [v._value for v in weights]
    with tf.GradientTape() as tape:
        outputs = model(x, training=True)
        flat = tf.nest.flatten(outputs)
        random = np.random.default_rng(3)
        total = tf.add_n([tf.reduce_sum(t * random.normal(size=t.shape)) for t in flat])
    return outputs, tape.gradient(total, values)


def assert_exact(build: Callable[[], keras.Model], x: np.ndarray, **options: Any) -> None:
    """Assert that outputs, gradients and moving statistics are those of the plain model."""
    model, twin = build(), build()
    twin.set_weights(model.get_weights())
    big = tfbig.stream(model, **options)
    image = tf.constant(x)
    actual = results(big, image, model.trainable_variables)
    assert_same(actual, results(twin, image, twin.trainable_variables), FLOAT64)
    for first, second in zip(model.weights, twin.weights, strict=True):
        assert_same(first.numpy(), second.numpy(), FLOAT64)


@pytest.mark.parametrize("build", MODELS)
@pytest.mark.parametrize("batch", [1, 2])
def test_outputs_and_gradients(
    build: Callable[[], keras.Model], batch: int, skipping: Skipping, float64: None
) -> None:
    size, channels = MODELS[build]
    mask = mask_of(size, seed=1)
    skipping.known[size] = projected(mask)
    assert_exact(build, image_of(mask, channels, batch))
    assert min(skipping.active()) < 0.9
