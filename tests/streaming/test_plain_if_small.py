"""Small images run in plain Keras, with its results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import tfbig
from tfbig.engine.program import Program

pytestmark = [pytest.mark.plain, pytest.mark.usefixtures("float64")]


def classifier() -> keras.Model:
    image = keras.Input((None, None, 3))
    x = layers.Conv2D(6, 3, 2, padding="same", use_bias=False)(image)
    x = layers.Dropout(0.3, seed=1)(layers.ReLU()(layers.BatchNormalization(momentum=0.8)(x)))
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(image, layers.Dense(2, kernel_regularizer="l2")(x))


def segmenter() -> keras.Model:
    image = keras.Input((None, None, 3))
    x = layers.BatchNormalization()(layers.Conv2D(6, 3, padding="same")(image))
    return keras.Model(image, layers.Conv2D(1, 3, padding="same", activation="sigmoid")(x))


TASKS: list[Any] = [
    (classifier, "mse", (2,)),
    pytest.param(segmenter, "binary_crossentropy", (40, 30, 1), marks=pytest.mark.slow),
]


def images(size: int = 2) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 9, (size, 40, 30, 3), "uint8")


def compiled(
    build: Callable[[], keras.Model], loss: Any, streams: bool, **options: Any
) -> keras.Model:
    keras.utils.set_random_seed(5)
    model: Any = build()
    if streams:
        model = tfbig.stream(model, **options)
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    model.compile(optimizer, loss, metrics=["mae"], jit_compile=False)
    return model


def batches(*arrays: np.ndarray) -> tf.data.Dataset:
    """Return a dataset of one batch, whose size Keras does not know: it would trace another step for each size."""
    specs = tuple(
        tf.TensorSpec([None], tf.string if a.dtype.kind == "U" else a.dtype)
        if a.ndim == 1
        else tf.TensorSpec([*[None] * (a.ndim - 1), a.shape[-1]], a.dtype)
        for a in arrays
    )
    return tf.data.Dataset.from_generator(lambda: iter([arrays]), output_signature=specs).apply(
        tf.data.experimental.assert_cardinality(1)
    )


def assert_equal(first: keras.Model, second: keras.Model) -> None:
    """Assert that the weights are equal, up to what TensorFlow's optimizer of graphs changes."""
    for a, b in zip(first.get_weights(), second.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-14)


def assert_equal_logs(first: dict[str, Any], second: dict[str, Any]) -> None:
    for name, value in second.items():
        np.testing.assert_allclose(first[name], value, rtol=1e-6, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(("build", "loss", "shape"), TASKS)
@pytest.mark.parametrize("weighted", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("handles", [pytest.param(False, marks=pytest.mark.slow), True])
def test_fit_is_that_of_keras(
    build: Any, loss: str, shape: tuple[int, ...], weighted: bool, handles: bool
) -> None:
    x = images()
    y = np.random.default_rng(1).integers(0, 2, (2, *shape)).astype("float32")
    weights = (np.array([0.5, 2.0], "float32"),) if weighted else ()
    sources = [tfbig.open(each) for each in x]
    big, plain = (compiled(build, loss, streams) for streams in (True, False))
    given = np.array([s.handle for s in sources]) if handles else x
    actual = big.fit(batches(given, y, *weights), epochs=2, verbose=0, shuffle=False)
    if weighted and len(shape) > 1:  # Keras needs one for each pixel
        weights = (weights[0][:, None, None, None] * np.ones_like(y),)
    expected = plain.fit(batches(x, y, *weights), epochs=2, verbose=0, shuffle=False)
    assert_equal_logs(actual.history, expected.history)
    assert_equal(big, plain)
    data, twin_data = batches(given, y), batches(x, y)
    logs, twin_logs = (
        model.evaluate(each, verbose=0, return_dict=True)
        for model, each in ((big, data), (plain, twin_data))
    )
    assert_equal_logs(logs, twin_logs)
    np.testing.assert_allclose(
        big.predict(data, verbose=0), plain.predict(twin_data, verbose=0), rtol=1e-10
    )


@pytest.mark.slow
def test_labels_behind_handles() -> None:
    x, y = images(1).astype("float64"), (images(1)[..., :1] > 4).astype("float64")
    big, plain = (
        compiled(segmenter, "binary_crossentropy", streams, **options)
        for streams, options in ((True, {"source_dtype": "float64"}), (False, {}))
    )
    image, label = tfbig.open(x[0]), tfbig.open(y[0])
    handles = np.array([image.handle]), np.array([label.handle])
    actual = big.fit(batches(*handles), verbose=0, shuffle=False)
    expected = plain.fit(batches(x, y), verbose=0, shuffle=False)
    assert_equal_logs(actual.history, expected.history)
    assert_equal(big, plain)


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "tf.function"])
def test_calls_and_gradients(graph: bool) -> None:
    x = tf.constant(images(), tf.float64)
    big, plain = (compiled(classifier, "mse", streams) for streams in (True, False))

    def gradients(model: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(model(x, training=True) ** 2)
        return y, tape.gradient(y, [x, *[v._value for v in model.trainable_variables]])

    run = tf.function(gradients, autograph=False) if graph else gradients
    actual, expected = run(big), run(plain)
    for a, b in zip(tf.nest.flatten(actual), tf.nest.flatten(expected), strict=True):
        np.testing.assert_array_equal(a, b)
    assert_equal(big, plain)


@pytest.mark.parametrize("build", [pytest.param(classifier, marks=pytest.mark.slow), segmenter])
def test_no_step_streams(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even the forward pass streams, also with a loss for each pixel and images of unknown size."""
    big: Any = compiled(build, "mse", True)
    x = images()
    y = np.ones((2, 2) if build is classifier else (2, 40, 30, 1))
    monkeypatch.setattr(Program, "run", None)
    monkeypatch.setattr(Program, "forward", None)
    big.fit(batches(x, y), verbose=0, shuffle=False)
    big.evaluate(x, y, verbose=0)
    big.predict(x, verbose=0)
    big.compile("sgd", "mse", run_eagerly=True)
    big.train_on_batch(x, y)


def test_other_sizes_need_no_trace() -> None:
    big: Any = compiled(classifier, "mse", True)
    step = big.traced(big.train_step)
    for rows in (40, 33, 20):
        step.one((tf.constant(images()[:, :rows]), tf.ones((2, 2), tf.float64)))
    assert len(step._traced) == 1


def test_larger_images_stream() -> None:
    big: Any = compiled(classifier, "mse", True, budget=tfbig.Budget(host="1GB", disk=0))
    small, large = big.plan((1, 64, 64, 3)), big.plan((1, 2048, 2048, 3))
    assert small.layout.plain
    assert (len(small.sweeps), small.strips) == (1, 1)
    assert "64 x 64 x 3, small enough for plain Keras" in str(small)
    assert not large.layout.plain
    assert large.strips > 1
    assert small.total_bytes < large.total_bytes
    assert "plain" not in str(large)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"plain_if_small": False},
        {"strip_rows": 8},
        {"store": "bfloat16"},
        {"upto": "re_lu"},
        {"budget": tfbig.Budget(device="40KB")},
    ],
)
def test_images_that_always_stream(options: dict[str, Any]) -> None:
    keras.utils.clear_session()
    assert not tfbig.stream(classifier(), **options).plan((1, 64, 64, 3)).layout.plain


def test_predictions_into_files(tmp_path: Any) -> None:
    """They are written strip by strip."""
    x = images(1)
    big: Any = compiled(segmenter, "mse", True)
    big.predict_to(x[0], tmp_path / "mask.npy")
    np.testing.assert_allclose(
        np.load(tmp_path / "mask.npy"), big.predict(x, verbose=0)[0], rtol=1e-5
    )


def test_saved_with_the_model() -> None:
    big = tfbig.stream(classifier(), plain_if_small=False)
    assert not tfbig.StreamedModel.from_config(big.get_config()).settings.plain_if_small
    old = {k: v for k, v in big.get_config().items() if k != "plain_if_small"}
    assert tfbig.StreamedModel.from_config(old).settings.plain_if_small


def test_several_inputs_by_name() -> None:
    image, vector = keras.Input((None, None, 3), name="image"), keras.Input((4,), name="vector")
    pooled = layers.GlobalMaxPooling2D()(layers.Conv2D(5, 3)(image))
    model = keras.Model({"image": image, "vector": vector}, layers.Concatenate()([pooled, vector]))
    x = {"image": images(), "vector": np.ones((2, 4))}
    np.testing.assert_array_equal(tfbig.stream(model)(x), model(x))
