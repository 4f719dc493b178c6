"""Dropout and noise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from exactness import assert_same
from keras import layers
from keras.src.applications.convnext import StochasticDepth
from twins import images

import tfbig

pytestmark = pytest.mark.usefixtures("float64")

Check = Callable[[Any, Any], None]


def image(channels: int = 4) -> Any:
    return keras.Input((None, None, channels))


def test_noise_per_image(check: Check) -> None:
    """Masks that all pixels of an image share are those of the plain model."""
    inputs = image()
    x = layers.Dropout(0.5, noise_shape=(None, 1, 1, 1), seed=1)(layers.Conv2D(4, 3)(inputs))
    x = layers.SpatialDropout2D(0.4, seed=2)(layers.BatchNormalization()(x))
    check(inputs, StochasticDepth(0.3)(layers.SpatialDropout2D(0.5, seed=3)(x)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "layer",
    [
        lambda: layers.Dropout(0.5, seed=1),
        pytest.param(
            lambda: layers.Dropout(0.5, noise_shape=(None, None, None, 1), seed=1),
            marks=pytest.mark.slow,
        ),
        lambda: layers.GaussianNoise(0.5, seed=1),
        pytest.param(lambda: layers.GaussianDropout(0.4, seed=1), marks=pytest.mark.slow),
    ],
    ids=["dropout", "dropout of pixels", "gaussian noise", "gaussian dropout"],
)
def test_noise_does_not_depend_on_the_strips(layer: Callable[[], Any]) -> None:
    results = []
    for rows in (1, 3, None):
        inputs = image()
        model = keras.Model(inputs, layer()(layer()(inputs)))
        big, x = tfbig.stream(model, strip_rows=rows), images(model, 2, 7, 6)
        noisy = [big(x, training=True) for _ in range(2)]
        assert not np.array_equal(*noisy)
        assert_same(big(x, training=False), x)
        results.append(noisy)
    assert_same(results[1:], [results[0]] * 2)
