"""`tfbig.stream` compared with the plain Keras model in float64, to 1e-10."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from exactness import FLOAT64, assert_same, gradients, integer_weights
from keras import layers
from streamed_pairs import slow

import tfbig
from tfbig.stores import host_store, transfers


def residual() -> keras.Model:
    inputs = keras.Input((None, None, 3))
    x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(4, 3, padding="same")(inputs)))
    y = layers.Conv2D(4, 3, padding="same", activation="relu")(x)
    y = layers.BatchNormalization(center=False)(layers.Conv2D(4, 3, padding="same")(y))
    x = layers.Activation("relu")(layers.Add()([x, y]))
    return keras.Model(inputs, layers.Conv2D(2, 3, strides=2)(x))


def two_branches() -> keras.Model:
    inputs = keras.Input((None, None, 2))
    a = layers.BatchNormalization()(layers.Conv2D(3, 5, strides=2, padding="same")(inputs))
    b = layers.MaxPooling2D(2, padding="same")(layers.Conv2D(2, 1)(inputs))
    x = layers.Concatenate()([a, layers.Dropout(0.0)(b), a])
    return keras.Model(inputs, layers.AveragePooling2D(3, 2, padding="same")(x))


def nested() -> keras.Model:
    inner = keras.Sequential(
        [
            keras.Input((None, None, 3)),
            layers.Conv2D(3, 3, padding="same"),
            layers.BatchNormalization(),
            layers.LeakyReLU(0.3),
        ],
        name="inner",
    )
    head = keras.Sequential([keras.Input((None, None, 3)), inner, layers.Conv2D(2, 2)])
    inputs = keras.Input((None, None, 3))
    return keras.Model(inputs, head(layers.Rescaling(0.5, -1.0)(inputs)))


def shared_layer() -> keras.Model:
    conv = layers.Conv2D(2, 3, padding="same")
    inputs = keras.Input((None, None, 2))
    return keras.Model(inputs, layers.Multiply()([conv(inputs), conv(layers.ReLU()(conv(inputs)))]))


def two_inputs() -> keras.Model:
    first, second = keras.Input((None, None, 1)), keras.Input((None, None, 2))
    x = layers.Add()([layers.Conv2D(2, 3, padding="same")(first), second])
    return keras.Model([first, second], layers.BatchNormalization()(x))


def two_outputs() -> keras.Model:
    """Return a model with an image and a vector as outputs."""
    inputs = keras.Input((None, None, 2))
    x = layers.Conv2D(4, 3, padding="same", activation="relu")(inputs)
    vector = layers.GlobalMaxPooling2D()(layers.BatchNormalization()(x))
    return keras.Model(inputs, {"map": layers.Conv2D(1, 1)(x), "vector": layers.Dense(3)(vector)})


def output_that_is_read_again() -> keras.Model:
    """Return a model one of whose outputs has gradients from outside and from a later sweep."""
    inputs = keras.Input((None, None, 2))
    x = layers.Conv2D(3, 3, padding="same")(inputs)
    return keras.Model(inputs, [x, layers.Conv2D(1, 3)(layers.BatchNormalization()(x))])


def squeeze_and_excite() -> keras.Model:
    inputs = keras.Input((None, None, 2))
    x = layers.Conv2D(4, 3, padding="same")(inputs)
    gate = layers.GlobalAveragePooling2D(keepdims=True)(x)
    gate = layers.Dense(4, activation="sigmoid")(layers.Dense(2, activation="relu")(gate))
    return keras.Model(inputs, layers.Conv2D(1, 3)(layers.Multiply()([x, gate])))


def group_normalised() -> keras.Model:
    inputs = keras.Input((None, None, 2))
    x = layers.GroupNormalization(2)(layers.Conv2D(4, 3, padding="same")(inputs))
    x = layers.LayerNormalization()(layers.Conv2D(3, 3)(layers.Activation("gelu")(x)))
    return keras.Model(inputs, layers.GlobalAveragePooling2D()(x))


def unet() -> keras.Model:
    inputs = keras.Input((None, None, 2))
    a = layers.Conv2D(3, 3, padding="same", activation="relu")(inputs)
    b = layers.Conv2D(4, 3, padding="same", activation="relu")(layers.MaxPooling2D(2)(a))
    c = layers.BatchNormalization()(layers.Conv2D(4, 3, strides=2, padding="same")(b))
    up = layers.UpSampling2D(2)(layers.ReLU()(c))
    up = layers.Concatenate()([up, b])
    up = layers.Conv2DTranspose(3, 3, strides=2, padding="same")(up)
    x = layers.Cropping2D(1)(layers.ZeroPadding2D(1)(layers.Add()([up, a])))
    return keras.Model(inputs, layers.Conv2D(1, 1, activation="sigmoid")(x))


def separable() -> keras.Model:
    inputs = keras.Input((None, None, 2))
    x = layers.SeparableConv2D(4, 3, padding="same", activation="relu")(inputs)
    x = layers.DepthwiseConv2D(3, padding="same", depth_multiplier=2)(x)
    x = layers.BatchNormalization()(layers.Conv2D(4, 3, dilation_rate=3, padding="same")(x))
    return keras.Model(inputs, layers.Conv2D(2, 3, dilation_rate=2)(x))


MODELS = [
    residual,
    two_branches,
    nested,
    shared_layer,
    two_inputs,
    two_outputs,
    output_that_is_read_again,
    squeeze_and_excite,
    group_normalised,
    unet,
    separable,
]


def batch(model: keras.Model, n: int, h: int, w: int, seed: int = 0) -> Any:
    """Return random images for the inputs of a model, in its dtype."""
    random = np.random.default_rng(seed)
    images = [
        tf.constant(random.normal(size=(n, h, w, t.shape[-1])), t.dtype) for t in model.inputs
    ]
    return images if len(images) > 1 else images[0]


def in_one_graph(model: Any, variables: Any) -> Callable[..., Any]:
    """Return a function for outputs and gradients that is traced once for images of any size."""
    traces = []

    @tf.function(autograph=False, reduce_retracing=True)
    def traced(x: Any, dy: Any) -> Any:
        traces.append(1)
        return gradients(lambda x: model(x, training=True), x, variables, dy)

    def run(x: Any, dy: Any) -> Any:
        specs = tf.nest.map_structure(
            lambda t: tf.TensorSpec([None] * (len(t.shape) - 1) + [t.shape[-1]], t.dtype), (x, dy)
        )
        result = traced.get_concrete_function(*specs)(*tf.nest.flatten((x, dy)))
        assert len(traces) == 1
        return result

    return run


def like(outputs: Any) -> Any:
    """Return random cotangents for outputs."""
    return tf.nest.map_structure(
        lambda t: tf.constant(np.random.default_rng(7).normal(size=t.shape), t.dtype), outputs
    )


ONE_ROW = (
    nested,
    shared_layer,
)
"""Models that the fast tests run in strips of one row."""


@pytest.mark.parametrize(
    ("build", "strip_rows"),
    [(build, 1) if build in ONE_ROW else slow(build, 1) for build in MODELS]
    + [slow(two_branches, 3), slow(unet, 3)]
    + [slow(build, 3) for build in (residual, shared_layer, separable)]
    + [slow(residual, None)],
)
def test_outputs_and_gradients(
    build: Callable[[], keras.Model], strip_rows: int | None, float64: None
) -> None:
    """Gradients of the input and all weights, and moving statistics, at sizes known only at run time."""
    model = build()
    big = tfbig.stream(model, strip_rows=strip_rows)
    run = in_one_graph(big, model.trainable_variables)
    for n, h, w in ((2, 12, 8), (1, 8, 16)):
        x = batch(model, n, h, w)
        before = model.get_weights()
        dy = like(model(x))
        expected = gradients(lambda x: model(x, training=True), x, model.trainable_variables, dy)
        moved = model.get_weights()
        model.set_weights(before)
        copies = tf.nest.map_structure(np.array, (x, dy))
        assert_same(run(x, dy), expected, FLOAT64)
        assert_same((x, dy), copies)  # nothing was added in place
        assert_same(model.get_weights(), moved, FLOAT64)
    assert_same(big(x, training=False), model(x, training=False), FLOAT64)


@pytest.mark.slow
@pytest.mark.parametrize("build", [slow(residual), two_outputs])
def test_gradients_of_eager_tape(build: Callable[[], keras.Model], float64: None) -> None:
    model = build()
    big, x = tfbig.stream(model, strip_rows=2), batch(model, 2, 9, 6)
    dy = like(model(x))
    expected = gradients(lambda x: model(x), x, model.trainable_variables, dy)
    eager = gradients(lambda x: big(x), x, big.trainable_variables, dy)
    assert_same(eager, expected, FLOAT64)
    outputs, _, weights = gradients(tf.function(big), x, big.trainable_variables, dy)
    assert_same((outputs, weights), (eager[0], eager[2]), FLOAT64)


@pytest.mark.slow
def test_frozen_statistics_do_not_change(float64: None) -> None:
    model = residual()
    for layer in model.layers:
        layer.trainable = not isinstance(layer, layers.BatchNormalization)
    big, x = tfbig.stream(model, strip_rows=2), batch(model, 1, 8, 8)
    before = model.get_weights()
    actual = gradients(lambda x: big(x, training=True), x, big.trainable_variables)
    assert_same(model.get_weights(), before)
    expected = gradients(lambda x: model(x, training=True), x, model.trainable_variables)
    assert_same(actual, expected, FLOAT64)


def test_variables_are_shared() -> None:
    model = residual()
    big = tfbig.stream(model, strip_rows=2)
    assert [id(v) for v in big.weights] == [id(v) for v in model.weights]
    x = batch(model, 1, 9, 7)
    before = big(x)
    model.set_weights([2 * w for w in model.get_weights()])
    assert not np.array_equal(big(x), before)
    assert_same(big(x).shape, model(x).shape)


def test_budget_cannot_change_but_a_streamed_model_can_be_streamed_again() -> None:
    big = tfbig.stream(residual(), tfbig.Budget(device="2MB", host="1GB"))
    with pytest.raises(AttributeError, match="budget"):
        big.budget = tfbig.Budget(device="1MB")
    again = tfbig.stream(big, tfbig.Budget(device="1MB", host="1GB"))
    assert again.twin is big.twin
    assert [m.plan((1, 64, 64, 3)).allowed.device for m in (big, again)] == [2 * 10**6, 10**6]


def test_plan_of_what_is_no_shape() -> None:
    big = tfbig.stream(residual())
    with pytest.raises(
        TypeError, match=r"expected a shape such as \(1, H, W, C\), .* received 256"
    ):
        big.plan(256)
    with pytest.raises(TypeError, match=r"received an array of shape \(1, 9, 7, 3\)"):
        big.plan(np.zeros((1, 9, 7, 3)))
    plan = big.plan(tf.TensorShape((1, 9, 7, 3)))
    assert repr(plan) == str(plan)


@pytest.mark.parametrize(
    ("dtype", "swapped"),
    [("float32", True), ("float64", False), slow("float32", False), slow("float64", True)],
)
def test_stored_images_are_not_overwritten(float64: None, dtype: str, swapped: bool) -> None:
    """A sum may overwrite one of its inputs, but not rows that the next strip reads."""
    keras.config.set_floatx(dtype)
    keras.config.set_dtype_policy(dtype)
    start = keras.Input((None, None, 3))
    x = layers.Conv2D(6, 5, strides=2, padding="same")(start)
    x = layers.MaxPooling2D(3, 2, padding="same")(layers.ReLU()(layers.BatchNormalization()(x)))
    y = layers.BatchNormalization()(layers.Conv2D(6, 3, padding="same")(x))
    twin = keras.Model(start, layers.Add()([y, x] if swapped else [x, y]))
    image = tf.random.stateless_normal((1, 64, 48, 3), (1, 2), dtype=dtype)
    budget = tfbig.Budget(device={"float32": 200_000, "float64": 400_000}[dtype])
    big = tfbig.stream(twin, budget, strip_rows=16)
    assert len(big.plan(image.shape, training=False).sweeps) == 2  # one stores what the other adds
    room = {"float32": 1e-5, "float64": FLOAT64}[dtype]
    assert_same(big(image, training=False), twin(image, training=False), room)


@pytest.mark.slow
def test_dropout_does_not_depend_on_strips(float64: None) -> None:
    def build() -> keras.Model:
        inputs = keras.Input((None, None, 2))
        x = layers.Dropout(0.4, seed=1)(layers.Conv2D(3, 3, padding="same")(inputs))
        x = layers.Dropout(0.2, seed=2)(layers.Conv2D(2, 3)(layers.BatchNormalization()(x)))
        return keras.Model(inputs, layers.Dropout(0.5, seed=3)(layers.GlobalMaxPooling2D()(x)))

    weights, results = integer_weights(build()), []
    for strip_rows in (1, 4, None):
        model = build()
        model.set_weights(weights)
        big, x = tfbig.stream(model, strip_rows=strip_rows), batch(model, 2, 9, 7)
        run = in_one_graph(big, model.trainable_variables)
        results.append([run(x, like(big(x))) for _ in range(2)])
    assert_same(results[1:], [results[0]] * 2, FLOAT64)
    assert not np.array_equal(results[0][0][0], results[0][1][0])


def test_two_strips_run_concurrently(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second strip of the second sweep is read before the first one is stored; otherwise `wait` times out."""
    second, met, reads = threading.Event(), list[bool](), list[int]()
    read, tick = host_store._read, transfers.METER.tick

    def seen(*rows: np.ndarray) -> np.ndarray:
        reads.append(1)
        if len(reads) == 2:
            second.set()
        return read(*rows)

    def waiting(label: str, index: int, *rest: int | str) -> None:
        if label.startswith("forward 2/") and index == 0:
            met.append(second.wait(timeout=120))
        tick(label, index, *rest)

    monkeypatch.setattr(host_store, "_read", seen)
    monkeypatch.setattr(transfers.METER, "tick", waiting)
    tfbig.stream(residual(), strip_rows=8)(tf.ones([1, 32, 32, 3]), training=True)
    assert met == [True]
