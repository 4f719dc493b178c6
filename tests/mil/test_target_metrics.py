"""Metrics that compare the bags of an epoch: in any order, in parts, averaged by case, saved."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from cohorts import cohort

from tfbig import metrics, survival
from tfbig.mil.target_metrics import Concordance, LabelAUC, ScaledError, mean_auc, risks_of


def test_higher_risk_is_worse():
    """Whoever has the event for sure has a higher risk; so has a larger hazard ratio."""
    hazards = risks_of([[5.0, 5.0, 5.0], [0.0, 0.0, 0.0], [-5.0, -5.0, -5.0]]).numpy()
    assert hazards[0] > hazards[1] > hazards[2]
    ratios = risks_of([[2.0], [-1.0]]).numpy()
    assert ratios.tolist() == [2.0, -1.0]
    for risks in (hazards[[0, 2]], ratios):
        assert survival.concordance_index(risks, times=[1, 2], events=[1, 1]) == 1


def observed(seed):
    """Risks of slides `[n, 1]`, and their labels; two slides for each case."""
    _, times, events = cohort(seed, n=30)
    cases = np.repeat(np.arange(30), 2)
    ranks = np.unique(times, return_inverse=True)[1]
    labels = np.stack([0 * cases, events[cases], ranks[cases], cases], 1).astype(int)
    risks = np.random.default_rng(seed).normal(size=(60, 1)) - 0.1 * ranks[cases][:, None]
    return risks, labels, times, events


@pytest.mark.parametrize("seed", range(3))
def test_concordance_of_cases(seed):
    """Risks of the slides of a case are averaged; the order of the bags and the batches do not matter."""
    risks, labels, times, events = observed(seed)
    expected = survival.concordance_index(risks.reshape(30, 2).mean(1), times, events)
    metric, order = Concordance(40), np.random.default_rng(1).permutation(60)
    update = tf.function(lambda y, p: metric.update_state(y, p))
    for part in np.array_split(order, 7):
        update(tf.constant(labels[part]), tf.constant(risks[part], tf.float32))
    assert float(metric.result()) == pytest.approx(expected, rel=1e-6)
    assert np.isnan(tf.function(metric.result)())
    metric.reset_state()
    assert np.isnan(metric.result())  # nothing was seen
    metric.update_state(labels[:2], risks[:2])
    assert np.isnan(metric.result())  # nothing is comparable


def test_areas_of_labels():
    rng = np.random.default_rng(0)
    labels, scores = rng.integers(-1, 2, (40, 3)), rng.normal(size=(40, 3)).astype("float32")
    labels[:, 2] = np.where(labels[:, 2] == 0, -1, labels[:, 2])  # never 0: no area
    areas = [metrics.auc(y[y >= 0], s[y >= 0]) for y, s in zip(labels.T, scores.T, strict=True)]
    assert np.isnan(areas[2])
    metric = LabelAUC(50, 3)
    for part in np.array_split(np.arange(40), 6):
        metric.update_state(np.column_stack([labels, np.arange(40)])[part], scores[part])
    assert float(metric.result()) == pytest.approx(np.mean(areas[:2]))
    assert np.isnan(mean_auc(np.full((4, 2), -1), np.zeros((4, 2))))


def test_error_has_the_unit_of_the_values():
    metric = ScaledError(20.0)
    metric.update_state([[0.5], [-1.0]], [[0.0], [1.0]])
    assert float(metric.result()) == pytest.approx(20 * 1.25)


@pytest.mark.parametrize("metric", [Concordance(5), LabelAUC(4, 2), ScaledError(3.0)])
def test_metrics_are_saved(metric):
    again = keras.metrics.deserialize(keras.metrics.serialize(metric))
    assert again.get_config() == metric.get_config()
    assert [v.shape for v in again.variables] == [v.shape for v in metric.variables]


def test_replicas_add_up():
    """In a strategy the bags of all replicas are compared."""
    risks, labels, times, events = observed(4)
    devices = tf.config.list_logical_devices("CPU")[:1]
    with tf.distribute.MirroredStrategy([device.name for device in devices]).scope():
        metric = Concordance(30)
        strategy = tf.distribute.get_strategy()
        strategy.run(metric.update_state, (tf.constant(labels), tf.constant(risks, tf.float32)))
        expected = survival.concordance_index(risks.reshape(30, 2).mean(1), times, events)
        assert float(metric.result()) == pytest.approx(expected, rel=1e-6)
