"""Whether XLA is wanted and works."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import keras
import pytest
import tensorflow as tf

from tfbig.system import backend, tensorflow_internals, xla

CPU = "/CPU:0"


@pytest.fixture(autouse=True)
def _probes_again() -> Iterator[None]:
    xla._compiles.cache_clear()
    yield
    xla._compiles.cache_clear()


class Model(xla.Choice, keras.Model):
    """A model that leaves XLA to tfbig."""


def compiled(**options: Any) -> Model:
    model = Model()
    model.supports_jit = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.compile("sgd", "mse", **options)
    return model


@pytest.mark.parametrize(
    ("options", "asked", "on_cpu", "on_gpu"),
    [
        ({}, None, False, True),
        ({"jit_compile": True}, True, True, True),
        ({"jit_compile": False}, False, False, False),
        ({"run_eagerly": True}, False, False, False),
    ],
)
def test_what_compile_asks_for(
    options: dict[str, Any],
    asked: bool | None,
    on_cpu: bool,
    on_gpu: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = compiled(**options)
    assert model.jit_compile is asked
    assert xla.wanted(model, CPU) is xla.wanted(model, None) is on_cpu
    monkeypatch.setattr(backend, "is_gpu", lambda device: True)
    assert xla.wanted(model, CPU) is on_gpu


def test_choice_of_a_second_compile() -> None:
    model = compiled(jit_compile=True)
    model.compile("sgd", "mse")
    assert model.jit_compile is None


def test_keras_compiles_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may call Python, or stream an image from the host."""
    model = compiled(jit_compile=True)
    asked: list[Any] = []
    make = tf.function
    monkeypatch.setattr(
        tf, "function", lambda f, **options: asked.append(options) or make(f, **options)
    )
    model.make_train_function()
    model.make_predict_function()
    assert asked
    assert not any(options.get("jit_compile") for options in asked)
    assert model.jit_compile


def test_choice_of_a_model_of_keras() -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    for choice in (True, False):
        model.compile("sgd", "mse", jit_compile=choice)
        assert xla.wanted(model, CPU) is choice


def test_works_inside_a_trace() -> None:
    assert tf.function(lambda: tf.constant(xla.works(CPU)))()


def test_says_once_that_it_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(x: tf.Tensor) -> Any:
        raise tf.errors.InternalError(None, None, "ptxas not found\nmore")

    monkeypatch.setattr(xla, "_add_one", fail)
    with pytest.warns(UserWarning, match=r"XLA does not work on /CPU:0.*: ptxas not found") as said:
        assert [xla.works(CPU) for _ in range(3)] == [False] * 3
    assert len(said) == 1
    assert "\n" not in str(said[0].message)


def test_never_with_deterministic_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorflow_internals, "is_deterministic", lambda: True)
    assert not xla.works(CPU)
