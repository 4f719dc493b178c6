"""Attention that models write out is found by its structure, and streams; what only looks like it runs as before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from architectures import ClassToken
from keras import layers, ops
from streamed_pairs import slow
from twins import assert_streams, images

import tfbig
from tfbig.network import keras_reader, written_attention
from tfbig.network.rules import multi_head_attention
from tfbig.system import keras_internals

pytestmark = pytest.mark.usefixtures("float64")
SIZE, WIDTH, HEADS = (6, 5), 8, 2


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of few queries and keys, so that each strip has several."""
    monkeypatch.setattr(multi_head_attention, "BLOCK_SCORES", 2 * 2 * 5 * 5)
    monkeypatch.setattr(multi_head_attention, "LEAST_BLOCK", 5)


def parts(x: Any) -> list[Any]:
    return [layers.Dense(WIDTH)(x) for _ in range(3)]


def in_heads(x: Any) -> Any:
    split = layers.Reshape((-1, HEADS, WIDTH // HEADS))(x)
    return ops.transpose(split, (0, 2, 1, 3))


def joined(y: Any) -> Any:
    return layers.Reshape((-1, WIDTH))(ops.transpose(y, (0, 2, 1, 3)))


def single(x: Any) -> Any:
    q, k, v = parts(x)
    return ops.softmax(q @ ops.transpose(k, (0, 2, 1)) * 0.3) @ v


def divided(x: Any) -> Any:
    """Return one whose parts are other operations of the same meaning."""
    q, k, v = parts(x)
    scores = (2 * q) @ layers.Permute((2, 1))(k) / np.sqrt(WIDTH)
    return layers.Dropout(0.0)(layers.Softmax()(scores)) @ v


def heads(x: Any) -> Any:
    q, k, v = map(in_heads, parts(x))
    scores = ops.matmul(q, ops.swapaxes(k, -1, -2)) * 0.5
    return joined(ops.matmul(layers.Activation("softmax")(scores), v))


class Written(layers.Layer):
    """An attention of two heads with dropout."""

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        self.qkv, self.drop = [layers.Dense(WIDTH) for _ in range(3)], layers.Dropout(rate, seed=1)

    def call(self, x: Any, training: bool | None = None) -> Any:
        n, tokens = ops.shape(x)[0], x.shape[1]
        q, k, v = (ops.reshape(d(x), (n, tokens, HEADS, WIDTH // HEADS)) for d in self.qkv)
        q, v = (ops.transpose(t, (0, 2, 1, 3)) for t in (q, v))
        weights = ops.softmax(ops.matmul(q * 0.5, ops.transpose(k, (0, 2, 3, 1))), axis=-1)
        y = ops.transpose(ops.matmul(self.drop(weights, training=training), v), (0, 2, 1, 3))
        return ops.reshape(y, (n, tokens, WIDTH))


WRITTEN = {"single": single, "divided": divided, "heads": heads}


def on_tokens(attend: Callable[[Any], Any], size: Any = SIZE, prefix: int = 0) -> keras.Model:
    inputs = keras.Input((*size, 3))
    x = layers.Reshape((-1, WIDTH))(layers.Conv2D(WIDTH, 3, padding="same")(inputs))
    for _ in range(prefix):
        x = ClassToken()(x)
    x = layers.Add()([x, attend(x)])
    return keras.Model(inputs, x[:, 0] if prefix else layers.GlobalAveragePooling1D()(x))


def pair_operations(model: keras.Model) -> int:
    return sum(getattr(n.op, "heads", 0) > 0 for n in keras_reader.read(model, True).nodes)


@pytest.mark.parametrize("size", [SIZE, (None, None)])
@pytest.mark.parametrize("name", ["heads", *(slow(n) for n in ("single", "divided"))])
def test_of_tokens(name: str, size: Any) -> None:
    model = on_tokens(WRITTEN[name], size)
    x = images(model, 2, *SIZE)
    streamed = tfbig.stream(model, strip_rows=2, plain_if_small=False)
    np.testing.assert_allclose(streamed(x), model(x), rtol=1e-10, atol=1e-12)
    assert pair_operations(model) == 1


@pytest.mark.slow
@pytest.mark.parametrize("size", [SIZE, (None, None)])
@pytest.mark.parametrize("name", WRITTEN)
def test_gradients(name: str, size: Any) -> None:
    model = on_tokens(WRITTEN[name], size)
    assert_streams(model, images(model, 2, *SIZE), 2, training=True)


@pytest.mark.slow
@pytest.mark.parametrize("prefix", [0, 1])
def test_in_a_layer(prefix: int) -> None:
    model = on_tokens(Written(), SIZE, prefix)
    assert_streams(model, images(model, 2, *SIZE), 2, training=True)
    assert pair_operations(model) == 1


@pytest.mark.slow
def test_of_series() -> None:
    inputs = keras.Input((None, 4))
    x = layers.Conv1D(WIDTH, 3, padding="same")(inputs)
    model = keras.Model(inputs, layers.Conv1D(2, 3)(heads(x) + single(x)))
    assert_streams(model, images(model, 2, 9), 2, training=True)
    assert pair_operations(model) == 2


@pytest.mark.slow
def test_dropout_depends_on_places_only() -> None:
    layer = Written(0.4)
    model = on_tokens(layer)
    x, results = images(model, 2, *SIZE), []
    for rows in (2, 6):
        layer.drop.seed_generator.state.assign([3, 0])
        streamed = tfbig.stream(model, strip_rows=rows, plain_if_small=False)
        results.append(streamed(x, training=True))
    np.testing.assert_allclose(results[0], results[1], rtol=1e-10)
    assert not np.allclose(results[0], model(x))
    np.testing.assert_allclose(streamed(x, training=False), model(x), rtol=1e-10)


def shown(x: Any) -> Any:
    """Return one whose weights are also a result."""
    q, k, v = parts(x)
    weights = ops.softmax(q @ ops.transpose(k, (0, 2, 1)))
    return weights @ v + ops.mean(weights)


def shifted(x: Any) -> Any:
    q, k, v = parts(x)
    return ops.softmax(q @ ops.transpose(k, (0, 2, 1)) + np.arange(30.0)) @ v


def over_queries(x: Any) -> Any:
    q, k, v = parts(x)
    return ops.softmax(q @ ops.transpose(k, (0, 2, 1)), axis=1) @ v


def masked(x: Any) -> Any:
    q, k, v = parts(x)
    mask = np.arange(30)[None, None] < np.arange(1, 31)[None, :, None]
    return layers.Softmax()(q @ ops.transpose(k, (0, 2, 1)), mask) @ v


def of_channels(x: Any) -> Any:
    """Return an attention between channels."""
    q, k, v = parts(x)
    return ops.transpose(
        ops.softmax(ops.transpose(q, (0, 2, 1)) @ k) @ ops.transpose(v, (0, 2, 1)), (0, 2, 1)
    )


@pytest.mark.slow
@pytest.mark.parametrize("attend", [shown, shifted, over_queries, masked, of_channels])
def test_others_run_on_all_tokens(attend: Callable[[Any], Any]) -> None:
    model = on_tokens(attend)
    assert_streams(model, images(model, 2, *SIZE), 2, training=True)
    assert pair_operations(model) == 0


def test_of_images_is_read_one_by_one() -> None:
    """Attention along the rows of an image, found by the same structure, runs on the whole image."""
    inputs = keras.Input((*SIZE, 4))
    x = ops.transpose(inputs, (0, 2, 1, 3))
    y = ops.softmax(x @ ops.transpose(inputs, (0, 2, 3, 1))) @ x
    model = keras.Model(inputs, ops.transpose(y, (0, 2, 1, 3)))
    picture = images(model, 2, *SIZE)
    streamed = tfbig.stream(model, strip_rows=2, plain_if_small=False)
    np.testing.assert_allclose(streamed(picture), model(picture), rtol=1e-10)


def test_scale_and_inputs() -> None:
    x = keras.Input((9, WIDTH))
    model = keras.Model(x, divided(x))
    (found,) = written_attention.find(list(keras_internals.nodes(model)), model.outputs)
    assert found.operation.scale == pytest.approx(2 / WIDTH**0.5, rel=1e-15)
    assert [tuple(t.shape) for t in found.inputs] == [(None, 9, WIDTH)] * 3
    assert found.output is model.outputs[0]
