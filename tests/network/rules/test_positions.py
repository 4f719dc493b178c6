"""Positions: whole values and constants with a vector for each pixel equal plain Keras, in strips of images."""

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
from tfbig.network import keras_reader

pytestmark = pytest.mark.usefixtures("float64")
SIZE = (6, 5)
TABLE = np.random.default_rng(0).normal(size=(*SIZE, 4))


class Positions(layers.Layer):
    """Learned positions of some shape, added or multiplied."""

    def __init__(self, shape: tuple[int, ...], join: Callable[..., Any] = ops.add) -> None:
        super().__init__()
        self.of, self.join = shape, join

    def build(self, shape: Any) -> None:
        self.positions = self.add_weight(shape=self.of, initializer="normal", name="positions")

    def call(self, x: Any) -> Any:
        return self.join(x, self.positions)


class Coordinates(layers.Layer):
    """Rows and columns as two further channels (Liu et al. 2018, arXiv:1807.03247)."""

    def call(self, x: Any) -> Any:
        rows, columns = (ops.linspace(-1.0, 1.0, n) for n in x.shape[1:3])
        grid = ops.cast(ops.stack(ops.meshgrid(rows, columns, indexing="ij"), -1)[None], x.dtype)
        grid = ops.broadcast_to(grid, (ops.shape(x)[0], *grid.shape[1:]))
        return ops.concatenate([x, grid], -1)


def of_vector(x: Any) -> Any:
    """Return an image times a factor of each pixel, that a Dense layer computes from the pooled image."""
    factors = layers.Dense(30)(layers.GlobalAveragePooling2D()(x))
    return x * layers.Reshape((*SIZE, 1))(factors)


def in_heads(x: Any) -> Any:
    """Return an image with two heads, to which positions without heads are added."""
    return ops.reshape(ops.reshape(x, (-1, *SIZE, 2, 2)) * TABLE[:, :, None, :2], (-1, *SIZE, 4))


CASES: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "constant": (lambda x: x + TABLE, False),
    "constant before": (lambda x: ops.subtract(TABLE[None], x), True),
    "learned": (lambda x: Positions((1, *SIZE, 4))(x), True),
    "learned without N": (lambda x: Positions((*SIZE, 4), ops.multiply)(x), False),
    "of rows": (lambda x: Positions((1, 6, 1, 4))(x), True),
    "of columns": (lambda x: Positions((5, 4))(x), True),
    "one for all channels": (lambda x: x * TABLE[..., :1], True),
    "of no channels": (lambda x: ops.max(x, -1)[..., None] * x + TABLE, False),
    "two": (lambda x: ops.where(x > 0, TABLE, 2 * TABLE[:, :1]), False),
    "coordinates": (lambda x: Coordinates()(x), False),
    "of a vector": (of_vector, False),
    "heads": (in_heads, False),
}
FAST = "learned", "of columns", "heads"


@pytest.mark.parametrize("any_size", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in FAST else [pytest.mark.slow]) for n in CASES]
)
def test_of_images(name: str, any_size: bool) -> None:
    """Positions of images of any size fix it."""
    apply, fixes = CASES[name]
    if any_size and not fixes:
        return
    inputs = keras.Input((*((None, None) if any_size else SIZE), 3))
    x = apply(layers.Conv2D(4, 3, padding="same")(inputs))
    model = keras.Model(inputs, layers.Conv2D(2, 3)(x))
    assert_streams(model, images(model, 2, *SIZE), 2, training=True)
    kinds = {type(node.op).__name__ for node in keras_reader.read(model, True).nodes}
    assert "Gather" not in kinds  # no image is whole


@pytest.mark.parametrize("size", [(7,), pytest.param((4, 5, 3), marks=pytest.mark.slow)])
def test_of_series_and_volumes(size: Any) -> None:
    inputs = keras.Input((*size, 3))
    x = Positions((1, *size, 4))(layers.Dense(4)(inputs))
    x = layers.Add()([x, layers.Dense(4)(inputs)])
    model = keras.Model(inputs, layers.Dense(2)(x))
    assert_streams(model, images(model, 2, *size), 2, training=True)


@pytest.mark.slow
def test_of_wide_images_which_are_cut_along_the_columns() -> None:
    inputs = keras.Input((4, 9, 3))
    x = Positions((1, 4, 9, 4))(Positions((9, 4))(layers.Dense(4)(inputs)))
    model = keras.Model(inputs, layers.Conv2D(2, 3)(x))
    assert_streams(model, images(model, 2, 4, 9), 2, training=True)
    small = tfbig.stream(model, tfbig.Budget(device="12KB"), plain_if_small=False)
    x = images(model, 2, 4, 9)
    np.testing.assert_allclose(small(x), model(x), rtol=1e-10)


def test_rows_then_columns() -> None:
    """Both are added by operations that are equal but for the shapes of what they add."""
    inputs = keras.Input((5, 5, 4))
    x = Positions((1, 1, 5, 4))(Positions((1, 5, 1, 4))(inputs))
    model = keras.Model(inputs, Positions((1, 5, 5, 4))(x))
    x = images(model, 2, 5, 5)
    streamed = tfbig.stream(model, strip_rows=2, plain_if_small=False)
    np.testing.assert_allclose(streamed(x), model(x), rtol=1e-10)


def test_another_size_is_refused() -> None:
    inputs = keras.Input((None, None, 4))
    model = keras.Model(inputs, Positions((1, *SIZE, 4))(inputs))
    streamed = tfbig.stream(model, strip_rows=2, plain_if_small=False)
    with pytest.raises(ValueError, match="was built for"):
        streamed(np.zeros((1, 7, 5, 4)))


# ------------------------------------------------------------------------------ rotated positions


def angles(size: tuple[int, int], channels: int) -> np.ndarray:
    """Return the angles of rows, then those of columns, `[rows, columns, channels / 2]`."""
    rates = 100.0 ** -np.linspace(0, 1, channels // 4)
    grid = np.meshgrid(*(np.arange(n) for n in size), indexing="ij")
    return np.concatenate([each[..., None] * rates for each in grid], -1)


def halves(x: Any) -> Any:
    a, b = ops.split(x, 2, axis=-1)
    return ops.concatenate([-b, a], axis=-1)


def pairs(x: Any) -> Any:
    turned = ops.stack([-x[..., 1::2], x[..., ::2]], axis=-1)
    return ops.reshape(turned, (-1, *x.shape[1:]))


TURNS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "halves": (halves, lambda a: np.concatenate([a, a], -1)),
    "pairs": (pairs, lambda a: np.repeat(a, 2, -1)),
}


class Rotated(layers.Layer):
    """Attention of two heads whose queries and keys are turned by their places (Su et al. 2021, arXiv:2104.09864).

    Of tokens, those before the pixels are not turned.
    """

    def __init__(self, turn: str, prefix: int = 0, on_image: bool = False) -> None:
        super().__init__()
        self.turn, self.prefix, self.on_image = turn, prefix, on_image
        self.qkv, self.after = layers.Dense(24), layers.Dense(8)

    def rotate(self, x: Any) -> Any:
        turned, spread = TURNS[self.turn]
        angle = spread(angles(SIZE, 4))[:, :, None]
        angle = angle if self.on_image else angle.reshape(-1, *angle.shape[2:])
        first, rest = x[:, : self.prefix], x[:, self.prefix :] if self.prefix else x
        rest = rest * np.cos(angle) + turned(rest) * np.sin(angle)
        return ops.concatenate([first, rest], axis=1) if self.prefix else rest

    def call(self, x: Any) -> Any:
        shape = ops.shape(x)
        qkv = ops.reshape(self.qkv(x), (*shape[:-1], 3, 2, 4))
        q, k, v = ops.unstack(qkv, 3, axis=-3)
        attended = [self.rotate(q), self.rotate(k), v]
        if self.on_image:
            attended = [ops.reshape(t, (shape[0], SIZE[0] * SIZE[1], 2, 4)) for t in attended]
        return self.after(ops.reshape(ops.dot_product_attention(*attended), (*shape[:-1], 8)))

    def compute_output_shape(self, shape: Any) -> Any:
        return shape


def rotating(turn: str, prefix: int, on_image: bool) -> keras.Model:
    inputs = keras.Input((*SIZE, 3))
    x = layers.Dense(8)(inputs)
    x = x if on_image else layers.Reshape((-1, 8))(x)
    for _ in range(prefix):
        x = ClassToken()(x)
    x = layers.Add()([x, Rotated(turn, prefix, on_image)(x)])
    mean = ops.mean(x, axis=(1, 2) if on_image else 1) if not prefix else x[:, 0]
    return keras.Model(inputs, mean)


@pytest.mark.slow
@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize(("prefix", "on_image"), [(0, False), (0, True), (3, False)])
def test_rotated(turn: str, prefix: int, on_image: bool) -> None:
    model = rotating(turn, prefix, on_image)
    assert_streams(model, images(model, 2, *SIZE), 2, training=True)


@pytest.mark.parametrize(
    ("turn", "on_image"),
    [pytest.param("halves", False, marks=pytest.mark.slow), ("pairs", True)],
)
def test_rotated_in_strips(turn: str, on_image: bool) -> None:
    model = rotating(turn, 0, on_image)
    x = images(model, 2, *SIZE)
    streamed = tfbig.stream(model, strip_rows=2, plain_if_small=False)
    np.testing.assert_allclose(streamed(x), model(x), rtol=1e-10, atol=1e-12)
    whole = [n for n in keras_reader.read(model, True).nodes if type(n.op).__name__ == "Gather"]
    assert not whole


class ByRowsAndColumns(layers.Layer):
    """Attention of one head with biases by row and by column, as further channels, or as a bias of each pair."""

    def __init__(self, of_pairs: bool = False) -> None:
        super().__init__()
        self.of_pairs, self.qkv = of_pairs, layers.Dense(12)

    def build(self, shape: Any) -> None:
        self.qkv.build(shape)
        self.down, self.right = (
            self.add_weight(shape=(n, n), initializer="normal", name=f"biases_{n}") for n in SIZE
        )
        super().build(shape)

    def call(self, x: Any) -> Any:
        q, k, v = ops.split(ops.expand_dims(self.qkv(x), -2), 3, axis=-1)
        bias = None
        if self.of_pairs:
            down, right = self.down[:, None, :, None], self.right[None, :, None]
            bias = ops.reshape(down + right, (1, 1, 30, 30))
        else:
            zero = ops.zeros_like(q[..., :1])
            down = ops.reshape(self.down, (6, 1, 1, 6))
            right = ops.reshape(self.right, (5, 1, 5))
            q = ops.concatenate([q, zero + down, zero + right], -1)
            rows, columns = np.eye(6)[:, None, None], np.eye(5)[:, None]
            k = ops.concatenate([k, zero + rows, zero + columns], -1)
        q, k, v = (ops.reshape(t, (-1, 30, 1, t.shape[-1])) for t in (q, k, v))
        return ops.reshape(ops.dot_product_attention(q, k, v, bias=bias, scale=1.0), (-1, *SIZE, 4))

    def compute_output_shape(self, shape: Any) -> Any:
        return (*shape[:-1], 4)


def test_biases_by_rows_and_columns() -> None:
    """Further channels stream, and give what a bias of each pair gives in plain Keras."""
    inputs = keras.Input((*SIZE, 3))
    model, twin = (
        keras.Model(inputs, ByRowsAndColumns(of_pairs)(inputs)) for of_pairs in (False, True)
    )
    twin.set_weights(model.get_weights())
    x = images(model, 2, *SIZE)
    streamed = tfbig.stream(model, strip_rows=2, plain_if_small=False)
    np.testing.assert_allclose(streamed(x), twin(x), rtol=1e-10, atol=1e-12)
    kinds = {type(node.op).__name__ for node in keras_reader.read(model, True).nodes}
    assert kinds == {"Local", "Whole"}  # no image is whole


def test_tables_of_a_wider_type() -> None:
    """NumPy makes tables of float64, to which Keras casts queries, keys and values too."""
    inputs = keras.Input((*SIZE, 8), dtype="float32")
    x = ops.reshape(inputs, (-1, 30, 2, 4))
    y = ops.dot_product_attention(x * np.arange(30.0)[:, None, None] / 30, x, x)
    model = keras.Model(inputs, ops.reshape(y, (-1, *SIZE, 8)))
    picture = images(model, 2, *SIZE)
    streamed = tfbig.stream(model, strip_rows=2, plain_if_small=False)(picture)
    assert streamed.dtype == model(picture).dtype == "float64"
    np.testing.assert_allclose(streamed, model(picture), rtol=1e-7)


@pytest.mark.slow
def test_gradients_of_biases_by_rows_and_columns() -> None:
    inputs = keras.Input((*SIZE, 3))
    model = keras.Model(inputs, ByRowsAndColumns()(inputs))
    assert_streams(model, images(model, 2, *SIZE), 2, training=True)


@pytest.mark.slow
def test_a_submodel_with_rotated_attention_fits_and_is_saved(tmp_path: Any) -> None:
    def fitted(stream: bool) -> list[np.ndarray]:
        keras.utils.set_random_seed(0)
        inputs, tokens = keras.Input((*SIZE, 3)), keras.Input((30, 8))
        inner = keras.Model(tokens, tokens + Rotated("halves")(tokens))
        x = block(inner(layers.Reshape((-1, 8))(layers.Dense(8)(inputs))))
        model = keras.Model(inputs, layers.Dense(1)(layers.GlobalAveragePooling1D()(x)))
        used = tfbig.stream(model, strip_rows=2, plain_if_small=False) if stream else model
        used.compile("sgd", "mse")
        x = np.random.default_rng(0).normal(size=(5, *SIZE, 3))
        used.fit(x, np.arange(5.0), 2, shuffle=False, verbose=0)
        used.save_weights(tmp_path / "of.weights.h5")
        model.load_weights(tmp_path / "of.weights.h5")
        return [*model.get_weights(), used.predict(x, verbose=0)]

    for actual, expected in zip(fitted(True), fitted(False), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=1e-9, atol=1e-12)
