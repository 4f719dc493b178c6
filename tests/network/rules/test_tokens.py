"""Pixels as tokens, tokens before them and positions equal plain Keras in strips; what cannot be cut is whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from architectures import ClassToken, block
from keras import layers, ops
from twins import assert_streams, images

import tfbig
from tfbig.models.vision_transformer import ViT, vision_transformer
from tfbig.network import keras_reader
from tfbig.network.graph import Tokens
from tfbig.network.rules.tokens import FirstTokens

SIZE = (12, 8)
"""Rows and columns of images of 6 x 4 patches."""


def model(
    finish: Callable[[Any], Any], before: int = 0, size: tuple[int | None, ...] = SIZE
) -> keras.Model:
    """Return a transformer block on the patches of an image, with some tokens before them."""
    inputs = keras.Input((*size, 3))
    x = layers.Reshape((-1, 6))(layers.Conv2D(6, 2, 2)(inputs))
    for _ in range(before):
        x = ClassToken()(x)
    return keras.Model(inputs, finish(block(x)))


def both(x: Any) -> Any:
    """Return the token of the class, and the mean of the others."""
    return ops.concatenate([x[:, 0], ops.mean(x[:, 3:], axis=1)], -1)


FINISHES: dict[str, tuple[Callable[[Any], Any], int]] = {
    "all": (lambda x: x, 3),
    "all without tokens before": (lambda x: x, 0),
    "first": (lambda x: x[:, 0], 1),
    "first of the pixels": (lambda x: x[:, 5], 0),
    "some": (lambda x: x[:, 1:3], 3),
    "mean and first": (both, 3),
    "mean": (lambda x: layers.GlobalAveragePooling1D()(x), 0),
    "maximum": (lambda x: layers.GlobalMaxPooling1D()(x), 0),
    "without the first": (lambda x: layers.Dense(2)(x[:, 1:]), 3),
    "image": (lambda x: layers.Conv2D(2, 3)(layers.Reshape((6, 4, 6))(x[:, 5:])), 5),
    "masked keys": (
        lambda x: layers.MultiHeadAttention(1, 3)(x, x, key_mask=np.arange(26)[None] % 3 > 0)[:, 1],
        2,
    ),
    "masked keys of pixels": (
        lambda x: layers.MultiHeadAttention(1, 3)(x, x, key_mask=np.arange(24)[None] % 3 > 0)[:, 1],
        0,
    ),
    "tokens before the pixels and pixels": (lambda x: x[:, 1:6], 3),
    "a pixel after tokens": (lambda x: x[:, 4], 2),
    "more tokens than columns": (lambda x: x[:, :2], 9),
    "a convolution over tokens": (lambda x: layers.Conv1D(2, 3)(x), 2),
    "normalised and dropped out": (
        lambda x: layers.Dense(2)(layers.Dropout(0.0)(layers.LayerNormalization()(x)))[:, 0],
        1,
    ),
    "of several axes of channels": (lambda x: ops.sum(ops.reshape(x, (-1, 25, 2, 3)), 2)[:, 0], 1),
    "constant positions": (lambda x: (x + np.arange(24.0)[:, None])[:, 2:4], 0),
    "multiplied by weights": (lambda x: (x * np.linspace(0, 1, 25)[None, :, None])[:, :3], 1),
}


QUICK = {"mean and first", "image", "constant positions", "tokens before the pixels and pixels"}
"""Those of `FINISHES` and `VARIANTS` that always run."""


def some_slow(names: Any) -> list[Any]:
    slow = pytest.mark.slow
    return [pytest.param(n, marks=() if n in QUICK | {"registers"} else slow) for n in names]


@pytest.mark.parametrize("rows", [1, pytest.param(5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", some_slow(FINISHES))
def test_tokens_equal_plain_keras(name: str, rows: int, float64: None) -> None:
    finish, before = FINISHES[name]
    network = model(finish, before)
    assert_streams(network, images(network, 2, *SIZE), rows, training=True)


VARIANTS = {
    "registers": ViT(4, 8, 1, 2, registers=3, pooling="token_mean", layer_scale=0.2),
    "two blocks": ViT(4, 8, 2, 2, pooling="token"),
    "swiglu": ViT(4, 8, 1, 2, class_token=False, mlp="swiglu", pooling="mean"),
    "positions of patches": ViT(4, 8, 1, 2, prefix_positions=False),
    "all tokens": ViT(4, 8, 1, 2, pooling=None),
}


@pytest.mark.parametrize("name", some_slow(VARIANTS))
def test_vision_transformers(name: str, float64: None) -> None:
    network = vision_transformer((16, 12, 3), VARIANTS[name])
    assert_streams(network, images(network, 2, 16, 12), 4, training=True)


def test_two_layers_that_add_different_numbers_of_tokens(float64: None) -> None:
    """Both layers compute nodes of one name, which share no trace."""

    class Tokens(layers.Layer):
        def __init__(self, number: int) -> None:
            super().__init__()
            self.number = number

        def build(self, shape: Any) -> None:
            self.tokens = self.add_weight(shape=(1, self.number, shape[-1]), name="tokens")

        def call(self, x: Any) -> Any:
            return layers.Concatenate(axis=1, name="join")([self.tokens, x])

        def compute_output_shape(self, shape: Any) -> Any:
            return (shape[0], self.number + shape[1], shape[2])

    inputs = keras.Input((*SIZE, 3))
    pixels = layers.Conv2D(6, 2, 2)(inputs)
    ends = [
        layers.LayerNormalization()(Tokens(n)(layers.Reshape((-1, 6))(pixels)))[:, :3]
        for n in (1, 3)
    ]
    network = keras.Model(inputs, ends)
    assert_streams(network, images(network, 1, *SIZE), 3, training=True)


def test_a_transformer_streams() -> None:
    """No token is gathered before the last layer, and every block adds a sweep."""
    network = vision_transformer((16, 12, 3), VARIANTS["registers"])
    plan = tfbig.stream(network, strip_rows=4, plain_if_small=False).plan((2, 16, 12, 3))
    assert [cost.strips for cost in plan.costs] == [4, 4]
    graph = keras_reader.read(network, True)
    assert set(graph.tokens.values()) == {Tokens(0, (4, 3)), Tokens(4, (4, 3))}
    firsts = [n for n in graph.nodes if isinstance(n.op, FirstTokens)]
    assert [n.op.number for n in firsts] == [1]  # the class token, for the output


@pytest.mark.slow
def test_images_of_any_size(float64: None) -> None:
    network = model(lambda x: layers.GlobalAveragePooling1D()(x), size=(None, None))
    for size in ((12, 8), (4, 18)):  # of the second, strips cut the columns of plain Keras
        assert_streams(network, images(network, 2, *size), 3, training=True)


def test_a_class_token_in_images_of_any_size(float64: None) -> None:
    """Its row must hold it."""

    class Token(layers.Layer):
        def build(self, shape: Any) -> None:
            self.token = self.add_weight(shape=(1, 3, shape[-1]), name="token")

        def call(self, x: Any) -> Any:
            tokens = ops.broadcast_to(self.token, (ops.shape(x)[0], 3, x.shape[-1]))
            return ops.concatenate([tokens, x], axis=1)

        def compute_output_shape(self, shape: Any) -> Any:
            return (shape[0], None, shape[2])

    inputs = keras.Input((None, None, 3))
    x = Token()(layers.Reshape((-1, 6))(layers.Conv2D(6, 2, 2)(inputs)))
    network = keras.Model(inputs, block(x)[:, 1])
    assert_streams(network, images(network, 2, 10, 6), 3, training=True)
    streamed = tfbig.stream(network, strip_rows=3, plain_if_small=False)
    with pytest.raises(ValueError, match="holds 3 further tokens"):
        streamed(np.zeros((1, 10, 4, 3), "float32"))


def test_another_size_than_that_of_the_tokens_is_refused() -> None:
    network = model(lambda x: x[:, 0], 1)
    streamed = tfbig.stream(network, strip_rows=3, plain_if_small=False)
    with pytest.raises(ValueError, match="was built for"):
        streamed(np.zeros((1, 8, 12, 3), "float32"))


@pytest.mark.parametrize(
    ("finish", "message"),
    [
        (lambda x: x, "number is known only when"),
        (lambda x: layers.Conv1D(2, 3)(x), "combines neighbours in a series of tokens"),
        (lambda x: x[:, 2:-1], "selects tokens"),
        (lambda x: x[:, 1:, :2], "one after the other"),
    ],
)
def test_refused(finish: Callable[[Any], Any], message: str) -> None:
    """Tokens of unknown number are never whole."""
    with pytest.raises(tfbig.UnsupportedLayerError, match=message):
        tfbig.stream(model(finish, size=(None, None)), strip_rows=2, plain_if_small=False)


def test_tokens_and_images_are_not_combined() -> None:
    inputs = keras.Input((6, 4, 6))
    tokens = layers.Reshape((-1, 6))(inputs)
    other = layers.Reshape((24, 6))(layers.MaxPooling2D(1)(inputs))
    network = keras.Model(inputs, layers.Add()([tokens, other]))
    assert_streams(network, images(network, 2, 6, 4), 2, training=True)
    first = ClassToken()(tokens)
    with pytest.raises(tfbig.UnsupportedLayerError, match="not made alike"):
        tfbig.stream(
            keras.Model(inputs, layers.MultiHeadAttention(2, 3)(first, tokens)), strip_rows=2
        )


class Patches(layers.Layer):
    """Patches as the example "Image classification with Vision Transformer" of Keras makes them."""

    def call(self, x: Any) -> Any:
        batch, height, width, channels = ops.shape(x)
        patches = ops.image.extract_patches(x, size=2)
        return ops.reshape(patches, (batch, height // 2 * (width // 2), 4 * channels))


class PatchEncoder(layers.Layer):
    """A projection of patches, and positions, as in that example."""

    def __init__(self, number: int, width: int) -> None:
        super().__init__()
        self.number, self.projection = number, layers.Dense(width)
        self.positions = layers.Embedding(number, width)

    def build(self, shape: Any) -> None:
        self.projection.build(shape)
        self.positions.build((self.number,))

    def call(self, x: Any) -> Any:
        positions = ops.expand_dims(ops.arange(0, self.number, 1), axis=0)
        return self.projection(x) + self.positions(positions)


class SequencePooling(layers.Layer):
    """Pooling as the example "Compact Convolutional Transformers" of Keras has it."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = layers.Dense(1)

    def build(self, shape: Any) -> None:
        self.attention.build(shape)

    def call(self, x: Any) -> Any:
        weights = ops.transpose(ops.softmax(self.attention(x), axis=1), axes=(0, 2, 1))
        return ops.squeeze(ops.matmul(weights, x), -2)


@pytest.mark.slow
@pytest.mark.parametrize("pool", [layers.Flatten, SequencePooling])
def test_examples_of_keras(pool: Any, float64: None) -> None:
    inputs = keras.Input((*SIZE, 3))
    x = block(block(PatchEncoder(24, 6)(Patches()(inputs))))
    network = keras.Model(inputs, layers.Dense(2)(pool()(layers.LayerNormalization()(x))))
    assert_streams(network, images(network, 2, *SIZE), 4, training=True)
