"""Models are collected after they are deleted, with their programs, plans and graphs."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf
from tensorflow.python.framework import ops

import tfbig
from benchmarks import models_let_go
from tfbig.engine.program import Program
from tfbig.plan.plan import Plan
from tfbig.plan.planner import Planner


@pytest.fixture(scope="module", autouse=True)
def _fast_collections() -> None:
    """Leave the objects of earlier tests out of the many collections of these tests."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def created(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[Any]]:
    """References to all models, programs, planners and plans that are created in a test."""
    references: list[weakref.ref[Any]] = []
    for kind in (keras.Model, Program, Planner, Plan):
        monkeypatch.setattr(kind, "__init__", recording(kind.__init__, references))
    return references


def recording(create: Callable[..., None], references: list[weakref.ref[Any]]) -> Any:
    """Return `__init__` that adds a reference to the object."""

    def init(self: Any, *arguments: Any, **options: Any) -> None:
        create(self, *arguments, **options)
        references.append(weakref.ref(self))

    return init


def left(references: list[weakref.ref[Any]]) -> list[str]:
    """Return the types of the objects that are not collected."""
    for _ in range(3):  # finalizers of the first garbage leave more
        gc.collect()
    return [type(r()).__name__ for r in references if r() is not None]


def eager_round() -> None:
    """Compute a gradient of a streamed model outside of `fit`, eagerly and in a function."""
    model = tfbig.stream(models_let_go.network(whole=True), strip_rows=8)

    def gradients(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x, training=True))
        return tape.gradient(loss, model.trainable_variables)

    image = tf.zeros((1, 16, 16, 3))
    gradients(image)
    tf.function(gradients)(image)


ROUNDS = [
    pytest.param(models_let_go.streamed_round, marks=pytest.mark.slow),
    pytest.param(models_let_go.patchgd_round, marks=pytest.mark.slow),
    pytest.param(models_let_go.mil_round, marks=pytest.mark.slow),
    pytest.param(eager_round, marks=pytest.mark.slow),
]


@pytest.mark.parametrize("run_round", ROUNDS)
def test_models_and_gradients_are_freed(
    run_round: Callable[[], None], created: list[weakref.ref[Any]]
) -> None:
    """Neither the objects of a model nor the gradients of its graph outlive it."""
    registry = ops.gradient_registry
    left([])
    before = set(registry.list())
    run_round()
    assert len(created) > 2
    assert left(created) == []
    assert set(registry.list()) <= before


@pytest.mark.slow
def test_callbacks_are_not_held_by_the_global_graph() -> None:
    held = tf.compat.v1.get_default_graph()
    before = len(getattr(held, "_py_funcs_used_in_graph", ()))
    models_let_go.streamed_round()
    assert len(getattr(held, "_py_funcs_used_in_graph", ())) == before
