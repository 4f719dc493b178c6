"""ConvNeXt V2: its normalisation is that of the paper, it has the published number of weights, and it streams."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from exactness import FLOAT64, assert_same
from twins import assert_streams, images, unlike_at_start

import tfbig
from tfbig.models.convnext_v2 import ConvNeXtV2, GlobalResponseNorm, convnext_v2

SMALL = {"depths": (1, 2), "widths": (4, 8), "kernel": 3}


def network(pooling: str = "mean", **options: Any) -> keras.Model:
    """Return a small network for images of any size, whose scales and shifts are not those of the start."""
    keras.utils.set_random_seed(0)
    pool = tfbig.layers.AttentionPooling(5) if pooling == "attention" else None
    model = convnext_v2((None, None, 3), ConvNeXtV2(**SMALL | options), pool)
    unlike_at_start(model)
    return model


@pytest.mark.parametrize("size", [(7,), (5, 6), (3, 4, 2)])
def test_normalisation_of_the_paper(size: Any, float64: None) -> None:
    """Algorithm 1: `nx = gx / (gx.mean(-1) + 1e-6); return gamma * (x * nx) + beta + x`."""
    layer = GlobalResponseNorm()
    x = np.random.default_rng(0).normal(size=(2, *size, 4))
    layer.build(x.shape)
    gamma, beta = np.random.default_rng(1).normal(size=(2, 4))
    layer.set_weights([gamma, beta])
    gx = np.sqrt((x**2).sum(tuple(range(1, len(size) + 1)), keepdims=True))
    nx = gx / (gx.mean(-1, keepdims=True) + 1e-6)
    assert_same(np.asarray(layer(x)), gamma * (x * nx) + beta + x, FLOAT64)


def test_channels_of_zeros_have_gradients() -> None:
    layer, x = GlobalResponseNorm(), tf.zeros((1, 3, 3, 2))
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(layer(x))
    assert np.all(np.asarray(tape.gradient(y, x)) == 1)


def test_large_numbers_in_float16() -> None:
    """Their squares are summed in float32."""
    layer = GlobalResponseNorm(dtype="mixed_float16")
    layer.build((None, None, None, 2))
    layer.set_weights([np.ones(2), np.zeros(2)])
    y = np.asarray(layer(np.full((1, 64, 64, 2), 300.0)))
    assert np.all(y == 600)


@pytest.mark.parametrize("pooling", ["mean", "attention"])
def test_predictions_are_exact(pooling: str, float64: None) -> None:
    model = network(pooling=pooling, depths=(1,), widths=(4,))
    big, x = tfbig.stream(model, strip_rows=2, plain_if_small=False), images(model, 2, 25, 18)
    assert_same(np.asarray(big(x)), np.asarray(model(x)), FLOAT64)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pooling", "size", "rows"),
    [("mean", (25, 18), 1), ("mean", (41, 24), 5), ("attention", (25, 18), 1)],
)
def test_streams_exactly(pooling: str, size: Any, rows: int, float64: None) -> None:
    model = network(pooling=pooling)
    assert_streams(model, images(model, 2, *size), rows, training=True)


@pytest.mark.slow
def test_dropped_paths_stream_exactly(float64: None) -> None:
    model = network(drop_path=0.5)
    assert_streams(model, images(model, 3, 24, 16), 1, training=True)


def test_numbers_of_weights() -> None:
    """Atto has 3,708,400 in timm with its head of 1000 classes."""
    assert convnext_v2((None, None, 3)).count_params() == 3_708_400 - (320 * 1000 + 1000)
    pooled = convnext_v2((None, None, 3), pool=tfbig.layers.AttentionPooling(128))
    assert pooled.count_params() == 3_387_400 + 2 * (320 * 128 + 128) + 128 + 1


def test_saved(tmp_path: Any) -> None:
    model = network(pooling="attention")
    model.save(tmp_path / "convnext.keras")
    again = keras.saving.load_model(tmp_path / "convnext.keras")
    x = images(model, 1, 16, 16)
    np.testing.assert_array_equal(again(x), model(x))


def test_refused() -> None:
    with pytest.raises(ValueError, match="one number for each stage"):
        ConvNeXtV2(depths=(1, 2, 3))
