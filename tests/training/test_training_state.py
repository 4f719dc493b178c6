"""Training state: conversion to arrays and back, restored variables and random generators."""

import random
from pathlib import Path
from types import SimpleNamespace

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


def model_of(variables=(), metrics=(), trainable=()):
    return SimpleNamespace(
        variables=variables,
        metrics_variables=metrics,
        trainable_variables=trainable,
        optimizer=SimpleNamespace(variables=[]),
    )


class Worker:
    """Worker of one replica."""

    def __init__(self, chief=True):
        self.collective = SimpleNamespace(chief=chief)

    def metric_values(self, variables):
        return variables

    def sums(self):
        return self.accumulated

    def set_sums(self, sums):
        self.accumulated = sums


def test_variables_round_trip(variables):
    state = training_state.Variables(model_of([*variables.values()]))
    named, values = state.state()
    arrays = training_state.to_arrays(named)
    assert [array.dtype for array in arrays.values()] == ["float32", "uint16", "int64"]
    before = [v.numpy() for v in variables.values()]
    for variable in variables.values():
        variable.assign(keras.ops.zeros_like(variable))
    state.set_state({**arrays, "metric 00000 a": np.ones(9), "sum 00000": np.ones(3)}, values)
    for variable, value in zip(variables.values(), before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


@pytest.mark.parametrize("first", [True, False])
def test_sums_of_metrics_are_those_of_the_first_replica(variables, first):
    variables["3 sum"] = keras.Variable(5, dtype="int64", aggregation="sum")
    state = training_state.Metrics(model_of(metrics=[*variables.values()]), Worker(first))
    named, values = state.state()
    state.set_state(training_state.to_arrays(named), values)
    variables["2 count"].assign(0)
    state.assign(in_epoch=True)
    assert int(variables["2 count"]) == 7
    assert int(variables["3 sum"]) == (5 if first else 0)


def test_metrics_are_restored_once_and_within_an_epoch_only(variables):
    count = variables["2 count"]
    state = training_state.Metrics(model_of(metrics=[count]), Worker())
    saved = training_state.to_arrays(state.state()[0])
    count.assign(8)
    state.set_state(saved, None)
    state.assign(in_epoch=False)
    state.assign(in_epoch=True)
    assert int(count) == 8


def test_check_refuses_another_shape_or_dtype(variables):
    state = training_state.Variables(model_of([*variables.values()]))
    arrays = dict(training_state.to_arrays(state.state()[0]))
    state.check(Checkpoint(Path("a"), arrays | {"metric 0": np.ones(9)}, {}))
    kernel, _, count = arrays
    for name, array in ((kernel, np.ones((2, 1), "float32")), (count, np.array(7.0))):
        with pytest.raises(Refused, match=f"'{name}' is .*; in the model '{name}' is"):
            state.check(Checkpoint(Path("a"), arrays | {name: array}, {}))


@pytest.mark.parametrize(
    "sums", [Sums([None, tf.constant([2.0])], 3, 5), Sums()], ids=["three batches", "nothing"]
)
def test_gradients_round_trip(sums):
    worker = Worker()
    worker.set_sums(sums)
    state = training_state.Gradients(model_of(trainable=["a", "b"]), worker)
    named, values = state.state()
    worker.set_sums(None)
    state.set_state(training_state.to_arrays(named), values)
    restored = worker.sums()
    assert (restored.batches, restored.items) == (sums.batches, sums.items)
    for gradient, expected in zip(restored.gradients, sums.gradients, strict=True):
        np.testing.assert_array_equal(gradient, expected)


def test_generators_continue_from_a_saved_state():
    generators = training_state.Generators()
    arrays, values = generators.state()
    draws = random.random(), np.random.rand()  # noqa: NPY002
    generators.set_state(arrays, values)
    assert (random.random(), np.random.rand()) == draws  # noqa: NPY002
