"""SegFormer: the published number of weights, its keys and values, and that it streams over images of any size."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from exactness import FLOAT64, assert_same
from layer_paths import FLOAT32
from twins import assert_close, assert_streams, images, step, unlike_at_start

import tfbig
from tfbig.models.segformer import SegFormer, segformer

SMALL = SegFormer((4, 8), (1, 1), (1, 2), (2, 1), decoder=8, dropout=0.0)


def network(config: SegFormer = SMALL, size: Any = (None, None)) -> keras.Model:
    keras.utils.set_random_seed(0)
    model = segformer((*size, 3), 3, config)
    unlike_at_start(model)
    return model


def encoder(model: keras.Model) -> keras.Model:
    """Return the maps of all stages."""
    maps = [layer.output for layer in model.layers if layer.name.startswith("layer_norm.")]
    return keras.Model(model.inputs, maps)


def test_predictions_are_exact(float64: None) -> None:
    model = encoder(network(SegFormer((4,), (1,), (2,), (2,), decoder=8)))
    big, x = tfbig.stream(model, strip_rows=2, plain_if_small=False), images(model, 2, 24, 16)
    assert_same(np.asarray(big(x)), np.asarray(model(x)), FLOAT64)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 5])
def test_the_encoder_streams_exactly(rows: int, float64: None) -> None:
    model = encoder(network())
    assert_streams(model, images(model, 2, 32, 24), rows, training=True)


@pytest.mark.slow
def test_the_whole_network_streams(float64: None) -> None:
    """TensorFlow enlarges images bilinearly in float32, whose rounding BatchNormalization magnifies in training."""
    model = network(size=(32, 24))
    x = images(model, 2, 32, 24)
    big = tfbig.stream(model, strip_rows=4, plain_if_small=False)
    assert_close(step(big, model, x, False), step(model, model, x, False), FLOAT32)


@pytest.mark.slow
def test_dropped_paths_stream_exactly(float64: None) -> None:
    config = SegFormer((4,), (2,), (2,), (2,), decoder=8, drop_path=0.5)
    model = encoder(network(config))
    assert_streams(model, images(model, 3, 16, 12), 1, training=True)


def test_keys_stand_for_several_pixels(float64: None) -> None:
    """Attention with the weights of the network, of every query and all keys, written out."""
    model = network(SegFormer((4,), (1,), (2,), (2,), decoder=8))
    y = tf.constant(np.random.default_rng(0).normal(size=(1, 6, 4, 4)))
    inner = {layer.name.removeprefix("block.0.0.attention"): layer for layer in model.layers}
    fewer = inner[".self.layer_norm"](inner[".self.sr"](y))
    assert fewer.shape == (1, 3, 2, 4)
    layer = inner[""]
    q, k, v = (
        dense(t).numpy().reshape(-1, 2, 2)
        for dense, t in (
            (layer.query_dense, y),
            (layer.key_dense, fewer),
            (layer.value_dense, fewer),
        )
    )
    scores = np.exp(np.einsum("qhd,khd->hqk", q, k) * np.float32(2**-0.5))
    attended = np.einsum("hqk,khd->qhd", scores / scores.sum(-1, keepdims=True), v)
    expected = layer.output_dense(attended.reshape(1, 6, 4, 2, 2))
    assert_same(np.asarray(layer(y, fewer)), np.asarray(expected), FLOAT64)


def test_numbers_of_weights() -> None:
    """B0 has 3,752,694 for the 150 classes of ADE20K, and 3,719,027 for the 19 of Cityscapes, in transformers."""
    for classes, expected in ((150, 3_752_694), (19, 3_719_027)):
        model = segformer((None, None, 3), classes)
        assert sum(int(np.prod(v.shape)) for v in model.trainable_variables) == expected


def test_result() -> None:
    model = network()
    y = model.predict(np.zeros((2, 16, 24, 3), "float32"), verbose=0)
    assert y.shape == (2, 16, 24, 3)
    np.testing.assert_allclose(y.sum(-1), 1, rtol=1e-6)


@pytest.mark.slow
def test_saved(tmp_path: Any) -> None:
    model = network()
    model.save(tmp_path / "segformer.keras")
    again = keras.saving.load_model(tmp_path / "segformer.keras")
    x = images(model, 1, 16, 16)
    np.testing.assert_array_equal(again(x), model(x))


def test_refused() -> None:
    with pytest.raises(ValueError, match="multiples of 32"):
        segformer((40, None, 3), 2)
    with pytest.raises(ValueError, match="one number for each stage"):
        SegFormer(depths=(1, 2, 3))
    with pytest.raises(ValueError, match="divisors of widths"):
        SegFormer(heads=(3, 2, 5, 8))
