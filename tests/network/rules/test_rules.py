"""Rules for one's own layers, `keras.ops`, small values and noise: each against the plain model in float64."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from exactness import assert_same
from keras import layers, ops
from keras.src.applications.convnext import StochasticDepth
from keras.src.applications.inception_resnet_v2 import CustomScaleLayer
from twins import assert_streams, images, unlike_at_start

import tfbig
from tfbig.geometry.windows import Window
from tfbig.network import keras_reader, rules
from tfbig.network.rules import operations

pytestmark = pytest.mark.usefixtures("float64")


def image(channels: int = 4) -> Any:
    return keras.Input((None, None, channels))


def check(inputs: Any, outputs: Any) -> None:
    """Strips of one row in training, of three rows else."""
    model = keras.Model(inputs, outputs)
    x = images(model, 2, 7, 6)
    model(x)  # Keras builds activations that are layers when numbers first pass through
    unlike_at_start(model)
    for rows, training in ((1, True), (3, False)):
        assert_streams(model, x, rows, training)


# ---------------------------------------------------------------------------------- layers of one's own


def examples() -> dict[str, Any]:
    """What the docstring of `tfbig.rule` defines."""
    text = inspect.getdoc(tfbig.rule)
    assert text is not None
    scope: dict[str, Any] = {"keras": keras, "tf": tf, "tfbig": tfbig}
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(textwrap.dedent(code), scope)
    return scope


def test_the_examples_of_the_docstring_equal_the_plain_layers() -> None:
    scope, inputs = examples(), image()
    blurred = scope["Blur"]()(layers.ReLU()(inputs))
    check(inputs, [blurred, scope["Energy"]()(scope["Blur"]()(blurred))])


class Shift(layers.Layer):
    """Adds a vector to every pixel, after a dilated and strided window."""

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(shape=(3, 2, shape[0][-1], 5))

    def call(self, inputs: Any) -> Any:
        x, vector = inputs
        x = tf.pad(x, [[0, 0], [2, 3], [0, 0], [0, 0]])
        y = tf.nn.convolution(x, self.kernel, (1, 1), "VALID", dilations=(1, 2))[:, ::2]
        return y + vector[:, None, None, :]


def test_a_rule_with_padding_dilation_stride_and_a_vector() -> None:
    @tfbig.rule(Shift)
    def shift(call: Any) -> int:
        def run(x: Any, w: Any, strip: Any) -> Any:
            y = tf.nn.convolution(x[0], w[0], (1, 1), "VALID", dilations=(1, 2))[:, ::2]
            return y + x[1][:, None, None, :]

        windows = [Window(3, 2, 1, (2, 3)), Window(2, 1, 2)]
        return call.local(run, windows, [call.layer.kernel])

    inputs = image()
    vector = layers.Dense(5)(layers.GlobalMaxPooling2D()(inputs))
    check(inputs, Shift()([layers.Conv2D(4, 3)(inputs), vector]))


def test_a_small_input_has_a_gradient() -> None:
    inputs, vector = image(), keras.Input((3,))
    check([inputs, vector], layers.Add()([inputs, layers.Dense(4)(vector)]))


class Attention(layers.Layer):
    """Mean of the pixels, weighted by the exponential of a learned score; `[N, C]`."""

    def build(self, shape: Any) -> None:
        self.score = self.add_weight(shape=(shape[-1], 1))
        self.scale = self.add_weight(shape=(shape[-1],))

    def call(self, x: Any) -> Any:
        weights = tf.exp(tf.tensordot(x, self.score, 1))
        mean = tf.reduce_sum(weights * x, [1, 2]) / tf.reduce_sum(weights, [1, 2])
        return mean * self.scale


def test_a_rule_of_a_local_step_two_sums_and_weights_after_them() -> None:
    @tfbig.rule(Attention)
    def attention(call: Any) -> int:
        def weigh(x: Any, w: Any, strip: Any) -> Any:
            return tf.exp(tf.tensordot(x[0], w[0], 1))

        def sums(x: Any, strip: Any) -> Any:
            return tf.reduce_sum(x[0] * x[1], [1, 2]), tf.reduce_sum(x[0], [1, 2])

        (value,) = call.inputs
        weights = call.local(weigh, weights=[call.layer.score], channels=1, name="weights")
        return call.reduce(
            sums,
            lambda total, pixels, w: total[0] / total[1] * w[0],
            [call.layer.scale],
            inputs=[weights, value],
        )

    inputs = image()
    x = layers.Conv2D(3, 3, padding="same")(inputs)
    check(inputs, layers.Multiply()([x, Attention()(x)]))


def test_a_reduction_may_know_where_a_strip_lies() -> None:
    class Centre(layers.Layer):
        """Centre of mass along the rows."""

        def call(self, x: Any) -> Any:
            rows = tf.range(tf.cast(tf.shape(x)[1], x.dtype), dtype=x.dtype)
            return tf.reduce_sum(x * rows[:, None, None], [1, 2])

    @tfbig.rule(Centre)
    def centre(call: Any) -> int:
        def part(x: Any, strip: Any) -> Any:
            rows = tf.cast(strip.start + tf.range(tf.shape(x[0])[1]), x[0].dtype)
            return tf.reduce_sum(x[0] * rows[:, None, None], [1, 2])

        return call.reduce(part)

    inputs = image()
    check(inputs, Centre()(layers.ReLU()(inputs)))


def test_a_layer_without_a_rule_is_named_with_the_decorator() -> None:
    class Strange(layers.Layer):
        def call(self, x: Any) -> Any:
            return x

    inputs = image()
    with pytest.raises(
        tfbig.UnsupportedLayerError,
        match=r"layer 'odd' \(Strange\) has no rule.*@tfbig.rule\(Strange\), see help\(tfbig.rule\)",
    ):
        tfbig.stream(keras.Model(inputs, Strange(name="odd")(inputs)))


def test_a_subclass_that_computes_something_else_does_not_take_the_rule() -> None:
    class Doubled(layers.Conv2D):
        def call(self, x: Any) -> Any:
            return 2 * super().call(x)

    class Named(layers.Conv2D):
        """Computes what its parent does."""

    inputs = image()
    check(inputs, Named(2, 3)(inputs))
    with pytest.raises(tfbig.UnsupportedLayerError, match=r"\(Doubled\) has no rule"):
        tfbig.stream(keras.Model(inputs, Doubled(2, 3)(inputs)))
    tfbig.rule(Doubled)(
        lambda call: call.local(
            lambda x, w, strip: 2 * (tf.nn.conv2d(x[0], w[0], 1, "VALID") + w[1]),
            [Window(3), Window(3)],
            [call.layer.kernel, call.layer.bias],
        )
    )
    check(inputs, Doubled(2, 3)(inputs))


# ---------------------------------------------------------------------------------------- small values


def squeeze_and_excite(x: Any) -> Any:
    """With BatchNormalization, whose statistics move, and convolutions of a single pixel."""
    gate = layers.GlobalAveragePooling2D(keepdims=True)(x)
    gate = layers.BatchNormalization(momentum=0.7)(layers.Conv2D(3, 1)(gate))
    gate = layers.Conv2D(x.shape[-1], 1)(layers.Activation("hard_swish")(gate))
    return layers.Multiply()([x, layers.ReLU(6.0)(gate + 3.0) * (1.0 / 6.0)])


def test_a_squeeze_and_excite_branch() -> None:
    inputs = image()
    check(inputs, squeeze_and_excite(layers.Conv2D(4, 3, padding="same")(inputs)))


class Head(layers.Layer):
    """Layers inside a layer that does not pass `training` on."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = [layers.Dense(6), layers.BatchNormalization(), layers.Dropout(0.5, seed=3)]

    def build(self, shape: Any) -> None:
        for layer in self.inner:
            layer.build(shape)
            shape = layer.compute_output_shape(shape)

    def call(self, x: Any) -> Any:
        for layer in self.inner:
            x = layer(x)
        return x


def test_heads_drop_what_the_plain_model_drops() -> None:
    """Own composite layers, nested models and GlobalMaxPooling in one model, with the plain model's masks."""
    inner = keras.Sequential(
        [keras.Input((6,)), layers.Dropout(0.4, seed=5), layers.Dense(3, activation="softmax")]
    )
    inputs = image()
    x = layers.GlobalMaxPooling2D()(layers.Conv2D(5, 3)(inputs))
    check(inputs, inner(layers.GaussianNoise(0.3, seed=8)(Head()(x))))


def test_a_shared_normalisation_of_small_values_moves_twice() -> None:
    shared = layers.BatchNormalization(momentum=0.6)
    inputs = image()
    x = layers.GlobalAveragePooling2D()(inputs)
    check(inputs, shared(ops.square(shared(x))))


def test_a_normalisation_of_an_image_and_of_a_small_value_moves_twice() -> None:
    shared = layers.BatchNormalization(momentum=0.6)
    inputs = image()
    x = shared(layers.Conv2D(4, 1)(inputs))
    check(inputs, shared(layers.GlobalAveragePooling2D(keepdims=True)(x)))


def test_several_outputs_of_a_layer_without_a_rule() -> None:
    class Two(layers.Layer):
        def call(self, x: Any, scale: float = 1.0) -> Any:
            return {"a": x * scale, "b": (x + 1.0, x - 1.0)}

    inputs = image()
    found = Two()(layers.GlobalAveragePooling2D()(inputs), scale=3.0)
    check(inputs, [found["b"][1], found["a"]])


def test_an_image_of_fixed_size_is_flattened_and_reshaped() -> None:
    inputs = keras.Input((7, 6, 4))
    x = layers.Conv2D(3, 3, padding="same")(inputs)
    flat = layers.Dense(2)(layers.Flatten()(x))
    check(inputs, [flat, layers.Reshape((6, 21))(x), ops.reshape(x, (-1, 126))])


def test_a_flattened_image_of_another_size_is_named() -> None:
    inputs = keras.Input((7, 6, 4))
    big = tfbig.stream(keras.Model(inputs, layers.Flatten()(inputs)))
    with pytest.raises(ValueError, match=r"the model was built for 7 rows or columns here.* has 8"):
        big.plan((1, 8, 6, 4))
    open_size = image()
    with pytest.raises(tfbig.UnsupportedLayerError, match="give the model a fixed input size"):
        tfbig.stream(keras.Model(open_size, layers.Flatten()(open_size)))


def test_a_loss_that_a_layer_adds_is_refused() -> None:
    class Adds(layers.Layer):
        def call(self, x: Any) -> Any:
            self.add_loss(tf.reduce_sum(x))
            return x

    inputs = image()
    model = keras.Model(inputs, Adds()(layers.GlobalMaxPooling2D()(inputs)))
    with pytest.raises(tfbig.UnsupportedLayerError, match="adds a loss of its own"):
        tfbig.stream(model)(images(model, 1, 4, 4))


def test_random_numbers_without_a_generator_are_refused() -> None:
    class Noisy(layers.Layer):
        def call(self, x: Any) -> Any:
            return x + keras.random.normal(ops.shape(x))

    inputs = image()
    model = keras.Model(inputs, Noisy()(layers.GlobalMaxPooling2D()(inputs)))
    with pytest.raises(tfbig.UnsupportedLayerError, match="SeedGenerator of its own"):
        tfbig.stream(model)(images(model, 1, 4, 4))


# ------------------------------------------------------------------------------------------- keras.ops


OTHERS = """
    Add Arctan2 Cast Clip Divide DivideNoNan Equal FloorDivide Fmax Fmin Greater GreaterEqual Heaviside Hypot Less
    LessEqual Logaddexp LogicalAnd LogicalNot LogicalOr LogicalXor Maximum Minimum Mod Multiply NotEqual Power
    SaturateCast StopGradient Subtract Threshold TrueDivide Where
"""
"""Operations that take more than one image."""

UNARY = [n for n in operations.NUMBERWISE.split() if n not in OTHERS.split()]
UNARY.remove("Exp2")  # Keras on TensorFlow has it in float32 alone


def function_of(name: str) -> Callable[..., Any]:
    """`LogSigmoid -> keras.ops.log_sigmoid`."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    found = {"isfinite": ops.isfinite, "na_nto_num": ops.nan_to_num, "nan_to_num": ops.nan_to_num}
    return found.get(words) or getattr(ops, words)


def test_every_name_of_an_operation_is_one_class() -> None:
    for names in (operations.NUMBERWISE, operations.CHANNELWISE):
        assert [c.__name__ for c in operations.operations(names)] == names.split()


def test_operations_on_one_image() -> None:
    """In one model; the numbers lie in (0, 1), where all of them are defined."""
    inputs = image(2)
    x = 0.1 + 0.8 * ops.sigmoid(inputs)
    found = [function_of(n)(1.5 + x if n == "Arccosh" else x) for n in UNARY]
    outputs = [ops.cast(y, "float64") for y in found]
    model = keras.Model(inputs, outputs)
    assert_streams(model, images(model, 1, 5, 3), 2, training=False)


def test_operations_on_images_constants_and_vectors() -> None:
    inputs, other = image(3), image(3)
    vector = layers.GlobalAveragePooling2D(keepdims=True)(other)
    a, b, table = ops.exp(inputs), 2.0 + ops.square(other), np.array([0.5, 1.5, -2.0])
    found = [
        (1.0 - a * 0.5) / b,
        ops.power(a, 2.0) % b,
        a * table - b,
        ops.add(vector, ops.maximum(a, vector)),
        ops.where(ops.greater(a, b), a, vector),
        ops.clip(inputs, -0.5, 0.7),
        ops.hypot(a, x2=b),
        ops.stop_gradient(a) * a,
    ]
    check([inputs, other], found)


def test_operations_on_channels() -> None:
    inputs = image(6)
    x = layers.Conv2D(6, 3, padding="same")(inputs)
    first, second, third = ops.split(x, 3, axis=-1)
    gate = ops.sigmoid(ops.mean(x, axis=-1, keepdims=True) + ops.max(x, axis=-1, keepdims=True))
    check(
        inputs,
        [
            ops.concatenate([third, first * gate, ops.relu(second)], axis=-1),
            ops.softmax(x),
            x[..., 1:4],
            x[:, :, :, ::2],
        ],
    )


def test_normalised_channels() -> None:
    """In float32, which Keras has it in: a sum of six squares, its root and a quotient."""
    inputs = keras.Input((None, None, 6), dtype="float32")
    model = keras.Model(inputs, ops.normalize(inputs, axis=-1))
    x = images(model, 2, 7, 6)
    assert_same(tfbig.stream(model, strip_rows=2)(x), model(x), 8 * 2**-24)


def test_operations_over_the_image() -> None:
    inputs = image(3)
    x = layers.Conv2D(3, 3)(inputs)
    scale = ops.sum(x, axis=(1, 2), keepdims=True)
    check(inputs, [x * scale, ops.mean(x, axis=[1, 2]), ops.max(x, axis=(2, 1))])


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda x: ops.sum(x, axis=1), "axis=.* has no strip form; use axis=-1"),
        (lambda x: ops.softmax(x, axis=1), "needs the whole image; use axis=-1"),
        (lambda x: ops.concatenate([x, x], axis=2), "over the channels, axis=-1; received axis=2"),
        (lambda x: x[:, 1:], "strips can take channels alone"),
        (lambda x: x * np.ones((5, 1, 4)), r"combines an image with a tensor of shape \(5, 1, 4\)"),
        (
            lambda x: x + ops.mean(x, (1, 2)),
            r"combines an image with a tensor of shape \(None, 4\)",
        ),
        (lambda x: ops.sort(x, axis=1), r"\(Sort\) has no rule"),
    ],
)
def test_an_operation_without_a_strip_form_is_named(build: Any, message: str) -> None:
    inputs = keras.Input((5, 4, 4))
    with pytest.raises(tfbig.UnsupportedLayerError, match=message):
        tfbig.stream(keras.Model(inputs, build(inputs)))


# -------------------------------------------------------------------------------------- layers of Keras


def test_activations_that_are_layers_with_weights() -> None:
    inputs = image()
    x = layers.Conv2D(3, 3, activation=layers.PReLU("uniform", shared_axes=[1, 2]))(inputs)
    x = layers.Dense(4, activation=layers.LeakyReLU(0.2))(x)
    check(inputs, layers.Activation(layers.ELU())(layers.PReLU("uniform", shared_axes=[1, 2])(x)))


def test_normalisations() -> None:
    adapted = layers.Normalization()
    adapted.adapt(np.random.default_rng(3).normal(size=(5, 6, 4)) * [1, 2, 3, 4])
    again = layers.Normalization()
    again.adapt(np.random.default_rng(4).normal(size=(5, 6, 4)) + 2)
    inputs = image()
    x = again(layers.Normalization(mean=[1.0] * 4, variance=[2.0] * 4)(adapted(inputs)))
    x = layers.GroupNormalization(-1)(layers.RMSNormalization()(layers.Conv2D(4, 3)(x)))
    check(inputs, layers.UnitNormalization()(layers.LayerNormalization()(x)))


def test_scaled_shortcuts_and_grouped_convolutions() -> None:
    inputs = image()
    x = layers.Conv2D(8, 3, groups=4, padding="same")(inputs)
    x = layers.Conv2D(8, (3, 5), groups=2, strides=(1, 2), padding="same")(x)
    check(inputs, CustomScaleLayer(0.3)([x, layers.Conv2D(8, 3, groups=8, padding="same")(x)]))


def test_noise_that_an_image_shares_is_that_of_the_plain_model() -> None:
    inputs = image()
    x = layers.Dropout(0.5, noise_shape=(None, 1, 1, 1), seed=1)(layers.Conv2D(4, 3)(inputs))
    x = layers.SpatialDropout2D(0.4, seed=2)(layers.BatchNormalization()(x))
    check(inputs, StochasticDepth(0.3)(layers.SpatialDropout2D(0.5, seed=3)(x)))


@pytest.mark.parametrize(
    "layer",
    [
        lambda: layers.Dropout(0.5, seed=1),
        lambda: layers.Dropout(0.5, noise_shape=(None, None, None, 1), seed=1),
        lambda: layers.GaussianNoise(0.5, seed=1),
        lambda: layers.GaussianDropout(0.4, seed=1),
    ],
    ids=["dropout", "dropout of pixels", "gaussian noise", "gaussian dropout"],
)
def test_noise_of_places_does_not_depend_on_the_strips(layer: Callable[[], Any]) -> None:
    results = []
    for rows in (1, 3, None):
        inputs = image()
        model = keras.Model(inputs, layer()(layer()(inputs)))
        big, x = tfbig.stream(model, strip_rows=rows), images(model, 2, 7, 6)
        drawn = [big(x, training=True) for _ in range(2)]
        assert not np.array_equal(*drawn)
        assert_same(big(x, training=False), x)
        results.append(drawn)
    assert_same(results[1:], [results[0]] * 2)


# ---------------------------------------------------------------------------------- kinds of nodes


def kinds(model: keras.Model, training: bool = True) -> list[Any]:
    return [n.kind for n in keras_reader.read(model, training).nodes]


def test_nodes_of_equal_layers_are_of_one_kind_and_others_are_not() -> None:
    inputs = image()
    x = inputs
    for _ in range(2):
        x = layers.BatchNormalization()(layers.Conv2D(4, 3)(x))
    found = kinds(keras.Model(inputs, x))
    assert found[:3] == found[3:]
    frozen = keras.Model(inputs, x)
    frozen.layers[2].trainable = False
    assert kinds(frozen)[1] != kinds(frozen)[4]
    assert kinds(keras.Model(inputs, [inputs * 2.0, inputs * 3.0]))[0] != found[0]
    first, second = kinds(keras.Model(inputs, [inputs * 2.0, inputs * 3.0]))
    assert first != second


def test_rules_are_listed_by_class() -> None:
    assert rules.find(layers.Conv2D(1, 1)) is rules.RULES[layers.Conv2D]
    assert rules.find(layers.SpatialDropout2D(0.5)) is rules.RULES[layers.Dropout]
