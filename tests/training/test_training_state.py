"""Training state: conversion to arrays and back, restored variables and random generators."""

import random
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfbig.training import training_state
from tfbig.training.checkpoint_files import Checkpoint, Refused
from tfbig.training.gradient_sums import Sums


@pytest.fixture
def variables():
    return {
        "0 kernel": keras.Variable([[1.0, 2.0]]),
        "1 half": keras.Variable([0.1, -3.0], dtype="bfloat16"),
        "2 count": keras.Variable(7, dtype="int64"),
    }


def test_arrays_round_trip(variables):
    arrays = training_state.to_arrays(variables)
    assert arrays["1 half"].dtype == np.uint16
    before = [v.numpy() for v in variables.values()]
    for variable in variables.values():
        variable.assign(keras.ops.zeros_like(variable))
    training_state.assign(variables, arrays.values())
    for variable, value in zip(variables.values(), before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


@pytest.mark.parametrize("first", [True, False])
def test_sums_of_metrics_are_those_of_the_first_replica(variables, first):
    variables["3 sum"] = keras.Variable(5, dtype="int64", aggregation="sum")
    arrays = training_state.to_arrays(variables)
    training_state.assign_sums(variables, arrays.values(), first)
    assert int(variables["2 count"]) == 7
    assert int(variables["3 sum"]) == (5 if first else 0)


def test_check_refuses_another_shape_or_dtype(variables):
    arrays = dict(training_state.to_arrays(variables))
    training_state.check(variables, Checkpoint(Path("a"), arrays | {"metric 0": np.ones(9)}, {}))
    for name, array in (("0 kernel", np.ones((2, 1), "float32")), ("2 count", np.array(7.0))):
        with pytest.raises(Refused, match=f"'{name}' is .*; in the model '{name}' is"):
            training_state.check(variables, Checkpoint(Path("a"), arrays | {name: array}, {}))


def test_sums_round_trip():
    sums = Sums([None, tf.constant([2.0])], 3, 5)
    arrays = training_state.to_arrays(training_state.sums_of(sums))
    restored = training_state.sums_from(arrays, 3, 5, 2)
    assert (restored.batches, restored.items, restored.gradients[0]) == (3, 5, None)
    np.testing.assert_array_equal(restored.gradients[1], [2.0])


def test_undo_restores_saved_values(variables):
    undo, kernel = training_state.Undo(), variables["0 kernel"]
    undo.restore()  # nothing was saved
    undo.save([kernel])
    kernel.assign([[5.0, 6.0]])
    undo.restore()
    np.testing.assert_array_equal(kernel.numpy(), [[1.0, 2.0]])


def test_generators_continue_from_a_saved_state():
    states = training_state.generators()
    draws = random.random(), np.random.rand()  # noqa: NPY002
    training_state.set_generators(states)
    assert (random.random(), np.random.rand()) == draws  # noqa: NPY002
