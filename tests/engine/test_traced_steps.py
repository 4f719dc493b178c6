"""Images of many sizes: steps are traced once per layout, and every step stays inside the budget."""

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
from tfbig.plan import fixed_bytes

DEVICE = 120_000
SIZES = [(20 + 3 * i, 50 - i) for i in range(20)]


class Counting(tfbig.StreamedModel):
    """A streamed model that counts how often a step is traced."""

    traces = 0

    def train_step(self, data: Any) -> Any:
        self.traces += 1
        return super().train_step(data)


def images() -> list[tuple[np.ndarray, np.ndarray]]:
    random = np.random.default_rng(0)
    return [(random.normal(size=(1, *size, 3)), random.normal(size=(1, 2))) for size in SIZES]


def ragged(pairs: list[tuple[np.ndarray, np.ndarray]]) -> tf.data.Dataset:
    """Return a dataset whose specs leave out the sizes."""
    specs = tuple(
        tf.TensorSpec([None] * (array.ndim - 1) + [array.shape[-1]], array.dtype)
        for array in pairs[0]
    )
    data = tf.data.Dataset.from_generator(lambda: iter(pairs), output_signature=specs)
    return data.apply(tf.data.experimental.assert_cardinality(len(pairs)))


def trained(model: keras.Model, data: Any) -> list[Any]:
    """Return the losses of two epochs and the weights after them."""
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse", metrics=["mae"])
    logs = model.fit(data, epochs=2, shuffle=False, verbose=0).history["loss"]
    return [np.array(logs), *model.get_weights()]


def network(blocks: int = 5) -> keras.Model:
    """Return convolutions of one width with BatchNormalization, which leave the planner a choice of layouts."""
    keras.utils.set_random_seed(1)
    x = start = keras.Input((None, None, 3))
    for _ in range(blocks):
        x = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(4, 3, padding="same")(x)))
    return keras.Model(start, layers.Dense(2)(layers.GlobalAveragePooling2D()(x)))


def twins(blocks: int = 5) -> tuple[keras.Model, keras.Model]:
    model, twin = network(blocks), network(blocks)
    twin.set_weights(model.get_weights())
    return model, twin


@pytest.mark.slow
@pytest.mark.parametrize(("every", "blocks"), [(4, 2), pytest.param(1, 5, marks=pytest.mark.slow)])
def test_many_sizes_are_traced_once(every: int, blocks: int, float64: None) -> None:
    """Sizes that one layout fits: five of the twenty sizes, and all."""
    model, twin = twins(blocks)
    big = Counting(model, tfbig.Budget(device=DEVICE))
    result = trained(big, ragged(images()[::every]))
    assert big.traces == 1
    assert_same(result[1:], trained(twin, ragged(images()[::every]))[1:], FLOAT64)


@pytest.mark.slow
def test_sizes_are_traced_once_per_layout(float64: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host memory fits all images of small sizes; large sizes rematerialise some of theirs.

    The trace of a replay takes more bytes than these images, so it is not counted.
    """
    monkeypatch.setattr(fixed_bytes, "INFERENCE", fixed_bytes.TraceBytes(0, 0, 0, 0))
    model, twin = twins()
    middle = tfbig.stream(model, tfbig.Budget(device=DEVICE)).plan((1, *SIZES[10], 3))
    big = Counting(model, tfbig.Budget(device=DEVICE, host=middle.total_bytes, disk=0))
    plans = [big.plan((1, *size, 3)) for size in SIZES]
    assert all(p.total_bytes <= middle.total_bytes for p in plans)
    assert not plans[0].layout.replays
    assert plans[-1].layout.replays
    result = trained(big, ragged(images()))
    assert 2 <= big.traces <= 8
    assert_same(result[1:], trained(twin, ragged(images()))[1:], FLOAT64)


@pytest.mark.slow
def test_size_without_a_plan_fails_before_its_step() -> None:
    """Also if the dataset leaves out the sizes."""
    model = network(blocks=2)
    small = tfbig.stream(model, tfbig.Budget(device=DEVICE)).plan((1, *SIZES[0], 3))
    big = tfbig.stream(model, tfbig.Budget(device=DEVICE, host=small.total_bytes, disk=0))
    big.compile("sgd", "mse")
    big.fit(ragged(images()[:1]), shuffle=False, verbose=0)
    large = np.zeros((1, 200, 50, 3)), np.zeros((1, 2))
    with pytest.raises(tfbig.BudgetError, match="1 x 200 x 50: a step needs"):
        big.fit(ragged([large]), shuffle=False, verbose=0)


@pytest.mark.slow
def test_handles_of_many_sizes(tmp_path: Path) -> None:
    """Only the file holds the size of an image; two layouts are traced, and train as the plain model does."""
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
    small = tfbig.stream(model, tfbig.Budget(device=60_000))
    small.compile("sgd", "binary_crossentropy")  # the compiler of the loss takes memory
    host = small.plan((1, *sizes[0], 1)).total_bytes
    big = Counting(model, tfbig.Budget(device=60_000, host=host, disk=0))
    big.compile("sgd", "binary_crossentropy")
    data = tf.data.Dataset.from_tensor_slices((handles, handles)).batch(1)
    twin = keras.models.clone_model(model)
    twin.set_weights(model.get_weights())
    twin.compile("sgd", "binary_crossentropy")
    history = big.fit(data, shuffle=False, verbose=0)
    assert big.traces == 2
    arrays = [np.load(tmp_path / f"{n}.npy")[None].astype("float32") for n in range(len(sizes))]
    expected = np.mean([float(twin.train_on_batch(array, array)) for array in arrays])
    assert history.history["loss"][0] == pytest.approx(expected, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("every", [4, 1])
def test_eager_calls_of_many_sizes(every: int) -> None:
    """Outputs and gradients of the plain model, also if images are rematerialised to stay inside the budget."""
    twin = network(blocks=3)
    middle = tfbig.stream(twin, tfbig.Budget(device=DEVICE)).plan((1, *SIZES[2], 3))
    big = tfbig.stream(twin, tfbig.Budget(device=DEVICE, host=middle.total_bytes, disk=0))
    for x, _ in images()[:5:every]:
        x = tf.constant(x, tf.float32)
        results = []
        for model in (big, twin):
            with tf.GradientTape() as tape:
                y = model(x, training=True)
            results.append([y, *tape.gradient(y, [v._value for v in twin.trainable_variables])])
        assert_same(*results, 1e-3)
    assert big.plan((1, *SIZES[4], 3)).layout != big.plan((1, *SIZES[0], 3)).layout


@pytest.mark.slow
def test_several_steps_per_execution() -> None:
    """`steps_per_execution` batches per call, also if the data ends in the middle of a call."""
    model, twin = twins(blocks=2)
    pairs = [tuple(array.astype("float32") for array in pair) for pair in images()[:5]]
    for each in (big := Counting(model), twin):
        each.compile(keras.optimizers.SGD(0.01), "mse", steps_per_execution=2)
    losses = [
        each.fit(ragged(pairs), shuffle=False, verbose=0).history["loss"] for each in (big, twin)
    ]
    assert big.traces == 1
    np.testing.assert_allclose(*losses, rtol=1e-4)
