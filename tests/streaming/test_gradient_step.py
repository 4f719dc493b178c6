"""Training steps of a streamed model compute the gradients and weights of the plain model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from exactness import FLOAT64, assert_same, integers
from keras import layers
from streamed_pairs import (
    both,
    data,
    images,
    linear_classifier,
    numbers,
    same_logs,
    segmenter,
    slow,
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "optimizer"),
    [
        slow(segmenter, lambda: keras.optimizers.Adam(0.01)),
        slow(segmenter, lambda: keras.optimizers.SGD(0.1, momentum=0.9)),
        slow(linear_classifier, lambda: keras.optimizers.Adam(0.01)),
        (linear_classifier, lambda: keras.optimizers.SGD(0.1, momentum=0.9)),
    ],
    ids=["segmenter-adam", "segmenter-momentum", "classifier-adam", "classifier-momentum"],
)
def test_ten_steps(
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


OPTIMISERS = {
    "clipped": lambda: keras.optimizers.AdamW(0.1, clipnorm=0.1, weight_decay=0.1),
    "averaged": lambda: keras.optimizers.SGD(
        keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5),
        use_ema=True,
        ema_overwrite_frequency=2,
    ),
    "accumulated": lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=3),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [slow("clipped"), slow("averaged"), "accumulated"])
def test_optimisers(name: str, float64: None) -> None:
    """Ten steps, two per call (`steps_per_execution`)."""
    x, y = data(segmenter, 20)

    def run(model: Any) -> dict[str, Any]:
        model.compile(OPTIMISERS[name](), "binary_crossentropy", steps_per_execution=2)
        return model.fit(x, y, batch_size=2, shuffle=False, verbose=0).history

    same_logs(both(segmenter), run)


@pytest.mark.parametrize("times", [slow(1), 2])
def test_embedding_of_a_number_beside_the_image(times: int, float64: None) -> None:
    """Its table has a gradient for the rows that were looked up; those of several lookups and uses add up."""

    def network() -> keras.Model:
        image, numbers = keras.Input((None, None, 3)), keras.Input((times,), dtype="int32")
        table = layers.Embedding(5, 4)
        looked_up = [layers.Flatten()(table(numbers[:, i : i + 1])) for i in range(times)]
        factors = layers.Dense(4)(layers.Concatenate()([*looked_up, looked_up[0]]))
        x = layers.BatchNormalization()(layers.Conv2D(4, 3, padding="same")(image))
        x = layers.Multiply()([x, layers.Reshape((1, 1, 4))(factors)])
        return keras.Model([image, numbers], layers.GlobalAveragePooling2D()(x))

    random = np.random.default_rng(0)
    data = [random.normal(size=(3, 17, 12, 3)), random.integers(0, 5, (3, times)).astype("int32")]
    pair = both(network)
    for model in pair:
        model.compile(keras.optimizers.SGD(0.5), "mse")
        model.train_on_batch(data, np.ones((3, 4)))
    assert_same(pair[0].twin.get_weights(), pair[1].get_weights(), FLOAT64)


def test_custom_training_loop(float64: None) -> None:
    """Gradients of Keras variables and of an intermediate loss in a custom training loop."""
    x, y = data(segmenter, 2)
    results = []
    for model in both(segmenter):
        optimizer = keras.optimizers.SGD(0.5)
        for _ in range(2):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply(gradients, model.trainable_variables)
            results.append([loss, *gradients])
        results[-1] += model.get_weights()
    assert_same(results[:2], results[2:], FLOAT64)


@pytest.mark.parametrize(
    "stop", [slow(keras.ops.stop_gradient), lambda x: keras.ops.cast(x > 0, "float64")]
)
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
def test_weights_without_gradient_do_not_decay(stop: Any, float64: None) -> None:
    def build() -> keras.Model:
        inputs = keras.Input((None, None, 2))
        x = stop(layers.Conv2D(3, 3, padding="same")(inputs))
        return keras.Model(inputs, layers.Conv2D(2, 3, padding="same")(x))

    def run(model: Any) -> dict[str, Any]:
        model.compile(keras.optimizers.AdamW(0.01, weight_decay=0.1), "mse")
        return model.fit(images(3), numbers(3, 7, 6, 2), 1, shuffle=False, verbose=0).history

    same_logs(both(build), run)


def test_frozen_model_does_not_change(float64: None) -> None:
    x, y = data(segmenter, 2)

    def run(model: Any) -> dict[str, Any]:
        model.trainable = False
        model.compile("sgd", "mse")
        with pytest.warns(UserWarning, match="does not have any trainable weights"):
            return model.fit(x, y, verbose=0).history

    pair = both(segmenter)
    before = pair[1].get_weights()
    same_logs(pair, run)
    assert_same(pair[0].get_weights(), before)


@pytest.mark.slow
@pytest.mark.parametrize("build", [slow(segmenter), linear_classifier])
def test_run_eagerly(build: Callable[[], keras.Model], float64: None) -> None:
    x = integers((2, 7, 6, 2), "float64")
    y = integers((2, 7, 6, 1) if build is segmenter else (2, 3), "float64")
    results = []
    for model in both(build):
        model.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=True)
        model.fit(x, y, verbose=0)
        results.append([*model.get_weights(), model.predict(x, verbose=0)])
    assert_same(*results, FLOAT64)


@pytest.mark.slow
def test_mixed_precision() -> None:
    """The loss differs by the roundings, 2**-9 each, of four bfloat16 results in each model, squared."""
    x = np.random.default_rng(2).normal(size=(4, 9, 8, 2)).astype("float32")
    y = x[..., :1] - 0.5 * x[..., 1:]
    keras.config.set_dtype_policy("mixed_bfloat16")
    losses = []
    for model in both(segmenter, 1, None):
        model.compile(keras.optimizers.Adam(0.03), "mse")
        losses.append(model.fit(x, y, epochs=8, batch_size=4, verbose=0).history["loss"])
    streamed, plain = losses
    assert streamed[0] == pytest.approx(plain[0], rel=2 * 2 * 4 * 2**-9)
    assert streamed[-1] < 0.5 * streamed[0]
    assert {w.dtype for w in model.weights} == {"float32"}


@pytest.mark.slow
def test_float16_loss_scale() -> None:
    """Gradients differ by the roundings, 2**-11 each, of eight float16 results in each model, squared."""
    keras.config.set_dtype_policy("mixed_float16")
    x, y = (a.astype("float32") for a in data(segmenter, 4))
    scales, weights = [], []
    for model in both(segmenter):
        model.compile(keras.optimizers.SGD(0.1), "binary_crossentropy")
        assert type(model.optimizer).__name__ == "LossScaleOptimizer"
        model.fit(x, y, batch_size=2, shuffle=False, verbose=0)
        scales.append(float(model.optimizer.dynamic_scale))
        weights.append(model.get_weights())
    assert scales[0] == scales[1]
    assert_same(*weights, 2 * 2 * 8 * 2**-11)


def test_gradient_of_an_image_in_a_function(float64: None) -> None:
    """A tape in the function watches the image; one around it does not, and has no gradient of the image."""
    big, plain = both(linear_classifier)
    image = tf.constant(np.random.default_rng(0).normal(size=(2, 7, 8, 2)))

    def gradient(model: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(image)
            total = tf.reduce_sum(model(image) ** 2)
        return tape.gradient(total, image)

    ours = tf.function(lambda: gradient(big))()
    assert_same([ours.numpy()], [gradient(plain).numpy()], FLOAT64)
    assert gradient(tf.function(lambda x: big(x))) is None


@pytest.mark.slow
def test_second_derivative_is_an_error() -> None:
    big = both(segmenter)[0]
    x = tf.constant(images(1), tf.float32)
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = tf.reduce_sum(big(x))
        penalty = tf.reduce_sum(inner.gradient(y, x) ** 2)
    with pytest.raises(tf.errors.OpError, match="differentiable once"):
        outer.gradient(penalty, [v.value for v in big.trainable_variables])
