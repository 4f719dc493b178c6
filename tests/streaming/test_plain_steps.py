"""Steps in plain Keras are one program of XLA where Keras would compile them, with the same results."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import tfbig
from tfbig.streaming import plain_steps
from tfbig.streaming.plain_steps import CompiledSizes, PlainSteps
from tfbig.system import backend, keras_internals, tensorflow_internals
from tfbig.training import single_process

pytestmark = [pytest.mark.plain, pytest.mark.usefixtures("float64")]

ROUNDING = 1e-10
"""Relative, in float64: XLA adds in another order."""


def classifier(dropout: float = 0.0) -> keras.Model:
    image = keras.Input((None, None, 3))
    x = layers.Conv2D(6, 3, 2, padding="same", use_bias=False)(image)
    x = layers.Dropout(dropout, seed=1)(layers.ReLU()(layers.BatchNormalization(momentum=0.8)(x)))
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(image, layers.Dense(2, kernel_regularizer="l2")(x))


def averages() -> keras.Model:
    image = keras.Input((None, None, 3))
    return keras.Model(image, layers.GlobalAveragePooling2D()(layers.Conv2D(2, 1)(image)))


def segmenter() -> keras.Model:
    image = keras.Input((None, None, 3))
    x = layers.BatchNormalization()(layers.Conv2D(6, 3, padding="same")(image))
    return keras.Model(image, layers.Conv2D(1, 3, padding="same", activation="sigmoid")(x))


def two_outputs() -> keras.Model:
    image = keras.Input((None, None, 3), name="image")
    x = layers.Conv2D(4, 3, padding="same", activation="relu")(image)
    mask = layers.Conv2D(1, 1, activation="sigmoid", name="mask")(x)
    return keras.Model(
        {"image": image}, {"mask": mask, "pooled": layers.GlobalMaxPooling2D(name="pooled")(x)}
    )


def images(count: int = 4, rows: int = 20, columns: int = 14) -> np.ndarray:
    return np.random.default_rng(rows).integers(0, 9, (count, rows, columns, 3), "uint8")


def masks(count: int = 4, rows: int = 20, columns: int = 14) -> np.ndarray:
    """Return masks of classes 0 and 1, as float64."""
    shape = (count, rows, columns, 1)
    return np.random.default_rng(columns).integers(0, 2, shape).astype("float64")


def classes(count: int = 4) -> np.ndarray:
    return np.random.default_rng(3).random((count, 2))


def pair(build: Callable[[], keras.Model], loss: Any, **options: Any) -> list[Any]:
    """Return a streamed model that compiles, and the plain one without XLA."""
    models = []
    for streams in (True, False):
        keras.utils.set_random_seed(5)
        model: Any = tfbig.stream(build()) if streams else build()
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        model.compile(optimizer, loss, jit_compile=streams, **{"metrics": ["mae"], **options})
        models.append(model)
    return models


def assert_equal(first: Any, second: Any) -> None:
    for a, b in zip(tf.nest.flatten(first), tf.nest.flatten(second), strict=True):
        np.testing.assert_allclose(a, b, rtol=ROUNDING, atol=1e-13)


def assert_equal_logs(first: dict[str, Any], second: dict[str, Any]) -> None:
    """Metrics are float32."""
    assert {*first} == {*second}
    for name, value in second.items():
        np.testing.assert_allclose(first[name], value, rtol=1e-6, err_msg=name)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return whether each step that ran was compiled."""
    found: list[bool] = []
    run = plain_steps.traced_steps.traces.run

    def record(trace: Any, *arguments: Any) -> Any:
        outputs = run(trace, *arguments)
        found.append(bool(trace.function_def.attr["_XlaMustCompile"].b))
        return outputs

    monkeypatch.setattr(plain_steps.traced_steps.traces, "run", record)
    return found


def test_first_size_at_once_and_further_sizes_when_they_come_often() -> None:
    sizes = CompiledSizes()
    assert [sizes.take("a") for _ in range(3)] == [True, True, True]
    assert [sizes.take("b") for _ in range(3)] == [False, True, True]
    assert [sizes.take("c") for _ in range(4)] == [False, False, True, True]
    assert sizes.take("a")


def test_slides_of_all_sizes_are_not_compiled_each() -> None:
    sizes = CompiledSizes()
    epochs = [[sizes.take(slide) for slide in range(50)] for _ in range(3)]
    assert [sum(epoch) for epoch in epochs] == [1, 2, 3]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "loss", "targets"),
    [(classifier, "mse", classes), (segmenter, "binary_crossentropy", masks)],
)
def test_fit_is_that_of_keras(build: Any, loss: str, targets: Any, ran: list[bool]) -> None:
    """Fit with validation, evaluate and predict; the last batch is smaller."""
    x, y = images(5), targets(5)
    big, plain = pair(build, loss)
    options = {"batch_size": 2, "epochs": 2, "shuffle": False, "verbose": 0}
    logs = [m.fit(x, y, validation_data=(x, y), **options).history for m in (big, plain)]
    assert_equal_logs(*logs)
    assert_equal(big.get_weights(), plain.get_weights())
    assert ran == 2 * [True, True, False] + 2 * [True, True, True]  # train and validate
    del ran[:]
    logs = [m.evaluate(x, y, batch_size=2, verbose=0, return_dict=True) for m in (big, plain)]
    assert_equal_logs(*logs)
    assert_equal(*(m.predict(x, batch_size=2, verbose=0) for m in (big, plain)))
    assert ran == [True, True, True, True, True, False]


@pytest.mark.slow
def test_is_xla_of_keras(ran: list[bool]) -> None:
    """Random numbers are those that Keras draws in a compiled step, which differ from others."""
    x, y = images(2), classes(2)
    big, plain = pair(lambda: classifier(0.3), "mse")
    plain.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse", jit_compile=True)
    for model in (big, plain):
        model.fit(x, y, epochs=3, batch_size=2, verbose=0, shuffle=False)
    assert ran == [True] * 3
    assert_equal(big.get_weights(), plain.get_weights())


@pytest.mark.slow
def test_handles_are_read_before_the_step(ran: list[bool]) -> None:
    """Images, masks and weights of pixels; also of sizes that the data set does not tell."""
    big, plain = pair(
        segmenter,
        "binary_crossentropy",
        metrics=[tfbig.metrics.Dice(name="dice")],
        weighted_metrics=["mae"],
    )
    arrays = [
        (images(1, rows), masks(1, rows), 1 + masks(1, rows, 14)) for rows in (20, 18, 20, 18)
    ]
    types = ("uint8", "uint8", "uint8")
    opened = [
        [tfbig.open(a[0].astype(t)) for a, t in zip(each, types, strict=True)] for each in arrays
    ]
    handles = [tuple(np.array([s.handle]) for s in each) for each in opened]
    for given, each in zip(handles, arrays, strict=True):
        logs = big.train_on_batch(*given, return_dict=True)
        assert_equal_logs(logs, plain.train_on_batch(*each, return_dict=True))
        assert_equal(
            big.predict(tf.constant(given[0]), verbose=0), plain.predict(each[0], verbose=0)
        )
    assert_equal(big.get_weights(), plain.get_weights())
    assert ran == [True, True, False, False, True, True, True, True]


def test_background_behind_handles(ran: list[bool]) -> None:
    """If the plain layout is chosen, the result is that of the masked image."""
    x = images(1, 32, 32)[0]
    mask = np.zeros((32, 32), bool)
    mask[4:12, 5:20] = True
    source = tfbig.masked(tfbig.open(x), mask)
    big, plain = pair(averages, "mse")
    dense = source.read(0, 32)[None]
    y = classes(1)
    for _ in range(2):
        logs = big.train_on_batch(np.array([source.handle]), y, return_dict=True)
        assert_equal_logs(logs, plain.train_on_batch(dense, y, return_dict=True))
    assert ran == [True, True]
    assert_equal(big.get_weights(), plain.get_weights())


@pytest.mark.slow
def test_several_outputs_and_weights_of_classes(ran: list[bool]) -> None:
    big, plain = pair(two_outputs, {"mask": "binary_crossentropy", "pooled": "mse"}, metrics=None)
    y = {"mask": masks(), "pooled": np.random.default_rng(0).random((4, 4))}
    for model in (big, plain):
        model.fit({"image": images()}, y, batch_size=2, shuffle=False, verbose=0)
    assert_equal(big.get_weights(), plain.get_weights())
    assert ran == [True, True]
    big, plain = pair(classifier, "categorical_crossentropy", metrics=["accuracy"])
    logs = [
        m.fit(
            images(),
            np.eye(2)[[0, 1, 1, 0]],
            class_weight={0: 1.0, 1: 3.0},
            verbose=0,
            shuffle=False,
        ).history
        for m in (big, plain)
    ]
    assert_equal_logs(*logs)
    assert_equal(big.get_weights(), plain.get_weights())


@pytest.mark.slow
def test_data_of_unknown_sizes_in_several_steps_a_call(ran: list[bool]) -> None:
    big, plain = pair(classifier, "mse", steps_per_execution=2)
    pairs = [(images(2, rows), classes(2)) for rows in (20, 20, 16, 16)]
    specs = (tf.TensorSpec([None, None, None, 3], tf.uint8), tf.TensorSpec([None, 2], tf.float64))
    data = tf.data.Dataset.from_generator(lambda: iter(pairs), output_signature=specs).apply(
        tf.data.experimental.assert_cardinality(4)
    )
    for model in (big, plain):
        model.fit(data, verbose=0, shuffle=False)
    assert_equal(big.get_weights(), plain.get_weights())
    assert ran == [True, True, False, True]


@pytest.mark.slow
def test_sizes_share_one_compiled_trace() -> None:
    big, _ = pair(classifier, "mse")
    step = big.traced(big.train_step)
    for rows in (20, 16, 16, 20):
        step.one((tf.constant(images(2, rows)), tf.constant(classes(2))))
    assert (len(step.compiled._traced), len(step._traced)) == (1, 1)


@pytest.mark.slow
def test_gradients_of_a_training_loop(ran: list[bool]) -> None:
    big, plain = pair(classifier, "mse")
    worker = single_process.Single(big)
    for batch in ((images(2), classes(2)), (images(2), classes(2))):
        worker.prepare([batch], None)()
        worker.apply()
        plain.train_on_batch(*batch)
    worker.prepare_test([(images(2), classes(2))], None, 0)()
    assert ran == [True] * 3
    assert_equal(big.get_weights(), plain.get_weights())


def device_of_steps(model: Any) -> str | None:
    steps = model.traced(model.train_step)
    assert isinstance(steps, PlainSteps)
    return steps.device


def test_when_steps_are_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are compiled on an accelerator, as in Keras; with True on any device; never if a layer has no program."""
    big, _ = pair(classifier, "mse")
    assert device_of_steps(big)
    big.compile("sgd", "mse")
    assert device_of_steps(big) is None
    monkeypatch.setattr(backend, "is_gpu", lambda device: True)
    assert device_of_steps(big)
    big.compile("sgd", "mse", jit_compile=False)
    assert device_of_steps(big) is None
    big.compile("sgd", "mse", run_eagerly=True)
    assert device_of_steps(big) is None
    big.compile("sgd", "mse", jit_compile=True)
    monkeypatch.setattr(tensorflow_internals, "is_deterministic", lambda: True)
    assert device_of_steps(big) is None
    monkeypatch.undo()
    assert device_of_steps(big)
    monkeypatch.setattr(keras_internals, "device_of", lambda variables: "/GPU:0")
    monkeypatch.setattr(
        backend, "check_device", lambda name: ("GPU" if "GPU" in name else "CPU", 0)
    )
    assert device_of_steps(big) is None  # its variables are on another device
    monkeypatch.undo()
    big.twin.layers[1].supports_jit = False
    assert device_of_steps(big) is None


@pytest.mark.slow
def test_under_a_strategy_keras_is_not_told_to_compile() -> None:
    with tf.distribute.OneDeviceStrategy(backend.HOST).scope():
        big, _ = pair(classifier, "mse")
    assert device_of_steps(big) is None
    big.fit(images(2), classes(2), verbose=0)


@pytest.mark.slow
def test_larger_images_stream(ran: list[bool]) -> None:
    keras.utils.set_random_seed(5)
    big: Any = tfbig.stream(classifier(), tfbig.Budget(device="40KB"))
    big.compile("sgd", "mse", jit_compile=True)
    big.fit(images(1, 64, 48), classes(1), verbose=0)
    assert ran == [False]


class Unsupported(layers.Layer):
    """A layer that XLA cannot compile, as it uses text."""

    def call(self, x: Any) -> Any:
        return x + 0 * ops.cast(tf.strings.length(tf.strings.as_string(x)), x.dtype)


@pytest.mark.slow
def test_without_xla_if_it_fails(ran: list[bool]) -> None:
    def build() -> keras.Model:
        image = keras.Input((None, None, 3))
        x = layers.BatchNormalization()(layers.Conv2D(2, 3)(image))
        return keras.Model(image, Unsupported()(layers.GlobalAveragePooling2D()(x)))

    tfbig.rule(Unsupported)(lambda call: call.whole(lambda x, *_: x))
    big, plain = pair(build, "mse")
    x, y = images(2), classes(2)
    with pytest.warns(UserWarning, match="runs without XLA, which fails") as said:
        big.train_on_batch(x, y)
    assert len([w for w in said if "XLA" in str(w.message)]) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        big.train_on_batch(x, y)
        big.evaluate(x, y, verbose=0)
    for _ in range(2):
        plain.train_on_batch(x, y)
    assert ran == [False] * 3
    assert_equal(big.get_weights(), plain.get_weights())
    big.compile("sgd", "mse", jit_compile=True)
    with pytest.warns(UserWarning, match="runs without XLA"):  # another loss might not fail
        big.train_on_batch(x, y)


def failing(errors: list[Exception]) -> Callable[..., Any]:
    """Return a function that raises the errors one after the other, for the trace of compiled and other steps."""

    def run(trace: Any, *arguments: Any) -> Any:
        raise errors.pop(0)

    return run


@pytest.mark.parametrize(
    ("kinds", "raised"),
    [
        ([tf.errors.InvalidArgumentError, tf.errors.NotFoundError], tf.errors.NotFoundError),
        pytest.param(
            [tf.errors.ResourceExhaustedError],
            tf.errors.ResourceExhaustedError,
            marks=pytest.mark.slow,
        ),
    ],
)
def test_errors_that_are_not_of_xla(
    kinds: list[Any], raised: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error of the step without XLA is raised; too little memory goes on as before."""
    big, _ = pair(classifier, "mse")
    errors = [kind(None, None, "text") for kind in kinds]
    monkeypatch.setattr(plain_steps.traced_steps.traces, "run", failing(errors))
    with pytest.raises(raised):
        big.train_on_batch(images(2), classes(2))
    assert not errors
    assert big._programs.compiles_plain


def test_errors_of_sources_are_those_that_were_raised() -> None:
    big, _ = pair(classifier, "mse")
    source = tfbig.open(images(1)[0].astype("int16"))
    with pytest.raises(tfbig.SourceError, match="dtype"):
        big.train_on_batch(np.array([source.handle]), classes(1))
    assert big._programs.compiles_plain
