"""Models are collected after they are deleted, with their programs, plans and graphs."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf

from benchmarks import models_let_go
from tfbig.engine.program import Program
from tfbig.plan.plan import Plan
from tfbig.plan.planner import Planner


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


def test_model_is_collected_after_a_step(created: list[weakref.ref[Any]]) -> None:
    models_let_go.streamed_round()
    assert len(created) > 2
    assert left(created) == []


def test_callbacks_are_not_held_by_the_global_graph() -> None:
    held = tf.compat.v1.get_default_graph()
    before = len(getattr(held, "_py_funcs_used_in_graph", ()))
    models_let_go.streamed_round()
    assert len(getattr(held, "_py_funcs_used_in_graph", ())) == before
