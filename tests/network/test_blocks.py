"""Layers and models of one's own without a rule, read by calling them on symbolic tensors."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from exactness import FLOAT64, assert_same
from keras import layers, ops
from streamed_pairs import slow
from twins import assert_streams, images

import tfbig

pytestmark = pytest.mark.usefixtures("float64")


class Gated(layers.Layer):
    """Convolution, normalisation and a gate, with weights of its own."""

    def __init__(self, filters: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.convolution = layers.Conv2D(filters, 3, padding="same")
        self.normalisation = layers.BatchNormalization(momentum=0.8)

    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(shape=(self.convolution.filters,), name="scale")
        self.mix = [self.add_weight(shape=(1,), name=f"mix_{i}") for i in range(2)]
        super().build(shape)

    def call(self, x: Any, training: bool | None = None) -> Any:
        y = ops.relu(self.normalisation(self.convolution(x))) * self.scale
        gate = ops.sigmoid(ops.mean(y, (1, 2), keepdims=True))
        first, second = ops.split(ops.softmax(ops.concatenate(self.mix)), 2)
        return y * gate * first if training else y * gate + second


class Encoder(keras.Model):
    """Subclassed model of blocks, with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = [Gated(4), Gated(4)]
        self.pool = layers.GlobalAveragePooling2D()
        self.head = layers.Dense(2)

    def call(self, x: Any, training: bool | None = None) -> Any:
        y = self.blocks[0](x)
        y = y + self.blocks[1](y, training=training)
        return self.head(self.pool(y))


class Frozen(keras.Model):
    """Model whose first normalisation never trains; as in Keras, its mode holds for the next one too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = layers.BatchNormalization(), layers.BatchNormalization()
        self.convolution = layers.Conv2D(3, 3)

    def call(self, x: Any) -> Any:
        return self.second(self.convolution(self.first(x, training=False)))


class TwoOutputs(keras.Model):
    """Model with a dict of outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.body = keras.Sequential([layers.Conv2D(4, 3, padding="same"), layers.ReLU()])
        self.mask, self.classes = layers.Conv2D(1, 1), layers.Dense(3)

    def call(self, inputs: Any) -> Any:
        x = self.body(inputs)
        return {"mask": self.mask(x), "classes": self.classes(ops.max(x, (1, 2)))}


def between_convolutions(layer: Any) -> keras.Model:
    start = keras.Input((None, None, 3))
    x = layer(layers.Conv2D(3, 3)(start))
    return keras.Model(start, layers.Conv2D(2, 3)(x))


def pixels(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape)


@pytest.mark.parametrize("training", [True, slow(False)])
def test_layer(training: bool) -> None:
    model = between_convolutions(Gated(4))
    assert_streams(model, images(model, 2, 9, 7), 2, training)


@pytest.mark.parametrize(
    ("kind", "training"),
    [
        (Frozen, True),
        (TwoOutputs, False),
        *(slow(*case) for case in ((Encoder, True), (Encoder, False))),
        *(slow(*case) for case in ((Frozen, False), (TwoOutputs, True))),
    ],
)
def test_subclassed_model(kind: type, training: bool) -> None:
    model = kind()
    x = tf.constant(pixels(2, 9, 7, 3))
    model(x)
    assert_streams(model, x, 2, training)


@pytest.mark.slow
def test_other_sizes_than_it_was_built_with() -> None:
    model = Encoder()
    model(pixels(1, 8, 8, 3))
    assert_streams(model, tf.constant(pixels(2, 13, 6, 3)), 3, training=True)


@pytest.mark.slow
def test_training_and_prediction_of_a_subclassed_model() -> None:
    model, twin = Encoder(), Encoder()
    x, y = pixels(4, 9, 7, 3), pixels(4, 2)
    for each in (model, twin):
        each(x)
    twin.set_weights(model.get_weights())
    streamed = tfbig.stream(model, strip_rows=2)
    for each in (streamed, twin):
        each.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", metrics=["mae"])
    first, second = (m.fit(x, y, 2, 2, shuffle=False, verbose=0).history for m in (streamed, twin))
    assert_same(
        [np.array(v) for v in first.values()], [np.array(v) for v in second.values()], FLOAT64
    )
    assert_same(model.get_weights(), twin.get_weights(), FLOAT64)
    assert_same(streamed.predict(x, verbose=0), twin.predict(x, verbose=0), FLOAT64)


def test_reading_leaves_the_layers_as_they_were() -> None:
    layer = Gated(4)
    model = between_convolutions(layer)
    inner = [layer.convolution, layer.normalisation]
    before = [len(each._inbound_nodes) for each in inner]
    tfbig.stream(model)
    assert [len(each._inbound_nodes) for each in inner] == before
    assert isinstance(layer.scale, keras.Variable)
    assert all(isinstance(v, keras.Variable) for v in layer.mix)
    assert layer.trainable_variables[0] is layer.scale


class Decides(layers.Layer):
    def call(self, x: Any) -> Any:
        return x if len(x.shape) == 4 and float(self.limit(x)) > 0 else -x

    def limit(self, x: Any) -> Any:
        return ops.convert_to_numpy(ops.mean(x))

    def compute_output_shape(self, shape: Any) -> Any:
        return shape

    def compute_output_spec(self, x: Any) -> Any:
        return keras.KerasTensor(x.shape, x.dtype)


class Counts(layers.Layer):
    def build(self, shape: Any) -> None:
        self.calls = self.add_weight(shape=(), trainable=False, name="calls")

    def call(self, x: Any) -> Any:
        self.calls.assign(self.calls + 1)
        return x


class Plain(layers.Layer):
    def call(self, x: Any) -> Any:
        return tf.nn.relu(x)


class Sorts(layers.Layer):
    def call(self, x: Any) -> Any:
        return ops.sort(x, axis=1)


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (
            Decides,
            r"'own' \(Decides\) has no rule and cannot be read.* of .*test_blocks.py, `return ops.conv",
        ),
        (Counts, r"'own' \(Counts\) .* `self.calls.assign\(self.calls \+ 1\)`"),
        (
            Plain,
            r"'own' \(Plain\) .* `return tf.nn.relu\(x\)`: .* Use Keras layers and keras.ops only",
        ),
        (Sorts, r"inside layer 'own' \(Sorts\): layer 'sort\w*' \(Sort\) only runs .* axis=-1"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_line(layer: type, message: str) -> None:
    start = keras.Input((None, None, 3))
    model = keras.Model(start, layer(name="own")(start))
    with pytest.raises(tfbig.UnsupportedLayerError, match=message):
        tfbig.stream(model)


def test_model_that_is_not_built() -> None:
    with pytest.raises(
        tfbig.UnsupportedLayerError, match=r"is not built.* call it on an image first"
    ):
        tfbig.stream(Encoder())


def test_activity_regularizer_of_ones_own_layer() -> None:
    start = keras.Input((None, None, 3))
    model = keras.Model(start, Gated(4, activity_regularizer="l2")(start))
    with pytest.raises(tfbig.UnsupportedLayerError, match="has an activity_regularizer"):
        tfbig.stream(model)


def test_line_in_a_folder_with_the_name_of_a_library(tmp_path: Path) -> None:
    """The line that is named is the user's, wherever the code of the user lies."""
    folder = tmp_path / "tfbig" / "keras"
    folder.mkdir(parents=True)
    source = "import keras, tensorflow as tf\n\n\nclass Own(keras.layers.Layer):\n"
    source += "    def call(self, x):\n        return tf.nn.relu(x)\n"
    (folder / "own.py").write_text(source)
    space = runpy.run_path(str(folder / "own.py"))
    start = keras.Input((None, None, 3))
    with pytest.raises(tfbig.UnsupportedLayerError, match=r"line 6 of .*own.py, `return tf.nn"):
        tfbig.stream(keras.Model(start, space["Own"]()(start)))


class Head(layers.Layer):
    """A head that names the size of the batch, as `ops.shape(x)[0]`."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.function = function

    def build(self, shape: Any) -> None:
        self.token = self.add_weight(shape=(1, 1, 8), name="token")

    def call(self, x: Any) -> Any:
        return self.function(x, self.token)


def _with_token(token: Any, x: Any) -> Any:
    return ops.mean(ops.concatenate([token, ops.reshape(x, (-1, 192, 8))], 1), 1)


HEADS: dict[str, Callable[[Any, Any], Any]] = {
    "reshape": lambda x, t: ops.mean(ops.reshape(x, (ops.shape(x)[0], 192, 8)), 1) + t[0],
    "reshape with -1": lambda x, t: ops.mean(ops.reshape(x, (ops.shape(x)[0], -1, 8)), 1) + t[0],
    "two reshapes": lambda x, t: ops.mean(
        ops.reshape(ops.reshape(x, (ops.shape(x)[0], -1, 8)) + t, (ops.shape(x)[0], -1, 4)), 1
    ),
    "broadcast_to": lambda x, t: _with_token(ops.broadcast_to(t, (ops.shape(x)[0], 1, 8)), x),
    "tile": lambda x, t: _with_token(ops.tile(t, (ops.shape(x)[0], 1, 1)), x),
    "repeat": lambda x, t: _with_token(ops.repeat(t, ops.shape(x)[0], axis=0), x),
    "zeros": lambda x, t: _with_token(ops.zeros((ops.shape(x)[0], 1, 8), x.dtype) + t, x),
}


FAST = ("reshape with -1", "tile")


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in HEADS]
)
def test_heads_that_name_the_size_of_the_batch(name: str) -> None:
    """A head of images of fixed size is read, or is called on the whole images where it cannot be."""
    image = keras.Input((16, 12, 3))
    x = layers.Conv2D(8, 3, padding="same")(image)
    plain = keras.Model(image, layers.Dense(2)(Head(HEADS[name])(x)))
    batch = np.random.default_rng(0).normal(size=(3, 16, 12, 3))
    assert_streams(plain, batch, 5, training=True)
    assert_streams(plain, batch[:1], 5, training=False)


def test_a_block_that_gives_an_image_and_needs_the_size_of_the_batch() -> None:
    """It would hold the whole image, so it is refused, with the operation and its sizes."""
    image = keras.Input((16, 12, 8))

    def call(x: Any, token: Any) -> Any:
        mean = ops.mean(x, (1, 2), keepdims=True)
        return x + ops.broadcast_to(mean, (ops.shape(x)[0], 1, 1, 8))

    plain = keras.Model(image, Head(call)(image))
    with pytest.raises(
        tfbig.UnsupportedLayerError, match=r"BroadcastTo needs the sizes \(None, 1, 1, 8\)"
    ):
        tfbig.stream(plain, strip_rows=5, plain_if_small=False)


def test_a_block_that_gives_an_image_and_repeats_a_weight_for_the_batch() -> None:
    """What is the same for all images stays one, and is repeated where it meets them."""
    image = keras.Input((16, 12, 8))

    def call(x: Any, token: Any) -> Any:
        return x + ops.broadcast_to(ops.reshape(token, (1, 1, 1, 8)), (ops.shape(x)[0], 1, 1, 8))

    plain = keras.Model(image, Head(call)(image))
    x = np.random.default_rng(0).normal(size=(2, 16, 12, 8)).astype("float32")
    streamed = tfbig.stream(plain, strip_rows=5, plain_if_small=False)
    np.testing.assert_array_equal(streamed(x), plain(x))


class Positions(layers.Layer):
    """Adds rows of an Embedding, which is called on numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.table = layers.Embedding(24, 8)

    def build(self, shape: Any) -> None:
        self.table.build((24,))

    def call(self, x: Any) -> Any:
        return x + ops.reshape(self.table(ops.arange(0, 24)), (1, 24, 8))


def test_a_layer_inside_that_is_called_on_constants_learns(float64: None) -> None:
    """Its result is computed in every step, not when the block is read."""
    image = keras.Input((12, 8, 3))
    x = layers.Reshape((24, 8))(layers.Conv2D(8, 2, 2)(image))
    plain = keras.Model(image, layers.GlobalAveragePooling1D()(Positions()(x)))
    assert_streams(plain, images(plain, 2, 12, 8), 3, training=True)
    streamed = tfbig.stream(plain, strip_rows=3, plain_if_small=False)
    streamed.compile(keras.optimizers.SGD(1.0), "mse")
    before = plain.trainable_variables[-1].numpy()
    streamed.train_on_batch(np.ones((1, 12, 8, 3)), np.ones((1, 8)))
    assert np.abs(plain.trainable_variables[-1].numpy() - before).max() > 1e-4


@pytest.mark.parametrize("trainable", [True, False])
def test_a_block_that_computes_with_weights_of_a_layer_inside_is_refused(trainable: bool) -> None:
    """Weights that are read as constants would not learn."""

    class Scaled(layers.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.dense = layers.Dense(8, trainable=trainable)

        def build(self, shape: Any) -> None:
            self.dense.build((None, 8))

        def call(self, x: Any) -> Any:
            return x * ops.exp(self.dense.bias)

    image = keras.Input((12, 8, 8))
    plain = keras.Model(image, Scaled()(image))
    with pytest.raises(tfbig.UnsupportedLayerError, match=r"computes with the values of .*bias"):
        tfbig.stream(plain, strip_rows=5, plain_if_small=False)
