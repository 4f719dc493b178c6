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
    ("options", "asked", "of_keras", "on_cpu", "on_gpu"),
    [
        ({}, None, None, False, True),
        ({"jit_compile": True}, True, None, True, True),
        ({"jit_compile": False}, False, False, False, False),
        ({"run_eagerly": True}, False, False, False, False),
    ],
)
def test_what_compile_asks_for(
    options: dict[str, Any],
    asked: bool | None,
    of_keras: bool | None,
    on_cpu: bool,
    on_gpu: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Keras is never told True, as it would compile strips."""
    model = compiled(**options)
    assert (model.xla, model.jit_compile) == (asked, of_keras)
    assert xla.wanted(model, CPU) is xla.wanted(model, None) is on_cpu
    monkeypatch.setattr(backend, "is_gpu", lambda device: True)
    assert xla.wanted(model, CPU) is on_gpu


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
