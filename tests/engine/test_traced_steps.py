"""Images of many sizes: traced once per plan, whatever the data looks like, and each step inside its budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from exactness import FLOAT64, assert_same
from keras import layers

import tfbig

DEVICE = 120_000
SIZES = [(20 + 3 * i, 50 - i) for i in range(20)]


class Counting(tfbig.StreamedModel):
    """Counts how often a step is traced."""

    traces = 0

    def train_step(self, data: Any) -> Any:
        self.traces += 1
        return super().train_step(data)


def images() -> list[tuple[np.ndarray, np.ndarray]]:
    random = np.random.default_rng(0)
    return [(random.normal(size=(1, *size, 3)), random.normal(size=(1, 2))) for size in SIZES]


def ragged(pairs: list[tuple[np.ndarray, np.ndarray]]) -> tf.data.Dataset:
    """A data set that says nothing about sizes."""
    specs = tuple(
        tf.TensorSpec([None] * (part.ndim - 1) + [part.shape[-1]], part.dtype) for part in pairs[0]
    )
    data = tf.data.Dataset.from_generator(lambda: iter(pairs), output_signature=specs)
    return data.apply(tf.data.experimental.assert_cardinality(len(pairs)))


def trained(model: keras.Model, data: Any) -> list[Any]:
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse", metrics=["mae"])
    logs = model.fit(data, epochs=2, shuffle=False, verbose=0).history["loss"]
    return [np.array(logs), *model.get_weights()]


def network() -> keras.Model:
    """Convolutions of one width with BatchNorm: what is kept can be chosen."""
    keras.utils.set_random_seed(1)
    x = start = keras.Input((None, None, 3))
    for _ in range(5):
        x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(4, 3, padding="same")(x)))
    return keras.Model(start, layers.Dense(2)(layers.GlobalAveragePooling2D()(x)))


def twins() -> tuple[keras.Model, keras.Model]:
    model, twin = network(), network()
    twin.set_weights(model.get_weights())
    return model, twin


def test_twenty_sizes_are_traced_once(float64: None) -> None:
    model, twin = twins()
    big = Counting(model, tfbig.Budget(device=DEVICE))
    found = trained(big, ragged(images()))
    assert big.traces == 1
    assert_same(found[1:], trained(twin, ragged(images()))[1:], FLOAT64)


@pytest.mark.slow
def test_sizes_that_need_another_plan_are_traced_once_per_plan(float64: None) -> None:
    """Host memory for all images of the small sizes; the large ones make some of theirs again."""
    model, twin = twins()
    middle = tfbig.stream(model, tfbig.Budget(device=DEVICE)).plan((1, *SIZES[10], 3))
    big = Counting(model, tfbig.Budget(device=DEVICE, host=middle.total_bytes, disk=0))
    plans = [big.plan((1, *size, 3)) for size in SIZES]
    assert all(p.total_bytes <= middle.total_bytes for p in plans)
    assert not plans[0].layout.replays
    assert plans[-1].layout.replays
    found = trained(big, ragged(images()))
    assert 2 <= big.traces <= 8
    assert_same(found[1:], trained(twin, ragged(images()))[1:], FLOAT64)


def test_a_size_that_no_plan_holds_is_said_before_its_step() -> None:
    """From a data set that says nothing about sizes."""
    model = network()
    small = tfbig.stream(model, tfbig.Budget(device=DEVICE)).plan((1, *SIZES[0], 3))
    big = tfbig.stream(model, tfbig.Budget(device=DEVICE, host=small.total_bytes, disk=0))
    big.compile("sgd", "mse")
    big.fit(ragged(images()[:1]), shuffle=False, verbose=0)
    large = np.zeros((1, 200, 50, 3)), np.zeros((1, 2))
    with pytest.raises(tfbig.BudgetError, match="1 x 200 x 50: a step needs"):
        big.fit(ragged([large]), shuffle=False, verbose=0)


def test_handles_of_many_sizes_find_their_plans(tmp_path: Path) -> None:
    """Nothing but the file says how large an image is."""
    start = keras.Input((None, None, 1))
    x = layers.Rescaling(1 / 255)(start)
    for _ in range(6):
        x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(4, 3, padding="same")(x)))
    model = keras.Model(start, layers.Conv2D(1, 1, activation="sigmoid")(x))
    sizes = [(64, 40), (30, 40), (72, 40), (70, 40)]
    handles = []
    for number, size in enumerate(sizes):
        path = tmp_path / f"{number}.npy"
        np.save(path, np.random.default_rng(number).integers(0, 2, (*size, 1)).astype("uint8"))
        handles.append(tfbig.open(path).handle)
    small = tfbig.stream(model, tfbig.Budget(device=60_000)).plan((1, *sizes[0], 1))
    host = small.total_bytes + 100  # counters of the optimiser
    big = Counting(model, tfbig.Budget(device=60_000, host=host, disk=0))
    big.compile("sgd", "binary_crossentropy")
    data = tf.data.Dataset.from_tensor_slices((handles, handles)).batch(1)
    history = big.fit(data, epochs=2, shuffle=False, verbose=0)
    assert big.traces == 2
    assert np.isfinite(history.history["loss"]).all()


def test_eager_calls_of_many_sizes_stay_inside_the_budget() -> None:
    twin = network()
    middle = tfbig.stream(twin, tfbig.Budget(device=DEVICE)).plan((1, *SIZES[2], 3))
    big = tfbig.stream(twin, tfbig.Budget(device=DEVICE, host=middle.total_bytes, disk=0))
    for x, _ in images()[:5]:
        x = tf.constant(x, tf.float32)
        with tf.GradientTape() as tape:
            y = big(x, training=True)
        assert len(tape.gradient(y, [v._value for v in twin.trainable_variables])) > 10


def test_steps_of_one_call() -> None:
    """`steps_per_execution` data a call, also where the data ends in the middle of one."""
    model, twin = twins()
    pairs = [tuple(part.astype("float32") for part in pair) for pair in images()[:5]]
    for each in (big := Counting(model), twin):
        each.compile(keras.optimizers.SGD(0.01), "mse", steps_per_execution=2)
    losses = [
        each.fit(ragged(pairs), shuffle=False, verbose=0).history["loss"] for each in (big, twin)
    ]
    assert big.traces == 1
    np.testing.assert_allclose(*losses, rtol=1e-4)
