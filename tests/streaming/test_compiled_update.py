"""The compiled update of the weights equals the update that Keras runs operation by operation."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from optimizer_loops import MAKERS, some_gradients

import tfbig
from tfbig.streaming import compiled_update, gradient_step
from tfbig.system import backend, keras_internals
from tfbig.training import single_process

pytestmark = [
    pytest.mark.usefixtures("float64"),
    pytest.mark.filterwarnings("ignore:Gradients do not exist"),
]

ROUNDING = 1e-12
"""Relative; a compiled program may fuse a product and a sum, which rounds once instead of twice."""

k = keras.optimizers
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: k.SGD(0.1, momentum=0.9, nesterov=True),
    "adamw": lambda: k.AdamW(0.1, weight_decay=0.1, amsgrad=True),
    "clipnorm": lambda: k.Adam(0.1, clipnorm=0.1),
    "global_clipnorm": lambda: k.Adam(0.1, global_clipnorm=0.1),
    "clipvalue": lambda: k.SGD(0.1, clipvalue=0.5),
    "averaged": lambda: k.SGD(0.1, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=3),
    "accumulated": lambda: k.AdamW(0.1, weight_decay=0.1, gradient_accumulation_steps=3),
    "schedule": lambda: k.SGD(k.schedules.ExponentialDecay(0.1, 2, 0.5)),
    "function": lambda: k.SGD(lambda: 0.25),
    "scaled": lambda: k.SGD(0.1, loss_scale_factor=4.0),
    "loss_scale": lambda: k.LossScaleOptimizer(
        k.AdamW(0.1, clipnorm=0.3, use_ema=True), initial_scale=64.0, dynamic_growth_steps=3
    ),
    "adafactor": lambda: k.Adafactor(0.1),
    "lion": lambda: k.Lion(0.01),
    "muon": lambda: k.Muon(0.01),
    "ftrl": lambda: k.Ftrl(0.1),
    **MAKERS,
}
SLOW = {*OPTIMIZERS} - {"adamw", "averaged", "accumulated", "loss_scale"}


def model_of(optimizer: Any, jit_compile: bool | None) -> keras.Model:
    """Return a model with two weights that have gradients, and one that has none."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(4)])
    dense, last = model.layers
    last.kernel.trainable = False
    dense.kernel.constraint = keras.constraints.MaxNorm(0.8)
    model.compile(optimizer, "mse", jit_compile=jit_compile)
    optimizer.build(model.trainable_variables)
    return model


def gradients_of(model: keras.Model, pair: list[np.ndarray]) -> list[Any]:
    """Return a gradient for the first and the last of the three trainable variables, none for the bias between."""
    assert len(model.trainable_variables) == 3
    return [tf.constant(pair[0]), None, tf.constant(pair[1])]


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The traces of updates that are compiled in a test."""
    found: list[Any] = []
    concrete = compiled_update.traces.concrete

    def record(*arguments: Any) -> Any:
        trace = concrete(*arguments)
        if b"_update_" in trace.name:
            found.append(trace)
        return trace

    monkeypatch.setattr(compiled_update.traces, "concrete", record)
    return found


def must_compile(trace: Any) -> bool:
    return bool(trace.function_def.attr["_XlaMustCompile"].b)


def trained(optimizer: Any, jit_compile: bool, steps: int = 8) -> list[np.ndarray]:
    """Return all variables after some steps; the gradients of the fourth overflow for optimizers that scale losses."""
    model = model_of(optimizer, jit_compile)
    step = tf.function(
        lambda a, b: gradient_step.apply_gradients(model, [a, None, b]), autograph=False
    )
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        for i, pair in enumerate(some_gradients(steps)):
            if i == 3 and isinstance(optimizer, k.LossScaleOptimizer):
                pair = [pair[0] + np.inf, pair[1]]
            a, _, b = gradients_of(model, pair)
            step(a, b)
    return [np.asarray(v) for v in (*model.variables, *optimizer.variables)]


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid value")
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in OPTIMIZERS]
)
def test_equals_the_update_of_keras(name: str, traced: list[Any]) -> None:
    expected = trained(OPTIMIZERS[name](), False)
    assert not traced
    actual = trained(OPTIMIZERS[name](), True)
    assert [must_compile(t) for t in traced] == [True]
    for a, e in zip(actual, expected, strict=True):
        np.testing.assert_allclose(a, e, rtol=ROUNDING, atol=ROUNDING * abs(e).max(initial=0))


def find(model: keras.Model, gradients: list[Any]) -> Any:
    """Return what `compiled_update.find` returns in a trace."""
    found: list[Any] = []
    tf.function(lambda: found.append(compiled_update.find(model, gradients)), autograph=False)()
    return found[0]


def test_when_nothing_is_compiled() -> None:
    model = model_of(k.SGD(0.1), True)
    gradients = gradients_of(model, some_gradients(1)[0])
    sparse = tf.IndexedSlices(tf.ones([1, 2], tf.float64), tf.constant([0]))
    assert find(model, gradients) is not None
    assert find(model, [sparse, *gradients[1:]]) is None
    assert find(model, [None] * 3) is None
    assert compiled_update.find(model, gradients) is None  # eager
    with tf.distribute.OneDeviceStrategy(backend.HOST).scope():
        assert find(model, gradients) is None
    assert find(model_of(k.SGD(0.1), False), gradients) is None


def test_variables_on_two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(k.SGD(0.1), True)
    gradients = gradients_of(model, some_gradients(1)[0])
    monkeypatch.setattr(keras_internals, "tensors_of", lambda _: [Place(), Place()])
    assert find(model, gradients) is None


class Place:
    """Something with a device of its own."""

    @property
    def device(self) -> str:
        return f"/CPU:{id(self)}"


def test_by_default_on_an_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    image = keras.Input((None, None, 1))
    model = tfbig.stream(keras.Model(image, keras.layers.Conv2D(1, 1)(image)))
    model.compile("adam", "mse")
    gradients = [tf.ones_like(v.value) for v in model.trainable_variables]
    assert find(model, gradients) is None
    monkeypatch.setattr(backend, "is_gpu", lambda device: True)
    assert find(model, gradients) is not None


def test_steps_share_one_program_until_the_optimizer_changes(traced: list[Any]) -> None:
    model = model_of(k.SGD(0.1, clipvalue=0.5), True)
    gradients = gradients_of(model, some_gradients(1)[0])
    for _ in range(2):
        find(model, gradients)
    assert len(traced) == 1
    model.optimizer.learning_rate = 0.2  # a variable
    find(model, gradients)
    assert len(traced) == 1
    model.optimizer.clipvalue = 0.1
    find(model, gradients)
    assert len(traced) == 2
    model.optimizer.learning_rate = k.schedules.ExponentialDecay(0.1, 2, 0.5)
    find(model, gradients)
    assert len(traced) == 3


@pytest.fixture
def fast_collections() -> Iterator[None]:
    """Leave the objects of earlier tests out of the collections of a test."""
    gc.freeze()
    yield
    gc.unfreeze()


def test_is_freed_with_the_optimizer(traced: list[Any], fast_collections: None) -> None:
    model = model_of(k.Adam(0.1), True)
    find(model, gradients_of(model, some_gradients(1)[0]))
    references = [weakref.ref(each) for each in (model, model.optimizer, traced.pop())]
    del model
    for _ in range(3):
        gc.collect()
    assert [r() for r in references] == [None] * 3


def network() -> keras.Model:
    image = keras.Input((None, None, 1))
    return keras.Model(image, keras.layers.Conv2D(1, 3, padding="same")(image))


@pytest.mark.parametrize("accumulates", [pytest.param(False, marks=pytest.mark.slow), True])
def test_of_streamed_models(accumulates: bool, traced: list[Any]) -> None:
    """The update is compiled in `fit`, and in the steps of `tfbig.training.Loop`."""
    x = np.random.default_rng(0).normal(size=(2, 8, 6, 1))
    weights = []
    for compiles in (False, True):
        keras.utils.set_random_seed(2)
        model: Any = tfbig.stream(network(), strip_rows=4)
        model.compile(k.AdamW(0.1), "mse", jit_compile=compiles)
        if accumulates:
            worker = single_process.Single(model)
            for _ in range(2):
                for image in x:
                    worker.prepare([(image[None], 2 * image[None])], None)()
                worker.apply()
        else:
            model.fit(x, 2 * x, batch_size=1, shuffle=False, verbose=0)
        weights.append(model.get_weights())
    assert [must_compile(t) for t in traced] == [True]
    for a, e in zip(*weights, strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("accumulate", [None, 1])
def test_of_patchgd(accumulate: int | None, traced: list[Any]) -> None:
    """Its optimizer may step in a loop inside the training step."""
    x, y = np.random.default_rng(0).normal(size=(1, 16, 16, 1)), np.ones((1, 2))
    weights = []
    for compiles in (False, True):
        keras.utils.set_random_seed(2)
        patch = keras.Input((8, 8, 1))
        code = keras.layers.GlobalAveragePooling2D()(keras.layers.Conv2D(3, 3)(patch))
        latent = keras.Input((None, None, 3))
        head = keras.layers.Dense(2)(keras.layers.GlobalAveragePooling2D()(latent))
        model = tfbig.PatchGD(
            keras.Model(patch, code), keras.Model(latent, head), 8, accumulate=accumulate, seed=1
        )
        model.compile(k.Adam(0.01), "mse", jit_compile=compiles)
        model.fit(x, y, epochs=2, verbose=0)
        weights.append(model.get_weights())
    assert [must_compile(t) for t in traced] == [True]
    for a, e in zip(*weights, strict=True):
        np.testing.assert_allclose(a, e, rtol=1e-9, atol=1e-12)
