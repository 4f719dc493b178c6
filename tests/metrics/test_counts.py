"""Metrics compared with scikit-learn and their equations, in strips, beyond the range of float32, and in `fit`."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from sklearn.metrics import cohen_kappa_score, confusion_matrix, f1_score

from tfbig.metrics import ConfusionMatrix, Dice, QuadraticWeightedKappa


def _pair(seed, shape=(2, 37, 29, 1)):
    rng = np.random.default_rng(seed)
    return (rng.random(shape) < 0.3).astype(np.uint8), rng.random(shape).astype(np.float32)


def _dice(y_true, y_pred, threshold=0.5):
    predicted = y_pred > threshold
    return 2 * (predicted & (y_true > 0)).sum() / (predicted.sum() + y_true.sum())


@pytest.mark.parametrize("threshold", [0.2, 0.5, 0.9])
def test_dice_matches_equation(threshold):
    y_true, y_pred = _pair(0)
    metric = Dice(threshold=threshold)
    metric.update_state(y_true, y_pred)
    assert float(metric.result()) == pytest.approx(_dice(y_true, y_pred, threshold), rel=1e-6)


def test_dice_is_f1_score():
    y_true, y_pred = _pair(3)
    metric = Dice()
    metric.update_state(y_true, y_pred)
    expected = f1_score(y_true.ravel(), (y_pred > 0.5).ravel())
    assert float(metric.result()) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("strip_rows", [1, 5, 37])
def test_dice_of_strips_is_identical(strip_rows):
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
def test_dice_of_empty_and_full_masks(labelled, predicted, expected):
    metric = Dice()
    metric.update_state(
        np.full((1, 4, 4, 1), labelled), np.full((1, 4, 4, 1), predicted, "float32")
    )
    assert float(metric.result()) == expected


def test_dice_without_samples_is_one():
    metric = Dice()
    assert float(metric.result()) == 1.0
    metric.update_state(np.ones((1, 4, 4, 1)), np.zeros((1, 4, 4, 1), "float32"))
    metric.reset_state()
    assert float(metric.result()) == 1.0


def test_dice_counts_beyond_float32():
    metric = Dice()
    for count in (metric.both, metric.predicted):
        count.assign(2**40)
    metric.labelled.assign(2**40)
    one = np.ones((1, 1, 1, 1), "float32")
    metric.update_state(one, one)
    assert int(metric.both) == 2**40 + 1


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_dice_accepts_any_dtype(dtype):
    y_pred = tf.cast([[[[0.1], [0.9]], [[0.7], [0.2]]]], dtype)
    metric = Dice()
    metric.update_state(np.array([[[[0], [1]], [[0], [0]]]], np.uint8), y_pred)
    assert float(metric.result()) == pytest.approx(2 / 3)


def test_dice_in_evaluate_and_tf_function():
    y_true, y_pred = _pair(2)
    metric = Dice()
    tf.function(metric.update_state)(tf.constant(y_true), tf.constant(y_pred))
    model = keras.Sequential([keras.Input((37, 29, 1)), keras.layers.Identity()])
    model.compile(loss="mse", metrics=[Dice()])
    logs = model.evaluate(y_pred, y_true, verbose=0, return_dict=True)
    assert logs["dice"] == float(metric.result())


def test_dice_rejects_sample_weights():
    with pytest.raises(
        ValueError, match="'dice' counts pixels and does not support sample weights"
    ):
        Dice().update_state(np.ones((1, 1, 1, 1)), np.ones((1, 1, 1, 1)), np.ones(1))


def test_dice_config_round_trip():
    metric = Dice(name="overlap", threshold=0.3)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(metric))
    assert (type(again), again.name, again.threshold) == (Dice, "overlap", 0.3)


def _graded(seed, classes=5, samples=60):
    """Return labels `[N]` and probabilities `[N, classes]` that favour them."""
    rng = np.random.default_rng(seed)
    y_true = rng.integers(0, classes, samples)
    y_pred = rng.random((samples, classes)) + 0.5 * np.eye(classes)[y_true]
    return y_true, (y_pred / y_pred.sum(axis=1, keepdims=True)).astype("float32")


@pytest.mark.parametrize("classes", [2, 3, 6])
@pytest.mark.parametrize("seed", range(3))
def test_confusion_and_kappa_match_scikit_learn(classes, seed):
    y_true, y_pred = _graded(seed, classes)
    predicted, all_classes = y_pred.argmax(axis=1), range(classes)
    matrix, kappa = ConfusionMatrix(classes), QuadraticWeightedKappa(classes, dtype="float64")
    for rows in (slice(0, 7), slice(7, 7), slice(7, None)):  # one batch is empty
        matrix.update_state(y_true[rows], y_pred[rows])
        kappa.update_state(y_true[rows, None], np.log(y_pred[rows]))  # [N, 1] and logits
    expected = confusion_matrix(y_true, predicted, labels=all_classes)
    np.testing.assert_array_equal(matrix.result(), expected)
    expected = cohen_kappa_score(y_true, predicted, labels=all_classes, weights="quadratic")
    assert float(kappa.result()) == pytest.approx(expected, rel=1e-12)


def test_kappa_with_missing_classes_matches_scikit_learn():
    y_true, predicted = np.array([1, 1, 4, 4, 1]), np.array([1, 4, 4, 2, 1])
    metric = QuadraticWeightedKappa(6)
    metric.update_state(y_true, np.eye(6)[predicted])
    expected = cohen_kappa_score(y_true, predicted, labels=range(6), weights="quadratic")
    assert float(metric.result()) == pytest.approx(expected, rel=1e-6)


def test_kappa_by_hand():
    """Rows (2, 0, 0), (0, 1, 1), (0, 0, 0): one error of distance 1 in four samples."""
    metric = QuadraticWeightedKappa(3)
    metric.update_state(np.array([0, 0, 1, 1]), np.eye(3)[[0, 0, 1, 2]])
    errors = 1 / 4
    chance = (2 * 1 + 2 * 4 + 2 * 2 + 2 * 0 + 2 * 1) / 4 / 4
    assert float(metric.result()) == pytest.approx(1 - errors / chance, rel=1e-6)


@pytest.mark.parametrize("samples", [0, 3])
def test_undefined_kappa_is_zero(samples):
    metric = QuadraticWeightedKappa(4)
    metric.update_state(np.full(samples, 2), np.eye(4)[[2] * samples])
    assert float(metric.result()) == 0.0


def test_kappa_of_single_label_class_is_zero():
    metric = QuadraticWeightedKappa(4)
    metric.update_state(np.full(3, 2), np.eye(4)[[2, 3, 0]])
    assert float(metric.result()) == 0.0


@pytest.mark.parametrize("threshold", [0.5, 0.8])
def test_confusion_of_single_output(threshold):
    probability = np.array([[0.1], [0.6], [0.9], [0.5], [0.79]])
    y_true = np.array([0, 0, 1, 1, 1])
    expected = confusion_matrix(y_true, probability[:, 0] > threshold)
    for from_logits in (False, True):
        metric = ConfusionMatrix(2, threshold=threshold, from_logits=from_logits)
        logit = np.log(probability / (1 - probability))
        metric.update_state(y_true, logit if from_logits else probability)
        np.testing.assert_array_equal(metric.result(), expected)


@pytest.mark.parametrize("dtype", ["uint8", "int64", "float32"])
@pytest.mark.parametrize("predicted", ["bfloat16", "float64"])
def test_confusion_accepts_any_dtype(dtype, predicted):
    metric = ConfusionMatrix(3)
    y_pred = tf.cast([[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]], predicted)
    metric.update_state(np.array([2, 0], dtype), y_pred)
    np.testing.assert_array_equal(metric.result(), [[0, 1, 0], [0, 0, 0], [0, 0, 1]])


def test_confusion_counts_beyond_float32():
    metric = ConfusionMatrix(2)
    metric.counts.assign(np.full((2, 2), 2**40))
    metric.update_state(np.array([0]), np.array([[1.0, 0.0]]))
    np.testing.assert_array_equal(metric.result(), [[2**40 + 1, 2**40], [2**40, 2**40]])


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["eager", "graph"])
@pytest.mark.parametrize("label", [-1, 3, 1.5, 256.0])
def test_confusion_rejects_invalid_labels(wrap, label):
    metric = ConfusionMatrix(3, name="grades")
    message = "metric grades: expected labels that are whole numbers from 0 to 2, for 3 classes"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message) as error:
        wrap(metric.update_state)(tf.constant([0, label, 1]), tf.eye(3))
    assert str(label).removesuffix(".0") in str(error.value)
    assert not np.asarray(metric.result()).any()


def test_confusion_under_xla_ignores_invalid_labels():
    metric = ConfusionMatrix(3)
    tf.function(metric.update_state, jit_compile=True)(tf.constant([0, -1, 3]), tf.eye(3))
    np.testing.assert_array_equal(metric.result(), [[1, 0, 0], [0, 0, 0], [0, 0, 0]])


@pytest.mark.parametrize(
    ("y_true", "y_pred", "message"),
    [
        (np.eye(3), np.eye(3), r"labels have shape \(3, 3\).*argmax"),
        (np.zeros((3, 1, 1)), np.eye(3), r"labels have shape \(3, 1, 1\)"),
        (np.zeros(3), np.zeros((3, 4)), r"have shape \(3, 4\), expected \[N, 3\] for 3 classes"),
        (np.zeros(3), np.zeros((3, 1)), r"predictions have shape \(3, 1\)"),
        (np.zeros(3), np.zeros(3), r"predictions have shape \(3,\)"),
    ],
)
def test_confusion_rejects_invalid_shapes(y_true, y_pred, message):
    with pytest.raises(ValueError, match=message):
        ConfusionMatrix(3).update_state(y_true, y_pred)


def test_confusion_of_two_classes_names_both_shapes():
    with pytest.raises(ValueError, match=r"expected \[N, 2\] or \[N, 1\] for 2 classes"):
        ConfusionMatrix(2).update_state(np.zeros(3), np.eye(3))


def test_confusion_rejects_invalid_arguments():
    with pytest.raises(
        ValueError, match="'qwk' counts samples and does not support sample weights"
    ):
        QuadraticWeightedKappa(2).update_state(np.zeros(1), np.ones((1, 2)), np.ones(1))
    with pytest.raises(ValueError, match="'qwk': classes is 1, expected 2 or more"):
        QuadraticWeightedKappa(1)
    with pytest.raises(ValueError, match=r"threshold is 1\.0, expected a probability"):
        ConfusionMatrix(2, threshold=1.0)


def test_kappa_and_confusion_in_fit():
    y_true, y_pred = _graded(4)
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(5, "softmax")])
    metrics = [QuadraticWeightedKappa(5), ConfusionMatrix(5)]
    model.compile("sgd", "sparse_categorical_crossentropy", metrics=metrics)
    logs = model.evaluate(y_pred, y_true, batch_size=7, verbose=0, return_dict=True)
    predicted = model.predict(y_pred, verbose=0).argmax(axis=1)
    expected = cohen_kappa_score(y_true, predicted, weights="quadratic", labels=range(5))
    assert logs["qwk"] == pytest.approx(expected, abs=1e-6)
    np.testing.assert_array_equal(logs["confusion_matrix"], confusion_matrix(y_true, predicted))
    history = model.fit(y_pred, y_true, batch_size=60, epochs=2, verbose=2)  # prints a matrix too
    assert history.history["qwk"][0] == logs["qwk"]  # of the weights before the step
    assert [m.sum() for m in history.history["confusion_matrix"]] == [60, 60]  # it is reset


@pytest.mark.parametrize("kind", [ConfusionMatrix, QuadraticWeightedKappa])
def test_confusion_config_round_trip(kind):
    metric = kind(4, name="grades", threshold=0.3, from_logits=True)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(metric))
    assert type(again) is kind
    assert again.get_config() == metric.get_config()
    assert (again.classes, again.threshold, again.from_logits) == (4, 0.3, True)
