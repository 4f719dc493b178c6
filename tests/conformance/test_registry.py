"""The registry of cases has every public layer and operation of Keras, or the reason why it is left out."""

from __future__ import annotations

import inspect
from collections.abc import Iterable

import keras
from layer_cases import CASES, NOT_ON_IMAGES


def layers_of_keras() -> set[str]:
    """Return the public layers by their own name; aliases such as Convolution2D are the same class."""
    classes = (value for _, value in inspect.getmembers(keras.layers, inspect.isclass))
    return {f"layers.{kind.__name__}" for kind in classes}


def operations_of_keras() -> set[str]:
    """Return the public operations."""
    names = [name for name, _ in inspect.getmembers(keras.ops, callable)]
    return {f"ops.{name}" for name in names if not name.startswith("_")}


def missing(names: Iterable[str]) -> list[str]:
    """Return the names that have neither a case nor a reason."""
    known = {case.of for case in CASES} | set(NOT_ON_IMAGES)
    return sorted(set(names) - known)


def test_every_layer_has_a_case_or_a_reason() -> None:
    assert missing(layers_of_keras()) == []


def test_every_operation_has_a_case_or_a_reason() -> None:
    assert missing(operations_of_keras()) == []


def test_nothing_is_both_run_and_left_out() -> None:
    assert {case.of for case in CASES} & set(NOT_ON_IMAGES) == set()


def test_nothing_is_left_out_that_keras_does_not_have() -> None:
    assert set(NOT_ON_IMAGES) - layers_of_keras() - operations_of_keras() == set()


def test_names_are_unique() -> None:
    names = [f"{case.name} {case.spatial}" for case in CASES]
    assert sorted({n for n in names if names.count(n) > 1}) == []
