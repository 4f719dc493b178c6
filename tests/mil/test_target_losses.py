"""Losses of survival and of several labels against their definitions."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfbig import survival
from tfbig.mil.target_losses import CoxLoss, DiscreteTimeLoss, LabelCrossEntropy, Survival

LABELS = np.array([[0, 1, 4, 0], [1, 0, 9, 1], [2, 1, 6, 1], [1, 1, 4, 2]])
LOGITS = np.random.default_rng(0).normal(size=(4, 3))


@pytest.mark.usefixtures("float64")
def test_discrete_time_loss_reads_its_columns():
    expected = survival.discrete_time_loss(LOGITS, [0, 1, 2, 1], [1, 0, 1, 1], alpha=0.3)
    assert float(DiscreteTimeLoss(0.3)(LABELS, LOGITS)) == pytest.approx(float(expected))


@pytest.mark.usefixtures("float64")
def test_cox_loss_of_ranks_is_that_of_times():
    times = np.array([2.5, 400.25, 17.125, 2.5])
    expected = survival.cox_loss(LOGITS[:, 0], times, LABELS[:, Survival.EVENT])
    found = CoxLoss()(LABELS, LOGITS[:, :1])
    assert float(found) == pytest.approx(float(expected), rel=1e-12)


@pytest.mark.usefixtures("float64")
def test_labels_are_weighed_alike_and_masked():
    labels = np.array([[1, 0, -1], [-1, -1, 1], [0, 1, 1], [-1, -1, -1]])
    expected = 0.0
    for label, logit in zip(labels.ravel(), LOGITS.ravel(), strict=True):
        share = 1 / (1 + np.exp(-logit))
        expected -= {1: np.log(share), 0: np.log(1 - share), -1: 0}[label] / 3
    loss = LabelCrossEntropy()
    numbered = np.column_stack([labels, np.arange(4)])
    assert float(loss(numbered, LOGITS)) == pytest.approx(expected / 4, rel=1e-12)
    halves = [float(loss(numbered[s], LOGITS[s])) for s in (np.s_[:2], np.s_[2:])]
    assert np.mean(halves) == pytest.approx(expected / 4, rel=1e-12)
    variable = tf.Variable(LOGITS)
    with tf.GradientTape() as tape:
        value = loss(numbered, variable)
    gradient = tape.gradient(value, variable).numpy()
    np.testing.assert_array_equal(gradient == 0, labels < 0)


@pytest.mark.parametrize("loss", [DiscreteTimeLoss(0.25), CoxLoss(), LabelCrossEntropy()])
def test_losses_are_saved(loss):
    again = keras.losses.deserialize(keras.losses.serialize(loss))
    assert again.get_config() == loss.get_config()
