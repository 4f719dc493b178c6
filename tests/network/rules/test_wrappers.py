"""Layers that wrap another layer: a layer that is called twice, and what is refused."""

from __future__ import annotations

import keras
import pytest
from exactness import assert_same
from keras import layers
from twins import assert_streams, images

import tfbig


def test_a_layer_called_twice_normalises_twice(float64: None) -> None:
    """The second call starts from the kernel and the vector of the first."""
    inputs = keras.Input((None, None, 3))
    layer = layers.SpectralNormalization(layers.Conv2D(3, 3, padding="same"))
    model = keras.Model(inputs, layer(layers.ReLU()(layer(inputs))))
    x = images(model, 2, 7, 6)
    assert_streams(model, x, 2, training=False)
    big, results = tfbig.stream(model, strip_rows=2), []
    before = model.get_weights()
    for each in (big, model):
        model.set_weights(before)
        results.append([each(x, training=True), *model.get_weights()])
    assert_same(*results, 1e-10)


def test_time_steps_of_a_window_are_refused() -> None:
    start = keras.Input((4, 8, 8, 3))
    model = keras.Model(start, layers.TimeDistributed(layers.Conv2D(2, 3))(start))
    with pytest.raises(tfbig.UnsupportedLayerError, match=r"Conv3D\(8, \(1, 3, 3\)\) for"):
        tfbig.stream(model)
