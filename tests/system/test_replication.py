"""Checks of distribution settings that would not work, and the number of replicas on a machine."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfbig
from tfbig.system import replication


def test_refuses_a_keras_distribution():
    image = keras.Input((None, None, 1))
    model = keras.Model(image, keras.layers.Conv2D(1, 1)(image))
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=["cpu:0"]))
    try:
        for create in (lambda: tfbig.stream(model), lambda: tfbig.layers.BigConv2D(1, 1)):
            with pytest.raises(
                ValueError, match=r"keras.distribution is set, which TensorFlow ignores"
            ):
                create()
    finally:
        keras.distribution.set_distribution(None)


def test_refuses_fit_on_several_machines(monkeypatch):
    image = keras.Input((None, None, 1))
    big = tfbig.stream(keras.Model(image, keras.layers.Conv2D(1, 1)(image)))
    big.compile("sgd", "mse")
    strategy = object.__new__(tf.distribute.MultiWorkerMirroredStrategy)
    monkeypatch.setattr(big, "_distribute_strategy", strategy)
    for method in (big.fit, big.evaluate):
        with pytest.raises(
            ValueError, match=r"cannot run under MultiWorker.*tfbig\.training\.Loop"
        ):
            method(np.ones((1, 8, 8, 1)), np.ones((1, 8, 8, 1)))


def test_refuses_an_accumulating_optimizer_under_a_strategy(monkeypatch):
    monkeypatch.setattr("tensorflow.distribute.has_strategy", lambda: True)
    with pytest.raises(ValueError, match=r"gradient_accumulation_steps=2, which fails in Keras"):
        replication.check(keras.optimizers.SGD(gradient_accumulation_steps=2))


def test_refuses_a_sum_as_loss_under_a_strategy(monkeypatch):
    monkeypatch.setattr("tensorflow.distribute.has_strategy", lambda: True)
    losses = {"a": "mse", "b": keras.losses.MeanSquaredError(reduction="sum")}
    with pytest.raises(
        ValueError, match=r"mean_squared_error has reduction='sum', with which repl"
    ):
        replication.check(keras.optimizers.SGD(), losses)


def test_plan_counts_the_replicas_on_a_machine(monkeypatch):
    image = keras.Input((None, None, 1))
    x = keras.layers.BatchNormalization()(keras.layers.Conv2D(4, 3)(image))
    model = keras.Model(image, keras.layers.Conv2D(1, 1)(x))

    def plan(replicas):
        monkeypatch.setattr(replication, "replicas_on_machine", lambda: replicas)
        big = tfbig.stream(model, tfbig.Budget(device="300KB", host="400MB", disk=0))
        big.compile("sgd", "mse")
        return big.plan((1, 64, 64, 1))

    alone, both = plan(1), plan(2)
    assert "replicas" not in str(alone)
    assert "each of 2 replicas on this machine: together host" in str(both)
    assert both.replicas == 2
    with pytest.raises(tfbig.BudgetError, match=r"19\.1 MiB are allowed"):
        plan(20)
