"""`tfbig.stream` against the plain Keras model: in float64 to 1e-10, sources and strips bitwise."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from exactness import FLOAT64, assert_same, gradients, integer_weights, integers
from keras import layers

import tfbig
from tfbig.metrics import Dice
from tfbig.network import losses
from tfbig.stores import host_store

# ------------------------------------------------------------------------------------- models


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
    """An image and a vector."""
    inputs = keras.Input((None, None, 2))
    x = layers.Conv2D(4, 3, padding="same", activation="relu")(inputs)
    vector = layers.GlobalMaxPooling2D()(layers.BatchNormalization()(x))
    return keras.Model(inputs, {"map": layers.Conv2D(1, 1)(x), "vector": layers.Dense(3)(vector)})


def output_that_is_read_again() -> keras.Model:
    """Its gradient comes from outside and from a later sweep."""
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
    """Random images for the inputs of a model, in its dtype."""
    random = np.random.default_rng(seed)
    found = [tf.constant(random.normal(size=(n, h, w, t.shape[-1])), t.dtype) for t in model.inputs]
    return found if len(found) > 1 else found[0]


def in_one_graph(model: Any, variables: Any) -> Callable[..., Any]:
    """Outputs and gradients, traced once for images of any size."""
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
    """Cotangents for outputs."""
    return tf.nest.map_structure(
        lambda t: tf.constant(np.random.default_rng(7).normal(size=t.shape), t.dtype), outputs
    )


# ----------------------------------------------------------------- outputs and gradients


@pytest.mark.parametrize(
    ("build", "strip_rows"),
    [(build, 1) for build in MODELS]
    + [(build, 3) for build in (residual, two_branches, shared_layer, unet, separable)]
    + [(residual, None)],
)
def test_outputs_and_gradients_equal_the_plain_model(
    build: Callable[[], keras.Model], strip_rows: int | None, float64: None
) -> None:
    """For the input and all weights, moving statistics included, at sizes known only at run time."""
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
        given = tf.nest.map_structure(np.array, (x, dy))
        assert_same(run(x, dy), expected, FLOAT64)
        assert_same((x, dy), given)  # nothing was added in place
        assert_same(model.get_weights(), moved, FLOAT64)
    assert_same(big(x, training=False), model(x, training=False), FLOAT64)


@pytest.mark.parametrize("build", [residual, two_outputs])
def test_gradients_of_an_eager_tape_equal_those_in_a_graph(
    build: Callable[[], keras.Model], float64: None
) -> None:
    model = build()
    big, x = tfbig.stream(model, strip_rows=2), batch(model, 2, 9, 6)
    dy = like(model(x))
    expected = gradients(lambda x: model(x), x, model.trainable_variables, dy)
    found = gradients(lambda x: big(x), x, big.trainable_variables, dy)
    assert_same(found, expected, FLOAT64)
    outputs, _, weights = gradients(tf.function(big), x, big.trainable_variables, dy)
    assert_same((outputs, weights), (found[0], found[2]), FLOAT64)


def test_a_frozen_layer_keeps_its_statistics(float64: None) -> None:
    model = residual()
    for layer in model.layers:
        layer.trainable = not isinstance(layer, layers.BatchNormalization)
    big, x = tfbig.stream(model, strip_rows=2), batch(model, 1, 8, 8)
    before = model.get_weights()
    found = gradients(lambda x: big(x, training=True), x, big.trainable_variables)
    assert_same(model.get_weights(), before)
    expected = gradients(lambda x: model(x, training=True), x, model.trainable_variables)
    assert_same(found, expected, FLOAT64)


def test_shares_the_variables_of_the_model() -> None:
    model = residual()
    big = tfbig.stream(model, strip_rows=2)
    assert [id(v) for v in big.weights] == [id(v) for v in model.weights]
    x = batch(model, 1, 9, 7)
    before = big(x)
    model.set_weights([2 * w for w in model.get_weights()])
    assert not np.array_equal(big(x), before)
    assert_same(big(x).shape, model(x).shape)


# --------------------------------------------------------------------------------- training


def segmenter(activation: str | None = "sigmoid", filters: int = 1) -> keras.Model:
    """An image of the size of its input, with BatchNormalization on the way."""
    inputs = keras.Input((None, None, 2))
    x = layers.Conv2D(4, 3, padding="same")(inputs)
    x = layers.ReLU()(layers.BatchNormalization(momentum=0.8)(x))
    return keras.Model(inputs, layers.Conv2D(filters, 3, padding="same", activation=activation)(x))


def classifier() -> keras.Model:
    inputs = keras.Input((None, None, 2))
    x = layers.BatchNormalization(momentum=0.8)(layers.Conv2D(4, 3, strides=2)(inputs))
    return keras.Model(inputs, layers.Dense(3)(layers.GlobalAveragePooling2D()(x)))


def both(build: Callable[..., keras.Model], *arguments: Any) -> tuple[keras.Model, keras.Model]:
    """A streamed model in strips of two rows, and a plain one with equal weights of its own."""
    model, twin = build(*arguments), build(*arguments)
    twin.set_weights(model.get_weights())
    return tfbig.stream(model, strip_rows=2), twin


@pytest.mark.parametrize("build", [segmenter, classifier])
@pytest.mark.parametrize(
    "optimizer",
    [lambda: keras.optimizers.Adam(0.01), lambda: keras.optimizers.SGD(0.1, momentum=0.9)],
    ids=["adam", "momentum"],
)
def test_ten_steps_equal_those_of_the_plain_model(
    build: Callable[[], keras.Model], optimizer: Callable[[], Any], float64: None
) -> None:
    random = np.random.default_rng(3)
    x = random.normal(size=(20, 7, 8, 2))
    y = random.random(size=(20, 7, 8, 1) if build is segmenter else (20, 3))
    logs = []
    for model in (pair := both(build)):
        model.compile(optimizer(), "mse")
        logs.append(model.fit(x, y, batch_size=2, shuffle=False, verbose=0).history)
    assert_same([np.float64(r["loss"]) for r in logs[:1]], [np.float64(logs[1]["loss"])], FLOAT64)
    assert_same(pair[0].twin.get_weights(), pair[1].get_weights(), FLOAT64)


def pixel_error(y_true: Any, y_pred: Any) -> Any:
    """A loss of one's own: a number per pixel."""
    return keras.ops.mean(keras.ops.abs(y_true - y_pred) ** 1.5, axis=-1)


def one_hot(shape: tuple[int, ...], classes: int) -> np.ndarray:
    return np.eye(classes)[np.random.default_rng(8).integers(0, classes, shape)]


@pytest.mark.parametrize("compiled_from", [losses.XLA_NUMBERS, 1], ids=["plain", "xla"])
@pytest.mark.parametrize(
    ("loss", "activation", "filters"),
    [
        ("binary_crossentropy", "sigmoid", 1),
        (lambda: keras.losses.BinaryCrossentropy(from_logits=True, label_smoothing=0.1), None, 1),
        ("categorical_crossentropy", "softmax", 3),
        (lambda: keras.losses.SparseCategoricalCrossentropy(from_logits=True), None, 3),
        ("sparse_categorical_crossentropy", "softmax", 3),
        (lambda: keras.losses.Dice(), "sigmoid", 2),
        (lambda: keras.losses.Dice(axis=(1, 2, 3)), "sigmoid", 1),
        (lambda: keras.losses.Tversky(alpha=0.3, beta=0.7), "sigmoid", 1),
        (lambda: keras.losses.Huber(delta=0.3, reduction="sum"), None, 1),
        (lambda: pixel_error, None, 2),
    ],
)
def test_a_step_on_each_loss_equals_that_of_the_plain_model(
    loss: Any,
    activation: str | None,
    filters: int,
    compiled_from: int,
    float64: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Loss, and weights after a step of gradient descent, whose change is the gradient."""
    monkeypatch.setattr(losses, "XLA_NUMBERS", compiled_from)
    shape = (2, 7, 6)
    x = np.random.default_rng(5).normal(size=(*shape, 2))
    y = one_hot(shape, 3)[..., :filters]
    make = loss if callable(loss) else lambda: loss
    if "sparse" in getattr(make(), "name", str(loss)):
        y = np.argmax(y, -1)[..., None].astype("int32")
    results = []
    for model in both(segmenter, activation, filters):
        model.compile(keras.optimizers.SGD(1.0), make())
        first, second = (np.float64(model.train_on_batch(x, y)) for _ in range(2))
        results.append([first, second, np.float64(model.test_on_batch(x, y)), *model.get_weights()])
    assert_same(*results, FLOAT64)


def test_xla_is_off_where_it_is_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    """As for a plain model: `jit_compile=False`. Without, losses of large images are compiled."""
    compiled: list[Any] = []
    monkeypatch.setattr(losses, "XLA_NUMBERS", 1)
    monkeypatch.setattr(losses, "_compiled", lambda f: compiled.append(f) or (lambda s, *t: f(*t)))
    big, _ = both(segmenter)
    x, y = np.ones((1, 8, 8, 2), "float32"), np.ones((1, 8, 8, 1), "float32")
    found = []
    for options in ({"jit_compile": False}, {}):
        big.compile(keras.optimizers.SGD(0.0), "mse", **options)
        found.append((float(big.train_on_batch(x, y)), len(compiled)))
    (off, none), (on, one) = found
    assert (none, one) == (0, 1)
    assert off == on


def two_maps() -> keras.Model:
    """Two image outputs of different sizes, and weights that are regularised."""
    inputs = keras.Input((None, None, 2))
    x = layers.Conv2D(3, 3, padding="same", kernel_regularizer=keras.regularizers.L2(0.1))(inputs)
    small = layers.Conv2D(1, 2, strides=2, bias_regularizer=keras.regularizers.L1(0.2))(x)
    return keras.Model(inputs, [layers.Conv2D(2, 1)(layers.ReLU()(x)), small])


def test_weighted_losses_of_two_images_and_regularisers(float64: None) -> None:
    random = np.random.default_rng(6)
    x = random.normal(size=(2, 8, 6, 2))
    y = [random.normal(size=(2, 8, 6, 2)), random.normal(size=(2, 4, 3, 1))]
    results = []
    for model in both(two_maps):
        model.compile(keras.optimizers.SGD(0.5), ["mse", "mae"], loss_weights=[0.25, 2.0])
        losses = [np.float64(np.ravel(model.train_on_batch(x, y))[0]) for _ in range(3)]
        results.append([*losses, *model.get_weights()])
    assert_same(*results, FLOAT64)


def test_metrics_equal_those_of_the_plain_model() -> None:
    """To 1e-6: Keras keeps the sums of a metric in float32, and they are added in another order.

    IoU and AUC count pixels, which is exact; accuracy and mean absolute error are means.
    """
    random = np.random.default_rng(7)
    x = random.normal(size=(4, 7, 6, 2)).astype("float32")
    y = random.integers(0, 2, (4, 7, 6, 1)).astype("float32")
    logs = []
    for model in both(segmenter):
        metrics = [
            "accuracy",
            "mae",
            keras.metrics.BinaryIoU(name="iou"),
            keras.metrics.AUC(name="auc"),
            Dice(),
        ]
        model.compile("sgd", "binary_crossentropy", metrics=metrics)
        history = model.fit(
            x, y, shuffle=False, validation_data=(x, y), validation_batch_size=3, verbose=0
        ).history
        logs.append({name: values[0] for name, values in history.items()})
    assert logs[0] == pytest.approx(logs[1], rel=1e-6)
    assert len(logs[0]) == 2 * 6


def test_metrics_of_classes_equal_those_of_the_plain_model() -> None:
    x = integers((2, 5, 6, 2))
    y = np.argmax(one_hot((2, 5, 6), 3), -1)[..., None]
    logs = []
    for model in both(segmenter, "softmax", 3):
        model.compile("sgd", "sparse_categorical_crossentropy", metrics=["accuracy"])
        logs.append(model.evaluate(x, y, verbose=0, return_dict=True))
    assert logs[0] == pytest.approx(logs[1], rel=1e-6)


@pytest.mark.parametrize("build", [segmenter, classifier])
def test_runs_eagerly(build: Callable[[], keras.Model], float64: None) -> None:
    x = integers((2, 7, 6, 2), "float64")
    y = integers((2, 7, 6, 1) if build is segmenter else (2, 3), "float64")
    results = []
    for model in both(build):
        model.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=True)
        model.fit(x, y, verbose=0)
        results.append([*model.get_weights(), model.predict(x, verbose=0)])
    assert_same(*results, FLOAT64)


def test_learns_in_mixed_precision_as_the_plain_model() -> None:
    """The loss differs by roundings of bfloat16, 2**-9 each: of four results on the way, in both models, squared."""
    x = np.random.default_rng(2).normal(size=(4, 9, 8, 2)).astype("float32")
    y = x[..., :1] - 0.5 * x[..., 1:]
    keras.config.set_dtype_policy("mixed_bfloat16")
    losses = []
    for model in both(segmenter, None):
        model.compile(keras.optimizers.Adam(0.03), "mse")
        losses.append(model.fit(x, y, epochs=8, batch_size=4, verbose=0).history["loss"])
    streamed, plain = losses
    assert streamed[0] == pytest.approx(plain[0], rel=2 * 2 * 4 * 2**-9)
    assert streamed[-1] < 0.5 * streamed[0]
    assert {w.dtype for w in model.weights} == {"float32"}


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_stored_images_are_not_overwritten(float64: None, dtype: str, swapped: bool) -> None:
    """A sum may take the memory of one of its inputs; not that of rows which the next strip reads."""
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


def test_dropout_does_not_depend_on_the_strips(float64: None) -> None:
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


def test_two_strips_are_worked_on_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first strip of the second sweep is not stored before the second is read: else it would wait in vain."""
    second, met, reads = threading.Event(), list[bool](), list[int]()
    read, tick = host_store._read, host_store.METER.tick

    def seen(*rows: np.ndarray) -> list[np.ndarray]:
        reads.append(1)
        if len(reads) == 2:
            second.set()
        return read(*rows)

    def waiting(label: str, index: int, count: int) -> None:
        if label.startswith("forward 2/") and index == 0:
            met.append(second.wait(timeout=20))
        tick(label, index, count)

    monkeypatch.setattr(host_store, "_read", seen)
    monkeypatch.setattr(host_store.METER, "tick", waiting)
    tfbig.stream(residual(), strip_rows=8)(tf.ones([1, 32, 32, 3]), training=True)
    assert met == [True]


def test_images_of_all_sizes_in_one_epoch_trace_once() -> None:
    traces = []

    def counted(y_true: Any, y_pred: Any) -> Any:
        if not tf.executing_eagerly():  # when it is tried on a small image
            traces.append(1)
        return keras.ops.mean(keras.ops.square(y_true - y_pred), axis=-1)

    def images() -> Iterator[Any]:
        for side in (5, 8, 7, 6):
            shape = (1, side, 13 - side)
            yield integers((*shape, 2), seed=side), integers((*shape, 1), seed=side)

    specs = tuple(tf.TensorSpec([1, None, None, c]) for c in (2, 1))
    dataset = tf.data.Dataset.from_generator(images, output_signature=specs).repeat()
    logs = []
    for model in both(segmenter):
        traces.clear()
        model.compile("sgd", counted)
        logs.append(model.fit(dataset, epochs=2, steps_per_epoch=4, shuffle=False, verbose=0))
        if not logs[1:]:
            streamed = len(traces)
            model.evaluate(dataset, steps=4, verbose=0)
    assert streamed == 1
    # float32: sums of up to 64 pixels in eight steps
    assert logs[0].history["loss"] == pytest.approx(logs[1].history["loss"], rel=8 * 64 * 2**-24)


# --------------------------------------------------------------------------- sources and files


def photographs(count: int) -> tuple[np.ndarray, np.ndarray]:
    """uint8 images and masks."""
    random = np.random.default_rng(9)
    images = random.integers(0, 256, (count, 11, 9, 2), np.uint8)
    return images, random.integers(0, 2, (count, 11, 9, 1), np.uint8)


def scaled(filters: int = 1) -> keras.Model:
    """A model that scales uint8 itself."""
    inner = segmenter("sigmoid", filters)
    inputs = keras.Input((None, None, 2), dtype="uint8")
    return keras.Model(inputs, inner(layers.Rescaling(1 / 255)(inputs)))


def test_handles_give_the_bits_of_dense_images() -> None:
    x, y = photographs(4)
    sources = [[tfbig.open(image) for image in images] for images in (x, y)]
    handles = tuple(tf.constant([s.handle for s in each]) for each in sources)
    model = scaled()
    start, results = model.get_weights(), []
    for data in ((x, y), handles):
        model.set_weights(start)
        big = tfbig.stream(model, strip_rows=3)
        big.compile(keras.optimizers.SGD(0.1), "binary_crossentropy", metrics=["accuracy"])
        dataset = tf.data.Dataset.from_tensor_slices(data).batch(2)
        logs = big.fit(dataset, epochs=2, shuffle=False, verbose=0).history
        evaluated = big.evaluate(dataset, verbose=0, return_dict=True)
        predicted = big.predict(dataset.map(lambda x, y: x), verbose=0)
        results.append([logs, evaluated, predicted, *model.get_weights()])
    assert_same(*results)


def test_predicts_into_a_file_what_predict_gives(tmp_path: Any) -> None:
    (x,), _ = photographs(1)
    np.save(tmp_path / "image.npy", x)
    big = tfbig.stream(scaled(3), strip_rows=2)
    expected = big.predict(x[None], verbose=0)[0]
    for image in (x, tfbig.open(x), str(tmp_path / "image.npy")):
        written = big.predict_to(image, str(tmp_path / "prediction.npy"))
        assert (written.shape, written.dtype) == ((11, 9, 3), "float32")
        assert_same(np.load(tmp_path / "prediction.npy"), expected)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["image.npy", "prediction.npy"]
    assert_same(expected, scaled_prediction(big, x), 2.0**-20)  # a sum of 36 products in float32


def scaled_prediction(big: Any, image: np.ndarray) -> np.ndarray:
    return big.twin.predict(image[None], verbose=0)[0]


def test_is_saved_and_loaded_and_goes_on_training(tmp_path: Any) -> None:
    x, y = photographs(2)
    big = tfbig.stream(scaled(), tfbig.Budget(device="1MB", host="1GB"), strip_rows=3)
    big.compile("adam", "binary_crossentropy", metrics=["mae"])
    big.fit(x, y, verbose=0)
    big.save(tmp_path / "big.keras")
    again = keras.saving.load_model(tmp_path / "big.keras")
    assert type(again) is tfbig.StreamedModel
    for setting in ("name", "budget", "strip_rows", "devices", "source_dtype"):
        assert again.get_config()[setting] == big.get_config()[setting]
    assert_same(again.get_weights(), big.get_weights())
    logs = [model.fit(x, y, verbose=0).history for model in (big, again)]
    assert logs[0] == logs[1]
    assert_same(again.get_weights(), big.get_weights())
    assert_same(again.predict(x, verbose=0), big.predict(x, verbose=0))
