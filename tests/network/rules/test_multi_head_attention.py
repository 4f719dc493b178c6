"""Attention between pixels equals plain Keras, in strips that cut queries and masks, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops
from twins import assert_streams, images

import tfbig
from tfbig.network.rules import multi_head_attention
from tfbig.ops.kernels import InputRows, Strip

RANDOM = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of few queries and keys, so that each strip has several."""
    monkeypatch.setattr(multi_head_attention, "BLOCK_SCORES", 2 * 2 * 5 * 5)
    monkeypatch.setattr(multi_head_attention, "LEAST_BLOCK", 5)


def series(attend: Callable[[Any], Any], *others: Any) -> keras.Model:
    """Return attention between convolutions of a series."""
    inputs = keras.Input((None, 4))
    x = layers.Conv1D(6, 3, padding="same")(inputs)
    return keras.Model([inputs, *others], layers.Conv1D(3, 3, padding="same")(x + attend(x)))


MASKS = {
    "attention_mask": RANDOM.random((1, 13, 13)) < 0.6,
    "query_mask": np.arange(13)[None] < 9,
    "key_mask": np.arange(13)[None] % 3 > 0,
    "value_mask": np.arange(13)[None] > 2,
}


@pytest.mark.parametrize(
    "name", ["attention_mask", *(pytest.param(n, marks=pytest.mark.slow) for n in list(MASKS)[1:])]
)
def test_constant_masks(name: str, float64: None) -> None:
    mask = tf.constant(MASKS[name])
    model = series(lambda x: layers.MultiHeadAttention(2, 3)(x, x, **{name: mask}))
    assert_streams(model, images(model, 2, 13), 3, training=True)


def test_mask_of_queries(float64: None) -> None:
    """GroupQueryAttention uses the mask; MultiHeadAttention of Keras 3.15 ignores it."""
    mask = tf.constant(MASKS["query_mask"])
    model = series(lambda x: layers.GroupQueryAttention(3, 4, 2)(x, x, query_mask=mask))
    assert_streams(model, images(model, 2, 13), 3, training=True)


@pytest.mark.parametrize("heads", [1, 2])
def test_mask_of_dot_product_attention(heads: int, float64: None) -> None:
    """The mask is one for all heads or one each; a query that attends to no key attends to all of them."""
    mask = RANDOM.random((1, heads, 13, 13)) < 0.5
    mask[:, :, 4] = False

    def attend(x: Any) -> Any:
        parts = [layers.EinsumDense("abc,cde->abde", (None, 2, 3))(x) for _ in range(3)]
        y = ops.dot_product_attention(*parts, mask=tf.constant(mask))
        return layers.EinsumDense("abde,dec->abc", (None, 6))(y)

    model = series(attend)
    assert_streams(model, images(model, 2, 13), 3, training=True)


def test_masks_that_are_inputs(float64: None) -> None:
    """A mask of all pairs is an image, cut with the queries; one of keys is a vector."""
    pairs, keys = keras.Input((None, 13), dtype="bool"), keras.Input((13,), dtype="bool")
    inputs = keras.Input((None, 4))
    x = layers.Conv1D(6, 3, padding="same")(inputs)
    y = layers.MultiHeadAttention(2, 3)(x, x, attention_mask=pairs, key_mask=keys)
    model = keras.Model([inputs, pairs, keys], layers.Conv1D(3, 3)(y))
    values = [
        RANDOM.normal(size=(2, 13, 4)),
        RANDOM.random((2, 13, 13)) < 0.7,
        RANDOM.random((2, 13)) < 0.7,
    ]
    streamed = tfbig.stream(model, strip_rows=3, plain_if_small=False)
    np.testing.assert_allclose(streamed(values), model(values), rtol=1e-10)


@pytest.mark.parametrize(
    "axes", [None, *(pytest.param((n,), marks=pytest.mark.slow) for n in (1, 2))]
)
def test_dropout_depends_on_places_only(axes: Any, float64: None) -> None:
    """In strips of any number of rows, the same pairs are left out; a share of the right size."""
    inputs = keras.Input((None, None, 3))
    layer = layers.MultiHeadAttention(2, 3, dropout=0.4, seed=3, attention_axes=axes)
    model = keras.Model(inputs, layer(inputs, inputs))
    x = images(model, 2, 9, 7)
    results = []
    for rows in (2, 4, 9):
        layer._dropout_layer.seed_generator.state.assign([3, 0])
        streamed = tfbig.stream(model, strip_rows=rows, plain_if_small=False)
        results.append(streamed(x, training=True))
    np.testing.assert_allclose(results[0], results[2], rtol=1e-10)
    np.testing.assert_allclose(results[1], results[2], rtol=1e-10)
    assert not np.allclose(results[0], model(x, training=False))


def test_share_of_pairs_that_dropout_leaves_out() -> None:
    attention = multi_head_attention.Attention(2, 1, 1.0, (0, 1), rate=0.3)
    x = tf.zeros((2, 9, 8, 4))
    rows = InputRows(0, 9, 0, 0, 9)
    strip = Strip(0, 9, 9, (rows, rows, rows))
    positions = tf.range(72)
    seed = tf.constant([5, 6])
    factors = attention._factors(seed, strip, tf.shape(x), positions, positions).numpy()
    assert factors.shape == (4, 72, 72)
    kept = factors > 0
    np.testing.assert_allclose(factors[kept], 1 / 0.7, rtol=1e-6)
    assert abs(kept.mean() - 0.7) < 0.01
    for a in range(4):  # neither heads nor images share their numbers, and neither rows nor columns
        assert all(abs((kept[a] == kept[b]).mean() - 0.58) < 0.03 for b in range(a))
    assert np.abs(kept.mean((0, 1)) - 0.7).max() < 0.1
    assert np.abs(kept.mean((0, 2)) - 0.7).max() < 0.1


def test_keys_of_another_size(float64: None) -> None:
    """Queries and keys come from two images, and a gradient reaches both."""
    first, second = keras.Input((None, None, 3)), keras.Input((None, None, 2))
    q, k = layers.Conv2D(4, 3)(first), layers.Conv2D(5, 3)(second)
    model = keras.Model([first, second], layers.MultiHeadAttention(2, 3)(q, k))
    values = [RANDOM.normal(size=(2, 9, 8, 3)), RANDOM.normal(size=(2, 6, 7, 2))]
    assert_streams(model, values, 2, training=True)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda x: layers.MultiHeadAttention(2, 3)(x, x, return_attention_scores=True)[0],
            "one for each pair of pixels",
        ),
        (lambda x: layers.MultiHeadAttention(2, 3, attention_axes=(0,))(x, x), "other images"),
        (
            lambda x: layers.MultiHeadAttention(2, 3)(
                x, layers.GlobalAveragePooling2D(keepdims=True)(x)
            ),
            "no image",
        ),
        (
            lambda x: layers.MultiHeadAttention(2, 3)(x, x, key_mask=tf.ones((1, 6, 5), "bool")),
            "key_mask of shape",
        ),
    ],
)
def test_refused(build: Callable[[Any], Any], message: str) -> None:
    inputs = keras.Input((None, None, 4))
    model = keras.Model(inputs, layers.Conv2D(2, 3)(build(inputs)))
    with pytest.raises(tfbig.UnsupportedLayerError, match=message):
        tfbig.stream(model, strip_rows=2, plain_if_small=False)


def test_a_bias_is_refused() -> None:
    heads = keras.Input((None, 6))
    parts = [layers.EinsumDense("abc,cde->abde", (None, 2, 3))(heads) for _ in range(3)]
    y = ops.dot_product_attention(*parts, bias=np.ones((1, 2, 8, 8), "float32"))
    model = keras.Model(heads, layers.EinsumDense("abde,dec->abc", (None, 6))(y))
    with pytest.raises(tfbig.UnsupportedLayerError, match="adds a bias to its scores"):
        tfbig.stream(model, strip_rows=2, plain_if_small=False)
