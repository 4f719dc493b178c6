"""Dice against its equation, by strips and beyond what float32 can count."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfbig.metrics import Dice


def _pair(seed, shape=(2, 37, 29, 1)):
    rng = np.random.default_rng(seed)
    return (rng.random(shape) < 0.3).astype(np.uint8), rng.random(shape).astype(np.float32)


def _dice(y_true, y_pred, threshold=0.5):
    predicted = y_pred > threshold
    return 2 * (predicted & (y_true > 0)).sum() / (predicted.sum() + y_true.sum())


@pytest.mark.parametrize("threshold", [0.2, 0.5, 0.9])
def test_equals_its_equation(threshold):
    y_true, y_pred = _pair(0)
    metric = Dice(threshold=threshold)
    metric.update_state(y_true, y_pred)
    assert float(metric.result()) == pytest.approx(_dice(y_true, y_pred, threshold), rel=1e-6)


@pytest.mark.parametrize("strip_rows", [1, 5, 37])
def test_strips_give_the_same_bits(strip_rows):
    y_true, y_pred = _pair(1)
    whole, strips = Dice(), Dice()
    whole.update_state(y_true, y_pred)
    for start in range(0, 37, strip_rows):
        rows = slice(start, start + strip_rows)
        strips.update_state(y_true[:, rows], y_pred[:, rows])
    assert float(whole.result()) == float(strips.result())


@pytest.mark.parametrize(
    ("labelled", "predicted", "expected"), [(0, 0, 1.0), (1, 0, 0.0), (0, 1, 0.0), (1, 1, 1.0)]
)
def test_of_nothing_and_of_everything(labelled, predicted, expected):
    metric = Dice()
    metric.update_state(
        np.full((1, 4, 4, 1), labelled), np.full((1, 4, 4, 1), predicted, "float32")
    )
    assert float(metric.result()) == expected


def test_is_one_before_it_saw_anything_and_after_a_reset():
    metric = Dice()
    assert float(metric.result()) == 1.0
    metric.update_state(np.ones((1, 4, 4, 1)), np.zeros((1, 4, 4, 1), "float32"))
    metric.reset_state()
    assert float(metric.result()) == 1.0


def test_counts_beyond_float32():
    metric = Dice()
    for count in (metric.both, metric.predicted):
        count.assign(2**40)
    metric.labelled.assign(2**40)
    one = np.ones((1, 1, 1, 1), "float32")
    metric.update_state(one, one)
    assert int(metric.both) == 2**40 + 1


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_takes_any_dtype_of_prediction(dtype):
    y_pred = tf.cast([[[[0.1], [0.9]], [[0.7], [0.2]]]], dtype)
    metric = Dice()
    metric.update_state(np.array([[[[0], [1]], [[0], [0]]]], np.uint8), y_pred)
    assert float(metric.result()) == pytest.approx(2 / 3)


def test_runs_in_fit_and_in_a_tf_function():
    y_true, y_pred = _pair(2)
    metric = Dice()
    tf.function(metric.update_state)(tf.constant(y_true), tf.constant(y_pred))
    model = keras.Sequential([keras.Input((37, 29, 1)), keras.layers.Identity()])
    model.compile(loss="mse", metrics=[Dice()])
    logs = model.evaluate(y_pred, y_true, verbose=0, return_dict=True)
    assert logs["dice"] == float(metric.result())


def test_refuses_weights():
    with pytest.raises(ValueError, match="'dice' counts pixels and takes no sample weights"):
        Dice().update_state(np.ones((1, 1, 1, 1)), np.ones((1, 1, 1, 1)), np.ones(1))


def test_comes_back_from_its_config():
    metric = Dice(name="overlap", threshold=0.3)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(metric))
    assert (type(again), again.name, again.threshold) == (Dice, "overlap", 0.3)
