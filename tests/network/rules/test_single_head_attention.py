"""`layers.Attention` equals plain Keras in strips: scales, masks, dropout; its other kinds run on whole images."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops
from streamed_pairs import slow
from twins import assert_streams, images

import tfbig
from tfbig.network.rules import multi_head_attention

pytestmark = pytest.mark.usefixtures("float64")
RANDOM = np.random.default_rng(0)
QUERIES, VALUES = (RANDOM.random((1, 13)) < 0.6 for _ in range(2))


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of few queries and keys, so that each strip has several."""
    monkeypatch.setattr(multi_head_attention, "BLOCK_SCORES", 2 * 2 * 5 * 5)
    monkeypatch.setattr(multi_head_attention, "LEAST_BLOCK", 5)


def scaled(x: Any) -> Any:
    attention = layers.Attention(use_scale=True)
    attention.build([(None, None, 6)] * 3)
    attention.scale.assign(0.7)
    return attention([layers.Dense(6)(x), layers.Dense(6)(x), x])


def masked(queries: Any, values: Any, **options: Any) -> Callable[[Any], Any]:
    masks = [m if m is None else tf.constant(m) for m in (queries, values)]
    return lambda x: layers.Attention()([x, x], mask=masks, **options)


CASES: dict[str, Callable[[Any], Any]] = {
    "self": lambda x: layers.Attention()([x, x]),
    "scaled": scaled,
    "wide values": lambda x: layers.Attention()([x, layers.Dense(8)(x), x]),
    "causal": lambda x: layers.Attention()([x, x], use_causal_mask=True),
}
MASKS = {
    "values": masked(None, VALUES),
    "queries": masked(QUERIES, None),
    "both": masked(QUERIES, VALUES),
    "causal queries": masked(QUERIES, None, use_causal_mask=True),
}


@pytest.mark.parametrize(
    ("name", "rows"),
    [
        ("scaled", None),
        *(slow(n, r) for n in CASES for r in (None, 13) if (n, r) != ("scaled", None)),
    ],
)
def test_of_series(name: str, rows: int | None) -> None:
    inputs = keras.Input((rows, 4))
    x = layers.Conv1D(6, 3, padding="same")(inputs)
    model = keras.Model(inputs, layers.Conv1D(3, 3, padding="same")(CASES[name](x)))
    assert_streams(model, images(model, 2, 13), 3, training=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", MASKS)
def test_masks(name: str) -> None:
    inputs = keras.Input((13, 4))
    x = layers.Conv1D(6, 3, padding="same")(inputs)
    model = keras.Model(inputs, layers.Conv1D(3, 3, padding="same")(x + MASKS[name](x)))
    assert_streams(model, images(model, 2, 13), 3, training=True)


def test_masks_that_are_inputs() -> None:
    inputs = keras.Input((None, 4))
    queries, values = (keras.Input((13,), dtype="bool") for _ in range(2))
    x = layers.Conv1D(6, 3, padding="same")(inputs)
    y = layers.Attention()([x, x], mask=[queries, values])
    model = keras.Model([inputs, queries, values], layers.Dense(3)(y))
    given = [RANDOM.normal(size=(2, 13, 4)), *(RANDOM.random((2, 13)) < 0.7 for _ in range(2))]
    streamed = tfbig.stream(model, strip_rows=3, plain_if_small=False)
    np.testing.assert_allclose(streamed(given), model(given), rtol=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["self", "scaled", "wide values"])
@pytest.mark.parametrize("size", [(6, 4), (None, None)])
def test_of_tokens(name: str, size: Any) -> None:
    inputs = keras.Input((*size, 3))
    x = layers.Reshape((-1, 6))(layers.Conv2D(6, 3, padding="same")(inputs))
    model = keras.Model(inputs, layers.GlobalAveragePooling1D()(CASES[name](x)))
    assert_streams(model, images(model, 2, 6, 4), 2, training=True)


@pytest.mark.slow
@pytest.mark.parametrize("size", [(6, 5), (4, 7), (4, 5, 3)])
def test_of_images_along_their_last_axis(size: Any) -> None:
    inputs = keras.Input((*size, 3))
    x = layers.Dense(6)(inputs)
    y = layers.Attention()([x, x], use_causal_mask=len(size) == 2)
    model = keras.Model(inputs, layers.Dense(2)(y))
    assert_streams(model, images(model, 2, *size), 2, training=True)


@pytest.mark.slow
def test_dropout_depends_on_places_only() -> None:
    inputs = keras.Input((None, 4))
    layer = layers.Attention(dropout=0.4, seed=3)
    model = keras.Model(inputs, layer([inputs, inputs]))
    x, results = images(model, 2, 13), []
    for rows in (2, 13):
        layer.seed_generator.state.assign([3, 0])
        streamed = tfbig.stream(model, strip_rows=rows, plain_if_small=False)
        results.append(streamed(x, training=True))
    np.testing.assert_allclose(results[0], results[1], rtol=1e-10)
    assert not np.allclose(results[0], model(x, training=False))


class Doubled(layers.Attention):
    """An attention with other scores."""

    def _calculate_scores(self, query: Any, key: Any) -> Any:
        return 2 * ops.matmul(query, ops.swapaxes(key, -2, -1))


OTHERS: dict[str, Callable[[Any], Any]] = {
    "sums": lambda x: layers.AdditiveAttention()([x, x]),
    "concat": lambda x: layers.Attention(score_mode="concat")([x, x]),
    "scores": lambda x: layers.Attention()([x, x], return_attention_scores=True)[0],
}


@pytest.mark.parametrize("name", ["sums", *(slow(n) for n in list(OTHERS)[1:])])
def test_other_kinds(name: str) -> None:
    """They run on whole series of fixed size, and are refused on others."""
    for rows in (13, None):
        inputs = keras.Input((rows, 4))
        model = keras.Model(inputs, layers.Conv1D(2, 3)(OTHERS[name](layers.Dense(6)(inputs))))
        if rows:
            assert_streams(model, images(model, 2, 13), 3, training=True)
            continue
        with pytest.raises(tfbig.UnsupportedLayerError, match=r"use layers\.MultiHeadAttention"):
            tfbig.stream(model, strip_rows=3, plain_if_small=False)


def test_a_mask_that_the_next_layer_would_heed_is_refused() -> None:
    inputs = keras.Input((13, 4))
    x = masked(QUERIES, None)(layers.Dense(6)(inputs))
    model = keras.Model(inputs, layers.GlobalAveragePooling1D()(x))
    with pytest.raises(tfbig.UnsupportedLayerError, match="receives a mask"):
        tfbig.stream(model, strip_rows=3, plain_if_small=False)


def test_a_subclass_with_other_scores_does_not_get_the_rule() -> None:
    """Its operations are read, and are an attention that is written out."""
    inputs = keras.Input((None, 4))
    model = keras.Model(inputs, Doubled()([inputs, inputs]))
    x = images(model, 2, 13)
    streamed = tfbig.stream(model, strip_rows=3, plain_if_small=False)
    np.testing.assert_allclose(streamed(x), model(x), rtol=1e-10)
    assert not np.allclose(streamed(x), layers.Attention()([x, x]))
